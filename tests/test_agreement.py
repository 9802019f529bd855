"""Which answers agree: numbers by their digits, units, brackets, several boxes, several references."""

import json
from dataclasses import replace

import pytest

from minrl.tasks import load_task
from minrl.tasks.boxed import boxes_together
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math.agreement import answers_agree
from minrl.types import Example, UserError

PATIENT = MathOptions(timeout_s=60.0)


def agree(pairs):
    """Those of `gold | answer` that agree."""
    rows = [tuple(line.split(" <- ")) for line in pairs.strip().split("\n")]
    return [pair for pair in rows if answers_agree(*pair)], rows


AGREE = r"""
12-3m <- 12 - m \cdot 3
2c+d <- d+2c
\pi r^2 h <- h\pi r^2
5\text{ h} <- 5 hours
12 <- 12 m
12\text{ m} <- 12\,\mathrm{m}
3\text{ m} <- 3
100 <- 100 dollars
\$100 <- 100 dollars
12 <- 12 miles per hour
12\text{ miles per hour} <- 12 mph
60\text{ km/h} <- 60 kilometers per hour
12\text{ cm}^2 <- 12 cm^2
864 \mbox{ inches}^2 <- 864 square inches
18,000 <- 18 thousand
1.5\text{ million} <- 1{,}500{,}000
50\% <- 50
50\% <- 0.5
2516_8 <- 2516 base 8
2516_8 <- 2516_{\text{eight}}
8\pi <- 8pi
\frac{\pi}{6} <- pi/6
2\sqrt{3} <- 2√3
x^2+1 <- x**2+1
\frac{13}{4} <- 13/4.
\frac{1}{3} <- 0.\overline{3}
\frac{1}{6} <- 0.166...
\frac{1}{270725} <- 0.00000369379
10^{-17} <- 1e-17
\sqrt{2} <- 1.414214
2^{1000} <- 4^{500}
(-\infty,3) <- x<3
(3,4] <- 3<x\le4
(-\infty, 2) \cup (3, \infty) <- x<2 \text{ or } x>3
(1,2,3) <- \begin{pmatrix}1\\2\\3\end{pmatrix}
\{1\pm\sqrt{5},-2\} <- -2, 1+\sqrt5, 1-\sqrt5
4:30\text{ p.m.} <- 4:30 p.m.
4:30\text{ p.m.} <- 16:30
54^\circ, 60^\circ <- 54°, 60°
\sin 30^\circ <- \frac12
8 <- 2(4)
12 <- 2\binom{4}{2}
-1 <- i^2
y = 2x + 3 <- 2x - y + 3 = 0
x=5 <- 5
\text{(C)} <- C
11,\! 111,\! 111,\! 100 <- 11111111100
\begin{pmatrix}1\\2\end{pmatrix} <- \begin{pmatrix}1\\[6pt]2\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} <- \begin{pmatrix}1\cr 2\end{pmatrix}
60^\circ <- 60\degree
75^\circ <- 75^{\text{o}}
75^\circ <- 75^o
56 <- \textcolor{red}{56}
56 <- \color{blue}{56}
56 <- {\bf 56}
56 <- \large 56
56 <- \underline{56}
56 <- 56 \checkmark
(-2,3) <- \boldsymbol{(-2,3)}
27 <- 27\
-2\le x\le 7 <- -2\leqslant x\leqslant 7
"""
DIFFER = r"""
12-3m <- 9
4t <- 4
4m <- 4
4 <- 4m
\pi r^2 h <- \pi r^2
12\text{ km} <- 12\text{ cm}
12\text{ cm}^2 <- 12\text{ cm}
12\text{ miles per hour} <- 12\text{ kilometers per hour}
5\text{ hours} <- 5 minutes
30^\circ <- 30\text{ radians}
\$5 <- 5 cents
52_8 <- 52_9
1440 <- 1440\%
52_8 <- The answer is 52_9
52_8 <- 52_9, no, 52_8
50\% <- 5\%
18 <- 18 thousand
18\text{ thousand} <- 18
\frac{1}{270725} <- 0.000004
10^{-17} <- 10^{-18}
10^{-20} <- 0
10^{-17} <- 2e-17
\sqrt{2} \cdot 10^{-30} <- \sqrt{3} \cdot 10^{-30}
0.123456789 <- 0.123456788
\frac{1}{3} <- 0.333334
\frac{1}{3} <- 0.33
1 <- 1.0000001
2^{1000} <- 2^{1000} + 1
262537412640768744 <- e^{\pi\sqrt{163}}
(1,2,3) <- \{1,2,3\}
\{0,1\} <- (0,1)
(1,2) <- [1,2]
(-\infty,3] <- [-\infty,3]
(2,\infty) <- (2,\infty]
x<3 <- y<3
x<3 <- x \le 3
1,1 <- 1
4:30\text{ p.m.} <- 4:30 a.m.
6 <- 2(4)
8 <- 2\binom{4}{2}
7 = 11a+c <- 11a+c
|x| <- x
"""


def test_what_is_right_in_another_notation_agrees():
    found, rows = agree(AGREE)
    assert found == rows


def test_what_only_looks_alike_does_not_agree():
    found, _ = agree(DIFFER)
    assert found == []


def test_a_percent_counts_as_asked_for():
    assert answers_agree("20", r"20\%", "What percent of 50 is 10?")
    assert answers_agree("20", "20 percent", r"By how many \% does it rise?")
    assert not answers_agree("20", r"20\%", "What is the sum of 10 and 10?")
    assert not answers_agree("2000", r"2000\%", r"If 2\% of it are 40 calories, how many calories are all?")


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"$x = \boxed{1}$ or $x=\boxed{2}$.", ["1", "2"]),
        (r"\boxed{(1, 2)}, \boxed{(2, 1)}, \boxed{(5, 7)}", ["(1, 2)", "(2, 1)", "(5, 7)"]),
        (r"\boxed{5} and \boxed{5}", ["5"]),
        (r"we get \boxed{5}. Then it is \boxed{7}", ["7"]),
        (r"\boxed{5}, wait, \boxed{7}", ["7"]),
        (r"\boxed{5}, so \boxed{7}", ["7"]),
        (r"\boxed{5}, or rather \boxed{7}", ["7"]),
        ("no box", []),
    ],
)
def test_boxes_that_are_listed_together_are_one_answer(text, boxes):
    assert boxes_together(text) == boxes


def of(answer, problem=""):
    return Example("", "", {"problem": problem, "answer": answer})


@pytest.mark.parametrize(
    ("answer", "completion", "solved"),
    [
        ("1, 2", r"$x=\boxed{2}$ or $x=\boxed{1}$", True),
        ("2", r"$x=\boxed{1}$ or $x=\boxed{2}$", False),  # two candidates, of which one is right
        (r"\frac{7}{2}", r"It is $\boxed{3\frac{1}{2}}$, or $\boxed{\frac{7}{2}}$", True),  # one value, written twice
        ("2", r"\boxed{1}. Then it is \boxed{2}", True),
    ],
)
def test_several_boxes_are_paid_for_what_they_say_together(answer, completion, solved):
    assert reward(completion, of(answer), PATIENT).solved == solved


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"Hence $x=\boxed{4}$ or $x=\boxed{-1}$.", "4, -1"),
        (r"So it is $\boxed{3\frac{1}{2}}$, or $\boxed{\frac{7}{2}}$.", r"\frac{7}{2}"),
        (r"First $\boxed{1}$. Then $\boxed{2}$.", "2"),
    ],
)
def test_a_solution_with_several_boxes_keeps_them_as_reference(tmp_path, solution, answer):
    assert only(tmp_path, {"problem": "Which?", "solution": solution})["answer"] == answer


def only(tmp_path, row, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return load_task("math", {"math": MathOptions(held_out_share=1.0, **options)}, str(path)).dataset.held_out[0]


LISTED = {"problem": "How long is it?", "answer": [r"1.5\text{ m}", r"150\text{ cm}"]}


@pytest.mark.parametrize(("answer", "solved"), [("150 cm", True), ("1.5", True), ("150, 1.5", False), ("2", False)])
def test_any_answer_of_a_list_is_right(tmp_path, answer, solved):
    assert reward(rf"\boxed{{{answer}}}", only(tmp_path, LISTED), PATIENT).solved == solved


def test_a_list_of_answers_can_be_one_answer(tmp_path):
    example = only(tmp_path, {"problem": "Which?", "answer": ["1", 2]}, answer_lists="all")
    assert reward(r"\boxed{2, 1}", example, PATIENT).solved
    assert not reward(r"\boxed{2}", example, PATIENT).solved


@pytest.mark.parametrize(
    ("answer", "lists", "said"),
    [
        (["1"], "refuse", "`answer` is a list, which --math.answer-lists refuse does not take"),
        ([], "any", "`answer` is a list that is empty or has an empty answer"),
        (["1", " "], "any", "`answer` is a list that is empty or has an empty answer"),
        ([["1"]], "any", "`answer` is a list of more than texts and numbers"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path, answer, lists, said):
    with pytest.raises(UserError, match=said):
        only(tmp_path, {"problem": "Which?", "answer": answer}, answer_lists=lists)


@pytest.mark.parametrize("value", [{"a": 1}, float("nan"), True])
def test_an_answer_that_is_no_text_or_number_is_refused(tmp_path, value):
    for answer, said in ((value, "`answer` must be a text or a number"), ([value], "a list of more than texts and n")):
        with pytest.raises(UserError, match=said):
            only(tmp_path, {"problem": "Which?", "answer": answer})
    with pytest.raises(UserError, match="`problem` must be a text, got list"):
        only(tmp_path, {"problem": ["odd"], "answer": "1"})


@pytest.mark.parametrize("answer", ["", " ", None])
def test_without_an_answer_the_solution_is_read(tmp_path, answer):
    row = {"problem": "Which?", "answer": answer, "solution": r"It is \boxed{7}."}
    assert only(tmp_path, row).fields["answer"] == "7"
    assert reward(r"\boxed{7}", Example("", "", row), PATIENT).solved


@pytest.mark.parametrize(("lists", "paid"), [("any", {"1": True, "2, 1": False}), ("all", {"1": False, "2, 1": True})])
def test_the_row_of_a_completion_is_read_with_its_lists_as_those_trained_on(lists, paid):
    example = Example("", "", {"answer": ["1", "2"]})
    options = replace(PATIENT, answer_lists=lists)
    assert {answer: reward(rf"\boxed{{{answer}}}", example, options).solved for answer in paid} == paid


@pytest.mark.parametrize("completion", [r"\boxed{1}", "no box"])
def test_the_row_of_a_completion_with_a_list_can_be_refused(completion):
    with pytest.raises(UserError, match=r"--math\.answer-lists refuse"):
        reward(completion, Example("", "", {"answer": ["1"]}), replace(PATIENT, answer_lists="refuse"))
