"""The program: the evaluation of models, and the scoring of completions that somebody already has.

The folder gets completions.jsonl, scores.jsonl, summary.json, summary.csv, summary.md and charts/; the same command
resumes where it was stopped. With --completions, rows have `completion` and the fields that the task's reward reads,
and each row is written, in order, with `reward`, `solved` and `parts` added; a row that cannot be scored has
`reward: null` and the reason under `error`. That imports no torch.
"""

import os
import sys
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions
from minrl.dataflow import require
from minrl.evaluate.config import EvaluateConfig
from minrl.rewards.completions import score_file
from minrl.rewards.judge import open_judge
from minrl.rewards.workers import Workers
from minrl.tasks import load_task
from minrl.utils.cli import Command
from minrl.utils.files import write_text
from minrl.utils.task_names import task_key
from minrl.utils.text import json_text, printable

INCOMPLETE = 1
"""Exit status where completions or verdicts are missing, or nothing could be scored."""


def main(command: Command[EvaluateConfig]) -> int:
    """Evaluate models, or score a file."""
    if command.config.model_names:
        command, notes = prepared(command)
        sys.stderr.writelines(f"{note}\n" for note in dict.fromkeys(notes))
    config, options = command.config, command.options
    for name in config.task_names:
        for note in load_task(name, options, config.data_of(task_key(name))).notes():
            sys.stderr.write(f"{name}: {note}\n")
    return _score_file(config, options) if config.completions else _evaluate(config, options)


def prepared(command: Command[EvaluateConfig]) -> tuple[Command[EvaluateConfig], list[str]]:
    """The command with the settings of its models' runs as defaults, and notes. Problems that a run was trained on are
    refused.
    """
    from minrl.evaluate.contamination import check_contamination
    from minrl.evaluate.models import as_trained, find_runs

    runs, missing = find_runs(command.config.model_names, command.config.runs_dir)
    command, notes = as_trained(command, runs)
    return command, [*missing, *notes, *check_contamination(runs, command.config, command.options)]


def _score_file(config: EvaluateConfig, options: TaskOptions) -> int:
    require(len(config.task_names) == 1, "--completions are of one task: name it with --task")
    task = load_task(config.task_names[0], options, config.data_path)
    output = Path(config.output or f"{os.path.splitext(config.completions)[0]}.scored.jsonl")
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    try:
        with open_judge(config.judge) as judge:
            counts = score_file(task, Path(config.completions), output, workers, judge)
    finally:
        workers.close()
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


def _evaluate(config: EvaluateConfig, options: TaskOptions) -> int:
    from minrl.evaluate.report import tables, unscorable
    from minrl.evaluate.stages import evaluate
    from minrl.utils.console import Screen, print_tables

    with Screen(config.quiet):
        folder, summary = evaluate(config, options)
    if summary is None:
        return 0
    result = json_text(_flat(summary) if len(summary["results"]) == 1 else summary, indent=1) + "\n"
    if config.output.endswith(".json"):
        write_text(Path(config.output), result)
    shown = list(tables(summary, narrow=True))
    if sys.stdout.isatty():
        print_tables(shown, elsewhere=f"{folder}/summary.md")
    else:
        sys.stdout.write(result)
        sys.stderr.writelines(f"{printable(note)}\n" for table in shown for note in table.notes)
    failed = list(unscorable(summary))
    sys.stderr.writelines(f"error: {line}\n" for line in failed)
    sys.stderr.write(f"{folder}: completions.jsonl, scores.jsonl, summary.json, summary.csv, summary.md, charts/\n")
    return 0 if summary["complete"] and not failed else INCOMPLETE


def _flat(summary: dict[str, Any]) -> dict[str, Any]:
    """The result of one model on one task, with the settings that it was measured with."""
    (result,) = summary["results"]
    settings, judge = summary["settings"]["generate"], summary["settings"]["score"]["judge"]
    flat = {**result, "options": settings["tasks"][result["task"]]["options"]}
    if judge["judge_model"]:
        flat["judge"] = judge
    return {**flat, "seed": settings["seed"], "temperature": settings["temperature"]}
