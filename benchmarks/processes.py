"""What several processes cost: time over work, bytes that they send, and memory of each.

    python benchmarks/processes.py
    python benchmarks/processes.py --sharding full --counts 1 2

The same update of the same rollouts in 1, 2 and 4 processes, each on a core of its own as far as there are cores: with
more processes than cores the time is that of the processors, all together. Bytes are those that the kernel counts on
each process's connections, over `sent_by_each`; gloo sends scattered sums twice, because it has none. Memory is what
torch allocates, over that of one process.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import Row, doing, save, wait_until_quiet
from shapes import Work, make_policy
from torch import nn
from torch.profiler import ProfilerActivity, profile
from update import Update

from minrl.models.distributed import Processes
from minrl.models.sharding import sharded_policy
from minrl.models.structure import decoder_of, layers_of
from tests.parsed import sized

SENT_AT = 200
"""The place of `tcpi_bytes_sent` in Linux' `struct tcp_info`."""


@dataclass(frozen=True)
class Case:
    """What each process does."""

    count: int
    sharding: str
    rounds: int
    micro_batch: int
    recompute: str
    work: Work


def bytes_sent() -> int:
    """Bytes that this process has sent by all its open TCP connections, as the kernel counts them."""
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            copy = os.dup(int(descriptor))
        except OSError:  # closed meanwhile, as the one that lists them
            continue
        with socket.socket(fileno=copy) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SENT_AT + 8)
                total += struct.unpack_from("<Q", info, SENT_AT)[0]
    return total


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of tensors in main memory during a call, beyond those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    held = peak = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def sent_by_each(model: nn.Module, case: Case, passes: int) -> int:
    """Bytes that each process must send in an optimizer step of so many micro-batches.

    A ring sends (n - 1) / n of the whole for a gather, as much for a sum that is scattered, and twice for a sum that
    all have. Each micro-batch gathers layers twice, forward and backward, what is outside them once, and sums once;
    whole copies sum once for all.
    """
    stored = 4 * sum(weight.numel() for weight in model.parameters())
    if case.sharding == "none":
        return round(2 * stored * (case.count - 1) / case.count)
    layers = 4 * sum(weight.numel() for layer in layers_of(decoder_of(model)) for weight in layer.parameters())
    return round(passes * (2 * stored + layers) * (case.count - 1) / case.count)


def launch(case: Case) -> list[dict[str, Any]]:
    """What each process measured, in order of rank."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "case.json"
        given.write_text(json.dumps(asdict(case)))
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.count}", __file__]
        roots = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": roots}
        subprocess.run([sys.executable, *command, "--case", str(given)], check=True, env=environment)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(case.count)]


def serve(given: Path) -> None:
    """One of the processes: writes down what it measured."""
    read = json.loads(given.read_text())
    case = Case(**read | {"work": Work(**read["work"])})
    rank, cores = int(os.environ["RANK"]), os.cpu_count() or 1
    os.sched_setaffinity(0, {rank % cores})
    with Processes(sized(device="cpu", dtype="float32", threads=1)).open() as processes:
        (given.parent / f"{rank}.json").write_text(json.dumps(measured(case, processes)))


def measured(case: Case, processes: Processes) -> dict[str, Any]:
    """Seconds, bytes and memory of this process's updates."""
    load = partial(make_policy, replace(case.work, threads=1), processes)
    policy = load() if case.sharding == "none" else sharded_policy(load, processes, case.sharding)
    machine = {"device": "cpu", "dtype": "float32", "threads": 1, "micro_batch_tokens": case.micro_batch}
    config = sized(**machine, activation_checkpointing=case.recompute)
    policy.activation_checkpointing = config.activation_checkpointing
    update, tokens, score = Update(case.work, policy, config), [], policy.score

    def counted(stream: Any, *args: Any) -> Any:
        tokens.append(len(stream.input_ids))
        return score(stream, *args)

    policy.score = counted  # type: ignore[method-assign]
    turns = []
    for number in range(2 + case.rounds):  # the optimizer's moments are made by the first
        tokens.clear()
        processes.wait()
        sent, cpu = bytes_sent(), time.process_time()
        update.run(case.work, number)
        turns.append({"cpu_s": time.process_time() - cpu, "sent": bytes_sent() - sent})
    states = (value for state in update.optimizer.state.values() for value in state.values())
    tensors = [*policy.model.parameters(), *(value for value in states if value.ndim)]
    held = sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in tensors)
    passes = len(tokens)
    peak = held + peak_bytes(lambda: update.run(case.work, 2 + case.rounds))
    return {"least": sent_by_each(policy.model, case, passes), "turns": turns[2:], "peak": peak}


def rows_of(case: Case, ranks: list[dict[str, Any]], alone: dict[str, Any], load: float) -> list[Row]:
    """Time, bytes and memory of so many processes against those of one."""
    name = f"{case.count} processes, {case.sharding}"
    cpu = [sum(rank["turns"][turn]["cpu_s"] for rank in ranks) for turn in range(case.rounds)]
    one = statistics.median(turn["cpu_s"] for turn in alone["turns"])
    sent = [turn["sent"] / rank["least"] for rank in ranks for turn in rank["turns"]]
    return [
        Row(f"{name}: processor time over work", "1 process", [seconds / one for seconds in cpu], others_load=load),
        Row(f"{name}: bytes sent by each, a step", "the least", sent),
        Row(f"{name}: peak of an update", "1 process", [rank["peak"] / alone["peak"] for rank in ranks]),
    ]


def main() -> None:
    """Rows for each number of processes and each way to hold the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sharding", nargs="+", choices=["none", "full"], default=["none", "full"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        serve(options.case)
        return
    work, rows = Work(size="1M", group=4, max_tokens=32), []
    base = Case(1, "none", options.rounds, 512, "never", work)
    doing("one process")
    (alone,) = launch(base)
    counts = [count for count in options.counts if count > 1]
    for sharding in options.sharding:
        for count in counts:
            doing(f"{count} processes, {sharding}")
            load, case = wait_until_quiet(), replace(base, count=count, sharding=sharding)
            rows += rows_of(case, launch(case), alone, load)
    save("processes", rows)


if __name__ == "__main__":
    main()
