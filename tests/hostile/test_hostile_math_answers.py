"""Answers of math that leave the work undone are not paid, and none costs more than its bounds."""

import resource
from functools import partial

import pytest

from minrl.rewards.workers import Workers
from minrl.tasks.grader import MEMORY_MIB
from minrl.tasks.math import MathOptions, reward
from minrl.tasks.task import Dataset, Task
from minrl.types import Example, Reward
from tests.hostile.math_answers import CASES

OPTIONS = MathOptions(timeout_s=0.3)
WITHOUT_A_JOB_MIB = 400
"""More than a worker with math-verify and sympy holds."""


def example(case):
    return Example("", "", case.row)


@pytest.mark.parametrize("case", [case for case in CASES if case.family != "cost"], ids=lambda case: case.name)
def test_undone_work_is_not_paid(case):
    assert case.least <= reward(case.completion, example(case), MathOptions(timeout_s=60.0)).value <= case.most


@pytest.mark.slow
def test_what_costs_much_is_scored_within_bounds():
    costly = [case for case in CASES if case.family == "cost"]
    workers = Workers(1, 60.0)
    try:
        paid = workers.run([task_of(case).paid(case.completion, example(case)) for case in costly])
    finally:
        workers.close()
    assert all(isinstance(one, Reward) and one.value <= 0.1 for one in paid), paid
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    assert peak_mib < WITHOUT_A_JOB_MIB + MEMORY_MIB


def task_of(case):
    return Task(Dataset([], [example(case)]), partial(reward, options=OPTIONS))
