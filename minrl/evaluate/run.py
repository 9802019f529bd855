"""The program: evaluates models, or scores the completions in a file.

The folder gets completions.jsonl, summary.json, summary.csv, summary.md and charts/; the same command resumes where it
was stopped, and one with more examples, samples, models or tasks adds to what is there. config.json holds the latest
settings and what machine and code the evaluation began with.

With --completions, rows have `completion` and the fields that the task's reward reads, and each row is written, in
order, with `reward`, `solved` and `parts` added; a row that cannot be scored has `reward: null` and the reason under
`error`. That imports no torch.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from minrl.config import OptionsByTask
from minrl.dataflow import UserError, require
from minrl.evaluate.config import EvaluateConfig, with_data
from minrl.evaluation import MIN_SAMPLES
from minrl.rewards.completions import score_file
from minrl.rewards.judge import PROMPT, instructions, open_judge
from minrl.rewards.workers import Workers
from minrl.tasks import Task, load_task
from minrl.tasks.programs import programs
from minrl.utils.cli import Command, plain_options, to_dict
from minrl.utils.console import Screen, activity, print_tables
from minrl.utils.files import LOCK, holder, lock, names_in, read_record, write_json, write_text, writing
from minrl.utils.task_names import option_keys, task_key
from minrl.utils.text import digest_of, json_text, printable

if TYPE_CHECKING:  # they import torch
    from minrl.evaluate.models import NamedModel
    from minrl.evaluate.play import Cell, Key, Row

INCOMPLETE = 1
"""Exit status where completions or verdicts are missing, or nothing could be scored."""

CONFIG, COMPLETIONS = "config.json", "completions.jsonl"

SAMPLING = ("seed", "temperature", "stop_strings")
ENGINE = ("dtype", "device", "engine", "engine_context_length", "chat_template_options")
OPPONENT = ("opponent", "opponent_temperature", "opponent_max_tokens")
JUDGE = (
    *("judge_model", "judge_base_url", "judge_weight", "judge_adds", "judge_criteria"),
    *("judge_prompt", "judge_temperature", "judge_max_tokens"),
)

PER_WORKER = 16
"""Completions of each worker that are scored between two writes to the disk."""


def main(command: Command[EvaluateConfig]) -> int:
    """Evaluate models, or score a file."""
    if command.config.models:
        command, notes = prepared(command)
        sys.stderr.writelines(f"{note}\n" for note in dict.fromkeys(notes))
    config = command.config
    options = with_data(command.options, config.task_names, config.data_path)
    for name in config.task_names if config.score else ():
        for note in load_task(name, options).notes():
            sys.stderr.write(f"{name}: {note}\n")
    return _score_file(config, options) if config.completions else _evaluate(config, options)


def prepared(command: Command[EvaluateConfig]) -> tuple[Command[EvaluateConfig], list[str]]:
    """The command with the settings of its models' runs as defaults, and notes. Problems that a run was trained on are
    refused.
    """
    from minrl.evaluate.contamination import check_contamination
    from minrl.evaluate.models import as_trained

    command, notes = as_trained(command)
    return command, [*notes, *check_contamination(command.config, command.options)]


def _score_file(config: EvaluateConfig, options: OptionsByTask) -> int:
    require(len(config.task_names) == 1, "--completions are of one task: name it with --task")
    task = load_task(config.task_names[0], options)
    output = Path(config.output or f"{os.path.splitext(config.completions)[0]}.scored.jsonl")
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    with Screen(config.quiet), closing(workers), open_judge(config) as judge:
        counts = score_file(task, Path(config.completions), output, workers, judge)
    why = f", the first because: {printable(counts.reason)}" if counts.failed else ""
    nothing = counts.rows > 0 and counts.failed == counts.rows
    result = f"{counts.rows} rows, {counts.solved} solved, {counts.failed} could not be scored{why}"
    sys.stderr.write(f"{'error: ' if nothing else ''}{output}: {result}\n")
    if counts.unjudged:
        sys.stderr.write(
            f"error: the judge did not say what {counts.unjudged} of {counts.rows} completions are worth (`error` in "
            "their rows): the same command asks again\n"
        )
    return INCOMPLETE if counts.unjudged or nothing else 0


def _evaluate(config: EvaluateConfig, options: OptionsByTask) -> int:
    from minrl.evaluate.figures import tables

    with Screen(config.quiet):
        summary = evaluate(config, options)
    result = json_text(summary, indent=1) + "\n"
    if config.output.endswith(".json"):
        write_text(Path(config.output), result)
    shown = list(tables(summary))
    if sys.stdout.isatty():
        print_tables(shown)
    else:
        sys.stdout.write(result)
        sys.stderr.writelines(f"{printable(note)}\n" for table in shown for note in table.notes)
    sys.stderr.write(f"{config.folder}: {COMPLETIONS}, summary.json, summary.csv, summary.md, charts/\n")
    if not config.score and not any(one["missing"] for one in summary["results"]):
        return 0
    return 0 if summary["complete"] and all("pass@1" in one for one in summary["results"]) else INCOMPLETE


# The evaluation in its folder


def evaluate(config: EvaluateConfig, options: OptionsByTask) -> dict[str, Any]:
    """The content of summary.json, once what the folder lacks has been scored and played."""
    from minrl.evaluate.figures import write_summary
    from minrl.evaluate.play import add_rows, open_player, read_rows, rescored

    cells, opponents = cells_of(config, options)
    path = config.folder / COMPLETIONS
    with locked(config.folder), closing(Workers(config.reward_workers, config.reward_deadline_s)) as workers:
        rows = read_rows(path)
        missing = {cell: cell.missing(rows) for cell in cells}
        unscored = {cell: cell.unscored(rows) if config.score else [] for cell in cells}
        played, scored = sum(map(len, missing.values())), sum(map(len, unscored.values()))
        if played or scored:
            begin(config, options, rows, missing)
        with open_judge(config) if config.score and (played or scored) else nullcontext() as judge:
            with activity("scoring", scored) as report:
                done, size = 0, PER_WORKER * workers.count
                for cell, todo in unscored.items():
                    for start in range(0, len(todo), size):
                        new = rescored(cell, todo[start : start + size], workers, judge)
                        add_rows(path, rows, new)
                        report(done := done + len(new))
            with activity("playing", played) as report:
                done = 0
                for model, of_model in groupby(filter(missing.get, cells), key=lambda cell: cell.model):
                    logger.info(f"playing with {model.name}")
                    with closing(open_player(config, model, workers, judge, opponents)) as player:
                        for cell in of_model:
                            for new in player.play(cell, missing[cell]):
                                add_rows(path, rows, new)
                                report(min(done := done + len(new), played), model.label)
        if failures := [why for cell in cells for why in cell.failures(rows)]:
            logger.error(f"{len(failures)} completions lack an answer or a verdict, the first because: {failures[0]}")
        return write_summary(cells, rows, config.folder, to_dict(config, options), config.charts)


def cells_of(config: EvaluateConfig, options: OptionsByTask) -> "tuple[list[Cell], list[NamedModel]]":
    """Each model on each task, and the opponent if one is named. Refuses what cannot be evaluated."""
    from minrl.evaluate.models import find_models
    from minrl.evaluate.play import GREEDY, SAMPLED, Cell
    from minrl.run.setup import require_frozen_role

    tasks: dict[str, tuple[Task, dict[str, Any]]] = {}
    for name in config.task_names:
        key, task = task_key(name), load_task(name, options)
        task = replace(task, max_tokens=task.max_tokens or config.max_tokens)
        require(len(task.dataset.held_out) > 0, f"no example of {key} is held out: nothing can be evaluated")
        require(key not in tasks, f"--tasks names {key} more than once")
        as_they_are = f"{key} is played over several turns, of which its rewards are a part: leave out --no-score"
        require(config.score or task.episode is None, as_they_are)
        tasks[key] = task, {"options": options_of(name, options), "programs": programs(name)}
    require_frozen_role(config.opponent, {key: task for key, (task, _) in tasks.items()})
    models = find_models(config.models, config.runs_dir, config.every_checkpoint)
    alone = not config.opponent or not any(model.served for model in models)
    require(alone, "--opponent plays beside local models only: leave it out, and a server's model plays itself")
    opponents = find_models(filter(None, [config.opponent]), config.runs_dir)
    words = digest_of([instructions(config), config.judge_prompt or PROMPT])
    judge = {**{name: getattr(config, name) for name in JUDGE}, "words": words} if config.judge_model else {}
    scored_by = {"reward_deadline_s": config.reward_deadline_s, "judge": judge}
    sampling = {name: getattr(config, name) for name in SAMPLING}
    template = Path(config.chat_template)
    engine = {name: getattr(config, name) for name in ENGINE}
    engine["chat_template"] = template.read_text() if template.is_file() else config.chat_template
    cells = []
    for model in models:
        for key, (task, reward) in tasks.items():
            examples = list(task.dataset.held_out)[: config.examples]
            sampled = {SAMPLED: config.samples or ceil(MIN_SAMPLES / len(examples))} if config.temperature else {}
            samples = {**sampled, **({GREEDY: 1} if config.greedy or not sampled else {})}
            made_by = {**sampling, **({} if model.served else engine), "task_stop_strings": task.stop_strings}
            made_by |= {"max_tokens": task.max_tokens, "opponent": ""}
            if task.frozen_opponent:
                made_by |= {name: getattr(config, name) for name in OPPONENT}
                made_by["weights"] = [one.fingerprint for one in opponents]
            cells.append(Cell(model, key, task, examples, samples, made_by, {**scored_by, **reward}))
    return cells, opponents


def options_of(task: str, options: OptionsByTask) -> dict[str, Any]:
    """The options of a task, and of the tool that it is played with, that its rewards may depend on."""
    elsewhere = ("data_path", "max_tokens")  # the examples themselves count, and the length as it is played
    owns = {key: plain_options(options[key]) for key in option_keys(task)}
    return {key: {name: value for name, value in own.items() if name not in elsewhere} for key, own in owns.items()}


def begin(
    config: EvaluateConfig, options: OptionsByTask, rows: "dict[Key, Row]", missing: "dict[Cell, list[Key]]"
) -> None:
    """Write config.json: the settings, with the provenance of the evaluation's start. Warn of what has changed since,
    and of completions of other settings, weights or data.
    """
    from minrl.evaluate.models import sizes_by_model
    from minrl.run.records import changes, provenance

    (config.folder / "summary.json").unlink(missing_ok=True)
    stored, now = read_record(config.folder / CONFIG), provenance()
    if rows and (changed := changes(stored, now)):
        logger.warning(f"changed since this evaluation began, so that what is added may differ: {'; '.join(changed)}")
    known = {key[:5] for key, row in rows.items() if "error" not in row}
    if stale := sum(key[:5] in known for keys in missing.values() for key in keys):
        logger.warning(
            f"{config.folder} has {stale} of these completions of other settings, weights or data: they stay in its "
            "file, and are sampled again"
        )
    sizes = {**stored.get("sizes", {}), **sizes_by_model(config)}
    write_json(config.folder / CONFIG, {**now, **stored, "evaluation": to_dict(config, options), "sizes": sizes})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other programs. One that holds something else is refused."""
    require(not folder.exists() or folder.is_dir(), f"--output {folder} is a file: name a folder, or NAME.json")
    others = names_in(folder) if folder.is_dir() else []
    own = not others or COMPLETIONS in others or "evaluation" in read_record(folder / CONFIG)
    require(own, f"{folder} holds {others[:1]} and no evaluation: choose another --output")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    held = lock(folder / LOCK)
    if held is None:
        raise UserError(
            f"another program ({holder(folder / LOCK)}) is writing to {folder}: wait for it, or choose another --output"
        )
    with held:
        try:
            yield
        except KeyboardInterrupt:
            logger.warning(f"stopped; {folder} keeps what is done, and the same command resumes")
            raise
