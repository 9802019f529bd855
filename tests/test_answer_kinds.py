"""Rewrites of reference answers are paid and near misses are not, whatever the kind."""

import pytest
from answer_equal import EQUAL
from answer_golds import GOLDS
from answer_kinds import pairs
from answer_unequal import UNEQUAL

from minrl.tasks.math import MathOptions, reward
from minrl.types import Example

FORMS = {"boxed": r"so \boxed{ANSWER}", "r1_zero": "so </think> <answer> ANSWER </answer>"}
OPTIONS = {prompt: MathOptions(prompt=prompt, timeout_s=60.0) for prompt in FORMS}
MOST_REFUSED, MOST_PAID = 0.015, 0.005
"""Shares of the rewrites that may be refused and of the near misses that may be paid."""


def is_paid(gold, answer, problem, prompt):
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(FORMS[prompt].replace("ANSWER", answer), example, OPTIONS[prompt]).parts["answer"] == 1


def sample(kinds, of_each):
    """The same few pairs of every kind: the first and others far from it."""
    made = {}
    for name, gold, answer in pairs(kinds, GOLDS):
        made.setdefault(name, []).append((gold, answer))
    assert made.keys() == kinds.keys(), "a kind that no reference has"
    return [pair for found in made.values() for pair in found[:: max(len(found) // of_each, 1)][:of_each]]


def test_there_are_kinds_enough():
    assert len(EQUAL) >= 44 and len(UNEQUAL) >= 37 and len(GOLDS) >= 300 and len(set(GOLDS)) == len(GOLDS)


@pytest.mark.parametrize("of_each", [2, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("problem", ["", "Find the answer."])
def test_rewrites_are_paid_and_near_misses_are_not(problem, of_each):
    equal, unequal = sample(EQUAL, of_each), sample(UNEQUAL, of_each)
    for prompt in FORMS:
        refused = [pair for pair in equal if not is_paid(*pair, problem, prompt)]
        paid = [pair for pair in unequal if is_paid(*pair, problem, prompt)]
        assert len(refused) <= MOST_REFUSED * len(equal), (prompt, refused)
        assert len(paid) <= MOST_PAID * len(unequal), (prompt, paid)
