"""The policy's weights in a folder that the servers see too: written once for a sync, removed when all have read it.

Each sync has a folder of its own, whose name no server has looked up before: a network file system may keep old files.
"""

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import save_file
from torch import Tensor

from minrl.engines.vllm.start import save_shape
from minrl.engines.vllm_server.transfer import rounded
from minrl.policy import Policy
from minrl.types import CausalModel
from minrl.utils.files import lock, whole_folder

SHAPE = "shape"
"""The folder that servers start from, with dummy weights: the sync brings the real ones."""

LOCKED = "run-{}.lock"
"""The file that a run has locked while it lives."""

PART = 2 * 2**30
"""Bytes of tensors that are held in memory until they are written to a file."""


class WeightsFolder:
    """What a run writes for its servers."""

    def __init__(self, folder: str) -> None:
        self.folder, self._run = Path(folder), uuid.uuid4().hex[:12]
        self._current, self._count = Path(), 0
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Lock the files of this run, and remove those of runs that were killed: their locks are free."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(LOCKED.format("*")):
            held = lock(path)
            if held is not None:
                run = path.stem.rpartition("-")[2]
                for left in [*self.folder.glob(f"update-*-{run}-*"), *self.folder.glob(f".update-*-{run}-*.tmp")]:
                    shutil.rmtree(left)
                path.unlink()
                held.close()
        self._lock = lock(self._own_lock)

    def close(self) -> None:
        """Remove what this run wrote, but for the shape."""
        self.remove()
        if self._lock is not None:
            self._own_lock.unlink()
            self._lock.close()

    @property
    def _own_lock(self) -> Path:
        return self.folder / LOCKED.format(self._run)

    def write_shape(self, policy: Policy, model: CausalModel) -> None:
        """Write the model's config and the tokenizer."""
        with whole_folder(self.folder / SHAPE) as temporary:
            save_shape(temporary, policy, model)

    def write(self, tensors: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype) -> str:
        """Write the weights of an update; the folder's path. All tensors are asked for, also after an error, because
        other processes may take part in making each. Matrices are rounded to the precision that the servers compute in.
        """
        self.remove()
        self._count += 1  # a step without a gradient is synced too, under the version before it
        path = self.folder / f"update-{version:06d}-{self._run}-{self._count}"
        remaining = iter(tensors)
        try:
            with whole_folder(path) as temporary:
                _write(remaining, temporary, dtype)
        finally:
            for _ in remaining:
                pass
        self._current = path
        return str(path.absolute())

    def remove(self) -> None:
        """Remove the last weights that were written."""
        if self._current.name:
            shutil.rmtree(self._current, ignore_errors=True)


def _write(tensors: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    part: dict[str, Tensor] = {}
    size = number = 0
    for name, tensor in tensors:
        part[name] = (
            rounded(tensor, dtype).cpu().clone(memory_format=torch.contiguous_format)
        )  # safetensors wants memory of its own
        size += part[name].nbytes
        if size >= PART:
            save_file(part, folder / f"weights-{number:05d}.safetensors")
            part, size, number = {}, 0, number + 1
    if part:
        save_file(part, folder / f"weights-{number:05d}.safetensors")
