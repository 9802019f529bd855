"""Rewrites of reference answers are paid and near misses are not, whatever the kind."""

import pytest
from answer_golds import GOLDS
from answer_rewrites import EQUAL, UNEQUAL, pairs

from minrl.tasks.math import MathOptions, reward
from minrl.types import Example

OPTIONS = MathOptions(timeout_s=60.0)
MOST_REFUSED, MOST_PAID = 0.015, 0.005
"""Shares of the rewrites that may be refused and of the near misses that may be paid."""


def is_paid(gold, answer, problem):
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(rf"so \boxed{{{answer}}}", example, OPTIONS).parts["answer"] == 1


def sample(kinds, of_each):
    """The same few pairs of every kind: the first and others far from it."""
    made = {}
    for name, gold, answer in pairs(kinds, GOLDS):
        made.setdefault(name, []).append((gold, answer))
    assert made.keys() == kinds.keys(), "a kind that no reference has"
    return [pair for found in made.values() for pair in found[:: max(len(found) // of_each, 1)][:of_each]]


@pytest.mark.parametrize("of_each", [2, pytest.param(10_000, marks=pytest.mark.slow)])
def test_rewrites_are_paid_and_near_misses_are_not(of_each):
    equal, unequal = sample(EQUAL, of_each), sample(UNEQUAL, of_each)
    refused = [pair for pair in equal if not is_paid(*pair, "Find the answer.")]
    paid = [pair for pair in unequal if is_paid(*pair, "Find the answer.")]
    assert len(refused) <= MOST_REFUSED * len(equal), refused
    assert len(paid) <= MOST_PAID * len(unequal), paid
