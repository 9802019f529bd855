r"""Which answers of math are paid: what math-verify pays, less other numbers, hedges and the problem's own expressions.

Each line of a table is `reference <- answer`, or `problem | reference <- answer`. tests/test_answer_kinds.py has the
rewrites and near misses of every form of reference.
"""

import logging

import pytest

from minrl.dataflow import Example
from minrl.tasks import math_answers
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math_answers import answers_agree

FORMS = {"boxed": r"so \boxed{ANSWER}", "tagged": "so </think> <answer> ANSWER </answer>"}
OPTIONS = {prompt: MathOptions(prompt=prompt, timeout_s=60.0) for prompt in FORMS}


def paid(problem, gold, answer, prompt="boxed"):
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(FORMS[prompt].replace("ANSWER", answer), example, OPTIONS[prompt]).parts["answer"] == 1


def verdicts(table, prompt="boxed"):
    """The lines of a table, and those of them that are paid."""
    lines, right = table.strip().split("\n"), []
    for line in lines:
        problem, split, pair = line.rpartition(" | ")
        gold, answer = pair.split(" <- ")
        if paid(problem if split else "", gold, answer, prompt):
            right.append(line)
    return lines, right


PAID = r"""
\frac{3}{4} <- \frac{6}{8}
4 <- 2^2
2\sqrt{3} <- \sqrt{12}
\frac{1}{2} <- 0.5
\frac{1}{2} <- $x = \frac{1}{2}$.
\frac{1}{3} <- 0.\overline{3}
\sqrt{2} <- 1.414214
10^{-17} <- 1e-17
\frac{1}{2^{99}} <- 2^{-99}
\frac{1}{2004!} <- \frac{2005}{2005!}
11,\! 111,\! 111,\! 100 <- 11111111100
1.5\text{ million} <- 1{,}500{,}000
8 <- 2(4)
12 <- 2\binom{4}{2}
12\text{ miles per hour} <- 12 mph
864 \mbox{ inches}^2 <- 864 square inches
12 <- 12\text{ cm}^2
\$18.90 <- 18.90
50\% <- 0.5
What percent of 50 is 10? | 20 <- 20\%
52_8 <- 52₈
It costs \$20 and half is \$10. How much? | 10 <- \frac{60}{6}
\left( 3, \frac{\pi}{2} \right) <- (3, \pi/2)
1,2 <- The answer is $1$ or $2$
12-3m <- 12 - m \cdot 3
(x+1)^2 <- x^2 + 2x + 1
2\sqrt{3} <- 2√3
\text{Evelyn} <- evelyn
12 <- There are 12 apples.
x=5 <- x=2+3=5
2\sqrt{3} <- 2\sqrt{3} \approx 3.46
15 <- 15\text{ (since the sum is 15)}
Find $f(2)$. | 5 <- f(2)=5
How many dozen eggs are there? | 3 <- 3 dozen
"""
"""Equal values, other notation, units that one side leaves out, and words around an answer."""

REFUSED = r"""
3 <- 3x
12 <- 1 2
\frac{1}{2} <- 0.4999
\frac{1}{3} <- 0.333334
2^{100} <- 1.26765\times10^{30}
\frac{1}{2^{99}} <- x = \frac{1}{2^{98}}
\frac{1}{2004!} <- \frac{1}{2006!}
1-\frac{1}{2^{99}} <- 1-\frac{1}{2^{98}}
6 <- 2(4)
4t <- 4
20 <- 20\%
A tin is $2\%$ of 100. How many are 1000 tins? | 2000 <- 2000\%
x \in [-2,7] <- g \in [-2,7]
1,-2 <- -2<x<1
|x| <- x
\text{E} <- \text{A}
"""
"""Other values, and the same number in another base or bracket."""

HEDGED = r"""
3 <- 1,2,3,4
3 <- 1 \text{ or } 3
12 <- either 12 or 13
12 <- The answer is $12$. Or $13$.
12 <- It is not 12
12 <- I would say 13 but maybe 12
12 <- Between 11 and 12
12 <- about 12
2 <- x=8=2
7 <- 7\text{ dozen}
7 <- 7 and a half
7 <- 7\text{ times two}
Is it another or a note? | 12 <- 12, not 13
\text{(B)} <- (B) or (A)
7\sqrt{2} <- 7\sqrt{2}, 7\sqrt{3}
"""
"""Several different answers, and an answer that is denied or changed."""


@pytest.mark.parametrize("prompt", FORMS)
def test_an_answer_of_the_same_value_is_paid(prompt):
    lines, right = verdicts(PAID, prompt)
    assert right == lines


@pytest.mark.parametrize("table", [REFUSED, HEDGED])
def test_another_value_and_several_values_are_not_paid(table):
    assert verdicts(table)[1] == []


BOTH = {
    ("12", "13"): ["12$either 13", "It is $12$. Or it is 13.", "12 or maybe 13", "12 / 13", "12 | 13"],
    (r"\frac{1}{2}", r"\frac{3}{2}"): [r"\frac{1}{2}\approx\frac{3}{2}", r"\frac12=\frac32"],
    ("x=2", "x=3"): [r"x=2\\x=3", r"x=3 \cup x=2", "x=2=3"],
}


@pytest.mark.parametrize("prompt", FORMS)
def test_no_answer_is_paid_for_two_references(prompt):
    for (one, other), answers in BOTH.items():
        assert [text for text in answers if paid("", one, text, prompt) and paid("", other, text, prompt)] == []


RESTATED = [
    (
        r"Compute $\binom{17}{9}$.",
        "24310",
        ["24,310", r"\frac{24310}{1}"],
        [r"\binom{17}{9}", r"0+\binom{17}{9}"],
    ),
    (r"Simplify $\sqrt{8}$.", r"2\sqrt{2}", [r"2\cdot\sqrt2"], [r"\sqrt8", r"1\cdot\sqrt{8}"]),
    ("Expand $(x+3)^2$.", "x^2+6x+9", ["9+6x+x^2"], ["(x+3)^2", "(x+3)^2+0"]),
    (r"Simplify $\frac{24}{36}$.", r"\frac23", ["2/3", r"\frac{4}{6}"], [r"\frac{24}{36}"]),
    ("How many subsets has a set of 10?", "1024", ["2^{10}"], []),
    (r"Is $x+1$ a factor of $x^2+x+1$?", "1+x", ["x+1"], []),
    ("Choose 5 from a group of 6?", "6", ["Choose 5 from a group of 6? 6"], ["Choose 5 from a group of 6?"]),
]
"""A problem, its reference, answers, and what only restates the problem."""


@pytest.mark.parametrize(("problem", "gold", "answers", "restated"), RESTATED)
def test_what_only_restates_the_problem_is_not_paid(problem, gold, answers, restated):
    assert [one for one in answers if not paid(problem, gold, one)] == []
    assert [one for one in restated if paid(problem, gold, one)] == []


def test_sympy_is_not_asked_whether_an_infinity_is_a_number(monkeypatch):
    # In some orders of its hashes sympy's 12/7 - oo/7 is 0.
    monkeypatch.setattr(math_answers, "_verified", lambda meant, given: True)
    assert not answers_agree(r"\frac{12}{7}", r"\frac{-inf}{7}") and not answers_agree("12", r"\frac{\infty}{7}")
    assert answers_agree(r"-\infty", r"\frac{-\infty}{7}") and answers_agree("x < 3", r"(-\infty, 3)")


def test_the_library_says_nothing_about_what_a_model_wrote(caplog):
    with caplog.at_level(logging.DEBUG):
        assert not paid("", "3", r"\frac{1}{") and not paid("", "3", "1/0")
    assert not caplog.records
