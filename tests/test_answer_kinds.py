"""Rewrites of reference answers are paid and near misses are not, whatever the kind."""

import pytest
from answer_equal import EQUAL, UNDONE
from answer_golds import GOLDS
from answer_kinds import pairs
from answer_unequal import UNEQUAL

from minrl.tasks.math import MathOptions, reward
from minrl.types import Example

FORMS = {"boxed": r"so \boxed{ANSWER}", "r1_zero": "so </think> <answer> ANSWER </answer>"}
OPTIONS = {prompt: MathOptions(prompt=prompt, timeout_s=60.0) for prompt in FORMS}
LONG = [r"1.23 \times 10^{-5}", r"\frac{3}{7}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "x^2 + y^2 = 4"]
"""References, one of which each kind of `UNDONE` rewrites."""
MOST_REFUSED, MOST_PAID = 0.001, 0.0005
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
    done = {name: kind for name, kind in EQUAL.items() if name not in UNDONE or not problem}
    equal, unequal = sample(done, of_each), sample(UNEQUAL, of_each)
    for prompt in FORMS:
        refused = [pair for pair in equal if not is_paid(*pair, problem, prompt)]
        paid = [pair for pair in unequal if is_paid(*pair, problem, prompt)]
        assert len(refused) <= MOST_REFUSED * len(equal), (prompt, refused)
        assert len(paid) <= MOST_PAID * len(unequal), (prompt, paid)


@pytest.mark.parametrize("name", sorted(UNDONE))
def test_what_leaves_something_to_compute_is_paid_without_a_problem_alone(name):
    gold, answer = next((gold, answer) for _, gold, answer in pairs({name: EQUAL[name]}, LONG) if answer != gold)
    assert all(is_paid(gold, answer, " ", prompt) for prompt in FORMS)
    assert not any(is_paid(gold, answer, "Find the answer.", prompt) for prompt in FORMS)
