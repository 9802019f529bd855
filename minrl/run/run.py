"""A run and its records: config.json and summary.json. `minrl.run.folder` finds and claims its folders."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from loguru import logger

from minrl.config import LoggingConfig, TaskOptions, TrainerConfig, with_absolute_paths
from minrl.run.checkpoint import step_of
from minrl.run.ends import with_end_before
from minrl.run.naming import differing, full_name
from minrl.run.provenance import changes, code, provenance
from minrl.tasks.programs import files_outside
from minrl.types import Prompt, TrainState
from minrl.utils.cli import near, to_dict, typed
from minrl.utils.files import read_record, write_json
from minrl.utils.statistics import Evaluation
from minrl.utils.task_names import option_keys, task_key


@runtime_checkable
class Settings(Protocol):
    """The config of a program that makes runs; `trainer` translates it to the trainer's settings."""

    @property
    def resume(self) -> str:
        """The run to resume; empty: a new run."""

    @property
    def logging(self) -> LoggingConfig:
        """Where runs and checkpoints are."""

    @property
    def what(self) -> str:
        """What the name of a new run begins with."""

    @property
    def seed(self) -> int:
        """The seed of the run."""

    @property
    def trainer(self) -> TrainerConfig:
        """The config from which the run is assembled."""


@dataclass(frozen=True)
class Program:
    """A program that makes runs, as config.json names it, and the settings that a resumed run may change."""

    command: str
    extends: tuple[str, ...] = ("steps",)

    @property
    def typed(self) -> str:
        """The command as the user types it here."""
        return typed(self.command)


TRAIN = Program("train")


@dataclass(frozen=True)
class Run:
    """A run's folders, its config, and the checkpoint from which it resumes (None: from the start).

    `named` is the checkpoint that the user named, `stored` the content of config.json (empty: a new run). `models` are
    the start model and the opponent: for each its path and the hash of its weights. `forks`: the settings are not those
    that are stored, and a new run branches off at the checkpoint.
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
    forks: bool = False

    @property
    def config(self) -> TrainerConfig:
        """The settings as a `TrainerConfig`."""
        return self.settings.trainer

    @property
    def unnumbered(self) -> str:
        """Its name without the number of one that was taken."""
        return full_name(self.settings, self.options, self.program.extends)

    @property
    def had(self) -> dict[str, Any]:
        """The settings of its end before a resume that changes them."""
        had = {name: self.stored.get("config", {}).get(name) for name in self.program.extends}
        return {name: value for name, value in had.items() if value not in (None, getattr(self.settings, name))}

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return f"{self.program.typed} --resume {shlex.quote(near(self.folder))}"


def in_common(run: Run) -> dict[str, Any]:
    """What all processes of the run must have in common: the run, its settings, code and packages."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in to_dict(run.settings, run.options).items()}
    facts = code()
    return {"the run": run.name, **flags, "MinRL's code": facts["sources"][:12], **facts["packages"]}


def write_config(run: Run, prompt: Prompt | None = None) -> None:
    """Write config.json: every setting, the models, and what else the numbers depend on, at the start and at each
    resume, and a `prompt` of the trained task. Changes since the start are reported.
    """
    now = provenance(_outside_files(run))
    record: dict[str, Any] = {
        "minrl_run": run.name,
        **now,
        **run.stored,
        "id": run.identity,
        "program": run.program.command,
        "not_default": differing(run.settings, run.options),
        "config": to_dict(run.settings, run.options),
        "models": run.models,
        **({} if prompt is None else {"prompt": prompt}),
    }
    if run.stored:
        step = step_of(run.checkpoint) if run.checkpoint else 0
        record["resumed"] = with_end_before(run.stored.get("resumed", []), now, step, run.had)
        changed = changes(run.stored, now)
        if changed:
            logger.warning(f"changed since the run began, so its numbers may be others: {'; '.join(changed)}")
    write_json(run.folder / "config.json", record)


def _outside_files(run: Run) -> list[Path]:
    """The files outside MinRL that examples and rewards come from, and a data file or folder."""
    files = [path for name in run.config.task_names for path in files_outside(name)]
    data = (run.config.data_of(task_key(name)) for name in run.config.task_names)
    files += map(Path, filter(None, [*data, run.config.data_path]))  # rows need no task
    return [path for path in dict.fromkeys(files) if path.exists()]


def hyperparameters(run: Run) -> dict[str, Any]:
    """Every setting by its flag's name; options of the trained and evaluated tasks as `task.option`. First come those
    of this run that are not the default, then those that are given most, then the options of its tasks.
    """
    defaults = with_absolute_paths(type(run.settings)())
    values = _by_flag(run, run.settings, run.options)
    usual = _by_flag(run, defaults, {name: type(own)() for name, own in run.options.items()})
    often = [name for name in run.settings.often if name != "resume"]
    aside = vars(run.config.logging)  # where files are does not matter
    chosen = [name for name in (*often, *values) if values[name] != usual[name] and name not in aside]
    of_tasks = [name for name in values if "." in name]
    return {name: values[name] for name in dict.fromkeys([*chosen, *often, *of_tasks, *values])}


def _by_flag(run: Run, settings: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - of any program
    values = to_dict(settings, options)
    tasks, names = values.pop("tasks"), {key for name in run.config.task_names for key in option_keys(name)}
    return {**values, **{f"{name}.{k}": v for name in sorted(names) for k, v in tasks.get(name, {}).items()}}


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
    task = task_key(run.config.rollout.task)
    ends = {name: {"eval_before": before.get(name), "eval_after": new.to_json()} for name, new in after.items()}
    # Fine-tuning on rows samples no training rollouts.
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
        "weights_sha256": weights_sha256,
        **more,
    }
    write_json(run.folder / "summary.json", summary)
    _earlier_summary(run, state.step).unlink(missing_ok=True)
    return summary


def set_summary_aside(run: Run, steps: int) -> None:
    """If a finished run is resumed, its summary is no longer up to date: keep it under another name."""
    path = run.folder / "summary.json"
    ended = read_record(path).get("steps", 0)
    if path.exists() and ended != steps:
        path.replace(_earlier_summary(run, ended))
        logger.info(f"the summary of step {ended} is {_earlier_summary(run, ended).name} until the run ends again")


def _earlier_summary(run: Run, step: int) -> Path:
    return run.folder / f"summary_step_{step:06d}.json"
