"""Seconds of a call of `rollout` whose rewards are computed while longer completions are sampled, against afterwards.

    python benchmarks/overlap.py

64 rows of the 5M model, whose lengths are exponential: half of the completions have ended after 22 of up to 256 tokens.
A reward takes 50 ms of a core in a worker. With one thread of torch the workers have the other cores while the engine
samples, with a thread on each core none of them. A cheap job of an episode runs in the process itself: its row shows
what it costs to hear of each completion as it ends. Both sides sample the same tokens and pay the same.
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from harness import Turns, compare, save
from shapes import Work, even_share, even_task, make_policy

from minrl.engines.torch_engine import TorchEngine
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout
from minrl.types import SOLO, Job, Turn

REWARD_S, MEAN, LONGEST = 0.05, 32, 256


@dataclass(frozen=True)
class Paid:
    """The work, and the numbers that each reward adds up in a worker; 0: a cheap job."""

    work: Work
    numbers: int


class Scheduled(TorchEngine):
    """Completions of exponential lengths."""

    lengths: Sequence[int] = ()

    def generate(self, requests, sampling, **named):
        """The completions of the schedule."""
        pairs = zip(requests, self.lengths, strict=True)
        fixed = [replace(request, max_tokens=length) for request, length in pairs]
        return super().generate(fixed, replace(sampling, stop_ids=frozenset()), **named)


class Late(Scheduled):
    """Tells of the completions when all have ended."""

    def generate(self, requests, sampling, **_):
        """The same completions."""
        return super().generate(requests, sampling)


def meanwhile(turns: Turns, paid: Paid) -> None:
    """Rewards are computed while others are sampled."""
    play(turns, paid, Scheduled)


def afterwards(turns: Turns, paid: Paid) -> None:
    """Rewards are computed when all is sampled."""
    play(turns, paid, Late)


def play(turns: Turns, paid: Paid, kind: type[Scheduled]) -> None:
    """A call of `rollout` in each turn."""
    policy = make_policy(paid.work)
    engine, task = kind(policy), even_task(paid.work.examples())

    def episode(example, rng) -> Iterator[Turn | Job]:
        text = yield Turn(SOLO, example.prompt)
        yield Job(sum, (range(paid.numbers),), cheap=not paid.numbers)
        return {SOLO: even_share(text)}

    task = replace(task, episode=episode, reward=None)
    with closing(Workers(0, 60.0)) as workers:
        turns.ready()
        while True:
            number = turns.wait()
            rng = random.Random(number)
            rows = paid.work.prompts * paid.work.group
            engine.lengths = [min(LONGEST, 1 + int(rng.expovariate(1 / MEAN))) for _ in range(rows)]
            plan = Plan(paid.work.group, LONGEST, 1.0, 0, "overlap", number)
            started = time.perf_counter()
            sampled = rollout(policy, engine, workers, task, task.dataset.train, plan)
            seconds = time.perf_counter() - started
            assert not sampled.failures, sampled.failures[0]
            tokens = sum(one.num_sampled for one in sampled.rollouts)
            rewards = [one.reward.value for one in sampled.rollouts if one.reward is not None]
            turns.done(seconds, {"tokens": tokens, "rewards": rewards})


def numbers_of(seconds: float) -> int:
    """How many numbers a core adds up in that time."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        sum(range(1_000_000))
        taken.append(time.perf_counter() - started)
    return int(1_000_000 * seconds / min(taken))


def main() -> None:
    """A reward of 50 ms beside one thread and beside all, and a cheap job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    numbers = numbers_of(REWARD_S)
    cases = {
        "rewards of 50 ms, one thread of torch": (Paid(Work(threads=1), numbers), 0.9, 0.8),
        "rewards of 50 ms, a thread on each core": (Paid(Work(), numbers), 1.02, 1.0),
        "cheap jobs, one thread of torch": (Paid(Work(threads=1), 0), 1.02, 1.0),
    }
    rows = [
        compare(
            f"a rollout with {name}",
            ("rewards afterwards", reach, aim),
            {"meanwhile": meanwhile, "afterwards": afterwards},
            paid,
            options.rounds,
        )
        for name, (paid, reach, aim) in cases.items()
    ]
    save("overlap", rows)


if __name__ == "__main__":
    main()
