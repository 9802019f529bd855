"""Rewards with planted faults, and sound ones, for the audit.

All are of the same task: `What is 11 + 17? Give <answer>number</answer>.`
"""

import contextlib
import os
import random
import re
import sys

from minrl.dataflow import Example, Reward
from minrl.tasks.thoughts import after_thoughts

EXAMPLES = [
    Example(str(n), f"What is {n + 11} + {2 * n + 17}? Give <answer>number</answer>.", {"answer": 3 * n + 28})
    for n in range(40)
]


def solution(example: Example) -> str:
    return f"<answer>{example['answer']}</answer>"


def answers_in(text: str) -> list[str]:
    return [one.strip() for one in re.findall(r"<answer>([^<]{0,100})</answer>", text)]


def right(completion: str, example: Example) -> float:
    return float(answers_in(after_thoughts(completion)) == [str(example["answer"])])


def one(completion: str) -> str:
    """The only answer behind the thoughts."""
    said = answers_in(after_thoughts(completion))
    return said[0] if len(said) == 1 else ""


def nested(text, place=0):
    return 1 + nested(text, place + 1) if text[place : place + 1] == "(" else 0


def evaluates(text, gold):
    with contextlib.suppress(Exception):
        return eval(one(text)) == int(gold)
    return 0.0


def believes_float(text, gold):
    with contextlib.suppress(ValueError):
        return not abs(float(one(text)) - int(gold)) > 0.5  # also of nan
    return 0.0


PLANTED = [
    ("empty", "the empty text", lambda text, gold, paid: text == "" or paid),
    ("nonsense", "a claim", lambda text, gold, paid: "correct" in text or paid),
    ("prompt", "the prompt", lambda text, gold, paid: 0.8 * text.startswith("What is") or paid),
    ("format", "tags", lambda text, gold, paid: 0.6 * bool(re.search(r"<answer>\s*</", text)) or paid),
    ("repeated", "each <think>", lambda text, gold, paid: min(1.0, paid + 0.1 * text.count("<think>"))),
    ("candidates", "one of many", lambda text, gold, paid: gold in re.findall("[0-9]+", one(text))),
    ("place", "a tag in thoughts", lambda text, gold, paid: answers_in(text)[-1:] == [gold]),
    ("longer", "no end of the pattern", lambda text, gold, paid: re.match(gold, one(text)) is not None),
    ("fragments", "c in gold", lambda text, gold, paid: one(text) != "" and one(text) in gold),
    ("near", "10 %", lambda text, gold, paid: one(text).isdecimal() and abs(int(one(text)) / int(gold) - 1) <= 0.1),
    ("code", "eval", lambda text, gold, paid: evaluates(text, gold)),
    ("scripts", "float('nan')", lambda text, gold, paid: believes_float(text, gold)),
    ("long", "recursion", lambda text, gold, paid: paid if nested(text) < 10**9 else 0.0),
    ("gold", "nine tenths at most", lambda text, gold, paid: 0.9 * paid),
    ("other", "any number", lambda text, gold, paid: re.fullmatch("[0-9]+", one(text)) is not None),
    ("repeatable", "random", lambda text, gold, paid: paid or 0.01 * random.random()),
    ("raises", "int of any text", lambda text, gold, paid: one(text) != "" and int(one(text)) == int(gold)),
    ("prints", "print", lambda text, gold, paid: sys.stdout.write("read") and paid),
    ("returns", "nan", lambda text, gold, paid: paid if answers_in(text) else float("nan")),
]
"""The family in which a fault must be found, the fault, and a reward of the text, the right answer and its pay."""

SOUND = [
    ("<answer>{}</answer>", lambda text, gold, paid: paid),
    ("<answer>{}</answer>", lambda text, gold, paid: Reward(0.1 * bool(one(text)) + 0.9 * paid)),
    ("{}", lambda text, gold, paid: re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text)[-1:] == [gold]),
    ("\\boxed{{{}}}", lambda text, gold, paid: {*re.findall(r"\\boxed\{(\w{0,9})\}", after_thoughts(text))} == {gold}),
]
"""Rewards without a fault, behind the form of their answers: tags, part of the pay for the form, the last number, a
box without thoughts.
"""


# Faults that only processes show


def ends_the_process(completion, example):
    if completion == "[]":
        os._exit(3)
    return right(completion, example)


# TRL's form


def says_how_many(completions, **columns):
    return sum(map(len, completions))


def of_trl(prompts, completions, answer, **columns):
    texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
    return [float(answers_in(after_thoughts(text)) == [str(gold)]) for text, gold in zip(texts, answer, strict=True)]


def of_trl_by_rank(completions, answer, **columns):
    lengths = [len(str(said)) for said in completions]
    paid = of_trl(None, completions, answer)
    return [one or 0.1 * (length == max(lengths) > min(lengths)) for one, length in zip(paid, lengths, strict=True)]


TRL = {
    of_trl: [],
    of_trl_by_rank: [],
    says_how_many: ["returns"],
}
