"""Checkpoints that are whole or not there, and the state that continues a run bit for bit.

A checkpoint is a folder in Hugging Face's format plus `optimizer.safetensors` and `trainer.json`. It is written
under a temporary name, its manifest of hashes last. All files are flushed to disk, then the folder is renamed. A folder
that does not match its manifest is not a checkpoint.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import torch
from loguru import logger
from safetensors.torch import load_file, save_file

from minrl.model.loading import save_model
from minrl.model.lora import SUBFOLDER, MergedWeights
from minrl.policy import Policy, master_weights
from minrl.system.files import naming, whole_folder
from minrl.types import TrainState, UserError, require

MANIFEST = "manifest.json"
STATE = "trainer.json"
MOMENTS = "optimizer.safetensors"


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step_{step:06d}"


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after, from its name."""
    return int(checkpoint.name.removeprefix("step_"))


def save_checkpoint(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, state: TrainState, keep: int
) -> Path:
    """Write `folder/step_000123` and remove all but the newest `keep` (0: keep all)."""
    final = folder / step_name(state.step)
    with whole_folder(final) as temporary:
        save_policy(policy, temporary)
        save_optimizer(optimizer, policy, temporary / MOMENTS)
        (temporary / STATE).write_text(json.dumps(asdict(state), indent=1))
        _seal(temporary)
    for path in _by_step(folder)[:-keep] if keep else ():
        _remove(path)
    return final


def load_state(checkpoint: Path) -> TrainState:
    """The trainer's state in a checkpoint. Raises `UserError` if a newer version of MinRL wrote it."""
    values = json.loads((checkpoint / STATE).read_text())
    unknown = sorted(values.keys() - {one.name for one in fields(TrainState)})
    require(
        not unknown,
        f"{checkpoint / STATE} holds {', '.join(unknown)}, which this version of MinRL does not know: go on with the "
        f"version that wrote it, or begin a new run from its weights with --model-id {checkpoint}",
    )
    return TrainState(**values)


def restore_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's moments of a checkpoint."""
    load_optimizer(optimizer, policy, checkpoint / MOMENTS)


def save_optimizer(optimizer: torch.optim.Optimizer, policy: Policy, path: Path) -> None:
    """The optimizer's moments and step counts, by the name of the weight: `moment:name`."""
    tensors = {}
    for name, weight in master_weights(policy.model).items():
        for key, value in optimizer.state.get(weight, {}).items():
            tensor = torch.as_tensor(value).detach().cpu().contiguous()
            shared = key.startswith("qmap")  # one table for all weights; safetensors wants tensors of their own
            tensors[f"{key}:{name}"] = tensor.clone() if shared else tensor
    save_file(tensors, path)


def load_optimizer(optimizer: torch.optim.Optimizer, policy: Policy, path: Path) -> None:
    """Restore what `save_optimizer` wrote. bitsandbytes counts steps in an int, torch in a float32."""
    weights = master_weights(policy.model)
    for key, value in load_file(path).items():
        kind, _, name = key.partition(":")
        weight = weights[name]
        counted = kind == "step" and value.dtype == torch.int64
        optimizer.state[weight][kind] = int(value) if counted else value.to(weight.device)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write model and tokenizer in Hugging Face's format; with adapters as `lora_checkpoint` says. Raises `UserError`
    if a weight is not finite: no run could resume from it.
    """
    for name, weight in master_weights(policy.model).items():
        require(bool(weight.isfinite().all()), f"{name} is not finite and is not saved: lower --learning-rate")
    adapters, merged = policy.adapters, None
    if adapters is not None:
        alone = adapters.config.lora_checkpoint == "adapter"
        place = folder if alone else folder / SUBFOLDER
        adapters.save(place)
        policy.tokenizer.save_pretrained(place)  # with the chat template that they were trained with
        policy.model.generation_config.save_pretrained(place)
        if alone:
            return
        weights = MergedWeights(policy.model, policy.model.state_dict())
        merged = {name: weight.detach() for name, weight in weights.items()}
    save_model(policy.model, policy.tokenizer, folder, merged)


def last_saved(folder: Path) -> Path | None:
    """The newest checkpoint that was completely written: its manifest is written last. Its hashes are not checked."""
    return next((path for path in reversed(_by_step(folder)) if (path / MANIFEST).exists()), None)


def newest_complete(folder: Path) -> Path | None:
    """The newest whole checkpoint. Damaged ones are skipped, which is reported if there is a whole one."""
    problems: dict[Path, str] = {}
    for path in reversed(_by_step(folder)):
        problem = damage(path)
        if problem is None:
            for skipped, why in problems.items():
                logger.warning(f"checkpoint {skipped} is damaged ({why}); going back to the one before it")
            return path
        problems[path] = problem
    return None


def damaged(folder: Path) -> dict[Path, str]:
    """The checkpoints that are not whole, and what is wrong with each."""
    return {path: problem for path in _by_step(folder) if (problem := damage(path)) is not None}


def discard_after(folder: Path, step: int) -> None:
    """Clear what lies beyond the step from which a run resumes. Half-written checkpoints are removed. Damaged ones are
    renamed to `step_*.damaged`: the weights may be good if another file was edited.
    """
    for path in folder.glob(".step_*.tmp"):
        _remove(path)
    for path in _by_step(folder):
        if step_of(path) > step:
            names = map(path.with_name, numbered(f"{path.name}.damaged"))
            aside = next(name for name in names if not name.exists())
            path.rename(aside)
            logger.warning(f"the damaged checkpoint {path} is kept as {aside.name}")


def numbered(name: str) -> Iterator[str]:
    """NAME, NAME-2, NAME-3, ..."""
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint. If it was moved to another disk, only the link is removed."""
    checkpoint.unlink() if checkpoint.is_symlink() else shutil.rmtree(checkpoint)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None. Raises `OSError` if an existing file cannot be read: then nothing is
    known to be wrong.
    """
    try:
        with naming(checkpoint / MANIFEST):
            expected = json.loads((checkpoint / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return f"no readable {MANIFEST}"
    if not isinstance(expected, dict) or not expected.keys() >= {STATE, MOMENTS}:
        return f"{MANIFEST} does not list {STATE} and {MOMENTS}"
    for name, digest in expected.items():
        try:
            found = _digest(checkpoint / name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return f"{name} is missing"
        if found != digest:
            return f"{name} is not what was written"
    return None


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path: itself, or the newest whole one in a folder of checkpoints."""
    if (path / MANIFEST).exists():
        problem = damage(path)
        require(problem is None, f"checkpoint {path} is damaged ({problem}): name the one before it")
        return path
    found = newest_complete(path)
    if found is None:
        raise UserError(f"{path} holds no complete checkpoint: name a folder step_* or one that contains them")
    return found


def weights_sha256(policy: Policy) -> str:
    """Hash over sorted name, dtype, shape and bytes of the weights, tied ones once."""
    digest = hashlib.sha256()
    for name, weight in master_weights(policy.model).items():
        digest.update(f"{name} {str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _by_step(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, the oldest first."""
    names = os.listdir(folder) if folder.is_dir() else []  # a glob would hide a folder that cannot be read
    found = [folder / name for name in names if re.fullmatch(r"step_\d+", name)]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def _seal(folder: Path) -> None:
    """Write the manifest of all files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {str(path.relative_to(folder)): _digest(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(digests, indent=1))


def _digest(path: Path) -> str:
    with naming(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
