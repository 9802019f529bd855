"""Training problems among the evaluated ones: no model is evaluated on what it, or one behind it, was trained on."""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from minrl.config import OptionsByTask
from minrl.dataflow import Example, Prompt, UserError, require
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import run_options, run_settings, runs_behind
from minrl.run.folder import RunFolder
from minrl.sft.config import SftConfig
from minrl.sft.demonstrations import fingerprint, read_demonstrations
from minrl.sft.sft import DATA
from minrl.tasks import Task, load_task
from minrl.tasks.held_out import Problems, recognised
from minrl.utils.files import read_json
from minrl.utils.task_names import option_keys, split_tool, weights_of

Shown = tuple[Prompt, str]
"""What a model was trained on: a prompt, and an answer or the text of a problem."""


def check_contamination(config: EvaluateConfig, options: OptionsByTask) -> list[str]:
    """Refuse problems that a run, or one behind its start model or teacher, was trained on. Returns notes on what is
    unknown.
    """
    runs, notes = runs_behind(config.models, config.runs_dir)
    for run in runs:
        rows = cache(partial(_rows, run)) if run.program == "sft" else None  # the same for every task
        for name in config.task_names:
            try:
                ids, shown = _trained_on(run, name, options) if rows is None else (set[str](), rows())
            except UserError as error:
                notes.append(f"it is unknown which problems {run.path.name} was trained on: {error}")
                continue
            task = load_task(name, options)
            asked = task.dataset.held_out[: config.examples] if ids or shown else []
            leaked = len(_among(asked, task, ids, shown))
            require(
                not leaked,
                f"{leaked} of the {len(asked)} problems of {task.name} are among those that {run.path.name} was "
                "trained on, and are not held out from it: evaluate it on others, or as it was trained",
            )
    return notes


def _among(asked: Sequence[Example], task: Task, ids: set[str], shown: Iterable[Shown]) -> list[Example]:
    """The problems with one of these identities, and those that the texts show."""
    texts = [recognised(task, example) for example in asked]
    problems = Problems((question for question, _ in texts), (text for _, text in texts))
    seen = {one for prompt, answer in shown for one in problems.shown(prompt, answer)}
    known = [not ids.isdisjoint((one.id, task.dataset.key(one))) for one in asked]
    return [one for one, own, said in zip(asked, known, texts, strict=True) if own or seen.intersection(said)]


def _trained_on(run: RunFolder, name: str, options: OptionsByTask) -> tuple[set[str], list[Shown]]:
    """The identities of the run's training problems, as far as they mean something in the evaluated task, and what it
    was shown.
    """
    ids, shown, base, key = set[str](), list[Shown](), split_tool(name)[0], option_keys(name)[0]
    for other in weights_of(run_settings(run).trainer.task):
        own, same = run_options(run, [other]), option_keys(other)[0] == key
        if same and (split_tool(other)[0], own[key]) == (base, options[key]):
            continue  # the same dataset, whose sides are disjoint
        task = load_task(split_tool(other)[0], own)
        if same:
            ids |= {mark for one in task.dataset.train for mark in (one.id, task.dataset.key(one))}
        if not same or split_tool(other)[0] != base or own[key].data_path != options[key].data_path:
            shown += [(one.prompt, "\n".join(recognised(task, one))) for one in task.dataset.train]
    return ids, shown


def _rows(run: RunFolder) -> list[Shown]:
    """The rows that a run was fine-tuned on; all of its file if the run was stopped before it noted them."""
    settings: SftConfig = run_settings(run)
    require(Path(settings.data).is_file(), f"{settings.data}, which it was fine-tuned on, is not there")
    rows, noted = read_demonstrations(settings, settings.data), read_json(run.path / DATA)
    require(noted is None or noted["sha256"] == fingerprint(settings), f"{settings.data} has changed since")
    kept = rows if noted is None else [rows[number - 1] for number in noted["trained_on"]]
    return [turn for row in kept for turn in row.turns]
