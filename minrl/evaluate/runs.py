"""The settings of trained runs, which are the defaults of their evaluation.

A run, or a checkpoint of one, is evaluated with the task options, data, limits and chat template that it was trained
with, unless flags say otherwise, which is reported. Problems that it was trained on are refused (see `leaks`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions
from minrl.evaluate.config import API, EvaluateConfig
from minrl.evaluate.leaks import leaked_rows, leaks
from minrl.evaluate.lineage import TrainedRun, find_runs, lineage
from minrl.models.loading import made_here
from minrl.run.defaults import UNKNOWN, sizes_for, sizes_of
from minrl.run.folder import resolve_model
from minrl.types import require
from minrl.utils.cli import Command
from minrl.utils.settings import flag_of
from minrl.utils.task_names import limits_by_task, mixed, option_keys, task_key, weights_of

SHARED = ("max_tokens", "task_max_tokens", "stop_strings", "chat_template_options", "data_path", "task_data_path")
"""Settings that a run's config.json and an evaluation have in common."""


def as_trained(command: Command[EvaluateConfig]) -> tuple[Command[EvaluateConfig], list[str]]:
    """The evaluation with the settings of its runs as defaults, and notes on it. Runs with different settings, and
    problems that a run was trained on, are refused.
    """
    runs, notes = find_runs(command.config.model_names, command.config.runs_dir)
    sizes, sized = _sized(command.config)
    command = command.over(sizes)
    config, notes = command.config, notes + sized
    if not runs:
        return command, notes
    tasks = {mixed({key: weights_of(run.task)[name] for key, name in run.task_names.items()}): run.task for run in runs}
    tasks.pop("", None)  # of runs without a task
    if tasks and not (config.task or config.tasks):
        require(len(tasks) == 1, f"name the --tasks: the runs were trained on {' and '.join(tasks)}")
        sizes["task"] = next(iter(tasks.values()))
        config = command.over(sizes).config
    trained = [command.over({**sizes, **settings}, own) for settings, own in (_trained_with(r, config) for r in runs)]
    config, options = trained[0].config, trained[0].options
    first = _settings(config, options)
    for run, other in zip(runs, trained, strict=True):
        for name, value in _settings(other.config, other.options).items():
            require(
                value == first[name],
                f"{runs[0].path.name} was trained with {name} {first[name]!r} and {run.path.name} with {value!r}: "
                f"say with which both are evaluated, by {flag_of(name)}",
            )
    for run in runs:
        notes += _differences(run, config, options)
        for ancestor in lineage(run, notes):
            notes += leaks(ancestor, config, options)
            notes += leaked_rows(ancestor, config, options)
    return trained[0], notes


def _sized(config: EvaluateConfig) -> tuple[dict[str, Any], list[str]]:
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
    flags = f"--examples {chosen.eval_examples} --samples {samples} --max-tokens {chosen.max_tokens}"
    found = {"examples": chosen.eval_examples, "samples": samples, "max_tokens": chosen.max_tokens}
    return found, [f"by the size of {name}, as in train.py, the default is {flags}"]


def _trained_with(run: TrainedRun, config: EvaluateConfig) -> tuple[Mapping[str, Any], TaskOptions]:
    """The run's settings and its options. A run's data file is for its own task alone."""
    names = config.task_names
    paths = {key: path for key in map(task_key, names) if (path := run.data_path(key))}
    limits = limits_by_task(run.setting("task_max_tokens", str, "")).items()
    data_path = next(iter(paths.values()), "") if len(run.task_names) == 1 or len(names) == 1 else ""
    require(
        not data_path or len(names) == 1,
        f"{run.path.name} had its examples from {data_path}, which is one task's data: evaluate {run.task} alone",
    )
    trained = {
        "max_tokens": run.setting("max_tokens", int, config.max_tokens),
        "stop_strings": run.setting("stop_strings", tuple[str, ...], config.stop_strings),
        "task_max_tokens": ",".join(f"{key}:{limit}" for key, limit in limits if key in map(task_key, names)),
        "data_path": data_path,
        "task_data_path": "" if data_path else ",".join(f"{key}:{path}" for key, path in paths.items()),
        "chat_template_options": run.setting("chat_template_options", str, config.model.chat_template_options),
    }
    return trained, run.options(names)


def _settings(config: EvaluateConfig, options: TaskOptions) -> dict[str, Any]:
    """The settings that a run gives defaults for, by flag."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in SHARED if name != "chat_template_options"}
    shared["chat_template_options"] = config.model.chat_template_options
    for task in dict.fromkeys(key for name in config.task_names for key in option_keys(name)):
        shared.update({f"{task}.{key}": value for key, value in vars(options[task]).items()})
    return shared


def _differences(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """One line with the settings in which the evaluation differs from the run."""
    own, own_options = _trained_with(run, config)
    trained = _settings(config.with_settings(**own), own_options)
    found = [f"{n} {trained[n]!r}, here {v!r}" for n, v in _settings(config, options).items() if v != trained[n]]
    if found:
        yield f"{run.path.name} was trained with {'; '.join(found)}"
