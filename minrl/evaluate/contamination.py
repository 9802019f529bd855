"""Training problems among the evaluated ones: a run is not evaluated on what it was trained on."""

from pathlib import Path
from typing import Any

from minrl.config import OptionsByTask
from minrl.dataflow import Example, UserError, require
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import run_options, run_settings, runs_behind
from minrl.run.folder import RunFolder
from minrl.sft.demonstrations import question_of, read_demonstrations
from minrl.tasks import Task, load_task
from minrl.utils.task_names import option_keys, split_tool, weights_of


def check_contamination(config: EvaluateConfig, options: OptionsByTask) -> list[str]:
    """Refuse problems that a run, or one behind its start model or teacher, was trained on. Returns notes on what is
    unknown.
    """
    runs, notes = runs_behind(config.models, config.runs_dir)
    for run in runs:
        for name in config.task_names:
            try:
                settings = run_settings(run)
                data = getattr(settings, "data", "")
                problems = _of_rows(run, settings) if data else _of_task(run, settings.trainer.task, name, options)
            except UserError as error:
                notes.append(f"it is unknown which problems {run.path.name} was trained on: {error}")
                continue
            task = load_task(name, options)
            asked = [_marks(task, one) for one in task.dataset.held_out[: config.examples]] if problems else []
            leaked = sum(not problems.isdisjoint(marks) for marks in asked)
            found = f"{leaked} of the {len(asked)} problems of {task.name} are among"
            if leaked and getattr(settings, "max_examples", 0):
                notes.append(f"{found} the rows in {data}, on some of which {run.path.name} was fine-tuned")
                continue
            what = (
                f"those in {data}, which {run.path.name} was fine-tuned on"
                if data
                else f"those that {run.path.name} was trained on"
            )
            require(
                not leaked, f"{found} {what}, and are not held out from it: evaluate it on others, or as it was trained"
            )
    return notes


def _marks(task: Task, example: Example, by_question: bool = True) -> set[str]:
    """What a problem is known by: its identity, what its task splits by, its question. Examples of a task's own episode
    may differ in other ways than their prompts.
    """
    question = question_of(example.prompt) if by_question and task.episode is None else ""
    return {example.id, task.dataset.key(example), question} - {""}


def _of_task(run: RunFolder, trained: str, name: str, options: OptionsByTask) -> set[str]:
    """The marks of the run's training problems of the task; none if the same dataset is evaluated, whose sides are
    disjoint. With a tool or without, the problems are the same.
    """
    key = option_keys(name)[0]
    same = next((one for one in weights_of(trained) if option_keys(one)[0] == key), None)
    own = {} if same is None else run_options(run, [same])
    if same is None or (split_tool(same)[0], own[key]) == (split_tool(name)[0], options[key]):
        return set()
    task, data = load_task(same, own), [getattr(one[key], "data_path", "") for one in (own, options)]
    others = split_tool(same)[0] != split_tool(name)[0] or data[0] != data[1]  # whose identities mean something else
    return {mark for example in task.dataset.train for mark in _marks(task, example, others)}


def _of_rows(run: RunFolder, settings: Any) -> set[str]:  # noqa: ANN401 - the settings of fine-tuning
    """The questions of the rows that a run was fine-tuned on, which leave out those that its task holds out."""
    require(Path(settings.data).is_file(), f"{settings.data}, which it was fine-tuned on, is not there")
    rows = read_demonstrations(Path(settings.data), settings.prompt_column, settings.response_column)
    task = load_task(settings.task, run_options(run, [settings.task])) if settings.task else None
    held_out = [] if task is None else task.dataset.held_out
    return {question_of(row.prompt) for row in rows} - {question_of(example.prompt) for example in held_out} - {""}
