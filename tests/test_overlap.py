"""Rewards of completions that have ended are computed while others are still sampled, and nothing else changes."""

from contextlib import closing
from dataclasses import replace

import pytest

from minrl.dataflow import SOLO, Example, Job, Reward, Turn
from minrl.engines.torch_engine import TorchEngine
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout
from minrl.tasks import Task
from minrl.tasks.task import Dataset
from tests.jobs import noted, raises_at_odd_lengths
from tests.runs import until

EXAMPLES = [Example(str(n), "numbers 1 2", {}) for n in range(3)]
DATASET = Dataset(EXAMPLES, [Example("held out", "numbers 1", {})])
STOPS = tuple("023456789")
"""A policy that has learned nothing says one of them or its end now and then: completions have all lengths."""
PLAN = Plan(group_size=6, max_tokens=12, temperature=1.0, seed=0, purpose="test", step=1, stop_strings=STOPS)


class Watched(TorchEngine):
    """After each step in which some have ended and others have not, waits until `caught_up(number of the former)`.
    It takes no cores, so that all workers may compute.
    """

    cores = 0

    def __init__(self, policy, caught_up=lambda ended: True):
        super().__init__(policy)
        self.caught_up, self.waited = caught_up, 0

    def generate(self, requests, sampling, *, on_end=None):
        if on_end is None:
            return super().generate(requests, sampling)
        count = 0

        def watch(completions):
            nonlocal count
            on_end(completions)
            count += len(completions)
            if completions and count < len(requests):
                self.waited += 1
                until(lambda: on_end([]) or self.caught_up(count))

        return super().generate(requests, sampling, on_end=watch)


class Afterwards(Workers):
    """Begins nothing before everything is sampled."""

    def limit(self, free):
        super().limit(0)


def seen(folder):
    return len(list(folder.iterdir()))


def noting(folder):
    examples = [replace(one, fields={"folder": str(folder)}) for one in EXAMPLES]
    return Task(replace(DATASET, train=examples), noted)


def test_rewards_are_there_while_longer_completions_are_sampled(policy, workers, tmp_path):
    task = noting(tmp_path)
    engine = Watched(policy, lambda ended: seen(tmp_path) == ended)
    sampled = rollout(policy, engine, workers, task, task.dataset.train, PLAN)
    assert engine.waited > 3 and not sampled.failures
    assert [one.reward for one in sampled.rollouts] == [Reward(one.text.count("7")) for one in sampled.rollouts]
    assert seen(tmp_path) == len(sampled.rollouts)  # each once


def answer(shown, result):
    return f"yes {shown} {result}"


def tool(example, rng):
    """A turn, a job of each kind whose results are read in the next turn, and a reward by chance."""
    first = yield Turn(SOLO, "numbers 1")
    size = yield Job(len, (first,))
    word = yield Job(str, (size,), cheap=True)
    shown = yield Job(answer, (word, rng.randint(0, 9)), waits=True)
    second = yield Turn(SOLO, shown)
    if len(second) % 3 == 0:
        raise RuntimeError(f"no third turn after {second!r}")
    failed = yield Job(int, (first,))
    third = yield Turn(SOLO, f"no {failed}")
    return {SOLO: Reward(rng.random() if third else 0.0)}


TASKS = {"in the workers": Task(DATASET, raises_at_odd_lengths), "a tool": Task(DATASET, None, episode=tool)}


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_sampled_or_rewarded_otherwise(policy, name):
    task, limited = TASKS[name], replace(PLAN, group_size=4)

    def played(workers, engine):
        with closing(workers):
            return rollout(policy, engine, workers, task, task.dataset.train, limited)

    expected = played(Afterwards(2, 120.0), TorchEngine(policy))
    assert played(Workers(2, 120.0), Watched(policy)) == expected
    assert expected.failures and len({str(one.reward) for one in expected.rollouts}) > 1
