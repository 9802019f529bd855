"""Whoever reads a completion takes time in proportion to its length, whatever it repeats."""

import re
import time
from contextlib import suppress

import pytest

from minrl.tasks.answers import fenced_blocks, last_boxes, unwrapped
from minrl.tasks.code import extract_program
from minrl.tasks.code_game import CodeGameOptions, refusal
from minrl.tasks.code_game import extract_program as game_program
from minrl.tasks.python_tool import find_call, program_of
from minrl.tasks.rust import extract_code
from minrl.tasks.rust import refusal as refused
from minrl.tasks.rust_quality import scores
from minrl.tasks.task import extract_answer
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.text import unmarked

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")

READERS = {
    "thoughts": after_thoughts,
    "marks": unmarked,
    "answers": lambda text: (last_boxes(text), fenced_blocks(text), unwrapped(text), unwrapped(f"a{text}a")),
    "tags": extract_answer,
    "fences": lambda text: (extract_program(text), game_program(text), extract_code(text)),
    "programs": lambda text: refusal(text, CodeGameOptions(max_characters=10**9)),
    "calls": lambda text: program_of((find_call(f"<tool_call>{text}</tool_call>") or ("", ""))[1]),
    "rust": lambda text: (refused(text, ""), scores(text)),
}
MARKS = re.findall(
    r"\S+",
    r"""
    ' /* */ #[ std::{ \u{2_2} b" r#" "" "a": {"a": " ` ``` < <| <think> </think> [THINK] [ { ( () [] ] } 1, -1 1e9 x! !
    \boxed{ \boxed \boxed{} <answer> </answer> <answer></answer> ** + \ | & a 0 # // $ \text{ <!-- &lt; assistantfinal
    <|channel|> <|message|> <|im_start|> <tool_call> </tool_call> >>A ]~
    """,
)
WORDS = (
    *MARKS,
    *("impl ", "use a as b; ", "$a ", "\n```", "```rust\n", "```python\n", "<a ", " ", "\n", "\r", "a ", "and "),
    *("\u0301", "\u200d", "\x1b", "\ud800", "#[test] fn t() {}\n", "Here's my thought process:", "Here's my response:"),
)
SHORT, TIMES = 500, 8
"""The length of the shorter text, and how often it is in the longer one."""


def seconds(reader, text):
    """The processor time that it takes."""
    started = time.thread_time()
    with suppress(ValueError, RecursionError, MemoryError):
        reader(text)
    return time.thread_time() - started


def grows(reader, word):
    """Whether the time grows much faster than the length: linear is 8 times, quadratic is 64 times."""
    short, long = (word * (size // len(word)) for size in (SHORT, TIMES * SHORT))
    return all(seconds(reader, long) > 3 * TIMES * seconds(reader, short) + 0.03 for _ in range(3))


@pytest.mark.parametrize("name", [*list(READERS)[:-1], pytest.param("rust", marks=pytest.mark.slow)])
def test_time_is_in_proportion_to_the_length(name):
    assert [word for word in WORDS if grows(READERS[name], word)] == []


def test_what_is_quadratic_is_found():
    assert grows(lambda text: [end for end in range(len(text)) for _ in text[:end]], "a")
