"""The models that a user names, with fingerprints of their weights; and the runs that made them, and those behind them.

A run, or a checkpoint of one, is evaluated with the task options, data, limits and chat template that it was trained
with, unless flags say otherwise, which is reported.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minrl.config import OptionsByTask, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.evaluate.config import API, EvaluateConfig, with_data
from minrl.models.loading import cached_commit, made_here
from minrl.models.lora import base_of
from minrl.rewards.chat_client import checked_url
from minrl.run.checkpoint import HASHES, is_whole, read_state
from minrl.run.folder import AT_BEST, CONFIG, STATE, RunFolder, by_step, is_step, resolve_model
from minrl.run.setup import START, TEACHER
from minrl.run.sizes import UNKNOWN, Sizes, sizes_for, sizes_of
from minrl.sft.config import ExpertIterationConfig, SftConfig
from minrl.tasks import option_classes
from minrl.utils.cli import Command, from_dict, plain_options
from minrl.utils.files import read_record
from minrl.utils.settings import flag_of, settings_of
from minrl.utils.task_names import option_keys, weights_of
from minrl.utils.text import digest_of


@dataclass(frozen=True)
class NamedModel:
    """A model: the `name` that it is loaded by, and its `label` in tables and charts.

    `fingerprint` changes with its weights (empty: unknown, of a model that is not here). A checkpoint has the `run` and
    `step` that saved it; a server's model has a `base_url`, empty for OpenAI's own server.
    """

    name: str
    label: str
    fingerprint: str = ""
    run: str = ""
    step: int | None = None
    base_url: str | None = None

    @property
    def served(self) -> bool:
        """Whether a server samples it."""
        return self.base_url is not None

    @property
    def served_name(self) -> str:
        """The server's name for it."""
        return self.name.removeprefix(API).rpartition("@")[0] or self.name.removeprefix(API)


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
    saved: list[Path] = []
    if every_checkpoint and not (Path(name) / STATE).exists() and not name.endswith(AT_BEST):
        run = RunFolder.find(name, runs_dir)
        saved = by_step(Path(name)) or (by_step(run.checkpoints) if run else [])
    whole = [str(path) for path in saved if is_whole(path)]
    yield from map(_local, whole or [resolve_model(name, runs_dir)])


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
        return NamedModel(path, path, cached_commit(path))
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


# The runs that made them


def run_settings(run: RunFolder) -> Any:  # noqa: ANN401 - of the program that made it
    """The settings of a run. Those that another version had are left out. Raises `UserError` if one is damaged."""
    cls = {"sft": SftConfig, "expert-iteration": ExpertIterationConfig}.get(run.program, TrainerConfig)
    try:
        return cls(**{name: value for name, value in run.config.items() if name in settings_of(cls)})
    except UserError as error:
        raise UserError(f"{run.path / CONFIG}: {error}") from error


def run_options(run: RunFolder, names: Iterable[str]) -> dict[str, Any]:
    """The options that a run had of these tasks, its local file among them; those of another version are left out.
    Raises `UserError` if they are damaged.
    """
    names, stored, trainer = list(names), run.config.get("tasks", {}), run_settings(run).trainer
    run.require_own_tasks(names)
    try:
        classes = {key: cls for key, cls in option_classes(names).items() if key in stored}
        own = {k: {n: v for n, v in stored[k].items() if n in settings_of(cls)} for k, cls in classes.items()}
        options = from_dict({"task": ",".join(names), "tasks": own}, TrainerConfig)[1]
        options = {key: options[key] for key in own}
        trained = [name for name in weights_of(trainer.task) if option_keys(name)[0] in own]
        return {**with_data(options, trained, trainer.data_path)}
    except UserError as error:
        raise UserError(f"{run.path / CONFIG}: {error}") from error


def run_of(name: str, runs_dir: str = "runs") -> RunFolder | None:
    """The run of this name or path, or the one that made this checkpoint or folder of checkpoints; None if there is
    none, or none any more.
    """
    run = RunFolder.find(name, runs_dir)
    return None if run is None else RunFolder(run.path.resolve())


def runs_of(names: Iterable[str], runs_dir: str = "runs") -> list[RunFolder]:
    """The runs of the models, each once."""
    found = (run_of(name, runs_dir) for name in names if not name.startswith(API))
    return list({run.path: run for run in found if run is not None}.values())


def runs_behind(names: Iterable[str], runs_dir: str = "runs") -> tuple[list[RunFolder], list[str]]:
    """The runs that made the models, their start models and teachers, and so on, with a note on each missing one."""
    runs, notes = dict[Path, RunFolder](), []
    queue = [(name, "", name) for name in names if not name.startswith(API)]
    for name, made_by, said in queue:  # which grows
        run = run_of(name, runs_dir) or (run_of(made_by) if made_by else None)
        path = Path(name)
        if run is None and ((path / STATE).exists() or is_step(path) or by_step(path)):
            notes.append(f"{said}, whose run is not there: it is unknown which problems that was trained on")
        elif run is not None and run.path not in runs:
            runs[run.path] = run
            for role, came in ((START, "started from"), (TEACHER, "learned from")):
                if model := run.models.get(role):
                    queue.append((model["path"], model.get("run", ""), f"{run.path.name} {came} {model['path']}"))
    return list(runs.values()), notes


# The settings of an evaluation that its models determine

FROM_RUN = ("max_tokens", "stop_strings", "chat_template_options")
"""What an evaluation takes over from a run, beside its tasks with their options, and its eval_temperature."""


def as_trained(command: Command[EvaluateConfig]) -> tuple[Command[EvaluateConfig], list[str]]:
    """The evaluation with the settings of its first run as defaults, and notes on what the runs had otherwise."""
    runs = [(run, run_settings(run)) for run in runs_of(command.config.models, command.config.runs_dir)]
    tasks = {frozenset(weights_of(settings.task)): settings.task for _, settings in runs if settings.task}
    defaults: dict[str, Any] = {}
    if tasks and not command.config.tasks:
        require(len(tasks) == 1, f"name the --tasks: the runs were trained on {' and '.join(tasks.values())}")
        defaults["tasks"] = [name for task in tasks.values() for name in weights_of(task)]
        command = command.over(defaults)
    sizes, notes = _sizes(command.config)
    defaults |= sizes
    trained = []
    for run, settings in runs:
        own = {one: getattr(settings.trainer, one) for one in FROM_RUN}
        trained.append((run.path.name, own, run_options(run, command.config.task_names)))
        if len(trained) == 1:
            defaults |= {**own, "temperature": settings.eval_temperature}
    command = command.over(defaults, trained[0][2] if trained else {})
    config = command.config
    chosen = {one: getattr(config, one) for one in FROM_RUN}
    chosen |= _by_option(with_data(command.options, config.task_names, config.data_path))
    for (run, _), (name, own, options) in zip(runs, trained, strict=True):
        had = {f"{key}.{option}" for key in options for option in run.config["tasks"][key]}
        left = sorted(had - _by_option(options).keys())
        notes += [f"{name} was made by another version, with {', '.join(left)}, which is left out"] if left else []
        values = {**own, **_by_option(options)}
        changed = [f"{one} {value!r}, here {chosen[one]!r}" for one, value in values.items() if value != chosen[one]]
        notes += [f"{name} was trained with {'; '.join(changed)}"] if changed else []
    return command, notes


def sizes_by_model(config: EvaluateConfig) -> dict[str, dict[str, int]]:
    """What train.py takes for each model that MinRL did not make: the numbers of examples and samples and the longest
    completion; what an earlier evaluation in the folder took, on whatever device. A server is taken to have a GPU.
    """
    known, found = read_record(config.folder / CONFIG).get("sizes", {}), {}
    for name in config.models:
        if name in known:
            found[name] = known[name]
        elif name.startswith(API) or not made_here(Path(resolve_model(name, config.runs_dir))):
            found[name] = _as_here(sizes_for(UNKNOWN, on_gpu=True) if name.startswith(API) else sizes_of(name, config))
    return found


def _as_here(sizes: Sizes) -> dict[str, int]:
    return {"examples": sizes.eval_examples, "samples": sizes.eval_samples, "max_tokens": sizes.max_tokens}


def _sizes(config: EvaluateConfig) -> tuple[dict[str, int], list[str]]:
    """The sizes for the largest model, and a note on them if it is not MinRL's."""
    found = {"": _as_here(sizes_of("", config)), **sizes_by_model(config)}
    name, sizes = min(found.items(), key=lambda one: (one[1]["examples"], not one[0]))
    if config.temperature == 0:
        sizes = {**sizes, "samples": 1}
    flags = " ".join(f"{flag_of(setting)} {value}" for setting, value in sizes.items())
    return sizes, [f"by the size of {name}, as in train.py, the default is {flags}"] if name else []


def _by_option(options: OptionsByTask) -> dict[str, Any]:
    return {f"{key}.{name}": value for key, own in options.items() for name, value in plain_options(own).items()}
