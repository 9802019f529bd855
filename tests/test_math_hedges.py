r"""Answers that offer several numbers, deny theirs in words, or equate it with another are not paid."""

import pytest

from minrl.tasks.boxed import boxes_together
from tests.test_math_claims import MANY, paid

BOTH = [
    ("0", "1", ["0for 1", "0either 1", "1times0²", "0the answer is 1k", "when 1Aa0", r"0\text{one of }\boxed1"]),
    (
        "12",
        "13",
        [
            "13$$_either 12",
            "12$either 13",
            "The answer is $12$. Or $13$.",
            "It is $12$. So it is 13.",
            "either 12 or 13",
            r"\boxed{12} I mean 13",
        ],
    ),
    (r"\frac{1}{2}", r"\frac{3}{2}", [r"\color{red}\frac{1}{2}\approx\frac{3}{2}\qquad", "either 1/2 or 3/2"]),
    ("x=2", "x=3", [r"x=2\maxthe answer is x=2x=3", r"the answer is x=2\\x=3", "x=2 | x=3", r"x=3 \cup x=2"]),
]
OTHER = [
    *(("5", one) for one in (r"5\text{ or 6}", r"5\text{, 6, 7, 8}", r"5\text{ cm}^2\text{ or 7}", r"5\text{ }^2")),
    *(("5", one) for one in (r"\text{negative } 5", "negative 5", "over 5", r"\text{below } 5", "unknown or 5")),
    *(("5", one) for one in (r"5\text{ M}", r"5\text{ bn}", r"5\text{ ppm}", r"5\text{ permille}", r"5\mathrm{pi}")),
    *(("5", one) for one in (r"\begin{cases} 6 \\ 5 \end{cases}", r"\color{white}{6} 5", r"5\text{ pct}", "5^{2}")),
    *((r"\frac{1}{2}", one) for one in (r"\text{less than }\frac{1}{2}", "$2$ rather than $\\frac{1}{2}$")),
    *(("2.5", one) for one in (r"2.5 \approx 7", r"2.5 \approx 3", r"2.5\text{, 3}")),
    *(("x=5", one) for one in ("6=x=5", "x^2=x=5", "2x=x=5", "10=x=5")),
    *((r"\text{(A)}", one) for one in ("(A) is wrong", r"\text{(A)}\text{ (false)}", "(A), (b)", "(A)(b)(c)")),
]
RIGHT = [
    ("x=5", r"2x=10 \implies x=5"),
    ("x=5", "x=2+3=5"),
    (r"2\sqrt{3}", r"2\sqrt{3} \approx 3.46"),
    ("12", "The answer is 12"),
    ("12", "12 is the answer"),
    ("12", r"12\text{ cm}^2"),
    ("12", "After a while there are $12$."),
    ("12", "There are 12 apples"),
    ("12", "The largest $n$ is 12."),
    ("12", "So $3$ times $4$ is 12. Do you have questions, or need more? Thank you!"),
    ("12", "We have $3$ rows of $4$, so there are 12 of them."),
    (r"\text{(A)}", r"(A)\ 3\sqrt{2}"),
    ("1,2", "The answer is $1$ or $2$"),
]


@pytest.mark.parametrize("prompt", ["boxed", "r1_zero"])
@pytest.mark.parametrize(("one", "other", "answers"), BOTH)
def test_no_answer_is_paid_for_two_references(one, other, answers, prompt):
    assert [text for text in answers if paid(MANY, one, text, prompt) and paid(MANY, other, text, prompt)] == []


@pytest.mark.parametrize(("gold", "answer"), OTHER)
def test_an_answer_that_says_another_thing_is_not_paid(gold, answer):
    assert not paid("How large is it?", gold, answer)


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_what_is_said_once_is_paid(gold, answer):
    assert paid("How large is it?", gold, answer)


CONVERT = "Convert 52 from base 8 to base ten."


@pytest.mark.parametrize(
    ("problem", "gold", "answer", "right"),
    [
        (CONVERT, "42", "42_8", False),
        (CONVERT, "42", "42_{10}", True),
        (MANY, "x=12", "x=12_8", False),
        ("Write 10 in base 8.", "x=12", "x=12_8", True),
    ],
)
def test_a_number_is_paid_in_the_base_that_is_asked_for(problem, gold, answer, right):
    assert paid(problem, gold, answer) is right


@pytest.mark.parametrize("between", [" / ", " | ", " (or ", ", or maybe ", " alternatively ", r" \vee ", " vs "])
def test_boxes_that_are_offered_together_are_read_together(between):
    assert boxes_together(rf"\boxed{{1}}{between}\boxed{{2}}") == ["1", "2"]
