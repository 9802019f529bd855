"""Device, precision and the other processes of the run, by accelerate.

Without a launcher there is one process; `accelerate launch train.py` starts several. Each plays a share of the examples
and computes a share of each optimizer step. All of them have all rollouts, and take the same decisions.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from minrl.config import ModelConfig
from minrl.kernels.cpu import keep_freed_memory
from minrl.system.cores import cpu_cores
from minrl.types import UserError


class Processes:
    """This process among those of the run."""

    def __init__(self, config: ModelConfig) -> None:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda asks for a CUDA card, and torch finds none: use --device cpu")
        on_cpu = config.device == "cpu" or not torch.cuda.is_available()
        dtype = config.dtype if config.dtype != "auto" else ("float32" if on_cpu else "bfloat16")
        self._accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if dtype == "bfloat16" else "no")
        torch.set_num_threads(config.threads or self.split(cpu_cores()))
        keep_freed_memory()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self._accelerator.device

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

    def autocast(self) -> AbstractContextManager:
        """Matrix products in the configured precision."""
        return self._accelerator.autocast()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._accelerator.reduce(values, "sum")

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, in order of rank."""
        return items if self.count == 1 else gather_object(items)

    def share(self, total: int) -> slice:
        """This process's block of `total` items in order. Block sizes differ by one at most; blocks may be empty."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def close(self) -> None:
        """Leave the process group; without this torch aborts when the interpreter ends."""
        self._accelerator.end_training()

    def split(self, total: int) -> int:
        """This process's part of a total that the processes divide: at least 1."""
        return max(1, total // self.count)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self._accelerator.wait_for_everyone()
