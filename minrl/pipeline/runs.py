"""What the runs that are evaluated were trained with, the defaults of their evaluation, and on: what it must not ask.

A model that is a run, or a checkpoint of one, is evaluated as it was trained: with the run's options of the task, its
data, its limits and its chat template, unless the command line says otherwise, which is said. Problems that it was
trained on are never evaluated as held out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minrl.checkpoint import MANIFEST
from minrl.command_line import from_dict, parse_with_tasks
from minrl.config import TaskOptions, TrainerConfig, task_key
from minrl.defaults import MAX_TOKENS
from minrl.evaluate_config import EvaluateConfig
from minrl.files import read_json
from minrl.models import made_here
from minrl.parts import START
from minrl.pipeline.models import API
from minrl.provenance import changes, provenance
from minrl.resume import is_run, model_folder, resolve_model, run_folder_of, run_of
from minrl.sft.demonstrations import key_of, question_of, read_demonstrations
from minrl.tasks import Task, load_task, with_absolute_path
from minrl.types import Example, UserError, require

SHARED = ("max_tokens", "stop_strings", "chat_template_options", "data_path")
"""Settings that a run's config.json and an evaluation have in common."""


@dataclass(frozen=True)
class TrainedRun:
    """A run among the models, by what its config.json says."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def values(self) -> Mapping[str, Any]:
        """Its settings by flag name."""
        return self.record["config"]

    @property
    def task(self) -> str:
        """The task that it was trained on, as its user named it; empty: none."""
        return self.values.get("task", "")

    def data_path(self, key: str) -> str:
        """The local file that it had the examples of a task from."""
        return self.values.get("data_path", "") if task_key(self.task) == key else ""

    def options(self, names: Sequence[str]) -> TaskOptions:
        """The options of the tasks, as the run had them."""
        stored = self.values.get("tasks", {})
        chosen = {key: stored[key] for key in map(task_key, names) if key in stored}
        try:
            return from_dict({"tasks": chosen}, TrainerConfig, names)[1]
        except UserError as error:
            raise UserError(f"{self.folder / 'config.json'}: {error}") from error


Parsed = tuple[EvaluateConfig, TaskOptions]


def as_trained(arguments: Sequence[str], config: EvaluateConfig) -> tuple[Parsed | None, list[str]]:
    """The evaluation that the arguments ask for, with what its runs were trained with where they say nothing (None
    where they say all), and what there is to say about it. Runs that differ in it, and problems that a run was trained
    on, are refused.
    """
    runs, notes = find_runs(config.model_names)
    if not runs:
        return _as_given_models(arguments, config, notes), notes
    tasks = {task_key(run.task): run.task for run in runs if run.task}
    if tasks and not (config.task or config.tasks):
        require(len(tasks) == 1, f"name the --tasks: the runs were trained on {' and '.join(tasks)}")
        arguments = [*arguments, "--task", *tasks.values()]
        config = replace(config, task=next(iter(tasks.values())))
    parsed = [parse_with_tasks(EvaluateConfig, arguments, *_trained_with(run, config)) for run in runs]
    config, options = parsed[0]
    first = _settings(config, options)
    for run, other in zip(runs, parsed, strict=True):
        for name, value in _settings(*other).items():
            require(
                value == first[name],
                f"{runs[0].folder.name} was trained with {name} {first[name]!r} and {run.folder.name} with {value!r}: "
                f"say with which both are evaluated, by --{name.replace('_', '-')}",
            )
    for run in runs:
        notes += _differences(run, config, options)
        for ancestor in _lineage(run, notes):
            notes += _leaks(ancestor, config, options)
            notes += _leaked_rows(ancestor, config, options)
    return (config, options), notes


def _as_given_models(arguments: Sequence[str], config: EvaluateConfig, notes: list[str]) -> Parsed | None:
    """The evaluation of models that no run trained, whose completions are as long as train.py lets theirs be; None
    where MinRL made them all. What was taken is noted.
    """
    given = [name for name in config.model_names if name.startswith(API) or not made_here(Path(resolve_model(name)))]
    if not given:
        return None
    config, options = parse_with_tasks(EvaluateConfig, arguments, replace(config, max_tokens=MAX_TOKENS))
    if config.max_tokens == MAX_TOKENS:
        notes.append(f"completions of at most {MAX_TOKENS} tokens (--max-tokens), as train.py takes them of {given[0]}")
    return config, options


def find_runs(names: Sequence[str]) -> tuple[list[TrainedRun], list[str]]:
    """The runs that models are named by, are checkpoints of or were made for, each once; and which checkpoints have
    lost theirs.
    """
    folders, notes = [], []
    for name in names:
        if name.startswith(API):
            continue
        folder = run_folder_of(name)
        kept = model_folder(name) if folder is None else None
        if kept is not None:
            folder = _run_of_checkpoints(kept)
            if folder is None:
                notes.append(f"{name}: its run is not there, so that nobody knows which problems it was trained on")
        if folder is None and kept is None:
            folder = _run_that_made(Path(name).resolve())
        if folder is not None:
            folders.append(folder.resolve())
    return [TrainedRun(folder, read_json(folder / "config.json")) for folder in dict.fromkeys(folders)], notes


def _run_of_checkpoints(kept: Path) -> Path | None:
    """The run whose checkpoints, or one of them, lie there."""
    kept = kept.resolve()
    kept = kept.parent if (kept / MANIFEST).exists() else kept
    for runs in (kept.parent.parent / "runs", Path("runs")):
        try:
            return run_of(kept, runs)
        except UserError:  # not in this place
            continue
    return None


def _run_that_made(model: Path) -> Path | None:
    """A run for which an embedded base model was made: from the same problems, with the same options."""
    for runs in (model.parent.parent / "runs", Path("runs")):
        for folder in filter(is_run, sorted(runs.glob("*/"))):
            record = read_json(folder / "config.json")
            start = record.get("models", {}).get(START, {}).get("path", "")
            if not record["config"].get("model_id") and Path(start) == model:
                return folder
    return None


def _trained_with(run: TrainedRun, config: EvaluateConfig) -> Parsed:
    """The config with what the run was trained with, and its options. Data is of one task, and of no task beside it."""
    names, values = config.task_names, run.values
    data_path = next(filter(None, (run.data_path(task_key(name)) for name in names)), "")
    require(
        not data_path or len(names) == 1,
        f"{run.folder.name} had its examples from {data_path}, which is one task's data: evaluate {run.task} alone",
    )
    template = values.get("chat_template_options", config.model.chat_template_options)
    trained = replace(
        config,
        max_tokens=values.get("max_tokens", config.max_tokens),
        stop_strings=tuple(values.get("stop_strings", config.stop_strings)),
        data_path=data_path,
        model=replace(config.model, chat_template_options=template),
    )
    return trained, run.options(names)


def _settings(config: EvaluateConfig, options: TaskOptions) -> dict[str, Any]:
    """What a run gives the defaults of, by the name of its flag."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in SHARED if name != "chat_template_options"}
    shared["chat_template_options"] = config.model.chat_template_options
    for name in config.task_names:
        shared.update({f"{task_key(name)}.{key}": value for key, value in vars(options[task_key(name)]).items()})
    return shared


def _differences(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """What the evaluation has otherwise than the run, in one line."""
    trained = _settings(*_trained_with(run, config))
    found = [f"{n} {trained[n]!r}, here {v!r}" for n, v in _settings(config, options).items() if v != trained[n]]
    if found:
        yield f"{run.folder.name} was trained with {'; '.join(found)}"


def _lineage(run: TrainedRun, notes: list[str]) -> Iterator[TrainedRun]:
    """The run, the one that made the model it started from, and so on. One that is not there is noted."""
    seen = set()
    while run.folder not in seen:
        seen.add(run.folder)
        yield run
        start = Path(run.record.get("models", {}).get(START, {}).get("path", ""))
        folder = _run_of_checkpoints(start) if (start / MANIFEST).exists() else None
        if folder is None and (start / MANIFEST).exists():
            notes.append(
                f"{run.folder.name} started from {start}, whose run is not there, so that nobody knows which problems "
                "that was trained on"
            )
        if folder is not None and is_run(folder):
            run = TrainedRun(folder.resolve(), read_json(folder / "config.json"))


def _leaks(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """Refuse to evaluate what the run was trained on, and say where that cannot be known."""
    for name in config.task_names:
        key = task_key(name)
        if not run.task or key != task_key(run.task):
            continue
        yield from _changed_since(run, key)
        here = (with_absolute_path(name), options[key], config.data_path)
        try:
            trained = run.options([run.task])[key]
            if (run.task, trained, run.data_path(key)) == here:
                continue  # a dataset holds no problem on both sides
            taught = load_task(run.task, {key: trained}, run.data_path(key))
            known = {example.id for example in taught.dataset.train}
            prompts = _prompts(taught, taught.dataset.train)
        except UserError as error:
            yield f"which problems {run.folder.name} was trained on cannot be known: {error}"
            continue
        task = load_task(name, options, config.data_path)
        asked = list(task.dataset.held_out)[: config.examples]
        if (run.task, run.data_path(key)) == (here[0], here[2]):
            prompts = set()  # the identities are of the same problems
        leaked = sum(example.id in known or bool(_prompts(task, [example]) & prompts) for example in asked)
        own = [f"task {run.task}"] if run.task != here[0] else []
        own += [
            f"{key}.{option} {value!r}"
            for option, value in vars(trained).items()
            if value != vars(options[key]).get(option)
        ]
        own += [f"data_path {run.data_path(key)!r}"] if run.data_path(key) != config.data_path else []
        require(
            not leaked,
            f"{leaked} of the {len(asked)} problems of {key} are among those that {run.folder.name} was trained "
            f"on, and are not held out from it: evaluate it with what it was trained with, {', '.join(own)}",
        )


def _prompts(task: Task, examples: Iterable[Example]) -> set[str]:
    """The prompts of examples; none of a task with an episode, whose examples may differ in more than their prompt."""
    return {key_of(example.prompt) for example in examples} if task.episode is None else set()


def _leaked_rows(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """Refuse to evaluate what is asked in the rows that a run was fine-tuned on. Those that its task held out from it
    were left out of them.
    """
    path = run.values.get("data", "")
    if not path:
        return
    if not Path(path).is_file():
        yield f"{path}, which {run.folder.name} was fine-tuned on, is not there: nobody knows which problems it has"
        return
    columns = (run.values.get(name, name.removesuffix("_column")) for name in ("prompt_column", "response_column"))
    rows = {question_of(row.prompt) for row in read_demonstrations(Path(path), *columns)}
    if run.task:
        try:
            own = load_task(run.task, run.options([run.task]), run.data_path(task_key(run.task)))
        except UserError as error:
            yield f"which rows {run.folder.name} was trained on cannot be known: {error}"
            return
        rows -= {question_of(example.prompt) for example in own.dataset.held_out}
    for name in config.task_names:
        task = load_task(name, options, config.data_path)
        asked = list(task.dataset.held_out)[: config.examples] if task.episode is None else []
        leaked = sum(question_of(example.prompt) in rows for example in asked)
        require(
            not leaked,
            f"{leaked} of the {len(asked)} problems of {task_key(name)} are among the rows of {path}, which "
            f"{run.folder.name} was fine-tuned on: evaluate it on others",
        )


def _changed_since(run: TrainedRun, key: str) -> Iterator[str]:
    """What decides which problems are held out and is not what it was when the run began."""
    decisive = {name: run.record[name] for name in ("commit", "sources", "files") if name in run.record}
    now = provenance(path for path in map(Path, run.record.get("files", {})) if path.is_file())
    found = changes(decisive, now)
    if found:
        yield (
            f"changed since {run.folder.name} was trained: {'; '.join(found)}; if that moved problems of {key} from "
            "training to held out, the figures are of problems that it knows"
        )
