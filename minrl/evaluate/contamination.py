"""Training problems among the evaluated ones: a run is not evaluated on what it was trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from minrl.config import TaskOptions
from minrl.dataflow import Example, UserError, require
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import TrainedRun, ancestors
from minrl.run.records import digest_of, files_in
from minrl.sft.demonstrations import question_of, read_demonstrations
from minrl.tasks import Task, load_task, with_absolute_path
from minrl.utils.task_names import option_keys

Marks = set[tuple[str, str]]
"""What problems are recognized by: their identities, what their task splits them by, their prompts."""


def check_contamination(runs: Sequence[TrainedRun], config: EvaluateConfig, options: TaskOptions) -> list[str]:
    """Refuse problems that a run, or one behind its start model or teacher, was trained on. Returns notes on what is
    unknown.
    """
    notes: list[str] = []
    for run in runs:
        for ancestor in ancestors(run, notes):
            notes += _check(ancestor, config, options)
    return notes


def _check(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    files = {Path(name): digest for name, digest in run.record.get("files", {}).items()}
    changed = [str(path) for path, digest in files.items() if path.exists() and digest_of(files_in(path)) != digest]
    if changed:
        yield f"changed since {run.path.name} was trained: {', '.join(changed)}; held-out problems may have moved"
    for name in config.task_names:
        key, *_ = option_keys(name)  # with a tool or without, the problems are the same
        try:
            known = {
                f"that {run.path.name} was trained on": _of_its_task(run, key, name, config, options),
                f"in {run.config.get('data')}, which {run.path.name} was fine-tuned on": _of_its_rows(run),
            }
        except UserError as error:
            yield f"it is unknown which problems {run.path.name} was trained on: {error}"
            continue
        if not any(known.values()):
            continue
        task = load_task(name, options, config.data_of(key))
        asked = [_marks(task, example) for example in list(task.dataset.held_out)[: config.examples]]
        for where, marks in known.items():
            leaked = sum(not marks.isdisjoint(own) for own in asked)
            require(
                not leaked,
                f"{leaked} of the {len(asked)} problems of {key} are among those {where}, and are not held out from "
                f"it: evaluate it on others, or as it was trained{_difference(run, key, name, config, options)}",
            )


def _marks(task: Task, example: Example) -> Marks:
    """The marks of an example. Examples of a task's own episode may differ in other ways than their prompts."""
    prompt = {("prompt", question_of(example.prompt))} if task.episode is None else set()
    return {("id", example.id), ("split", task.dataset.key(example)), *prompt}


def _of_its_task(run: TrainedRun, key: str, name: str, config: EvaluateConfig, options: TaskOptions) -> Marks:
    """The marks of the run's training problems; none if the same dataset is evaluated, whose sides are disjoint."""
    own = run.task_of(key)
    if own is None or not _difference(run, key, name, config, options):
        return set()
    task = load_task(own, run.options([own]), run.data_path(key))
    marks = {mark for example in task.dataset.train for mark in _marks(task, example)}
    if (own, run.data_path(key)) == (with_absolute_path(name), config.data_of(key)):
        return {mark for mark in marks if mark[0] != "prompt"}  # the identities are of the same problems
    return marks


def _of_its_rows(run: TrainedRun) -> Marks:
    """The prompts of the rows that the run was fine-tuned on, which leave out those that its task holds out."""
    data = run.config.get("data", "")
    if not data:
        return set()
    require(Path(data).is_file(), f"{data}, which it was fine-tuned on, is not there")
    columns = (run.config.get(name, name.removesuffix("_column")) for name in ("prompt_column", "response_column"))
    rows = {question_of(row.prompt) for row in read_demonstrations(Path(data), *columns)}
    if run.task:
        own = load_task(run.task, run.options([run.task]), run.data_path(option_keys(run.task)[0]))
        rows -= {question_of(example.prompt) for example in own.dataset.held_out}
    return {("prompt", question) for question in rows}


def _difference(run: TrainedRun, key: str, name: str, config: EvaluateConfig, options: TaskOptions) -> str:
    """The settings in which the run's problems and the evaluated ones differ; empty if there are none."""
    own = run.task_of(key)
    if own is None:
        return ""
    trained, given = asdict(run.options([own])[option_keys(own)[0]]), asdict(options[key])
    different = [f"task {own}"] if own != with_absolute_path(name) else []
    different += [f"{key}.{option} {value!r}" for option, value in trained.items() if value != given.get(option)]
    different += [f"data_path {run.data_path(key)!r}"] if run.data_path(key) != config.data_of(key) else []
    return ": " * bool(different) + ", ".join(different)
