"""What a step costs as the work grows: groups, rollouts of a group, context and width, each x1 to x8.

    python benchmarks/growth.py
    python benchmarks/growth.py --grows context --rounds 9

The length of a run is measured by long_run.py.

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


def wide(work: Work, factor: int) -> Work:
    """The same for a wider model, with as many more heads."""
    shape, name = SHAPES[work.size], f"{work.size}, {factor} times as wide"
    SHAPES[name] = replace(shape, hidden_size=factor * shape.hidden_size, heads=factor * shape.heads)
    return replace(work, size=name)


GROWN = {
    "groups": lambda work, factor: replace(work, prompts=factor * work.prompts),
    "rollouts": lambda work, factor: replace(work, group=factor * work.group),
    "context": lambda work, factor: replace(
        work, prompt_tokens=factor * work.prompt_tokens, max_tokens=factor * work.max_tokens
    ),
    "width": wide,
}
"""The work with so many times as much of it."""


class Growing:
    """The work at one size: an engine and a policy of its own, and the least that it must compute."""

    def __init__(self, size: str, what: str, factor: int, rate: float) -> None:
        self.work = GROWN[what](Work(size=size), factor)
        self.update = Update(self.work)
        self.engine = TorchEngine(self.update.policy)
        counted = flops(self.work, random_rollouts(self.work))
        self.floors = counted / 3 / rate + rollout_bytes(self.work) / BYTES_PER_S, counted / rate

    def costs(self, number: int) -> tuple[float, float]:
        """Seconds of a rollout and of an update over the least."""
        started = time.perf_counter()
        self.engine.generate(self.work.requests(number), Sampling(1.0, frozenset()))
        rollout_s = time.perf_counter() - started
        return rollout_s / self.floors[0], self.update.run(self.work, number)[0] / self.floors[1]


def rounds_of(size: str, what: str, factors: list[int], rounds: int, rate: float) -> tuple[list[list], float]:
    """Costs by round, factor and phase, and the worst load of others. All sizes take their turn in every round, the
    smallest `SMALL_TURNS` times: what a machine does changes within minutes.
    """
    doing(f"{what}: making {len(factors)} sizes")
    sizes = [Growing(size, what, factor, rate) for factor in factors]
    for one in sizes:
        one.costs(0)
    kept, loads = [], []
    for number in range(1, rounds + 1):
        doing(f"{what}, up to x{factors[-1]}: round {number} of {rounds}")
        loads.append(wait_until_quiet())
        small = [sizes[0].costs(number + turn) for turn in range(SMALL_TURNS)]
        kept.append([tuple(map(statistics.median, zip(*small, strict=True))), *(s.costs(number) for s in sizes[1:])])
    return kept, max(loads)


def main() -> None:
    """A row for rollouts and update each, by what grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="1M")
    parser.add_argument("--grows", nargs="+", default=list(GROWN), choices=list(GROWN))
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    rate = best_product()["float32"]
    rows = []
    for what in options.grows:
        kept, load = rounds_of(options.size, what, options.factors, options.rounds, rate)
        for phase, name in enumerate(("rollout", "update")):
            medians = [
                statistics.median(costs[place][phase] for costs in kept) for place in range(len(options.factors))
            ]
            print(f"{name}, {what}, time over the least: " + " ".join(f"{one:.2f}" for one in medians), flush=True)
            grown = {
                factor: [costs[place][phase] / costs[0][phase] for costs in kept]
                for place, factor in enumerate(options.factors[1:], 1)
            }
            worst = max(grown, key=lambda factor: statistics.median(grown[factor]))
            title = (
                f"{name}: time over counted work, {what} up to x{options.factors[-1]}, worst x{worst}, {options.size}"
            )
            rows.append(Row(title, "x1", 1.15, 1.0, grown[worst], others_load=load, facts={"over the least": medians}))
    save("growth", rows)


if __name__ == "__main__":
    main()
