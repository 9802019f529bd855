"""Device, precision and the other processes of the run, by accelerate.

Without a launcher there is one process; accelerate launch, torchrun and srun start several. Each plays a share of the
examples and computes a share of each optimizer step. All of them have all rollouts, and take the same decisions.
"""

import copy
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.distributed import all_reduce

from minrl.config import ModelConfig
from minrl.models.barriers import spin_less_when_busy
from minrl.models.cpu import keep_freed_memory
from minrl.models.group import join
from minrl.models.launch import launched
from minrl.models.memory import BUCKET
from minrl.types import UserError

T = TypeVar("T")


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
    """Whether this machine has an NVIDIA card, which nobody has hidden by CUDA_VISIBLE_DEVICES."""
    return "CUDA_VISIBLE_DEVICES" not in os.environ and any(devices.glob("nvidia[0-9]*"))


def _sendable(error: Exception) -> Exception:
    """The error, or one with its text if the other processes could not read it."""
    try:
        pickle.dumps(copy.copy(error))  # which makes it anew, as the others must
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


class Processes:
    """This process among those of the run, which must all have the same `facts`."""

    def __init__(self, config: ModelConfig, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda asks for a CUDA card, and torch finds none: use --device cpu")
        on_cpu = config.device == "cpu" or not torch.cuda.is_available()
        if config.device == "auto" and on_cpu and has_hidden_card():
            raise UserError(
                f"this machine has an NVIDIA card that torch {torch.__version__} cannot use: update its driver or "
                "install torch for it (`nvidia-smi` says which CUDA the driver takes), or train on the processor with "
                "--device cpu"
            )
        dtype = config.dtype if config.dtype != "auto" else ("float32" if on_cpu else "bfloat16")
        self.launch = launched(os.environ)
        self._group = join(self.launch, on_cpu, facts)
        self._accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if dtype == "bfloat16" else "no")
        self._place: torch.device | None = None
        torch.set_num_threads(config.threads or self.cores)
        keep_freed_memory()
        if on_cpu:
            spin_less_when_busy()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self._place or self._accelerator.device

    def in_main_memory(self) -> "Processes":
        """This process, computing on the CPU: for what has no room on its card yet."""
        other = copy.copy(self)
        other._place = torch.device("cpu")
        return other

    @property
    def dtype(self) -> torch.dtype:
        """Precision of matrix products."""
        return torch.bfloat16 if self._accelerator.mixed_precision == "bf16" else torch.float32

    @property
    def count(self) -> int:
        """The number of processes of the run."""
        return self._accelerator.num_processes

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._accelerator.process_index

    @property
    def main(self) -> bool:
        """Whether this process writes files and the screen."""
        return self._accelerator.is_main_process

    @property
    def cores(self) -> int:
        """The number of cores that this process has to itself."""
        return self._group.cores

    def autocast(self) -> AbstractContextManager:
        """Matrix products in the configured precision."""
        return self._accelerator.autocast()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._accelerator.reduce(values, "sum")

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
            sent.append((bucket, flat, all_reduce(flat, async_op=True)))
        for bucket, flat, handle in sent:
            handle.wait()
            for weight, total in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = total.view_as(weight)

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, in order of rank."""
        return items if self.count == 1 else gather_object(items)

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

    def any_of_each(self, flags: list[bool]) -> list[bool]:
        """For each flag whether it is set in any process."""
        return [any(one) for one in zip(*self.gather([flags]), strict=True)]

    def share(self, total: int) -> slice:
        """This process's block of `total` items in order. Block sizes differ by one at most; blocks may be empty."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    @contextmanager
    def open(self) -> Iterator["Processes"]:
        """Leave the process group at the end; without this torch aborts when the interpreter ends. Inside, the loss of
        another process is an error of one line.
        """
        peers = self._group.peers
        try:
            with peers.watched() if peers else nullcontext():
                yield self
        finally:
            self._accelerator.end_training()
            if peers:
                peers.close()

    def split(self, total: int) -> int:
        """This process's part of a total that the processes divide: at least 1."""
        return max(1, total // self.count)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self._accelerator.wait_for_everyone()
