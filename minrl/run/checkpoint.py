"""Checkpoints that are whole or not there, and the state that continues a run bit for bit.

A checkpoint is a folder in Hugging Face's format plus `optimizer.safetensors`, with --overlap `rollouts.safetensors`,
and, written last, `trainer.json` with the trainer's state. It is written under a temporary name, flushed to disk and
renamed: it becomes visible at the end of `atomic_folder` (minrl/utils/files.py) in `save_checkpoint`.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minrl.config import TrainerConfig
from minrl.dataflow import LostEpisode, PlayedTurn, Reward, Rollout, TrainState, require
from minrl.models.loading import save_model
from minrl.models.lora import ADAPTER, SUBFOLDER, MergedWeights
from minrl.models.sharding import full_tensor, gathered, named_weights, shard_like, sharded, state_of
from minrl.policy import Policy
from minrl.rollout import Rollouts
from minrl.run.folder import RUN, STATE, by_step, relative, step_name, step_of
from minrl.run.stopping import best_of, scores_of
from minrl.utils.files import atomic_folder, write_text

MOMENTS = "optimizer.safetensors"
AHEAD = "rollouts.safetensors"
"""The rollouts of the next step, with --overlap: JSON in a tensor, so that it has a hash as the others."""

HASHES = "sha256"
"""The entry of trainer.json with a hash of the tensors of each safetensors file."""


def save_checkpoint(
    folder: Path,
    run: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    config: TrainerConfig,
) -> Path:
    """Write `folder/step_000123` of the run in the folder `run`, and thin out the ones before it. All processes call
    it; the main one gathers what is sharded and writes, while the others go on.
    """
    final = folder / step_name(state.step)
    tensors = gathered(policy_tensors(policy), policy.processes.main)
    moments = gathered(optimizer_tensors(optimizer, policy).items(), policy.processes.main)
    if not policy.processes.main:
        return final
    with atomic_folder(final) as temporary:
        save_policy(policy, temporary, tensors)
        save_file({name: tensor.cpu().contiguous() for name, tensor in moments.items()}, temporary / MOMENTS)
        if state.ahead is not None:
            save_ahead(state.ahead, temporary)
        save_state(state, temporary, run)
    thin_out(folder, config)
    return final


def thin_out(folder: Path, config: TrainerConfig) -> None:
    """Remove all checkpoints but the newest `keep_checkpoints` (0: keep all) and the best. One that its score alone
    keeps loses its moments, and with `save_moments` last so do all but the two newest.
    """
    saved, best = by_step(folder), best_in(folder) if config.keep_best else None
    kept = saved[-config.keep_checkpoints :]
    for path in saved:
        if path not in kept and path != best:
            _remove(path)
        elif path not in kept or (config.save_moments == "last" and path not in saved[-2:]):
            _remove_moments(path)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint under a temporary name: a kill leaves no half of one."""
    temporary = checkpoint.with_name(f".{checkpoint.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(temporary))


def _remove_moments(checkpoint: Path) -> None:
    """Remove what only a resume reads, in trainer.json first: a kill leaves a whole checkpoint without it."""
    if (checkpoint / MOMENTS).exists() and is_whole(checkpoint):
        values = read_state(checkpoint)
        values[HASHES] = {name: digest for name, digest in values[HASHES].items() if name not in (MOMENTS, AHEAD)}
        _write_state(checkpoint, values)
        for name in (AHEAD, MOMENTS):
            (checkpoint / name).unlink(missing_ok=True)


def has_moments(checkpoint: Path) -> bool:
    """Whether a run can be resumed from a whole checkpoint: it has the optimizer's state."""
    return MOMENTS in read_state(checkpoint)[HASHES]


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole. Those that are passed over are reported."""
    for path in reversed(by_step(folder)):
        if is_whole(path):
            return path
        logger.warning(f"checkpoint {path} is damaged; going back to the one before it")
    return None


def is_whole(checkpoint: Path) -> bool:
    """Whether trainer.json can be read and the files of tensors can be opened; no tensor is read. An existing file that
    cannot be read just now raises `OSError`: else a run would go on from the checkpoint before it.
    """
    try:
        for name in read_state(checkpoint)[HASHES]:
            with safe_open(checkpoint / name, "pt"):
                pass
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, SafetensorError):
        return False
    return True


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


def save_state(state: TrainState, folder: Path, run: Path) -> None:
    """Write the state into a folder with the other files of a checkpoint, with hashes of their tensors and the way to
    the folder of the run.
    """
    values = asdict(replace(state, ahead=None))
    held = {name: value for name, value in values.items() if value or name not in ("tasks", "ahead")}
    _write_state(folder, {**held, RUN: relative(run, folder), HASHES: hash_files(folder)})


def _write_state(checkpoint: Path, values: Mapping[str, Any]) -> None:
    write_text(checkpoint / STATE, json.dumps(values, indent=1))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The content of trainer.json."""
    return json.loads((checkpoint / STATE).read_text())


def load_state(checkpoint: Path) -> TrainState:
    """The trainer's state in a checkpoint."""
    others = (HASHES, RUN, "unfinished")  # the last of versions in which a stopped run's evaluation was in its state
    values = {name: value for name, value in read_state(checkpoint).items() if name not in others}
    tasks = {name: TrainState(**of_task) for name, of_task in values.pop("tasks", {}).items()}
    return TrainState(**values, tasks=tasks)


def save_ahead(sampled: Rollouts, folder: Path) -> None:
    """Write the rollouts of the next step into a folder with the other files of a checkpoint."""
    text = bytearray(json.dumps(asdict(sampled)).encode())
    save_file({"json": torch.frombuffer(text, dtype=torch.uint8)}, folder / AHEAD)


def load_ahead(checkpoint: Path) -> Rollouts | None:
    """What `save_ahead` wrote; None where nothing was sampled ahead."""
    if AHEAD not in read_state(checkpoint)[HASHES]:
        return None
    with safe_open(checkpoint / AHEAD, "pt") as file:
        values = json.loads(file.get_tensor("json").numpy().tobytes())
    for one in values["rollouts"]:
        one["turns"] = [(start, end) for start, end in one["turns"]]
        one["reward"] = one["reward"] and Reward(**one["reward"])
        one["episode"] = [PlayedTurn(**turn) for turn in one["episode"]]
    rollouts, lost = [Rollout(**one) for one in values["rollouts"]], [LostEpisode(**one) for one in values["lost"]]
    return Rollouts(**{**values, "rollouts": rollouts, "lost": lost})


# The best of a run's checkpoints


def note_scores(checkpoint: Path, state: TrainState) -> None:
    """Add the scores of an evaluation that came after the checkpoint was saved."""
    _write_state(checkpoint, {**read_state(checkpoint), "held_out": state.held_out})


def best_in(folder: Path) -> Path | None:
    """The checkpoint with the best score of those that are there, by the newest one's state; None if none has one."""
    last = newest(folder)
    there = {step_of(path): path for path in by_step(folder)}
    best = last and best_of(score for score in scores_of(load_state(last)) if score.step in there)
    return there[best.step] if best else None


def is_best(folder: Path, state: TrainState) -> bool:
    """Whether the score of this step is better than those of all checkpoints that are there."""
    there = {state.step, *map(step_of, by_step(folder))}
    best = best_of(score for score in scores_of(state) if score.step in there)
    return best is not None and best.step == state.step > 0


# The optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer, policy: Policy) -> dict[str, Tensor]:
    """The optimizer's moments and step counts, by the name of the weight: `moment:name`. They may be sharded."""
    tensors: dict[str, Tensor] = {}
    for name, weight in sorted(named_weights(policy.model).items()):
        for key, value in optimizer.state.get(weight, {}).items():
            tensor = torch.as_tensor(value).detach()
            shared = key.startswith("qmap")  # one table for all weights; safetensors wants tensors of their own
            tensors[f"{key}:{name}"] = tensor.clone() if shared else tensor
    return tensors


@torch.no_grad()
def restore_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `save_checkpoint` wrote of it. bitsandbytes counts steps in an int, torch in a float32."""
    weights = named_weights(policy.model)
    with safe_open(checkpoint / MOMENTS, "pt") as file:
        for key in file.keys():  # noqa: SIM118 - no dictionary
            value, (kind, _, name) = file.get_tensor(key), key.partition(":")
            counted = kind == "step" and value.dtype == torch.int64
            weight = weights[name]
            moment = shard_like(value.to(weight.device), weight)
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
    return _hash((name, full_tensor(weight)) for name, weight in sorted(named_weights(policy.model).items()))


def _hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over name, dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
