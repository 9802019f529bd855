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
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from loguru import logger
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minrl.models.loading import save_model
from minrl.models.lora import ADAPTER, SUBFOLDER, MergedWeights
from minrl.models.sharding import gathered, master_weights, named_weights, part_of, sharded, state_of, whole
from minrl.policy import Policy
from minrl.run.best import best_of, scores_of
from minrl.types import TrainState, UserError, require
from minrl.utils.files import naming, read_record, whole_folder, write_json

MANIFEST = "manifest.json"
STATE = "trainer.json"
MOMENTS = "optimizer.safetensors"
MASTER = "weight"
"""Among the optimizer's moments: a float32 weight that model.safetensors has in lower precision."""
OWNER = "run.json"
"""The file beside the checkpoints that names the run."""
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
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write `folder/step_000123` and remove all but the newest `keep` (0: keep all) and the best. All processes call
    it; the main one gathers what is sharded and writes, while the others go on.
    """
    final = folder / step_name(state.step)
    tensors = gathered(policy_tensors(policy), policy.processes.main)
    moments = gathered(optimizer_tensors(optimizer, policy).items(), policy.processes.main)
    if not policy.processes.main:
        return final
    if dtype != torch.float32 and policy.adapters is None:
        masters = {name: tensors[name] for name in named_weights(policy.model)}
        moments |= {f"{MASTER}:{name}": weight for name, weight in masters.items() if weight.dtype == torch.float32}
    with whole_folder(final) as temporary:
        save_policy(policy, temporary, tensors, dtype)
        save_optimizer(moments, temporary / MOMENTS)
        held = {name: value for name, value in asdict(state).items() if value or name != "tasks"}  # none of one task
        (temporary / STATE).write_text(json.dumps(held, indent=1))
        _seal(temporary)
    best = name_best(folder, state) if keep_best else None  # before the one that it names now is removed
    for path in by_step(folder)[:-keep] if keep else ():
        if path != best:
            _remove(path)
    return final


def name_best(folder: Path, state: TrainState) -> Path | None:
    """Write down in `folder/best` which checkpoint has the best score of those that are there, and return it."""
    there = {step_of(path): path for path in by_step(folder) if (path / MANIFEST).exists()}
    best = best_of(score for score in scores_of(state) if score.step in there)
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
        return None
    record = {"checkpoint": step_name(best.step), "step": best.step, "pass@1": best.pass_at_1}
    record |= {"ci95": [best.low, best.high], "reward": best.reward}
    if read_record(folder / BEST) != record:
        write_json(folder / BEST, record)
    return there[best.step]


def is_best(folder: Path, state: TrainState) -> bool:
    """Whether the score of this step is better than those of all checkpoints that are there."""
    there = {state.step, *map(step_of, by_step(folder))}
    best = best_of(score for score in scores_of(state) if score.step in there)
    return best is not None and best.step == state.step > 0


def best_in(folder: Path) -> Path | None:
    """The checkpoint that `folder/best` names; None if there is none."""
    name = str(read_record(folder / BEST).get("checkpoint", ""))
    whole = re.fullmatch(r"step_\d+", name) is not None and (folder / name / MANIFEST).exists()
    return folder / name if whole else None


def load_state(checkpoint: Path) -> TrainState:
    """The trainer's state in a checkpoint. Raises `UserError` if a newer version of MinRL wrote it."""
    values = json.loads((checkpoint / STATE).read_text())
    unknown = sorted(values.keys() - {one.name for one in fields(TrainState)})
    require(
        not unknown,
        f"{checkpoint / STATE} holds {', '.join(unknown)}, which this version of MinRL does not know: go on with the "
        f"version that wrote it, or begin a new run from its weights with --model-id {shlex.quote(str(checkpoint))}",
    )
    tasks = {name: TrainState(**of_task) for name, of_task in values.pop("tasks", {}).items()}
    return TrainState(**values, tasks=tasks)


def restore_optimizer(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's moments of a checkpoint."""
    load_optimizer(optimizer, policy, checkpoint / MOMENTS)


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
def load_optimizer(optimizer: torch.optim.Optimizer, policy: Policy, path: Path) -> None:
    """Restore what `save_optimizer` wrote, and float32 weights where it has them. bitsandbytes counts steps in an int,
    torch in a float32.
    """
    weights = named_weights(policy.model)
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118 - no dictionary
            value, (kind, _, name) = file.get_tensor(key), key.partition(":")
            counted = kind == "step" and value.dtype == torch.int64
            weight = weights[name]
            moment = part_of(value.to(weight.device), weight)
            if kind == MASTER:
                weight.copy_(moment)
            else:
                optimizer.state[weight][kind] = int(value) if counted else moment


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


def save_policy(
    policy: Policy, folder: Path, tensors: Mapping[str, Tensor] | None = None, dtype: torch.dtype = torch.float32
) -> None:
    """Write model and tokenizer in Hugging Face's format; with adapters as `lora_checkpoint` says. `tensors` are what
    `policy_tensors` gave, gathered; `dtype` is the precision of the model's file. Raises `UserError` if a weight is not
    finite: no run could resume from it.
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
    elif sharded(policy.model) or dtype != torch.float32:
        merged = dict(tensors)
    save_model(policy.model, policy.tokenizer, folder, merged, dtype)


def last_saved(folder: Path) -> Path | None:
    """The newest checkpoint that was completely written: its manifest is written last. Its hashes are not checked."""
    return next((path for path in reversed(by_step(folder)) if (path / MANIFEST).exists()), None)


def newest_complete(folder: Path) -> Path | None:
    """The newest whole checkpoint. Damaged ones are skipped, which is reported if there is a whole one."""
    problems: dict[Path, str] = {}
    for path in reversed(by_step(folder)):
        problem = damage(path)
        if problem is None:
            for skipped, why in problems.items():
                logger.warning(f"checkpoint {skipped} is damaged ({why}); going back to the one before it")
            return path
        problems[path] = problem
    return None


def damaged(folder: Path) -> dict[Path, str]:
    """The checkpoints that are not whole, and what is wrong with each."""
    return {path: problem for path in by_step(folder) if (problem := damage(path)) is not None}


def discard_after(folder: Path, step: int) -> None:
    """Clear what lies beyond the step from which a run resumes. Half-written checkpoints are removed. Damaged ones are
    renamed to `step_*.damaged`: the weights may be good if another file was edited.
    """
    for path in folder.glob(".step_*.tmp"):
        _remove(path)
    for path in by_step(folder):
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
    """Hash over sorted name, dtype, shape and bytes of the weights, tied ones once. Of a sharded policy all processes
    must ask.
    """
    digest = hashlib.sha256()
    for name, weight in master_weights(policy.model).items():
        digest.update(f"{name} {str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}\n".encode())
        digest.update(whole(weight).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def by_step(folder: Path) -> list[Path]:
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
