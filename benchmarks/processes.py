"""What several processes cost: time over work, bytes that they send, memory of each, and how long they wait.

    python benchmarks/processes.py
    python benchmarks/processes.py --sharding full --counts 1 2

The same update of the same rollouts in 1, 2 and 4 processes, each on a core of its own as far as there are cores: with
more processes than cores the time is that of the processors, all together. Bytes are those that the kernel counts on
each process's connections. The least of them: (n - 1) / n of twice all gradients, for whole copies; for shards, in each
micro-batch, of the layers twice, of what is outside them once and of all gradients once. gloo sends these twice: it has
no scattered sum. Memory is what torch allocates, beside what `minrl.models.memory` says. Idle is 1 - mean / maximum
over the processes, in tokens.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from counted import bytes_sent, counted
from harness import Row, doing, save, wait_until_quiet
from predict import sent_by_each
from shapes import Work, make_policy, random_rollouts

from minrl.models.memory import Setup, Weights

KINDS = ("none", "full")
UNEVEN_STEPS = 50


@dataclass(frozen=True)
class Case:
    """What each process does."""

    count: int
    sharding: str
    rounds: int
    micro_batch: int
    recompute: str
    work: Work


def launch(case: Case) -> list[dict[str, Any]]:
    """What each process measured, in order of rank."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "case.json"
        told.write_text(json.dumps(asdict(case)))
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.count}", __file__]
        roots = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": roots}
        subprocess.run([sys.executable, *command, "--case", str(told)], check=True, env=environment)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(case.count)]


def serve(told: Path) -> None:
    """One of the processes: writes down what it measured."""
    given = json.loads(told.read_text())
    case = Case(**given | {"work": Work(**given["work"])})
    rank, cores = int(os.environ["RANK"]), os.cpu_count() or 1
    os.sched_setaffinity(0, {rank % cores})
    from minrl.config import ModelConfig
    from minrl.models.distributed import Processes

    with Processes(ModelConfig(device="cpu", dtype="float32", threads=1)).open() as processes:
        (told.parent / f"{rank}.json").write_text(json.dumps(measured(case, processes)))


class Trainee:
    """A policy in this process of several, and what its passes were."""

    def __init__(self, case: Case, processes: Any) -> None:
        from minrl.algorithms import choose_algorithm
        from minrl.config import ModelConfig, OptimizerConfig, TrainerConfig
        from minrl.optimizer import make_optimizer

        model = ModelConfig(device="cpu", dtype="float32", threads=1, activation_checkpointing=case.recompute)
        self.config = TrainerConfig(model=model, optimizer=OptimizerConfig(micro_batch_tokens=case.micro_batch))
        self.policy = _policy(case, processes)
        self.policy.activation_checkpointing = model.activation_checkpointing
        self.algorithm, self.work = choose_algorithm(self.config), case.work
        self.optimizer = make_optimizer(self.policy, self.config.optimizer)
        self.tokens: list[int] = []
        score = self.policy.score

        def noted(stream: Any, *args: Any) -> Any:
            self.tokens.append(len(stream.input_ids))
            return score(stream, *args)

        self.policy.score = noted  # type: ignore[method-assign]

    def step(self, number: int) -> None:
        """One update; `tokens` are those of its forward passes."""
        from minrl.algorithms import compute_advantages
        from minrl.batch import make_batch
        from minrl.types import TrainState
        from minrl.update import update_policy

        self.tokens.clear()
        rollouts = random_rollouts(self.work, number)
        batch = make_batch(rollouts, compute_advantages(rollouts, self.algorithm, self.config, TrainState()).values)
        update_policy(self.policy, self.optimizer, batch, self.algorithm, self.config, TrainState(step=1), False)

    def held(self) -> int:
        """Bytes of this process's part of weights and moments."""
        states = (value for state in self.optimizer.state.values() for value in state.values())
        tensors = [*self.policy.model.parameters(), *(value for value in states if value.ndim)]
        return sum(_own(tensor).nbytes for tensor in tensors)


def _own(tensor: Any) -> Any:
    """This process's part of a sharded tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _policy(case: Case, processes: Any) -> Any:
    """The policy, with this process's part of the weights."""
    load = partial(make_policy, replace(case.work, threads=1), processes)
    if case.sharding == "none" or case.count == 1:
        return load()
    from minrl.run.setup import sharded_policy

    return sharded_policy(load, processes, case.sharding)


def count_waits() -> list[float]:
    """A list to which every wait for a collective adds its seconds."""
    from torch.distributed import Work as Message

    waited: list[float] = []
    wait = Message.wait

    def timed(self: Any, *args: Any) -> Any:
        started = time.perf_counter()
        done = wait(self, *args)
        waited.append(time.perf_counter() - started)
        return done

    Message.wait = timed
    return waited


def measured(case: Case, processes: Any) -> dict[str, Any]:
    """Seconds, waits, bytes and memory of this process's updates."""
    from minrl.models.memory import needed, weights_of
    from minrl.models.text import decoder_of, layers_of

    waited = count_waits()
    trainee = Trainee(case, processes)
    policy = trainee.policy
    for number in range(2):  # the optimizer's moments are made by the first
        trainee.step(number)
    turns = []
    for number in range(2, 2 + case.rounds):
        policy.processes.wait()
        before, sent, started, cpu = sum(waited), bytes_sent(), time.perf_counter(), time.process_time()
        trainee.step(number)
        seconds = time.perf_counter() - started, time.process_time() - cpu
        waits = sum(waited) - before
        turns.append({"wall_s": seconds[0], "cpu_s": seconds[1], "waited_s": waits, "sent": bytes_sent() - sent})
    held = trainee.held()
    seen = counted(lambda: trainee.step(2 + case.rounds))
    weights = weights_of(policy.model, layers_of(decoder_of(policy.model)))
    setup = Setup(
        processes=case.count,
        sharding=case.sharding,
        tokens=max(trainee.tokens),
        recompute=case.recompute == "always",
        engine="vllm-server",  # nothing is sampled here
    )
    need = needed(weights, policy.model.config, setup)
    facts = {"weights": vars(weights), "need": vars(need), "estimate": need.update, "passes": len(trainee.tokens)}
    return {**facts, "turns": turns, "held": held, "peak": held + seen.peak, "messages": seen.messages}


def least_sent(case: Case, facts: dict[str, Any]) -> float:
    """Bytes that a process cannot do without sending."""
    sent = sent_by_each(
        Weights(**facts["weights"]), Setup(processes=case.count, sharding=case.sharding), facts["passes"]
    )
    return sent["gather"] + sent["reduce"]


def rows_of(case: Case, ranks: list[dict[str, Any]], alone: list[dict[str, Any]]) -> list[Row]:
    """Time, bytes and memory of so many processes against those of one."""
    name = f"{case.count} processes, {case.sharding}"
    first, cores = ranks[0], os.cpu_count()

    def of_all(of: list[dict[str, Any]], what: str) -> list[float]:
        return [sum(rank["turns"][turn][what] for rank in of) for turn in range(case.rounds)]

    cpu = [many / statistics.median(of_all(alone, "cpu_s")) for many in of_all(ranks, "cpu_s")]
    wall = [many / statistics.median(of_all(alone, "wall_s")) for many in of_all(ranks, "wall_s")]
    share = [waits / wall_s for waits, wall_s in zip(of_all(ranks, "waited_s"), of_all(ranks, "wall_s"), strict=True)]
    sent = [rank["turns"][turn]["sent"] / least_sent(case, rank) for rank in ranks for turn in range(case.rounds)]
    facts = {"wall": wall, "share of waiting": share, "messages": first["messages"], "ranks": ranks}
    print(
        f"{name}: {statistics.median(wall):.2f} of one process's time by the clock x processes ({cores} cores), "
        f"{statistics.median(share):.0%} of it waiting for others; {first['passes']} passes; collectives: "
        + ", ".join(f"{len(sizes)} {kind}" for kind, sizes in first["messages"].items()),
        flush=True,
    )
    peaks = [rank["peak"] / rank["estimate"] for rank in ranks]
    holds = [rank["held"] / alone[0]["held"] for rank in ranks]
    least = 1 / case.count if case.sharding == "full" else 1.0
    return [
        Row(f"{name}: processor time over work", "1 process", 1.3, 1.1, cpu, facts=facts),
        Row(f"{name}: bytes sent by each, a step", "the least", 1.4, 1.05, sent),
        Row(f"{name}: weights and moments of each", f"{least:g} of one's", 1.1, 1.02, [one / least for one in holds]),
        Row(f"{name}: peak of an update", "estimate", 1.15, 1.0, peaks),
    ]


def idle(counts: list[int]) -> float:
    """The share of time that the processes wait for the one with the most."""
    return 1 - sum(counts) / len(counts) / max(counts)


def uneven_rows(work: Work, counts: list[int]) -> list[Row]:
    """Idle shares by tokens, where completions are between 1 token and the longest: decoding ends with a process's
    longest row, and the update is as long as its tokens are many.
    """
    from minrl.batch import share_of_tokens

    work, rows = replace(work, varying=True), []
    for count in counts:
        positions, tokens = [], []
        for number in range(UNEVEN_STEPS):
            rollouts = random_rollouts(work, number)
            lengths = [rollout.num_sampled for rollout in rollouts]
            shares = [slice(rank * work.prompts // count, (rank + 1) * work.prompts // count) for rank in range(count)]
            own = [lengths[share.start * work.group : share.stop * work.group] for share in shares]
            positions.append(idle([max(part, default=0) for part in own]))
            parts = [share_of_tokens(rollouts, range(len(rollouts)), rank, count) for rank in range(count)]
            tokens.append(idle([sum(len(rollouts[index].ids) for index in part) for part in parts]))
        for what, values in (("rollout, positions decoded", positions), ("update, tokens", tokens)):
            rows.append(Row(f"{count} processes: idle share of the {what}", "0", 0.1, 0.05, values))
    return rows


def main() -> None:
    """Rows for each number of processes and each way to hold the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sharding", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="1M")
    parser.add_argument("--micro-batch", type=int, default=512)
    parser.add_argument("--case", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        serve(options.case)
        return
    work, rows = Work(size=options.size, group=4, max_tokens=32), []
    base = Case(1, "none", options.rounds, options.micro_batch, "never", work)
    doing("one process")
    load, alone = wait_until_quiet(), launch(base)
    for sharding in options.sharding:
        for count in (count for count in options.counts if count > 1):
            doing(f"{count} processes, {sharding}")
            case = replace(base, count=count, sharding=sharding)
            load = max(load, wait_until_quiet())
            made = rows_of(case, launch(case), alone)
            rows += [replace(row, others_load=load) for row in made[:1]] + made[1:]
    rows += uneven_rows(work, [count for count in options.counts if count > 1])
    save("processes", rows)


if __name__ == "__main__":
    main()
