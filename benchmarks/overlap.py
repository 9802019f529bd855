"""Seconds of a call of `rollout` whose rewards are computed while longer completions are sampled, against afterwards.

    python benchmarks/overlap.py

64 rows of the 5M model, whose lengths are exponential: half of the completions have ended after 22 of up to 256 tokens.
A reward takes 50 ms of a core in a worker. With one thread of torch the workers have the other cores while the engine
samples. Both sides sample the same tokens and pay the same.
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from harness import Turns, compare, save
from shapes import Work, even_share, even_task, make_policy

from minrl.dataflow import SOLO, Job, Turn
from minrl.engines.torch_engine import TorchEngine
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout

REWARD_S, MEAN, LONGEST = 0.05, 32, 256


class Scheduled(TorchEngine):
    """Completions of exponential lengths; without `at_once` it reports them when all have ended."""

    lengths: Sequence[int] = ()
    at_once = True

    def generate(self, requests, sampling, **named):
        """The completions of the schedule."""
        pairs = zip(requests, self.lengths, strict=True)
        fixed = [replace(request, max_tokens=length) for request, length in pairs]
        return super().generate(fixed, replace(sampling, stop_ids=frozenset()), **(named if self.at_once else {}))


def play(turns: Turns, numbers: int, at_once: bool = True) -> None:
    """A call of `rollout` in each turn, with rewards at once or when all is sampled, which add up so many numbers."""
    work = Work(threads=1)
    policy = make_policy(work)
    engine, task = Scheduled(policy), even_task(work.examples())
    engine.at_once = at_once

    def episode(example, rng) -> Iterator[Turn | Job]:
        text = yield Turn(SOLO, example.prompt)
        yield Job(sum, (range(numbers),))
        return {SOLO: even_share(text)}

    task = replace(task, episode=episode, reward=None)
    with closing(Workers(0, 60.0)) as workers:
        turns.ready()
        while True:
            number = turns.wait()
            rng = random.Random(number)
            lengths = (1 + int(rng.expovariate(1 / MEAN)) for _ in range(work.prompts * work.group))
            engine.lengths = [min(LONGEST, length) for length in lengths]
            plan = Plan(work.group, LONGEST, 1.0, 0, "overlap", number)
            started = time.perf_counter()
            sampled = rollout(policy, engine, workers, task, task.dataset.train, plan)
            seconds = time.perf_counter() - started
            assert not sampled.failures, sampled.failures[0]
            rewards = [one.reward.value for one in sampled.rollouts if one.reward is not None]
            turns.done(seconds, {"tokens": sum(one.num_sampled for one in sampled.rollouts), "rewards": rewards})


def numbers_of(seconds: float) -> int:
    """How many numbers a core adds up in that time."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        sum(range(1_000_000))
        taken.append(time.perf_counter() - started)
    return int(1_000_000 * seconds / min(taken))


def main() -> None:
    """One row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds, sides = parser.parse_args().rounds, {"meanwhile": play, "afterwards": partial(play, at_once=False)}
    what = "a rollout with rewards of 50 ms, one thread of torch"
    save("overlap", [compare(what, "rewards afterwards", sides, numbers_of(REWARD_S), rounds)])


if __name__ == "__main__":
    main()
