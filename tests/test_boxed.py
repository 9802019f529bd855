"""Which boxes are one answer: those written as a list, not those that prose links."""

import time

import pytest

from minrl.tasks.boxed import boxes_together
from minrl.tasks.math import boxed_answer, gold_answer, r1_zero_answer

PROSE = [
    r"The radius is $\boxed{3}$. Therefore, the answer is $\boxed{9}$.",
    r"\boxed{3}. Simplifying, we get \boxed{9}",
    r"\boxed{3}. In conclusion, the answer is \boxed{9}",
    r"\boxed{3}, and the answer is \boxed{9}",
    r"\boxed{3}; the final answer is \boxed{9}",
    r"Side is \boxed{3} cm, area is \boxed{9}",
    r"\boxed{3}, which gives \boxed{9}",
    r"It is \boxed{3}, I mean \boxed{9}",
    r"I got \boxed{3}; the right answer is \boxed{9}",
    r"\boxed{3} \boxed{9}",
    r"\boxed{3} or better \boxed{9}",
    r"\boxed{3}, area = \boxed{9}",
    r"\boxed{3}, \text{hence } \boxed{9}",
    r"\boxed{3}," + "\n" + "and so on, " * 9 + r"\boxed{9}",
]
LISTS = [
    r"\boxed{3}, \boxed{9}",
    r"$\boxed{3}$;" + "\n" * 99 + r"$\boxed{9}$",
    r"$x=\boxed{3}$ and $y_1 = \boxed{9}$",
    r"\(\boxed{3}\), or \(\boxed{9}\).",
    r"\boxed{3} \quad\text{and}\quad \theta=\boxed{9}",
    r"\boxed{3},\text{ or } f(1)=\boxed{9}",
]


@pytest.mark.parametrize("text", PROSE)
def test_a_box_that_prose_links_to_another_is_no_part_of_the_answer(text):
    assert boxed_answer(text) == gold_answer({"solution": text}) == "9"


@pytest.mark.parametrize("text", LISTS)
def test_boxes_in_a_list_are_one_answer(text):
    assert boxes_together(text) == ["3", "9"]


def test_an_empty_box_is_no_answer():
    assert boxed_answer(r"so \boxed{9}. I put it in \boxed{}") == "9"
    assert boxed_answer(r"\boxed{}") is boxed_answer(r"\boxed{ }") is None
    assert r1_zero_answer(r"so </think> <answer> \boxed{9} \boxed{} </answer>") == "9"


@pytest.mark.parametrize("filler", [" ", "a ", "$", "and ", ", ", "\\", "\\quad", "\n", "x_"])
def test_what_stands_between_boxes_costs_time_in_proportion(filler):
    start = time.process_time()
    assert boxes_together(rf"\boxed{{1}},{filler * 40_000}\boxed{{2}}")[-1] == "2"
    assert time.process_time() - start < 2.0
