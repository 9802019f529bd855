"""The trained runs among the models, and behind them; their settings are the defaults of the evaluation.

A run, or a checkpoint of one, is evaluated with the task options, data, limits and chat template that it was trained
with, unless flags say otherwise, which is reported.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions, TrainerConfig
from minrl.evaluate.config import API, EvaluateConfig
from minrl.models.loading import made_here
from minrl.run.checkpoint import STATE
from minrl.run.defaults import UNKNOWN, sizes_for, sizes_of
from minrl.run.folder import CONFIG, RunFolder, model_folder, resolve_model
from minrl.run.setup import START, TEACHER
from minrl.types import UserError, require
from minrl.utils.cli import Command, from_dict
from minrl.utils.settings import converted, flag_of
from minrl.utils.task_names import data_by_task, limits_by_task, mixed, option_keys, split_tool, task_key, weights_of

SHARED = ("max_tokens", "task_max_tokens", "stop_strings", "data_path", "task_data_path")
"""Settings that a run's config.json and an evaluation have in common, beside the chat template's."""


class TrainedRun(RunFolder):
    """A run, and what its config.json says of its tasks."""

    @property
    def task(self) -> str:
        """The task that it was trained on, as its user named it; empty if there is none."""
        return self.config.get("task", "")

    @property
    def task_names(self) -> dict[str, str]:
        """The tasks that it was trained on, by `task_key`."""
        return {task_key(name): name for name in weights_of(self.task)}

    def setting(self, name: str, hint: Any, default: Any) -> Any:  # noqa: ANN401 - types are data here
        """A setting, refused if it is of another type."""
        try:
            return converted(name, hint, self.config.get(name, default))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error

    def task_of(self, key: str) -> str | None:
        """The task that it was trained on under this key, with a tool or without; None if there is none."""
        own = {split_tool(trained)[0]: name for trained, name in self.task_names.items()}
        return own.get(split_tool(key)[0])

    def data_path(self, key: str) -> str:
        """The local file with its examples of a task."""
        alone = self.config.get("data_path", "") if self.task_of(key) else ""
        return data_by_task(self.config.get("task_data_path", "")).get(split_tool(key)[0], alone)

    def options(self, names: Sequence[str]) -> TaskOptions:
        """The run's options of the tasks."""
        stored = self.config.get("tasks", {})
        chosen = {key: stored[key] for name in names for key in option_keys(name) if key in stored}
        try:
            return from_dict({"tasks": chosen}, TrainerConfig, names)[1]
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from error


def find_runs(names: Sequence[str], runs_dir: str = "runs") -> tuple[list[TrainedRun], list[str]]:
    """The runs of the models, each once, and a note for each checkpoint whose run is missing."""
    found: dict[Path, TrainedRun] = {}
    notes = []
    for name in names:
        if name.startswith(API):
            continue
        run = RunFolder.find(name, runs_dir)
        kept = model_folder(name, runs_dir) if run is None else None
        if kept is not None:
            run = _run_of(kept)
            if run is None:
                notes.append(f"{name}: its run is not there, so that it is unknown which problems it was trained on")
        if run is not None:
            found.setdefault(run.path.resolve(), TrainedRun(run.path.resolve()))
    return list(found.values()), notes


def ancestors(run: TrainedRun, notes: list[str]) -> Iterator[TrainedRun]:
    """The run, those that made its start model and its teacher, and so on. A missing one is noted."""
    seen, queue = set[Path](), [run]
    for one in queue:  # which grows
        if one.path in seen:
            continue
        seen.add(one.path)
        yield one
        for role, came in ((START, "started from"), (TEACHER, "learned from")):
            model = Path(one.record.get("models", {}).get(role, {}).get("path", ""))
            made = _run_of(model) if _is_checkpoint(model) else None
            if made is not None:
                queue.append(TrainedRun(made.path.resolve()))
            elif _is_checkpoint(model):
                unknown = "it is unknown which problems that was trained on"
                notes.append(f"{one.path.name} {came} {model}, whose run is not there: {unknown}")


def _run_of(checkpoint: Path) -> RunFolder | None:
    """The run of a checkpoint, or of a folder of checkpoints."""
    kept = checkpoint.resolve()
    return RunFolder.of_checkpoints(kept.parent if _is_checkpoint(kept) else kept)


def _is_checkpoint(path: Path) -> bool:
    """Whether a path is a run's checkpoint, or was one by its name."""
    return (path / STATE).exists() or re.fullmatch(r"step_\d+", path.name) is not None


def as_trained(
    command: Command[EvaluateConfig], runs: Sequence[TrainedRun]
) -> tuple[Command[EvaluateConfig], list[str]]:
    """The evaluation with the settings of its runs as defaults, and notes on it. Runs with different settings are
    refused.
    """
    defaults, sized = _sizes(command.config)
    command, notes = command.over(defaults), sized
    if not runs:
        return command, notes
    tasks = {mixed({key: weights_of(run.task)[name] for key, name in run.task_names.items()}): run.task for run in runs}
    tasks.pop("", None)  # of runs without a task
    if tasks and not (command.config.task or command.config.tasks):
        require(len(tasks) == 1, f"name the --tasks: the runs were trained on {' and '.join(tasks)}")
        defaults["task"] = next(iter(tasks.values()))
        command = command.over(defaults)
    asked = command.config
    over = [command.over({**defaults, **settings}, own) for settings, own in (_settings(run, asked) for run in runs)]
    config, options = over[0].config, over[0].options
    chosen = _by_flag(config, options)
    for run, other in zip(runs, over, strict=True):
        for name, value in _by_flag(other.config, other.options).items():
            require(
                value == chosen[name],
                f"{runs[0].path.name} was trained with {name} {chosen[name]!r} and {run.path.name} with {value!r}: "
                f"say with which both are evaluated, by {flag_of(name)}",
            )
    for run in runs:
        own, own_options = _settings(run, config)
        trained = _by_flag(config.with_settings(**own), own_options)
        different = [name for name, value in chosen.items() if value != trained[name]]
        said = "; ".join(f"{name} {trained[name]!r}, here {chosen[name]!r}" for name in different)
        notes += [f"{run.path.name} was trained with {said}"] if said else []
    return over[0], notes


def _sizes(config: EvaluateConfig) -> tuple[dict[str, Any], list[str]]:
    """The numbers of examples and samples and the longest completion that train.py takes for the largest of the models
    that MinRL did not make, and a note on them. A server is taken to have a GPU.
    """
    sizes = {
        name: sizes_for(UNKNOWN, on_gpu=True) if name.startswith(API) else sizes_of(name, config.model, config.runs_dir)
        for name in config.model_names
        if name.startswith(API) or not made_here(Path(resolve_model(name, config.runs_dir)))
    }
    if not sizes:
        return {}, []
    name, chosen = min(sizes.items(), key=lambda one: one[1].eval_examples)
    samples = chosen.eval_samples if config.temperature > 0 and not config.pass_at else config.samples
    found = {"examples": chosen.eval_examples, "samples": samples, "max_tokens": chosen.max_tokens}
    flags = " ".join(f"{flag_of(setting)} {value}" for setting, value in found.items())
    return found, [f"by the size of {name}, as in train.py, the default is {flags}"]


def _settings(run: TrainedRun, config: EvaluateConfig) -> tuple[Mapping[str, Any], TaskOptions]:
    """The run's settings and its options. A run's data file is for its own task alone."""
    keys = [task_key(name) for name in config.task_names]
    paths = {key: path for key in keys if (path := run.data_path(key))}
    limits = limits_by_task(run.setting("task_max_tokens", str, "")).items()
    data_path = next(iter(paths.values()), "") if len(run.task_names) == 1 or len(keys) == 1 else ""
    require(
        not data_path or len(keys) == 1,
        f"{run.path.name} had its examples from {data_path}, which is one task's data: evaluate {run.task} alone",
    )
    return {
        "max_tokens": run.setting("max_tokens", int, config.max_tokens),
        "stop_strings": run.setting("stop_strings", tuple[str, ...], config.stop_strings),
        "task_max_tokens": ",".join(f"{key}:{limit}" for key, limit in limits if key in keys),
        "data_path": data_path,
        "task_data_path": "" if data_path else ",".join(f"{key}:{path}" for key, path in paths.items()),
        "chat_template_options": run.setting("chat_template_options", str, config.model.chat_template_options),
    }, run.options(config.task_names)


def _by_flag(config: EvaluateConfig, options: TaskOptions) -> dict[str, Any]:
    """The settings that a run gives defaults for, by flag."""
    shared = {name: getattr(config, name) for name in SHARED}
    shared["chat_template_options"] = config.model.chat_template_options
    for task in dict.fromkeys(key for name in config.task_names for key in option_keys(name)):
        shared.update({f"{task}.{key}": value for key, value in asdict(options[task]).items()})
    return shared
