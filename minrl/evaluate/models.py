"""The models that a user names, with fingerprints of their weights; and the trained runs among and behind them.

A run, or a checkpoint of one, is evaluated with the task options, data, limits and chat template that it was trained
with, unless flags say otherwise, which is reported.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.config import TaskOptions, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.evaluate.config import API, EvaluateConfig
from minrl.models.loading import cached_commit, made_here
from minrl.models.lora import base_of
from minrl.run.checkpoint import HASHES, STATE, by_step, damage, read_state
from minrl.run.defaults import UNKNOWN, sizes_for, sizes_of
from minrl.run.folder import CONFIG, RunFolder, model_folder, resolve_model
from minrl.run.setup import START, TEACHER
from minrl.utils.cli import Command, from_dict
from minrl.utils.keys import checked_url
from minrl.utils.settings import converted, flag_of
from minrl.utils.task_names import data_by_task, limits_by_task, mixed, option_keys, split_tool, task_key, weights_of
from minrl.utils.text import digest_of


@dataclass(frozen=True)
class NamedModel:
    """A model: the `name` that it is loaded by, and its `label` in tables and charts.

    `fingerprint` changes with its weights (empty: a `hub` model that is not cached yet). A checkpoint has the `run` and
    `step` that saved it; a server's model has a `base_url`, empty for OpenAI's own server.
    """

    name: str
    label: str
    fingerprint: str = ""
    run: str = ""
    step: int | None = None
    base_url: str | None = None
    hub: bool = False

    @property
    def served(self) -> bool:
        """Whether a server samples it."""
        return self.base_url is not None

    @property
    def served_name(self) -> str:
        """The server's name for it."""
        return self.name.removeprefix(API).rpartition("@")[0] or self.name.removeprefix(API)


def cached(model: NamedModel) -> NamedModel:
    """The model; a hub's with the commit that is cached now."""
    return replace(model, fingerprint=cached_commit(model.name) or model.fingerprint) if model.hub else model


def find_models(names: Iterable[str], runs_dir: str = "runs", every_checkpoint: bool = False) -> list[NamedModel]:
    """The models named, in order, each with a label of its own."""
    found = [model for name in names for model in _find(name, runs_dir, every_checkpoint)]
    for name, count in Counter(model.name for model in found).items():
        require(count == 1, f"--models names {name} more than once")
    labels = [model.label for model in found]
    return [replace(model, label=model.name) if labels.count(model.label) > 1 else model for model in found]


def _find(name: str, runs_dir: str, every_checkpoint: bool) -> Iterator[NamedModel]:
    if name.startswith(API):
        yield _served(name)
        return
    folder = model_folder(name, runs_dir) if every_checkpoint else None
    if folder is None or (folder / STATE).exists():
        yield _local(resolve_model(name, runs_dir))
        return
    problems = {path: damage(path) for path in by_step(folder)}
    require(None in problems.values(), f"{folder} holds no complete checkpoint")
    for path, problem in problems.items():
        if problem is None:
            yield _local(str(path))
        else:
            logger.warning(f"checkpoint {path} is damaged ({problem}) and is left out")


def _served(name: str) -> NamedModel:
    """The model of `openai:MODEL@BASE_URL`; without a URL the server is OpenAI's."""
    model, _, base_url = name.removeprefix(API).rpartition("@")
    if not model:
        model, base_url = base_url, ""
    require("://" not in model, "a server's model is named openai:MODEL@BASE_URL, and a base URL must hold no user")
    require(bool(model), f"a server's model is named openai:MODEL@BASE_URL, got {name!r}")
    checked_url(base_url)
    return NamedModel(name, model, fingerprint=name, base_url=base_url)


def _local(path: str) -> NamedModel:
    folder = Path(path)
    if not folder.exists():
        return NamedModel(path, path, cached_commit(path), hub=True)
    parts = folder.resolve().parts
    if not (folder / STATE).exists():
        return NamedModel(path, parts[-1], _weights_digest(folder))
    number, run = folder.name.removeprefix("step_"), str(folder.resolve().parent)
    step = int(number) if number.isdigit() else None
    return NamedModel(path, "/".join(parts[-2:]), _weights_digest(folder), run, step)


def _weights_digest(folder: Path) -> str:
    """A digest of a local model's weights; for adapters, of their base model's too. Files outside checkpoints count by
    name, size and time, which is cheap for any size of model.
    """
    if (folder / STATE).exists():
        own = digest_of([read_state(folder)[HASHES]])
    else:
        digest = hashlib.sha256()
        for path in sorted(path for path in ([folder] if folder.is_file() else folder.rglob("*")) if path.is_file()):
            status = path.stat()
            digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
        own = digest.hexdigest()
    base = base_of(str(folder))
    if base is None:
        return own
    return f"{own} on {_weights_digest(Path(base)) if Path(base).exists() else cached_commit(base)}"


# Trained runs


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
        folder = model_folder(name, runs_dir) if run is None else None
        if folder is not None:
            run = _run_of(folder)
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
            if not _is_checkpoint(model):
                continue
            if (made := _run_of(model)) is not None:
                queue.append(TrainedRun(made.path.resolve()))
            else:
                unknown = "it is unknown which problems that was trained on"
                notes.append(f"{one.path.name} {came} {model}, whose run is not there: {unknown}")


def _run_of(checkpoint: Path) -> RunFolder | None:
    """The run of a checkpoint, or of a folder of checkpoints."""
    path = checkpoint.resolve()
    return RunFolder.of_checkpoints(path.parent if _is_checkpoint(path) else path)


def _is_checkpoint(path: Path) -> bool:
    """Whether a path is a run's checkpoint, or was one by its name."""
    return (path / STATE).exists() or re.fullmatch(r"step_\d+", path.name) is not None


# The settings of an evaluation that its models determine


def as_trained(
    command: Command[EvaluateConfig], runs: Sequence[TrainedRun]
) -> tuple[Command[EvaluateConfig], list[str]]:
    """The evaluation with the settings of its runs as defaults, and notes on it. Runs with different settings are
    refused.
    """
    defaults, notes = _sizes(command.config)
    if runs and not (command.config.task or command.config.tasks):
        tasks = {mixed({key: weights_of(run.task)[name] for key, name in run.task_names.items()}): run for run in runs}
        tasks.pop("", None)  # of runs without a task
        require(len(tasks) <= 1, f"name the --tasks: the runs were trained on {' and '.join(tasks)}")
        for run in tasks.values():
            defaults["task"] = run.task
    command = command.over(defaults)
    trained = [(run, *_settings(run, command.config)) for run in runs]
    for _, settings, options in trained[:1]:
        command = command.over({**defaults, **settings}, options)
    chosen = _by_flag(command.config, command.options)
    for run, settings, options in trained:
        own = _by_flag(command.config.with_settings(**settings), options)
        changed = {name: f"{name} {own[name]!r}, here {chosen[name]!r}" for name in own if own[name] != chosen[name]}
        for name in changed.keys() - command.flags.keys() - command.file.keys():
            raise UserError(
                f"{runs[0].path.name} was trained with {name} {chosen[name]!r} and {run.path.name} with {own[name]!r}: "
                f"say with which both are evaluated, by {flag_of(name)}",
            )
        notes += [f"{run.path.name} was trained with {'; '.join(changed.values())}"] if changed else []
    return command, notes


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
    names = ("max_tokens", "task_max_tokens", "stop_strings", "data_path", "task_data_path", "chat_template_options")
    keys = dict.fromkeys(key for name in config.task_names for key in option_keys(name))
    own = {f"{key}.{name}": value for key in keys for name, value in asdict(options[key]).items()}
    return {name: config.settings[name] for name in names} | own
