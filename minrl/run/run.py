"""A run: what it is made of, and what it records of itself.

Everything around the loop of train.py that is not the algorithm. `minrl.run.folder` finds and claims its folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from loguru import logger

from minrl.config import LoggingConfig, TaskOptions, TrainerConfig, task_key
from minrl.evaluation import Evaluation
from minrl.policy import Policy
from minrl.run import checkpoint
from minrl.run.provenance import changes, provenance
from minrl.system.files import read_json, write_json
from minrl.tasks.programs import files_outside
from minrl.terminal.command_line import to_dict
from minrl.terminal.flag_help import as_typed
from minrl.types import TrainState

RUN_RECORD = '{\n "minrl_run"'
"""How a run's config.json begins."""


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
    """A command that makes runs, as config.json names it, and which settings a resumed run may change."""

    command: str
    extends: tuple[str, ...] = ("steps",)

    @property
    def typed(self) -> str:
        """The command as the user types it here."""
        return as_typed(self.command)


TRAIN = Program("python train.py")


@dataclass(frozen=True)
class Run:
    """Where a run lives, its config, and the checkpoint it goes on from (None: from the start).

    `named` is the checkpoint that the user asked to go on from, `stored` what config.json says (empty: a new run).
    `models` are those that the run starts from and plays against: for each where it is and the hash of its weights.
    """

    name: str
    settings: Any
    options: TaskOptions
    folder: Path
    checkpoints: Path
    checkpoint: Path | None = None
    program: Program = TRAIN
    identity: str = ""
    named: Path | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def config(self) -> TrainerConfig:
        """The settings in the trainer's words."""
        return self.settings.trainer

    @property
    def resume_command(self) -> str:
        """What continues the run."""
        return f"{self.program.typed} --resume {self.folder}"


def write_config(run: Run) -> None:
    """config.json: every setting, the models, and what else the numbers depend on: as it was at the start, and again
    each time that the run was resumed. What has changed since the start is said.
    """
    now = provenance(_outside_files(run))
    record: dict[str, Any] = {
        "minrl_run": run.name,
        **now,
        **run.stored,
        "id": run.identity,
        "program": run.program.command,
        "config": to_dict(run.settings, run.options),
        "models": run.models,
    }
    if run.stored:
        record["resumed"] = [*run.stored.get("resumed", []), now]
        changed = changes(run.stored, now)
        if changed:
            logger.warning(f"changed since the run began, so its numbers may be others: {'; '.join(changed)}")
    write_json(run.folder / "config.json", record)


def _outside_files(run: Run) -> list[Path]:
    """The files outside MinRL that examples and rewards come from, and a folder of data."""
    files = [path for name in run.config.task_names for path in files_outside(name)]
    files += [Path(run.config.data_path)] if run.config.data_path else []
    return [path for path in dict.fromkeys(files) if path.exists()]


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every setting by its flag's name, a trained or evaluated task's own as `task.option`."""
    values = to_dict(run.settings, run.options)
    tasks, names = values.pop("tasks"), {task_key(name) for name in run.config.task_names}
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
    # Fine-tuning on rows samples nothing that it trains on.
    speed = {"tokens_per_s": round(state.sampled_tokens / max(state.seconds, 1e-9), 1)} if state.sampled_tokens else {}
    summary = {
        "run": run.name,
        "task": task,
        "algorithm": run.config.algorithm.algorithm,
        "seed": run.config.seed,
        **ends.pop(task, {}),
        "other_tasks": ends,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        **speed,
        "final_checkpoint": str(final),
        "weights_sha256": checkpoint.weights_sha256(policy),
        **more,
    }
    write_json(run.folder / "summary.json", summary)
    _earlier_summary(run, state.step).unlink(missing_ok=True)
    return summary


def set_summary_aside(run: Run, steps: int) -> None:
    """Where a run that had come to its end goes on, its summary is no longer the run's: keep it under another name."""
    path = run.folder / "summary.json"
    ended = (read_json(path) or {}).get("steps", 0)
    if path.exists() and ended != steps:
        path.replace(_earlier_summary(run, ended))
        logger.info(f"the summary of step {ended} is {_earlier_summary(run, ended).name} until the run ends again")


def _earlier_summary(run: Run, step: int) -> Path:
    return run.folder / f"summary_step_{step:06d}.json"
