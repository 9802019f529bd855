r"""Further ways to write an answer are read: members, all reals, choices, repeating decimals, bases, names of points.

What can be told without reading it as an expression is, because that takes most of the time."""

import pickle

import pytest

from minrl.tasks import math
from minrl.tasks.gsm8k import number
from minrl.tasks.math import MathOptions, agreement, r1_zero_answer, reward
from minrl.tasks.math.agreement import answers_agree
from minrl.types import Example

RIGHT = r"""
(1,2) <- x\in(1,2)
1,-2 <- x\in\{1,-2\}
\{1,-2\} <- x \in \{1, -2\}
(-\infty,\infty) <- x\in\mathbb{R}
(-\infty,\infty) <- All real numbers
\mathbb{R} <- \text{All reals}
\text{all real numbers} <- \mathbb{R}
1,-2 <- x=1 \lor x=-2
(-\infty,2)\cup(3,\infty) <- x<2 \vee x>3
\text{(C)} <- \textbf{(C)}\ 3
C <- \mathrm{(C) } 17 \text{ apples}
\$18.90 <- \text{\$}18.90
18.90 <- USD 18.90
\$18.90 <- 18.90\text{ USD}
56 <- \text{56 ways}
4:30\text{ p.m.} <- \text{4:30 p.m.}
24 <- 24\text{ cm²}
24\text{ cm}^2 <- 24\text{ cm²}
\frac{4}{11} <- 0.(36)
\frac{4}{11} <- 0.\overline{36}
\frac{4}{11} <- 0.\dot{3}\dot{6}
\frac{1}{6} <- 0.1\dot6
0.\overline{36} <- 0.(36)
2516_8 <- 2516_{(8)}
204_5 <- 204_{five}
204_5 <- 204_{\text{(five)}}
(3,-4) <- P(3,-4)
(1,2),(3,4) <- A(1,2), B(3,4)
12 <- It is 12, not 13.
12 <- $12$ rather than $13$
18 <- 18 (in all)
3.14 <- about 3.14
5 <- **5**
"""
WRONG = r"""
(1,2) <- x\in(1,3)
\{1,-2\} <- x\in\{1,2\}
\mathbb{R} <- \text{all real numbers except }3
(-\infty,2)\cup(3,\infty) <- x<2 \lor x>4
\text{(B)} <- \textbf{(C)}\ 3
5 <- \textbf{(C)}\ 3
\$18.90 <- \text{\$}18.09
56 <- \text{57 ways}
56 <- \text{56 hundred}
24\text{ cm}^2 <- 24\text{ cm³}
0.36 <- 0.(36)
\frac{4}{11} <- 0.(37)
\frac{4}{11} <- 0.36
204_5 <- 204_{six}
(3,-4) <- P(-4,3)
13 <- It is 12, not 13.
12 <- 12, not 12
12 <- 12, not really
12 <- about 12
12 <- roughly $12$
12 <- ~12
12 <- 12 or so
18 <- 18 (dozen)
18 <- 18 (hundred)
18 <- 18 per cent
18 <- 18 lakh
"""


def paid(gold, answer, problem="For which values does it hold?"):
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(rf"\boxed{{{answer}}}", example, MathOptions(timeout_s=60.0)).parts["answer"] == 1


@pytest.mark.parametrize("pair", RIGHT.strip().split("\n"))
def test_another_notation_of_the_answer_is_paid(pair):
    assert paid(*pair.split(" <- "))


@pytest.mark.parametrize("pair", WRONG.strip().split("\n"))
def test_another_answer_in_the_same_notation_is_not(pair):
    assert not paid(*pair.split(" <- "))


def test_an_approximation_and_a_multiple_are_answers_where_the_problem_asks_for_them():
    assert paid("12", "about 12", "What is it, rounded to an integer?")
    assert paid("3", "3 dozen", "How many dozen eggs are there?")
    assert not paid("36", "36 dozen", "How many eggs are there?")


def test_what_a_choice_says_is_the_answer_where_the_problem_offers_it():
    assert paid("7", r"\textbf{(C)}\ 7", r"What is it? $\textbf{(A)}\ 5 \qquad \textbf{(C)}\ 7$")
    assert not paid("7", r"\textbf{(C)}\ 7", "What is it?")


@pytest.mark.parametrize("mark", ["<|im_end|>", "</s>", "\n<|endoftext|>", "<|eot_id|> or 13"])
def test_an_answer_in_tags_may_end_the_turn(mark):
    assert r1_zero_answer(f"so </think> <answer> 12 </answer>{mark}") == "12"
    assert r1_zero_answer(f"so </think> <answer> 12 </answer> or 13 {mark}") is None


@pytest.mark.parametrize(
    ("remark", "reads"), [("eighteen", True), ("in all", True), ("dozen", False), ("one dozen", False), ("half", False)]
)
def test_a_remark_of_gsm8k_does_not_change_the_number(remark, reads):
    assert (number(f"18 ({remark})") == 18) is reads
    assert number("18 (or nineteen)") is None


def refuse_to_read(monkeypatch):
    def read(*_):
        raise AssertionError("an expression is read")

    monkeypatch.setattr(agreement, "_found", read)
    agreement._expression.cache_clear()


UNION = r"(2,12) \cup (12,102)"


@pytest.mark.parametrize("other", ["10", r"\text{(C)}", r"1\frac{4}{5}", "x+1", r"\sqrt{3}"])
def test_a_union_of_intervals_is_no_number_and_nothing_is_read_to_say_so(monkeypatch, other):
    refuse_to_read(monkeypatch)
    assert not answers_agree(UNION, other) and not answers_agree(other, UNION)


def test_a_set_in_another_notation_is_still_read():
    assert answers_agree(r"(-\infty, 3) \cup (3, \infty)", r"\mathbb{R} \setminus \{3\}")


def test_what_is_nested_deeper_than_an_answer_is_not_read_at_all(monkeypatch):
    refuse_to_read(monkeypatch)
    assert not answers_agree("7", "(" * 60 + "8-1" + ")" * 60)
    assert answers_agree("(" * 60 + "7" + ")" * 60, "(" * 60 + "7" + ")" * 60)


def test_a_worker_that_is_asked_for_warmth_with_every_job_reads_once(monkeypatch):
    read = []
    monkeypatch.setattr(math, "answers_agree", lambda *pair: read.append(pair))
    math.warm.cache_clear()
    warm = pickle.loads(pickle.dumps(math.warm))  # as it comes with a job
    warm()
    warm()
    assert len(read) == 1


SPOKEN = [
    ("1000.99", "the number is not 10 which is 1,000.99€", True),
    ("10", "the number is not 10 which is 1,000.99€", False),
    ("13", "not 12, 13", True),
    ("12", "not 12, 13", False),
    ("100\\%", r"We get $$\frac{a}{b} = \frac{2b}{a} \ge 2.$$ Therefore, the least error increases by 100%.", True),
    ("2", r"We get $$\frac{a}{b} = 2.$$ Therefore, the least error increases by 100%.", False),
    ("1,22", "1.22", True),
    ("0,111", "0.111", True),
    ("1,222", "1.222", False),  # a thousand or a list
    (r"\boxed{1} papers and \boxed{2} bins", "1,2", True),
    (r"\boxed{1} papers and \boxed{2} bins", "2", False),
]


@pytest.mark.parametrize(("gold", "answer", "right"), SPOKEN)
def test_a_sentence_is_read_for_what_it_says_in_the_end(gold, answer, right):
    assert paid(gold, answer, "") is right


def test_a_comma_is_a_point_only_where_the_problem_writes_it_so():
    assert paid("1,22", "1.22", "What is half of 2,44?")
    assert not paid("1,22", "1.22", "Solve it for $x$, where $(1,2)$ is given.")


def test_two_choices_are_none():
    for hedge in ("(B) or (A)", "(B) and (C)", "(B) (A)", "(B), not (A)"):
        assert not paid(r"\text{(B)}", hedge, "Which is true? (A) $1>2$ (B) $2>1$ (C) $3>4$")
    assert paid(r"\text{(B)}", r"(B) $2>1$", "Which is true? (A) $1>2$ (B) $2>1$ (C) $3>4$")
