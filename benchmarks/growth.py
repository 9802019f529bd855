"""What a step costs as the work grows: rollouts of a group and context, each x8.

    python benchmarks/growth.py
    python benchmarks/growth.py --grows context --rounds 9

Seconds of rollout and update over what they must compute, relative to the smallest size. Counted are the update's
floating-point operations (see benchmarks/update.py), a third of them for the rollout's own forward pass, and the
rollout's bytes: at each position all weights once, and every row's keys and values up to there.
"""

import argparse
import statistics
import time
from dataclasses import replace

from harness import Row, doing, save, wait_until_quiet
from shapes import SHAPES, Work, random_rollouts
from update import Update, best_product, flops

from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine

GROWN = ["rollouts", "context"]
SMALL_TURNS = 3
"""Turns of the smallest size in each round."""

BYTES_PER_S = 10e9
"""What a core reads from memory, roughly: it only weighs the bytes against the operations."""


def rollout_bytes(work: Work) -> float:
    """Bytes that sampling must read: weights and caches, at each position."""
    shape = SHAPES[work.size]
    heads = shape.heads * 32
    weights = shape.layers * (3 * shape.hidden_size * heads + 9 * shape.hidden_size**2)
    weights += shape.vocabulary * shape.hidden_size
    rows, per_token = work.prompts * work.group, shape.layers * heads  # half as many heads, keys and values
    cached = sum(rows * (work.prompt_tokens + position) * per_token for position in range(work.max_tokens))
    return 4.0 * (work.max_tokens * weights + cached)


def grown(work: Work, what: str, factor: int) -> Work:
    """The work with so many times as much of it."""
    if what == "rollouts":
        return replace(work, group=factor * work.group)
    return replace(work, prompt_tokens=factor * work.prompt_tokens, max_tokens=factor * work.max_tokens)


class Growing:
    """The work at one size: an engine and a policy of its own, and the least that it must compute."""

    def __init__(self, size: str, what: str, factor: int, rate: float) -> None:
        self.work = grown(Work(size=size), what, factor)
        self.update = Update(self.work)
        self.engine = TorchEngine(self.update.policy)
        counted = flops(self.work, random_rollouts(self.work))
        self.floors = counted / 3 / rate + rollout_bytes(self.work) / BYTES_PER_S, counted / rate

    def costs(self, number: int) -> tuple[float, float]:
        """Seconds of a rollout and of an update over the least."""
        started = time.perf_counter()
        self.engine.generate(self.work.requests(number), Sampling(1.0, frozenset()))
        rollout_s = time.perf_counter() - started
        return rollout_s / self.floors[0], self.update.run(self.work, number) / self.floors[1]


def rows_of(size: str, what: str, factor: int, rounds: int, rate: float) -> list[Row]:
    """Costs of so many times the work over those of the work, of the rollout and of the update. The small size takes
    `SMALL_TURNS` turns in every round: what a machine does changes within minutes.
    """
    small, large = (Growing(size, what, times, rate) for times in (1, factor))
    ratios, loads = [], []
    for number in range(rounds + 1):
        doing(f"{what} x{factor}: round {number} of {rounds}, after one to warm up")
        loads.append(wait_until_quiet() if number else 0.0)
        costs = zip(*[small.costs(number + turn) for turn in range(SMALL_TURNS)], strict=True)
        pairs = zip(large.costs(number), map(statistics.median, costs), strict=True)
        ratios.append([cost / once for cost, once in pairs])
    return [
        Row(f"{phase}: time over counted work, {what} x{factor}, {size}", "x1", values, others_load=max(loads))
        for phase, values in zip(("rollout", "update"), map(list, zip(*ratios[1:], strict=True)), strict=True)
    ]


def main() -> None:
    """A row for rollouts and update each, by what grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grows", nargs="+", default=GROWN, choices=GROWN)
    options = parser.parse_args()
    rate, rows = best_product()["float32"], []
    for what in options.grows:
        rows += rows_of("1M", what, 8, options.rounds, rate)
    save("growth", rows)


if __name__ == "__main__":
    main()
