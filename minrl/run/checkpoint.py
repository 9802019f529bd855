"""Checkpoints that are whole or not there, and the state that continues a run bit for bit.

A checkpoint is a folder in Hugging Face's format plus `optimizer.safetensors` and, written last, `trainer.json` with
the trainer's state. It is written under a temporary name, flushed to disk and renamed: it becomes visible at the end of
`atomic_folder` (minrl/utils/files.py) in `save_checkpoint`.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minrl.dataflow import TrainState, UserError, require
from minrl.models.loading import save_model
from minrl.models.lora import ADAPTER, SUBFOLDER, MergedWeights
from minrl.models.sharding import full_tensor, gathered, master_weights, named_weights, part_of, sharded, state_of
from minrl.policy import Policy
from minrl.run.stopping import best_of, scores_of
from minrl.utils.files import atomic_folder, read_json, read_record, write_json

STATE = "trainer.json"
MOMENTS = "optimizer.safetensors"
HASHES = "sha256"
"""The entry of trainer.json with a hash of the tensors of each safetensors file."""
BEST = "best"
"""The file beside the checkpoints that names the best of them."""


def step_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step_{step:06d}"


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after, from its name."""
    return int(checkpoint.name.removeprefix("step_"))


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    keep: int,
    keep_best: bool = True,
) -> Path:
    """Write `folder/step_000123` and remove all but the newest `keep` (0: keep all) and the best. All processes call
    it; the main one gathers what is sharded and writes, while the others go on.
    """
    final = folder / step_name(state.step)
    tensors = gathered(policy_tensors(policy), policy.processes.main)
    moments = gathered(optimizer_tensors(optimizer, policy).items(), policy.processes.main)
    if not policy.processes.main:
        return final
    with atomic_folder(final) as temporary:
        save_policy(policy, temporary, tensors)
        save_optimizer(moments, temporary / MOMENTS)
        save_state(state, temporary)
    best = name_best(folder, state) if keep_best else None  # before the one that it names now is removed
    for path in by_step(folder)[:-keep] if keep else ():
        if path != best:
            _remove(path)
    return final


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint under a temporary name: a kill leaves no half of one."""
    temporary = checkpoint.with_name(f".{checkpoint.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(temporary))


def by_step(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    names = os.listdir(folder) if folder.is_dir() else []  # a glob would hide a folder that cannot be read
    found = [folder / name for name in names if re.fullmatch(r"step_\d+", name)]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def last_saved(folder: Path) -> Path | None:
    """The newest checkpoint, whose files are not looked at."""
    return next(reversed(by_step(folder)), None)


def newest_complete(folder: Path) -> Path | None:
    """The newest checkpoint that is not damaged. Those that are passed over are reported if there is one."""
    problems: dict[Path, str] = {}
    for path in reversed(by_step(folder)):
        problem = damage(path)
        if problem is None:
            for skipped, why in problems.items():
                logger.warning(f"checkpoint {skipped} is damaged ({why}); going back to the one before it")
            return path
        problems[path] = problem
    return None


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at a path: itself, or the newest whole one in a folder of checkpoints."""
    if (path / STATE).exists():
        problem = damage(path)
        require(problem is None, f"checkpoint {path} is damaged ({problem}): name the one before it")
        return path
    found = newest_complete(path)
    if found is None:
        raise UserError(f"{path} holds no complete checkpoint: name a folder step_* or one that contains them")
    return found


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, such as a file that was cut short; None if nothing is. Tensors are not read. An
    existing file that cannot be read just now raises `OSError`: else a run would go on from the one before it.
    """
    try:
        names = read_state(checkpoint)[HASHES]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return f"no readable {STATE}"
    for name in names:
        try:
            with safe_open(checkpoint / name, "pt"):
                pass
        except FileNotFoundError:
            return f"{name} is missing"
        except (SafetensorError, ValueError):
            return f"{name} is not what was written"
    return None


def discard_after(folder: Path, step: int) -> None:
    """Remove what lies beyond the step from which a run resumes: damaged checkpoints, and what a kill left half
    written or half removed.
    """
    for path in folder.glob(".step_*.tmp"):
        shutil.rmtree(path)
    for path in by_step(folder):
        if step_of(path) > step:
            _remove(path)


# The trainer's state


def save_state(state: TrainState, folder: Path) -> None:
    """Write the state into a folder with the other files of a checkpoint, and hashes of their tensors."""
    held = {name: value for name, value in asdict(state).items() if value or name != "tasks"}  # none of one task
    (folder / STATE).write_text(json.dumps({**held, HASHES: hash_files(folder)}, indent=1))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The content of trainer.json."""
    values = json.loads((checkpoint / STATE).read_text())
    if not isinstance(values, dict):
        raise ValueError(f"{checkpoint / STATE} holds no object")
    return values


def load_state(checkpoint: Path) -> TrainState:
    """The trainer's state in a checkpoint."""
    values = read_state(checkpoint)
    try:
        del values[HASHES]
        tasks = {name: TrainState(**of_task) for name, of_task in values.pop("tasks", {}).items()}
        return TrainState(**values, tasks=tasks)
    except (KeyError, TypeError, AttributeError) as error:  # another name, or another kind of value
        raise UserError(f"{checkpoint / STATE} is damaged: {error}; name the checkpoint before it") from error


# The best of a run's checkpoints


def name_best(folder: Path, state: TrainState) -> Path | None:
    """Write down in `folder/best` which checkpoint has the best score of those that are there, and return it."""
    there = {step_of(path): path for path in by_step(folder)}
    best = best_of(score for score in scores_of(state) if score.step in there)
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
        return None
    record = {"checkpoint": step_name(best.step), "step": best.step, "pass@1": best.pass_at_1}
    record |= {"ci95": [best.low, best.high], "reward": best.reward}
    if read_json(folder / BEST) != record:
        write_json(folder / BEST, record)
    return there[best.step]


def is_best(folder: Path, state: TrainState) -> bool:
    """Whether the score of this step is better than those of all checkpoints that are there."""
    there = {state.step, *map(step_of, by_step(folder))}
    best = best_of(score for score in scores_of(state) if score.step in there)
    return best is not None and best.step == state.step > 0


def best_in(folder: Path) -> Path | None:
    """The checkpoint that `folder/best` names; None if there is none."""
    name = read_record(folder / BEST).get("checkpoint")
    return next((path for path in by_step(folder) if path.name == name), None)


# The optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer, policy: Policy) -> dict[str, Tensor]:
    """The optimizer's moments and step counts, by the name of the weight: `moment:name`. They may be sharded."""
    tensors: dict[str, Tensor] = {}
    for name, weight in master_weights(policy.model).items():
        for key, value in optimizer.state.get(weight, {}).items():
            tensor = torch.as_tensor(value).detach()
            shared = key.startswith("qmap")  # one table for all weights; safetensors wants tensors of their own
            tensors[f"{key}:{name}"] = tensor.clone() if shared else tensor
    return tensors


def save_optimizer(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write what `optimizer_tensors` gave, gathered."""
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)


@torch.no_grad()
def restore_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `save_optimizer` wrote. bitsandbytes counts steps in an int, torch in a float32."""
    weights = named_weights(policy.model)
    with safe_open(checkpoint / MOMENTS, "pt") as file:
        for key in file.keys():  # noqa: SIM118 - no dictionary
            value, (kind, _, name) = file.get_tensor(key), key.partition(":")
            counted = kind == "step" and value.dtype == torch.int64
            weight = weights[name]
            moment = part_of(value.to(weight.device), weight)
            optimizer.state[weight][kind] = int(value) if counted else moment


# The policy


def policy_tensors(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint holds of the policy, by name: its own weights and buffers, or where there are adapters these
    and, unless they are saved alone, the merged weights. They may be sharded.
    """
    state = state_of(policy.model)
    if policy.adapters is None:
        yield from state.items()
        return
    yield from ((name, tensor) for name, tensor in state.items() if ADAPTER in name)
    if policy.adapters.config.lora_checkpoint != "adapter":
        merged = MergedWeights(policy.model, state)
        yield from ((name, merged.part(name)) for name in merged)


def save_policy(policy: Policy, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write model and tokenizer in Hugging Face's format; with adapters as `lora_checkpoint` says. `tensors` are what
    `policy_tensors` gave, gathered. Raises `UserError` if a weight is not finite: no run could resume from it.
    """
    tensors, merged = tensors or dict(policy_tensors(policy)), None
    for name, weight in tensors.items():
        require(bool(weight.isfinite().all()), f"{name} is not finite and is not saved: lower --learning-rate")
    if policy.adapters is not None:
        alone = policy.adapters.config.lora_checkpoint == "adapter"
        place = folder if alone else folder / SUBFOLDER
        policy.adapters.save(place, tensors)
        policy.tokenizer.save_pretrained(place)  # with the chat template that they were trained with
        policy.model.generation_config.save_pretrained(place)
        if alone:
            return
        merged = {name: tensor.detach() for name, tensor in tensors.items() if ADAPTER not in name}
    elif sharded(policy.model):
        merged = dict(tensors)
    save_model(policy.model, policy.tokenizer, folder, merged)


# Hashes of tensors


def hash_files(folder: Path) -> dict[str, str]:
    """A hash of the tensors of each safetensors file in a folder. The bytes of the files differ each time: safetensors
    writes their metadata in random order.
    """
    hashes = {}
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, "pt") as file:
            hashes[str(path.relative_to(folder))] = _hash((name, file.get_tensor(name)) for name in sorted(file.keys()))
    return hashes


def weights_sha256(policy: Policy) -> str:
    """A hash of the policy's weights, tied ones once. Of a sharded policy all processes must ask."""
    return _hash((name, full_tensor(weight)) for name, weight in master_weights(policy.model).items())


def _hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
