"""Rewards as novices write them: what is a number is taken; anything else is a reason that says what came."""

import random
from functools import partial

import numpy as np
import torch

from minrl.dataflow import SOLO, Example, Job, Reward
from minrl.rewards.episode import Play
from minrl.rewards.workers import Workers
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import reward_of

EXAMPLE = Example("the third", "1 + 1", {"answer": "2"})


def of_case(case, completion, example):
    """In a worker, where no types are checked, as in a run."""
    return CASES[case](completion, example)


def exiting(completion, example):
    raise SystemExit(3)


def yielding(completion, example):
    yield Reward(1.0)


def endless(completion, example):
    return endless(completion, example)


def failing(completion, example):
    raise RuntimeError("my grader is down\nand says so in two lines")


TAKEN = {
    "with parts of all kinds": lambda c, e: Reward(0.5, {"a": True, "b": np.int64(3), "c": torch.tensor(2)}),
    "a tensor of one value": lambda c, e: torch.tensor([0.5]),
}
REFUSED = {
    "nothing": (lambda c, e: None, "None"),
    "a list": (lambda c, e: [1.0], "[1.0]"),
    "a generator": (yielding, "generator"),
    "too large": (lambda c, e: Reward(2.0), "at most its maximum, got 2 of 1"),
    "reads a field by another name": (lambda c, e: Reward(float(e["target"] == c)), "KeyError", "target"),
    "ends the program": (exiting, "SystemExit: 3"),
    "calls itself": (endless, "RecursionError"),
    "raises two lines": (failing, "says so in two lines"),
}
"""A reward, and what the last line of the reason must hold."""

CASES = {**TAKEN, **{case: reward for case, (reward, *_) in REFUSED.items()}}


def paid(result):
    """The reward as a rollout gets it, or the last line of the reason why it has none."""
    play = Play(Task(Dataset([], [EXAMPLE]), of_case, cheap=True), EXAMPLE, random.Random(0))
    play.advance(None)
    play.advance("2")
    play.advance(result)
    return play.problem.strip().splitlines()[-1] if play.problem else play.rewards[SOLO]


def test_whatever_is_a_number_is_a_reward_and_what_is_not_says_what_came():
    workers = Workers(1, 120.0)
    rewards = [partial(reward_of, "mine", partial(of_case, case)) for case in CASES]
    results = dict(zip(CASES, workers.run([Job(reward, ("2", EXAMPLE)) for reward in rewards]), strict=True))
    workers.close()
    for case in TAKEN:
        found = paid(results[case])
        assert found.value == 0.5 and all(type(one) is float for one in found.parts.values()), case
    for case, (_, *words) in REFUSED.items():
        found = paid(results[case])
        assert isinstance(found, str) and all(word in found for word in words), found
