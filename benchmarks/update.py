"""How near the update by itself comes to the machine's best matrix product.

    python benchmarks/update.py

The update of 8 prompts of 32 tokens x 8 completions of 64. Its floating-point operations are counted: 6 for each token
and weight that multiplies it (the output head only where tokens are scored), and 12 for each pair of positions, head
and dimension in attention, half of the square.
"""

import argparse
import itertools
import multiprocessing
import time

import torch
from harness import Row, show, wait_until_quiet
from shapes import SHAPES, Work, make_policy, random_rollouts

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import Rollout, TrainState
from minrl.models.cpu import product
from minrl.optimizer import make_optimizer
from minrl.update import update_policy
from tests.parsed import sized


class Update:
    """A policy and its optimizer, to be trained again and again."""

    def __init__(self, work: Work) -> None:
        self.policy, self.config = make_policy(work), sized()
        self.algorithm = choose_algorithm(self.config)
        self.optimizer = make_optimizer(self.policy, self.config)
        self.rollouts: list[Rollout] = []

    def run(self, work: Work, number: int) -> float:
        """Seconds of the update of a round's rollouts."""
        self.rollouts = random_rollouts(work, number)
        advantages = compute_advantages(self.rollouts, self.algorithm, self.config, TrainState()).values
        state = TrainState(step=1)
        started = time.perf_counter()
        batch = make_batch(self.rollouts, advantages)
        update_policy(self.policy, self.optimizer, batch, self.algorithm, self.config, state, False)
        return time.perf_counter() - started


def flops(work: Work, rollouts: list[Rollout]) -> float:
    """Floating-point operations that the update cannot do without."""
    shape = SHAPES[work.size]
    heads = shape.heads * 32
    linear = shape.hidden_size * heads * 3 + 3 * shape.hidden_size * 3 * shape.hidden_size
    tokens = scored = pairs = 0
    seen = set()
    for rollout in rollouts:
        prompt, own = tuple(rollout.ids[: rollout.prompt_length]), len(rollout.ids) - 1 - rollout.prompt_length
        if prompt not in seen:
            seen.add(prompt)
            tokens += len(prompt)
            pairs += len(prompt) ** 2 / 2
        tokens += own
        scored += rollout.num_sampled
        pairs += own * len(prompt) + own**2 / 2
    head = shape.vocabulary * shape.hidden_size
    return 6.0 * (tokens * shape.layers * linear + scored * head) + 12.0 * pairs * shape.layers * heads


def best_product() -> dict[str, float]:
    """FLOP/s of the fastest square matrix product, by precision."""
    best = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.randn(1536, 1536).to(dtype), torch.randn(1536, 1536).to(dtype)
        seconds = []
        for multiply, _ in itertools.product((torch.matmul, product), range(8)):  # MKL's and ours
            started = time.perf_counter()
            multiply(left, right)
            seconds.append(time.perf_counter() - started)
        best[str(dtype).removeprefix("torch.")] = 2 * 1536**3 / min(seconds)
    return best


def utilisation(size: str, dtype: str, rounds: int) -> Row:
    """FLOP/s of the update over those of the best product in its precision."""
    work, values, loads = Work(size=size, dtype=dtype), [], []
    update = Update(work)
    for number in range(rounds + 2):
        load = wait_until_quiet()
        rates = best_product()
        seconds = update.run(work, number)
        if number >= 2:
            values.append(flops(work, update.rollouts) / seconds / rates[dtype])
            loads.append(load)
    print(f"{size}: " + ", ".join(f"{name} product {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.items()))
    what = f"update FLOP/s, {size}, {dtype}, over the best matrix product's"
    return Row(what, "1", values, others_load=max(loads))


def main() -> None:
    """A row for each size and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=["1M", "5M"])
    options = parser.parse_args()
    rows = []
    rates = best_product()
    dtypes = [dtype for dtype, rate in rates.items() if rate >= rates["float32"]]  # bfloat16, where it is in silicon
    for size, dtype in itertools.product(options.sizes, dtypes):
        with multiprocessing.get_context("spawn").Pool(1) as process:  # a process has one precision
            rows.append(process.apply(utilisation, (size, dtype, options.rounds)))
    show(rows)


if __name__ == "__main__":
    main()
