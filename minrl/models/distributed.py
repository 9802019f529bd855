"""Device, precision and the other processes of the run, by accelerate and torch.distributed.

Without a launcher there is one process; accelerate launch, torchrun and srun start several. Each plays a share of the
examples and computes a share of each optimizer step. All of them have all rollouts, and take the same decisions.
"""

import copy
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object, reduce
from loguru import logger
from torch import Tensor, distributed

from minrl.config import TrainerConfig
from minrl.dataflow import UserError, require
from minrl.models.cpu import keep_freed_memory, spin_less_when_busy
from minrl.utils.processor import cpu_cores, own_cores
from minrl.utils.text import first_line

T = TypeVar("T")

COLLECTIVE_S = 5400.0
"""Time limit of a collective operation: the others wait while the first makes a base model, or waits for a server of
vLLM (1800 s by default).
"""

BUCKET = 2**26
"""Bytes of gradients that processes with whole copies send at a time: large enough for the bandwidth of a link, small
enough to overlap. A larger weight is sent alone.
"""

HOST, CORES = OWN = ("host", "cores")
"""Facts of a process that are its own. All others must be the same."""


class LostPeer(UserError):
    """Another process of the run is gone."""

    status = 1  # the same command may succeed


def buckets(weights: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The weights in order, in lists of one type of at most so many bytes; a larger one is alone."""
    bucket: list[Tensor] = []
    for weight in weights:
        if bucket and (weight.dtype != bucket[0].dtype or sum(w.nbytes for w in bucket) + weight.nbytes > most):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def has_hidden_card(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has an NVIDIA GPU, which nobody has hidden by CUDA_VISIBLE_DEVICES."""
    return "CUDA_VISIBLE_DEVICES" not in os.environ and any(devices.glob("nvidia[0-9]*"))


class Processes:
    """This process among those of the run, which must all have the same `facts`."""

    def __init__(self, config: TrainerConfig, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda asks for a CUDA GPU, and torch finds none: use --device cpu")
        on_cpu = config.device == "cpu" or not torch.cuda.is_available()
        if config.device == "auto" and on_cpu and has_hidden_card():
            raise UserError(
                f"this machine has an NVIDIA GPU that torch {torch.__version__} cannot use: update its driver or "
                "install torch for it (`nvidia-smi` says which CUDA the driver takes), or train on the processor with "
                "--device cpu"
            )
        os.environ |= srun_variables(os.environ)
        require_launcher(os.environ)
        local_count = os.environ.get("LOCAL_WORLD_SIZE")  # before accelerate writes its own
        self._state = _joined(on_cpu)
        self.count, self.rank = self._state.num_processes, self._state.process_index
        self.device = torch.device("cpu") if on_cpu else self._state.device
        if self.count == 1 and not on_cpu:  # accelerate keeps the device of an earlier run in this process
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.dtype = precision(config.dtype, self.device)
        self._group: distributed.ProcessGroup | None = None
        everyone = self.gather([{**facts(), HOST: socket.gethostname(), CORES: own_cores()}])
        require_one_run(everyone)
        here = sum(one[HOST] == everyone[self.rank][HOST] for one in everyone)
        self.local_count = int(local_count or here) if self.count > 1 else 1
        self.cores = share_of_cores(everyone, self.rank) if self.count > 1 else cpu_cores()
        torch.set_num_threads(config.threads or self.cores)
        keep_freed_memory()
        if on_cpu:
            spin_less_when_busy()

    def __str__(self) -> str:
        """The line that is shown at the start; empty for one process."""
        return f"{self.count} processes, {self.local_count} of them on this machine" if self.count > 1 else ""

    def in_main_memory(self) -> "Processes":
        """This process, computing on the CPU: for what has no room on its GPU yet."""
        other = copy.copy(self)
        other.device = torch.device("cpu")
        return other

    @cached_property
    def beside(self) -> "Processes":
        """This process with a connection of its own to the others, for a thread that works beside the main one: their
        messages cannot be mixed up. All processes ask for it at the same time.
        """
        other = copy.copy(self)
        limit = timedelta(seconds=COLLECTIVE_S)
        other._group = distributed.new_group(backend="gloo", timeout=limit) if self.count > 1 else None
        return other

    @property
    def main(self) -> bool:
        """Whether this process writes files and the screen."""
        return self.rank == 0

    def autocast(self) -> AbstractContextManager:
        """Matrix products in the configured precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return reduce(values, "sum")

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        """Replace each gradient by the sum over all processes, in flat buckets: one message each, sent while the next
        is filled. A process without a gradient adds 0. Those of sharded weights were summed in the backward pass.
        """
        weights = [weight for weight in weights if self.count > 1 and not hasattr(weight, "full_tensor")]
        sent = []
        for bucket in buckets(weights, BUCKET):
            grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([grad.flatten() for grad in grads])
            for weight in bucket:
                weight.grad = None  # so that there are never two copies of all gradients
            del grads
            sent.append((bucket, flat, distributed.all_reduce(flat, async_op=True)))
        for bucket, flat, handle in sent:
            handle.wait()
            for weight, total in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = total.view_as(weight)

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, in order of rank."""
        if self._group is None:
            return items if self.count == 1 else gather_object(items)
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, items, group=self._group)
        return [item for part in found for item in part]

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` returns in the main process, in all of them. What it raises there, all raise."""
        result: Any = None
        if self.main:
            try:
                result = work()
            except Exception as error:
                result = error if self.count == 1 else _sendable(error)
        result = self.gather([result])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def share(self, total: int) -> slice:
        """This process's block of `total` items in order. Block sizes differ by one at most; blocks may be empty."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def split(self, total: int) -> int:
        """This process's part of a total that the processes divide: at least 1."""
        return max(1, total // self.count)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self._state.wait_for_everyone()

    @contextmanager
    def open(self) -> Iterator["Processes"]:
        """Leave the process group at the end; without this torch aborts when the interpreter ends. Inside, an operation
        of all that fails is an error of one line: another process is gone, and says why.
        """
        try:
            yield self
        except (distributed.DistError, RuntimeError) as error:
            if self.count > 1 and (isinstance(error, distributed.DistError) or "gloo" in str(error).lower()):
                raise LostPeer(f"the processes of the run lost each other: {first_line(error)}") from error
            raise
        finally:
            self._state.destroy_process_group()


def precision(asked: str, device: torch.device) -> torch.dtype:
    """The precision of matrix products. A GPU before Ampere, such as V100 and T4, has no products of bfloat16."""
    short = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    if short:
        name = f"{torch.cuda.get_device_name(device)} has no products in bfloat16 (compute capability below 8.0)"
        require(asked != "bfloat16", f"{name}: use --dtype float32")
        if asked == "auto":
            logger.warning(f"{name}: --dtype auto is float32 here")
    auto = device.type == "cuda" and not short
    return torch.bfloat16 if asked == "bfloat16" or (asked == "auto" and auto) else torch.float32


def _joined(on_cpu: bool) -> PartialState:
    """Meet the other processes, if a launcher started several, and make torch's process group."""
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # accelerate makes a group of one too
            os.environ.pop(name, None)
        return PartialState(cpu=on_cpu)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # accelerate warns without it; torch's threads are set later
    if not on_cpu and torch.cuda.device_count() == 1:  # the only one that srun --gpus-per-task shows
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cuda:0"
    backend = None if on_cpu else "cpu:gloo,cuda:nccl"
    return PartialState(cpu=on_cpu, backend=backend, timeout=timedelta(seconds=COLLECTIVE_S))


def _sendable(error: Exception) -> Exception:
    """The error, or one with its text if the other processes could not read it."""
    try:
        pickle.dumps(copy.copy(error))  # which makes it anew, as the others must
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def require_one_run(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Refuse processes that were started differently, naming the first that differs and in what."""
    first = everyone[0]
    for rank, one in enumerate(everyone):
        for name in dict.fromkeys([*first, *one]):
            require(
                name in OWN or one.get(name) == first.get(name),
                f"process {rank} of {len(everyone)} (on {one[HOST]}) has {name} {one.get(name)}, and process 0 (on "
                f"{first[HOST]}) has {first.get(name)}: start all with the same command, code and packages",
            )


def share_of_cores(everyone: Sequence[Mapping[str, Any]], rank: int) -> int:
    """How many of its cores a process has to itself: the node's processes may share them, or be bound to their own."""
    own = everyone[rank]
    sharing = [one for one in everyone if one[HOST] == own[HOST] and not set(own[CORES]).isdisjoint(one[CORES])]
    return max(1, len(own[CORES]) // max(1, len(sharing)))


def require_launcher(environment: Mapping[str, str]) -> None:
    """Refuse a number of processes without what they need to meet: the process would wait for others in vain."""
    count = environment.get("WORLD_SIZE") or "1"
    missing = [n for n in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(n)]
    require(
        count == "1" or not missing,
        f"WORLD_SIZE is {count} in the environment, and {', '.join(missing)} not set: start the processes with "
        "torchrun, accelerate launch or srun, or unset WORLD_SIZE for one process",
    )


def srun_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that torch and accelerate read, for a task of srun; none for a process that srun did not start."""
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) == 1 or "TORCHELASTIC_RUN_ID" in environment:
        return {}
    names = {"RANK": "PROCID", "WORLD_SIZE": "STEP_NUM_TASKS", "LOCAL_RANK": "LOCALID"}
    found = {name: environment[f"SLURM_{other}"] for name, other in names.items()}
    port = 10_000 + (7 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])) % 20_000
    place = {"MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]), "MASTER_PORT": str(port)}
    return found | {name: environment.get(name) or value for name, value in place.items()}


def first_host(nodes: str) -> str:
    """The first of SLURM's list of nodes.

    >>> [first_host(nodes) for nodes in ("one,two", "gpu[007-009,12],login", "rack[2,4]-node[01-03]")]
    ['one', 'gpu007', 'rack2-node01']
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def place(environment: Mapping[str, str]) -> dict[str, str]:
    """Where this process is, for config.json: the machine, and the job of SLURM."""
    names = {"job": "SLURM_JOB_ID", "nodes": "SLURM_JOB_NODELIST", "restarts": "SLURM_RESTART_COUNT"}
    found = {name: environment[variable] for name, variable in names.items() if variable in environment}
    return {"host": socket.gethostname(), **found}
