"""Where the seconds of a step go: its operations, against what their arithmetic, their bytes and their number cost.

    python benchmarks/roofline.py
    python benchmarks/roofline.py --size 5M --prompts 8 --threads 1

Sampling and update are each done three ways: timed, with every operation counted, and under torch's profiler. The
shape is by default that of the default run: 48 prompts of 8 tokens x 8 completions of 1 to 64 tokens, 1M parameters.

    products    floating-point operations of matrix products and attention, over the best product's
    bytes       read and written by every operation that is no view, over those a second that a sum over a large tensor
                reads
    dispatch    operations, views included, times the seconds of one on a single number

No phase can be faster than the largest of the three; it need not be slower than their sum.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from harness import doing, wait_until_quiet
from shapes import SHAPES, Work, as_rollouts, make_policy
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from update import best_product

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.optimizer import make_optimizer
from minrl.types import TrainState
from minrl.update import update_policy

SHOWN = 14
"""Kinds of operations in the table."""


class Count(TorchDispatchMode):
    """Operations, floating-point operations of products, and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.flops = self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Count it, and do it."""
        made = operation(*args, **(kwargs or {}))
        self.operations += 1
        if not operation.is_view:
            self.bytes += sum(t.numel() * t.element_size() for t in tensors((args, kwargs, made)))
        packet = operation.overloadpacket
        if packet is torch.ops.mkldnn._linear_pointwise:  # which torch's counter does not know
            self.flops += 2 * args[0].numel() * made.shape[-1]
        elif packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=made)
        return made


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


@dataclass(frozen=True)
class Machine:
    """What the machine does in a second, at most."""

    flops: float
    bytes: float
    operations: float

    @classmethod
    def measured(cls) -> "Machine":
        """By the best product, a sum over a large tensor, and additions of single numbers."""
        large, one = torch.ones(2**26), torch.ones(1)
        read = min(seconds(large.sum) for _ in range(5))
        added = min(seconds(lambda: [one + one for _ in range(1000)]) for _ in range(5))
        return cls(best_product()["float32"], 4 * large.numel() / read, 1000 / added)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def phase(name: str, work: Callable[[], object], machine: Machine) -> None:
    """Print what one phase's time is made of."""
    doing(name)
    work()
    wait_until_quiet()
    took = sorted(seconds(work) for _ in range(5))[2]
    with Count() as count:
        work()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    print(f"\n{name}: {1e3 * took:.0f} ms")
    parts = {
        "products": (count.flops / machine.flops, f"{count.flops / 1e9:.1f} GFLOP"),
        "bytes": (count.bytes / machine.bytes, f"{count.bytes / 1e9:.2f} GB"),
        "dispatch": (count.operations / machine.operations, f"{count.operations:,} operations"),
    }
    for part, (needs, what) in parts.items():
        print(f"  {part:10} {1e3 * needs:6.0f} ms  {needs / took:5.0%}   {what}")
    bound = max(needs for needs, _ in parts.values())
    print(f"  the largest is {bound / took:.0%} of the time, the sum {sum(n for n, _ in parts.values()) / took:.0%}")
    rows = sorted(profiled.key_averages(), key=lambda row: -row.self_cpu_time_total)
    whole = sum(row.self_cpu_time_total for row in rows)
    for row in rows[:SHOWN]:
        print(f"  {row.self_cpu_time_total / whole:5.1%}  {row.count:6}  {row.key}")


def main() -> None:
    """Both phases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1M", choices=list(SHAPES))
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = vars(parser.parse_args())
    work = Work(varying=True, **given)
    policy, config = make_policy(work), TrainerConfig()
    engine, algorithm = TorchEngine(policy), choose_algorithm(config)
    optimizer = make_optimizer(policy, config.optimizer)
    requests = work.requests()
    rollouts = as_rollouts(requests, engine.generate(requests, Sampling(1.0, frozenset())), work.group)
    batch = make_batch(rollouts, compute_advantages(rollouts, algorithm, config, TrainState()).values)
    doing("measuring the machine")
    machine = Machine.measured()
    print(f"{machine.flops / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.1f} GB/s, {1e6 / machine.operations:.2f} us each")
    phase("sampling", lambda: engine.generate(requests, Sampling(1.0, frozenset())), machine)
    phase(
        "update", lambda: update_policy(policy, optimizer, batch, algorithm, config, TrainState(step=1), False), machine
    )


if __name__ == "__main__":
    main()
