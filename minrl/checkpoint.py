"""Checkpoints that are whole or not there, and the state that continues a run bit for bit.

A checkpoint is a folder in Hugging Face's format plus `optimizer.safetensors` and `trainer.json`. It is written
under a temporary name, every file is flushed to the disk, a manifest of sizes and hashes goes last, and then the
folder is renamed. What does not match its manifest is not a checkpoint.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from loguru import logger

from minrl.optimizer import load_optimizer, save_optimizer
from minrl.policy import Policy, master_weights, save_policy
from minrl.types import UserError

MANIFEST = "manifest.json"


@dataclass
class TrainState:
    """What changes from step to step and is not a weight."""

    step: int = 0
    examples_drawn: int = 0
    policy_version: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    baselines: dict[str, float] = field(default_factory=dict)
    temperature: float = 0.0
    solve_rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: dict) -> "TrainState":
        """The state that `asdict` made."""
        return cls(**values)


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step_{step:06d}"


def save_checkpoint(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, state: TrainState, keep: int
) -> Path:
    """Write `folder/step_000123` and remove all but the newest `keep` (0: keep all)."""
    final = folder / step_name(state.step)
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_policy(policy, temporary)
    save_optimizer(optimizer, policy, temporary / "optimizer.safetensors")
    (temporary / "trainer.json").write_text(json.dumps(asdict(state), indent=1))
    _seal(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _fsync(folder)
    complete = [path for path in _by_step(folder) if path != final]
    for path in complete[: len(complete) + 1 - keep] if keep else ():
        shutil.rmtree(path)
    return final


def load_state(checkpoint: Path) -> TrainState:
    """The trainer's state of a checkpoint."""
    return TrainState.from_dict(json.loads((checkpoint / "trainer.json").read_text()))


def restore_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's moments of a checkpoint."""
    load_optimizer(optimizer, policy, checkpoint / "optimizer.safetensors")


def newest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over."""
    for path in reversed(_by_step(folder)):
        problem = damage(path)
        if problem is None:
            return path
        logger.warning(f"checkpoint {path} is damaged ({problem}); going back to the one before it")
    return None


def discard_after(folder: Path, step: int) -> None:
    """Remove the checkpoints beyond a step that a run goes on from: they belong to another continuation."""
    for path in _by_step(folder):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    manifest = checkpoint / MANIFEST
    try:
        expected = json.loads(manifest.read_text())
    except (OSError, json.JSONDecodeError):
        return f"no readable {MANIFEST}"
    for name, digest in expected.items():
        path = checkpoint / name
        if not path.exists():
            return f"{name} is missing"
        if _digest(path) != digest:
            return f"{name} is not what was written"
    return None


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path: itself, or the newest whole one in a folder of checkpoints."""
    if (path / MANIFEST).exists():
        problem = damage(path)
        if problem is not None:
            raise UserError(f"checkpoint {path} is damaged ({problem}): name the one before it")
        return path
    found = newest_complete(path)
    if found is None:
        raise UserError(f"{path} holds no complete checkpoint: name a folder step_* or one that contains them")
    return found


def weights_sha256(policy: Policy) -> str:
    """Hash over sorted name, dtype, shape and bytes of the float32 master weights, tied ones once."""
    digest = hashlib.sha256()
    for name, weight in master_weights(policy.model).items():
        array = weight.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _by_step(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def _seal(folder: Path) -> None:
    """Flush every file to the disk, then write the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {str(path.relative_to(folder)): _digest(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(digests, indent=1))
    _each_file(folder, _fsync)
    _fsync(folder)


def _each_file(folder: Path, function: Callable[[Path], None]) -> None:
    for path in folder.rglob("*"):
        function(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
