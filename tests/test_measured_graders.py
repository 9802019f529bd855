"""The graders on whole published data sets, whose answers they must pay.

MINRL_GRADER_DATA names a folder with files as their authors publish them: gsm8k/train.jsonl and gsm8k/test.jsonl
(question, answer), math500.json (problem, answer), mbpp.jsonl (text, code, test_list).

A program of MBPP takes two sandboxes, a third of a second. So each reference is judged in this process, and every sixth
in the sandbox too; before a release, with MINRL_ALL_IN_SANDBOX, each one.
"""

import json
import os
import re
from pathlib import Path

import pytest

from minrl.dataflow import Example
from minrl.tasks import code, gsm8k, math
from tests.hostile.playing import share_in_a_thread

pytestmark = pytest.mark.slow


def rows_of(name):
    folder = os.environ.get("MINRL_GRADER_DATA", "")
    found = sorted(Path(folder).rglob(name)) if folder else []
    if not found:
        pytest.skip(f"MINRL_GRADER_DATA names no folder with {name}")
    text = found[0].read_text(encoding="utf-8")
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["gsm8k/train.jsonl", "gsm8k/test.jsonl"])
def test_every_answer_of_gsm8k_is_paid_and_the_next_number_is_not(name):
    for row in rows_of(name):
        example, (before, last) = Example("", "", row), row["answer"].split("#### ")
        assert gsm8k.reward(row["answer"], example).value == 1.0, row
        value = int(last.replace(",", ""))
        assert gsm8k.reward(f"{before}#### {value} = {value} * 1 (in all)", example).value == 1.0, row
        assert gsm8k.reward(f"{before}#### {value + 1}", example).value == 0.0, row


WORD, CHOICE = r"\\text\{([A-Za-z]{2,})\}$", r"^\\text\{\(?([A-Z])\)?\}$"
SAME = (
    ("dfrac", r"\\frac", r"\\dfrac"),
    ("dollar signs", r"^(?!\\\$)(.*)$", r"$\1$"),
    ("unicode minus", "-(?=[0-9x\\\\])", "−", r"text|\{-|\\!"),
    ("root as a power", r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}", r"[0-9] ?\\sqrt|\\text"),
    ("plain percent sign", r"\\%", "%"),
    ("currency dropped", r"\\\$", ""),
    ("base dropped", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1"),
    ("choice without brackets", CHOICE, r"\1"),
    ("or between two", r"^([^,({\[]+), ([^,]+)$", r"\1 or \2", r"circ"),
)

OTHER = (
    ("a digit more", r"^(-?[0-9]+)$", r"\g<1>3"),
    ("pi dropped", r"(?<=[0-9])\\pi(?![a-z])", "", r"pi\^"),
    ("another variable", r"(?<![a-z\\])[xymtrhcn](?![a-z])", "g", r"text|mbox|matrix"),
    ("tuple as a set", r"^(?:\\left)?\(([^()\[\]]*,[^()\[\]]*?)(?:\\right)?\)$", r"\\{\1\\}"),
    ("not strict for strict", r"< ", r"\\le "),
    ("percent where none is named", r"^([1-9][0-9]*|[0-9]+\.[0-9]+)$", r"\1\\%"),
    ("another word", WORD, r"\\text{un\1}"),
    ("two of them", r"^(-?[1-9][0-9]*)$", r"\1 \\text{ or } 1\1"),
    ("a word", r"^(?!.*text).*$", r"\\text{unknown}"),
)
"""Rewrites of reference answers that mean the same, and near misses: name, pattern, what it becomes, except where."""


def rewritten(kinds, references):
    """(reference, its rewrite) wherever a kind applies."""
    for _, pattern, replacement, *unless in kinds:
        for gold in references:
            if not any(re.search(other, gold) for other in unless):
                made = re.sub(pattern, replacement, gold)
                if made != gold:
                    yield gold, made


def is_paid(row, answer):
    options = math.MathOptions(timeout_s=60.0)
    return math.reward(rf"so \boxed{{{answer}}}", Example("", "", row), options).parts["answer"] == 1


def test_every_answer_of_math_500_is_paid_most_of_its_rewrites_and_hardly_a_near_miss():
    """At most 8 rewrites are refused and 6 near misses paid, of about 1,000 each."""
    rows = rows_of("math500.json")
    assert [row["answer"] for row in rows if not is_paid(row, row["answer"])] == []
    by_answer = {row["answer"]: row for row in rows}
    refused = [pair for pair in rewritten(SAME, by_answer) if not is_paid(by_answer[pair[0]], pair[1])]
    paid = [pair for pair in rewritten(OTHER, by_answer) if is_paid(by_answer[pair[0]], pair[1])]
    assert len(refused) <= 8 and len(paid) <= 6, (refused, paid)


def test_every_reference_of_mbpp_is_paid_in_full_and_one_without_its_returns_is_not_solved():
    rows = rows_of("mbpp.jsonl")
    options = code.CodeOptions(timeout_s=60.0)
    in_sandbox = rows if os.environ.get("MINRL_ALL_IN_SANDBOX") else rows[::6]

    def paid(row, program):
        return code.reward(f"```python\n{program}\n```", Example("", "", row), options)

    assert [row["task_id"] for row in rows if share_in_a_thread(row["code"], row) != 1] == []
    assert [row["task_id"] for row in in_sandbox if not paid(row, row["code"]).solved] == []
    emptied = [(row, re.sub(r"\breturn\b.*", "return", row["code"])) for row in rows[::40]]
    assert [row["task_id"] for row, program in emptied if paid(row, program).solved] == []
