"""What a step costs as the work grows: rollouts x1 to x8, and context x1 to x8.

    python benchmarks/growth.py

Seconds of rollout and update over what they must compute, relative to the smallest size. Counted are the update's
floating-point operations (see benchmarks/update.py), a third of them for the rollout's own forward pass, and the
rollout's bytes: at each position all weights once, and every row's keys and values up to there.
"""

import argparse
import statistics
import time

from harness import Row, save, wait_until_quiet
from shapes import SHAPES, Work, random_rollouts
from update import Update, best_product, flops

from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine

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


def cost(work: Work, rounds: int) -> tuple[float, float, float]:
    """Median seconds of a rollout and of an update, and the load of others."""
    update = Update(work)
    engine = TorchEngine(update.policy)
    rollouts, updates, loads = [], [], []
    for number in range(rounds + 1):
        loads.append(wait_until_quiet())
        started = time.perf_counter()
        engine.generate(work.requests(number), Sampling(1.0, frozenset()))
        rollouts.append(time.perf_counter() - started)
        updates.append(update.run(work, number)[0])
    return statistics.median(rollouts[1:]), statistics.median(updates[1:]), max(loads[1:])


def grown(size: str, what: str, factor: int) -> Work:
    """The work with as many times the rollouts or the context."""
    if what == "rollouts":
        return Work(size=size, prompts=8 * factor)
    return Work(size=size, prompt_tokens=32 * factor, max_tokens=64 * factor)


def main() -> None:
    """A row for rollouts and update each, by what grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="1M")
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    rate = best_product()["float32"]
    rows = []
    for what in ("rollouts", "context"):
        units: dict[str, list[float]] = {"rollout": [], "update": []}
        loads = []
        for factor in options.factors:
            work = grown(options.size, what, factor)
            rollout_s, update_s, load = cost(work, options.rounds)
            counted = flops(work, random_rollouts(work))
            floor = counted / 3 / rate + rollout_bytes(work) / BYTES_PER_S
            units["rollout"].append(rollout_s / floor)
            units["update"].append(update_s / (counted / rate))
            loads.append(load)
            print(f"{what} x{factor}: rollout {rollout_s:.3f} s, update {update_s:.3f} s", flush=True)
        for phase, costs in units.items():
            name = f"{phase}: time over counted work, {what} x{options.factors[-1]} over x1, {options.size}"
            worst = max(one / costs[0] for one in costs[1:])
            row = Row(name, "1", 1.15, 1.0, [worst], others_load=max(loads), facts={"relative to the floor": costs})
            rows.append(row)
            print(f"{phase}, {what}: " + " ".join(f"{one:.2f}" for one in costs), flush=True)
    save("growth", rows)


if __name__ == "__main__":
    main()
