"""Rewards as novices write them: what is a number is taken; anything else is a reason that says what came."""

import random
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from minrl.rewards.episode import Play
from minrl.rewards.workers import Workers
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import reward_of
from minrl.types import SOLO, Example, Job, Reward

EXAMPLE = Example("the third", "1 + 1", {"answer": "2"})
OTHER = Example("another", "2 + 1", {"answer": "3"})


def of_case(case, completion, example):
    """In a worker, where no types are checked, as in a run."""
    return CASES[case](completion, example)


@pytest.fixture(scope="module")
def results():
    """What the worker says of every case."""
    workers = Workers(1, 120.0)
    rewards = {case: partial(reward_of, "mine", partial(of_case, case)) for case in CASES}
    answers = workers.run([Job(reward, ("2", EXAMPLE)) for reward in rewards.values()])
    workers.close()
    return dict(zip(CASES, answers, strict=True))


def paid(result):
    """The reward as a rollout gets it, or the last line of the reason why it has none."""
    play = Play(Task(Dataset([OTHER], [EXAMPLE]), of_case, cheap=True), EXAMPLE, random.Random(0))
    play.advance(None)
    play.advance("2")
    play.advance(result)
    return play.problem.strip().splitlines()[-1] if play.problem else play.rewards[SOLO]


TAKEN = {
    "a Reward": lambda c, e: Reward(0.5),
    "of a numpy array": lambda c, e: Reward(np.array(0.5)),
    "of a fraction": lambda c, e: Reward(Fraction(1, 2)),
    "with parts of all kinds": lambda c, e: Reward(0.5, {"a": True, "b": np.int64(3), "c": torch.tensor(2)}),
    "a float": lambda c, e: 0.5,
    "a tensor of one value": lambda c, e: torch.tensor([0.5]),
    "a bool": lambda c, e: True,
}


def exiting(completion, example):
    raise SystemExit(3)


def yielding(completion, example):
    yield Reward(1.0)


async def awaiting(completion, example):
    return Reward(1.0)


def endless(completion, example):
    return endless(completion, example)


def failing(completion, example):
    raise RuntimeError("my grader is down\nand says so in two lines")


REFUSED = {
    "nothing": (lambda c, e: None, "None"),
    "not a number": (lambda c, e: float("nan"), "nan"),
    "a list": (lambda c, e: [1.0], "[1.0]"),
    "a generator": (yielding, "generator"),
    "a coroutine": (awaiting, "coroutine"),
    "of a word": (lambda c, e: Reward("one"), "the value of a reward must be a finite number, got 'one'"),
    "too large": (lambda c, e: Reward(2.0), "at most its maximum, got 2 of 1"),
    "with a part that is a word": (lambda c, e: Reward(1.0, {"form": "good"}), "part 'form' of a reward", "'good'"),
    "with a list of parts": (lambda c, e: Reward(1.0, ["good"]), "parts must be a dict", "['good']"),
    "reads a field by another name": (lambda c, e: Reward(float(e["target"] == c)), "KeyError", "target"),
    "takes the completion alone": (lambda c: Reward(1.0), "TypeError", "takes 1 positional argument"),
    "ends the program": (exiting, "SystemExit: 3"),
    "calls itself": (endless, "RecursionError"),
    "raises two lines": (failing, "says so in two lines"),
}
"""A reward, and what the last line of the reason must hold."""

CASES = {**TAKEN, **{case: reward for case, (reward, *_) in REFUSED.items()}}


@pytest.mark.parametrize("case", TAKEN)
def test_whatever_is_a_number_is_a_reward(results, case):
    found = paid(results[case])
    assert isinstance(found, Reward) and found.value == (1.0 if case == "a bool" else 0.5)
    assert all(type(one) is float for one in found.parts.values())


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_reward_says_what_came(results, case):
    found, words = paid(results[case]), REFUSED[case][1:]
    assert isinstance(found, str) and all(word in found for word in words), found
