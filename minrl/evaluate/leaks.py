"""Refuses to evaluate a run on problems that it was trained on."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from minrl.config import TaskOptions
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.lineage import TrainedRun
from minrl.run.provenance import changes, provenance
from minrl.sft.demonstrations import key_of, question_of, read_demonstrations
from minrl.tasks import Task, load_task, with_absolute_path
from minrl.types import Example, UserError, require
from minrl.utils.task_names import option_keys


def leaks(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """Refuse problems that the run was trained on. Yield a note if these are unknown."""
    for name in config.task_names:
        key, *_ = option_keys(name)  # with a tool or without, the problems are the same
        own_task = run.task_of(key)
        if own_task is None:
            continue
        yield from _changed_since(run, key)
        here = (with_absolute_path(name), options[key], config.data_of(key))
        try:
            trained = run.options([own_task])[key]
            if (own_task, trained, run.data_path(key)) == here:
                continue  # a dataset holds no problem on both sides
            taught = load_task(own_task, {key: trained}, run.data_path(key))
            known = _identities(taught, taught.dataset.train)
            prompts = _prompts(taught, taught.dataset.train)
        except UserError as error:
            yield f"which problems {run.path.name} was trained on cannot be known: {error}"
            continue
        task = load_task(name, options, config.data_of(key))
        asked = list(task.dataset.held_out)[: config.examples]
        if (own_task, run.data_path(key)) == (here[0], here[2]):
            prompts = set()  # the identities are of the same problems
        leaked = sum(bool(_identities(task, [one]) & known or _prompts(task, [one]) & prompts) for one in asked)
        given = vars(options[key])
        own = [f"task {own_task}"] if own_task != here[0] else []
        own += [f"{key}.{name} {value!r}" for name, value in vars(trained).items() if value != given.get(name)]
        own += [f"data_path {run.data_path(key)!r}"] if run.data_path(key) != here[2] else []
        require(
            not leaked,
            f"{leaked} of the {len(asked)} problems of {key} are among those that {run.path.name} was trained "
            f"on, and are not held out from it: evaluate it with what it was trained with, {', '.join(own)}",
        )


def _identities(task: Task, examples: Iterable[Example]) -> set[tuple[str, str]]:
    """The identities of examples, and the keys that the task splits them by."""
    found = {("id", example.id) for example in examples}
    return found | {("split", task.dataset.key(example)) for example in examples}


def _prompts(task: Task, examples: Iterable[Example]) -> set[str]:
    """The prompts of examples; none for a task with an episode, whose examples may differ in other ways."""
    return {key_of(example.prompt) for example in examples} if task.episode is None else set()


def leaked_rows(run: TrainedRun, config: EvaluateConfig, options: TaskOptions) -> Iterator[str]:
    """Refuse problems of the rows that a run was fine-tuned on, which exclude the rows that its task holds out."""
    path = run.config.get("data", "")
    if not path:
        return
    if not Path(path).is_file():
        yield f"{path}, which {run.path.name} was fine-tuned on, is not there: its problems are unknown"
        return
    columns = (run.config.get(name, name.removesuffix("_column")) for name in ("prompt_column", "response_column"))
    rows = {question_of(row.prompt) for row in read_demonstrations(Path(path), *columns)}
    if run.task:
        try:
            own = load_task(run.task, run.options([run.task]), run.data_path(option_keys(run.task)[0]))
        except UserError as error:
            yield f"which rows {run.path.name} was trained on cannot be known: {error}"
            return
        rows -= {question_of(example.prompt) for example in own.dataset.held_out}
    for name in config.task_names:
        task = load_task(name, options, config.data_of(option_keys(name)[0]))
        asked = list(task.dataset.held_out)[: config.examples] if task.episode is None else []
        leaked = sum(question_of(example.prompt) in rows for example in asked)
        require(
            not leaked,
            f"{leaked} of the {len(asked)} problems of {option_keys(name)[0]} are among the rows of {path}, which "
            f"{run.path.name} was fine-tuned on: evaluate it on others",
        )


def _changed_since(run: TrainedRun, key: str) -> Iterator[str]:
    """A note if code that decides which problems are held out changed since the run began."""
    decisive = {name: run.record[name] for name in ("commit", "sources", "files") if name in run.record}
    now = provenance(path for path in map(Path, run.record.get("files", {})) if path.exists())
    found = changes(decisive, now)
    if found:
        yield (
            f"changed since {run.path.name} was trained: {'; '.join(found)}; if that moved problems of {key} from "
            "training to held out, the figures are of problems that it knows"
        )
