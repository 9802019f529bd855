r"""What an answer claims beside the right number counts: names, other equations, negation, words that change it."""

import pytest

from minrl.tasks.math import MathOptions, reward
from minrl.tasks.math.agreement import answers_agree
from minrl.types import Example


def paid(problem, gold, answer, prompt="boxed"):
    completion = rf"\boxed{{{answer}}}" if prompt == "boxed" else f"so </think> <answer> {answer} </answer>"
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(completion, example, MathOptions(prompt=prompt, timeout_s=60.0)).parts["answer"] == 1


@pytest.mark.parametrize("opens", [r"\boxed{", "(", "{", r"\sqrt{", r"\left(", "-", r"\{"])
@pytest.mark.parametrize("closes", ["}", ")"])
def test_no_nesting_leaves_the_comparison(opens, closes):
    assert not answers_agree("7", opens * 550 + "6" + closes * 550)


@pytest.mark.parametrize("gold", [r"2\sqrt3", "x^2+1", r"1\pm\sqrt2"])
def test_a_matrix_times_a_symbol_is_no_number(gold):
    assert not answers_agree(gold, r"\begin{pmatrix}1&2\\3&4\end{pmatrix}x")


def test_a_command_that_begins_like_plus_minus_is_another():
    assert paid("", r"x \equiv 6 \pmod{7}", r"x\equiv6 \pmod 7")
    assert not paid("", r"x \equiv 6 \pmod{7}", r"x\equiv5 \pmod 7")
    assert not paid("What is left?", "6", r"6 \pmod{7}")
    assert not paid("What is left?", "6", r"\pmb{5}")


POINT = "Solve $x+y=3$, $x-y=-1$. Give your answer as $(x,y)$."
TURNED = "Find all $(b, a)$ with $a+b=3$ and $a-b=-1$."
F = "Find $f(2)$ if $f(x)=3x-1$."
MANY = "How many are there?"
LINE = "Which line has slope 3 and meets the $y$-axis at 1?"
RIGHT = [
    (LINE, "y=3x+1", "f(x)=3x+1"),
    (MANY, "12", "x = 12 > 0"),
    (MANY, r"\frac{1}{2}", r"x = \frac{1}{2} > 0."),
    (POINT, "(1,2)", "y=2, x=1"),
    (POINT, "(1,2)", r"x=1\text{ and }y=2"),
    (POINT, "(1,2)", "(y,x)=(2,1)"),
    (TURNED, "(2,1)", "a=1, b=2"),
    ("Solve $2x=4$.", "2", "x=2"),
    ("Compute $3+4$.", "7", "3+4=7"),
    ("Compute $3+4$.", "7", "x=3+4=7"),
    (F, "5", "f(2)=5"),
    (F, "5", "f(2)=3(2)-1=5"),
    ("Find $a+b$.", "5", "a+b=5"),
    ("What is the area?", "25", r"\text{Area}=25\text{ cm}^2"),
    ("What is the angle?", "30^\\circ", r"\angle ABC = 30^\circ"),
    (MANY, "7", r"7\text{ red marbles}"),
    (MANY, "7", r"7\text{ months}"),
    (MANY, "7", r"7\text{ feet squared}"),
    (MANY, "18000", r"18\text{ thousand}"),
    ("What percentage of 50 is 20?", "40", r"40\%"),
    ("Find the percentage of boys.", "40", r"40\%"),
    ("Write 10 in base 8.", "12", "12_8"),
]
WRONG = [
    (LINE, "y=3x+1", "f(x)=3x+2"),
    (LINE, "y=3x+1", "f(t)=3x+1"),
    ("Let $f(x)=x$. Which line is 3 times as steep and 1 higher?", "y=3x+1", "f(x)=3x+1"),
    *((MANY, "12", one) for one in ("x = 12 > 13", "x = 12 < 0", "x = 13 > 0", "12 > x > 0")),
    (MANY, "-12", "x = -12 > 0"),
    (MANY, "0", "x = 0 > 0"),
    *((POINT, "(1,2)", one) for one in ("y=1, x=2", "(y,x)=(1,2)", "x=1, x=2", r"x=1\text{ or }y=2", "2x=1,y=2")),
    (TURNED, "(2,1)", "a=2, b=1"),
    *(("Solve $3x+1=2$.", "2", one) for one in ("x^2=2", "x+1=2", "3x+1=2", "2x=2", "8=2", "x=8=2", "7/8=2", "-x=2")),
    (F, "5", "f(3)=5"),
    *(("Which $x$?", "[-3,5)", one) for one in (r"x \not\in [-3,5)", r"x\notin[-3,5)", r"[-3,5) \text{ is false}")),
    *((MANY, "7", one) for one in (r"7\text{ is wrong}", r"\text{not }7", r"\neg 7", r"x\not=7")),
    (MANY, "12", "12_8"),
    ("Solve.", "0,125", "0.125"),
    ("The percentage of boys in a class of 50 is 40. How many girls are there?", "30", r"30\%"),
    ("When does it end?", "3:30", "3/30"),
    ("How large is the angle?", r"45^\circ", "45°C"),
    ("Expand it.", "x^2+1", "X^2+1"),
]
CHANGED = """minus three; times two; or more; or eight; tens; halves; tenths; hundredths; and a half; squared; cubed
doubled; factorial; gross; score; pi; modulo 3; dozen; thirds; quadrillion; grand; plus one; million
at most; at the very least; and up""".replace("\n", "; ")
DENIED = [
    "It is not 12", "The answer is not $12$.", "The answer is $13$. Perhaps $12$.", "$13$ minus one, but not $12$",
    "I would say 13 but maybe 12", "Between 11 and 12", "More than $12$", "twice 12", "The cube of 12", "$12$ dozen",
    "The answer is $12$. That is wrong.",
]  # fmt: skip
SAID = ["The answer is $12$.", "So $x=12$", "There are 12 apples.", "It is not hard to see. The answer is $12$ apples."]


@pytest.mark.parametrize(("problem", "gold", "answer"), RIGHT)
def test_true_claims_beside_the_number_are_paid(problem, gold, answer):
    assert paid(problem, gold, answer)


@pytest.mark.parametrize(("problem", "gold", "answer"), WRONG)
def test_false_claims_beside_the_number_are_not_paid(problem, gold, answer):
    assert not paid(problem, gold, answer)


@pytest.mark.parametrize("words", CHANGED.split("; "))
def test_words_that_change_a_number_are_no_unit(words):
    assert not paid(MANY, "7", rf"7\text{{ {words}}}") and not paid(MANY, "7", f"7 {words}")


@pytest.mark.parametrize("answer", DENIED)
def test_prose_that_says_another_number_is_not_paid(answer):
    assert not paid(MANY, "12", answer, "r1_zero")


@pytest.mark.parametrize("answer", SAID)
def test_prose_that_says_the_number_is_paid(answer):
    assert paid(MANY, "12", answer, "r1_zero")
