"""Rewrites of reference answers are paid and near misses are not, whatever the kind."""

import pytest
from answer_golds import GOLDS
from answer_rewrites import EQUAL, UNEQUAL, pairs

from minrl.dataflow import Example
from minrl.tasks.math import MathOptions, reward

OPTIONS = MathOptions(timeout_s=60.0)


def is_paid(gold, answer, problem):
    example = Example("", "", {"problem": problem, "answer": gold})
    return reward(rf"so \boxed{{{answer}}}", example, OPTIONS).parts["answer"] == 1


def sample(kinds, of_each):
    """The same few pairs of every kind, far from one another."""
    made = {}
    for name, gold, answer in pairs(kinds, GOLDS):
        made.setdefault(name, []).append((gold, answer))
    assert made.keys() == kinds.keys(), "a kind that no reference has"
    return [pair for found in made.values() for pair in found[:: max(len(found) // of_each, 1)][:of_each]]


@pytest.mark.parametrize("of_each", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_rewrites_are_paid_and_near_misses_are_not(of_each):
    """At most 1.5 % of the rewrites may be refused, and 0.5 % of the near misses paid."""
    equal, unequal = sample(EQUAL, of_each), sample(UNEQUAL, of_each)
    refused = [pair for pair in equal if not is_paid(*pair, "Find the answer.")]
    paid = [pair for pair in unequal if is_paid(*pair, "Find the answer.")]
    assert len(refused) <= 0.015 * len(equal), refused
    assert len(paid) <= 0.005 * len(unequal), paid
