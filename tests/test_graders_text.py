"""The text tasks pay what a careful teacher would, read any text in about its length, and raise on none."""

import random
import time

import completions_text as written
import pytest

from minrl.dataflow import Reward
from minrl.tasks.connections import members_of
from minrl.tasks.connections import reward as connections
from minrl.tasks.countdown import reward as countdown
from minrl.tasks.countdown_3to4 import RECIPES
from minrl.tasks.countdown_3to4 import reward as countdown_3to4
from minrl.tasks.gsm8k import reward as gsm8k
from minrl.tasks.hanoi import reward as hanoi
from minrl.tasks.hanoi import written_moves
from minrl.tasks.math import boxed_answer, r1_zero_answer
from minrl.tasks.tictactoe import parse_move


def move(completion, example):
    return Reward(float(parse_move(completion, example["board"]) == example["move"]))


def published(completion, example):
    """`countdown_3to4` behind a prompt that leaves the thoughts to the answer."""
    shown = f" {completion}" if completion.startswith("<think>") else completion
    return countdown_3to4(shown, example, RECIPES["tinyzero"])


REWARDS = {"gsm8k": gsm8k, "countdown": countdown, "hanoi": hanoi, "connections": connections}
REWARDS |= {"tictactoe": move, "countdown_3to4": published}


@pytest.mark.parametrize("task", REWARDS)
def test_a_completion_is_paid_as_a_careful_teacher_would(task):
    cases = list(written.completions(task))
    wrong = [(text, solved) for example, text, solved in cases if REWARDS[task](text, example).solved != solved]
    assert len({text for _, text, _ in cases}) >= 300
    assert not wrong, wrong[:9]


def read_by_all(completion):
    """The text read by each task that reads text."""
    examples = {"gsm8k": written.JARS, "countdown": written.NINE, "hanoi": written.TOWER, "connections": written.PUZZLE}
    for task, example in examples.items():
        paid = REWARDS[task](completion, example)
        assert 0.0 <= paid.value <= 1.0
    parse_move(completion, "xox4oxo89")
    boxed_answer(completion)
    r1_zero_answer(completion)


MARKS = r"""<think> </think> [THINK] <answer> </answer> <group> </group> #### \boxed{ } final analysis assistantfinal
<|channel|> <|message|> <|end|> 1 A>C ; : 7 + ( ) \frac{ }{ x , ** ` $ \( \text{ / e . - ' ["""
PIECES = (
    *MARKS.split(),
    *("Here is my thought process:", "< think", "\n", " ", "\0", "\ud800", "\udfff", "\u0660", "\uff11", "\u00b2"),
    *("\u200b", "\u2212", "9" * 30, "caf\u00e9"),
)


def test_no_text_makes_a_reader_raise():
    rng = random.Random(0)
    for length in (1, 3, 8, 30, 200):
        for _ in range(30):
            read_by_all("".join(rng.choices(PIECES, k=length)))
    for _ in range(50):
        read_by_all(rng.randbytes(200).decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("piece", ["word ", "<", "#### 5", "\\boxed{", "<think>a</think>", "1 A>C ; ", "1,"])
def test_eight_times_the_text_takes_about_eight_times_as_long(piece):
    """Twice the length would take four times as long, and eight times 64 times, where the reading is quadratic."""

    def seconds(count):
        text = piece * (count // len(piece))
        started = time.process_time()
        read_by_all(text)
        read_by_all(f"<answer> {text} </answer>")
        return time.process_time() - started

    seconds(1000)
    assert seconds(40_000) < 24 * max(min(seconds(5_000), seconds(5_000)), 0.002)


@pytest.mark.parametrize(
    ("content", "members"),
    [
        *((text, "abcd") for text in ("a; b; c; d", "a\nb\nc\nd", "a,\nb,\nc,\nd\n", "[a, b, c, d]", "a, b, c, and d")),
        *((text, "abcd") for text in ("- a\n- b\n- c\n- d", "1. a\n2. b\n3. c\n4. d")),
        ("a, b, c, p and q", ["a", "b", "c", "p and q"]),  # a word as it is
        ("a b c d", "abcd"),
        *(
            (text, [])
            for text in ("a, b, c, x", "a, b, c, d and others", "topic: a, b, c, d", f"a, b, c, d{' ' * 1000}")
        ),
        *((text, text.split(", ")) for text in ("a, b, c", "a, b, c, d, p and q")),  # the caller counts
    ],
)
def test_the_words_of_a_group_may_be_listed_in_several_ways(content, members):
    words = frozenset(["a", "b", "c", "d", "p and q"])
    assert members_of(content, words) == list(members)


def test_a_move_has_any_arrow_and_may_be_an_item_of_a_list():
    for form in (r"1 A\to E", "1 A=>E", r"1 A \rightarrow E", "- 1 A>E", "1. 1 A>E", "2) 1 A > E."):
        assert written_moves(form) == [(1, "A", "E")]
    for form in ("not disk 1 A>E", "Move disk 1 A>E", "0 A>E", "15 A>E", "1 A>E 2 A>C"):
        assert written_moves(form) == []
