"""What answers leave undone what the problem asks for, and which are right however they are written."""

import time

import pytest

from minrl.tasks.math import MathOptions, is_right, stated
from minrl.tasks.math.worked_out import expressions, is_longer_than_numbers
from minrl.tasks.math.written import number
from minrl.types import Example

PATIENCE_S = MathOptions(timeout_s=60.0).timeout_s
PROBLEMS = [
    (
        r"Expand $(x+1)^2$.",
        "x^2+2x+1",
        ["x^2 + 2x + 1", "1+2x+x^2", "2x+1+x^2"],
        [
            "(x+1)^2",
            "(1+x)^2",
            "(x+1)(x+1)",
            "(x+1)^2+0",
            "x(x+1)+x+1",
            "x(x+2)+1",
            "(x+1)^{2}",
            "x^2+x+x+1",
            "(x+1)^3/(x+1)",
            "x^2 + 1 + x + x",
        ],
    ),
    (
        r"Factor $x^2-5x+6$.",
        "(x-2)(x-3)",
        ["(x-3)(x-2)", r"(x-2)\cdot(x-3)", "(2-x)(3-x)"],
        ["x^2-5x+6", "6-5x+x^2", "x(x-5)+6", "1(x^2-5x+6)", "x^2-5x+6+0", "x^2-2x-3x+6"],
    ),
    (
        r"Simplify $\sqrt{8}$.",
        r"2\sqrt{2}",
        [r"2\cdot\sqrt2", "2*sqrt(2)", r"\sqrt2\cdot2", r"2 \times \sqrt{2}"],
        [
            r"1\sqrt8",
            r"\sqrt8",
            r"\sqrt{8}1",
            r"\sqrt{+8}",
            r"\sqrt{4\cdot2}",
            r"8^{1/2}",
            r"8^{0.5}",
            r"\sqrt{2^3}",
            "2^{3/2}",
            "sqrt(8)",
            "√8",
            r"\sqrt[4]{64}",
        ],
    ),
    (
        r"Compute $\sin 60^\circ$.",
        r"\frac{\sqrt{3}}{2}",
        [r"\sqrt3/2", r"\frac12\sqrt3", r"0.5\sqrt{3}", r"\sqrt{3}/2"],
        [r"\sin 60^\circ", r"\cos 30^\circ", r"\sin(60)", r"\sin 120^\circ", r"\sin\frac{\pi}{3}"],
    ),
    (
        r"Write $\sin 2x$ in terms of $\sin x$ and $\cos x$.",
        r"2\sin x\cos x",
        [r"2 \cos x \sin x", r"2\sin(x)\cos(x)"],
        [r"\sin 2x", r"\sin(x+x)", r"0+\sin 2x", r"\sin(2x)"],
    ),
    (
        r"Compute $\binom{17}{9}$.",
        "24310",
        ["24,310", "24310.0", r"24310\text{ ways}", r"\frac{24310}{1}", r"2.431\times10^4", "x = 24310"],
        [
            r"\binom{17}{8}",
            r"0+\binom{17}{9}",
            r"\frac{17!}{9!8!}",
            "17C9",
            r"\binom{17}{9}",
            r"\frac{48620}{2}",
            r"2\cdot12155",
            r"\binom{16}{8}+\binom{16}{9}",
            r"24311-1",
        ],
    ),
    (r"What is $3^{10}$?", "59049", ["59049", "59{,}049"], ["3^{10}", "9^5", "3^{10}+0", "3^{5}3^5", "243^2"]),
    (r"Find $f(4)$ if $f(x)=x^2+x$.", "20", ["20", "20.0"], ["4^2+4", "f(4)", "16+4", r"4\cdot5", "4(5)"]),
    (
        r"How many subsets does a set of 10 elements have?",
        "1024",
        ["1024", "2^{10}"],
        [r"\sum_{k=0}^{10}\binom{10}{k}"],
    ),
    (
        r"Simplify $\frac{x^2-1}{x-1}$.",
        "x+1",
        ["1+x", "(x+1)"],
        [r"\frac{x^2-1}{x-1}", "(x^2-1)/(x-1)", r"\frac{(x-1)(x+1)}{x-1}", r"(x^2-1)(x-1)^{-1}"],
    ),
    (r"Solve $|x-2|<3$.", "(-1,5)", ["(-1,5)", "-1<x<5"], ["|x-2|<3", "3>|x-2|", "|2-x|<3"]),
    (
        r"Write $2x+4y-3=0$ in slope-intercept form.",
        r"y=-\frac12x+\frac34",
        [r"y = -\frac{1}{2}x + \frac{3}{4}", "y=-0.5x+0.75", r"y=-\frac{x}{2}+\frac34"],
        ["2x+4y-3=0", "2x+4y=3", "4y+2x-3=0", "0=2x+4y-3"],
    ),
    (r"Express $0.\overline{3}$ as a common fraction.", r"\frac13", ["1/3"], [r"0.\overline{3}", r"0.333\overline{3}"]),
    (r"Simplify $\frac{24}{36}$.", r"\frac23", ["2/3"], ["24/36", "12/18", r"\frac{4}{6}", r"\frac{24}{36}+0"]),
    (r"Express $\frac{3}{20}$ as a percent.", r"15\%", ["15", "15\\%"], [r"\frac{3}{20}", "3/20"]),
    (r"What is $2+3$ and $2\cdot 3$?", "5,6", ["5,6", "6,5", "5 and 6"], ["2+3,6", r"2+3,2\cdot3"]),
    (
        r"Let $x=\sqrt{50}$. What is $x$ in simplest form?",
        r"5\sqrt2",
        ["x=5\\sqrt2", r"5\sqrt{2}"],
        [r"x=\sqrt{50}", r"x=1\cdot\sqrt{50}"],
    ),
    (r"Evaluate $i^{17}$.", "i", ["i", "0+i"], ["i^{17}", r"i^{16}\cdot i"]),
    (r"Evaluate $\log_2 8$.", "3", ["3"], [r"\log_2 8", r"\frac{\ln 8}{\ln 2}", r"\log_2 2^3", "|3|", r"\frac{12}{4}"]),
]
"""Problems with their reference, answers that are worked out, and answers that are not."""
COPIED = [
    ("How far is it?", "draw((0,0)--(sqrt(51),1));", r"\sqrt{51}", "sqrt(51)"),
    ("What is $a$ if $x=2a+3\\sqrt{5}+1$?", "", r"3\sqrt{5}", r"3 \cdot \sqrt{5}"),
    ("Is $x+1$ a factor of $x^2+x+1$?", "", "1+x", "x+1"),
]


def right(problem, gold, answer):
    return is_right(answer, Example("", "", {"problem": problem, "answer": gold}), PATIENCE_S)


@pytest.mark.parametrize(("problem", "gold", "good", "idle"), PROBLEMS, ids=[one[0] for one in PROBLEMS])
def test_what_is_worked_out_is_right_and_the_problem_written_otherwise_is_not(problem, gold, good, idle):
    assert [answer for answer in good if not right(problem, gold, answer)] == []
    assert [answer for answer in idle if right(problem, gold, answer)] == []


@pytest.mark.parametrize(("problem", "figure", "gold", "answer"), COPIED)
def test_figures_and_the_insides_of_other_formulas_state_nothing(problem, figure, gold, answer):
    assert right(f"{problem} [asy] {figure} [/asy]", gold, answer)


def test_without_a_problem_equal_values_are_right():
    for gold, answer in (("24310", r"\binom{17}{9}"), (r"5\sqrt{2}", r"\sqrt{50}"), ("5", "2+3")):
        assert right("", gold, answer)


def test_prose_is_judged_by_its_last_formula():
    problem = r"Compute $\binom{17}{9}$."
    assert right(problem, "24310", "The answer is 24310.") and right(problem, "24310", "It is $24310$.")
    assert right("How much?", "4", r"We have $\binom{9}{3}+\sqrt{x}$. Therefore, it is 4.")
    assert not right("How much?", "4", r"We have $\binom{9}{3}+\sqrt{x}$. Therefore, it is 2+2+0.")
    assert not right(problem, "24310", r"We simplify to the expression $0+\binom{17}{9}$")


def test_an_equation_of_the_problem_is_no_answer():
    problem = "If $a+b+c=0$, what is the most that $|a+b+c|$ can be?"
    assert not right(problem, "0", "a+b+c=0") and not right(problem, "0", "x = c + b + a = 0")
    assert right(problem, "0", "x = 0")


def test_a_stated_value_is_known_by_its_value():
    assert stated(r"Simplify $\sqrt{50}$ and $\sqrt{51}$.", r"5\sqrt{2}", PATIENCE_S) == (r"\sqrt{50}",)
    assert list(expressions("A well-known sum of 3 is 1+2.")) == ["1+2"]


@pytest.mark.parametrize("piece", ["{", "9", "a", "(", "x_", r"\frac", "1+", "^{1/2}", "$1", r"\text{", "1,", "9^"])
def test_reading_takes_time_in_proportion(piece):
    text = piece * (4000 // len(piece))
    started = time.process_time()
    is_longer_than_numbers(text, "24310")
    number(text)
    assert time.process_time() - started < 20  # a fraction of a second here; a search that runs away takes for ever


def test_a_sum_or_an_integral_around_it_works_nothing_out():
    problem = "Factor $ab+5b+2a+10$."
    for around in (r"\sum_{k=0}^{0} (ab+5b+2a+10)", r"\int_0^1 (ab+5b+2a+10) \, dt", r"\max(ab+5b+2a+10)"):
        assert not right(problem, "(a+5)(b+2)", around)
    assert right("Write $1+2+3$ with a sign of a sum.", r"\sum_{k=1}^{3} k", r"\sum_{j=1}^{3} j")


def test_numbers_around_it_work_nothing_out():
    problem = r"Compute $\frac{-3+4i}{1+2i}$."
    assert not right(problem, "1+2i", r"2\cdot\frac{\frac{-3+4i}{1+2i}}{2}")
    assert right(problem, "1+2i", "2i+1")
