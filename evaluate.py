"""Say how good models are at tasks, or score completions that somebody already has.

    python evaluate.py --models BASE countdown-grpo-seed0 --tasks countdown hanoi --samples 8 --output evaluations/mine
    python evaluate.py --checkpoint checkpoints/countdown-grpo-seed0 --task countdown --output result.json
    python evaluate.py --task countdown --completions mine.jsonl --output scored.jsonl

A model is a checkpoint, a run, a local or hub model of transformers, or `openai:MODEL@BASE_URL`. A run is evaluated
with the task's options, data, limits and chat template that it was trained with; what flags set otherwise is said, and
problems that it was trained on are refused. The folder gets completions.jsonl, scores.parquet, summary.json,
summary.csv, summary.md and charts/; the same command goes on where it was stopped. The last form reads rows with
`completion` and the fields that the task's reward reads, and writes each row, in order, with `reward`, `solved` and
`parts` added; a row that cannot be scored has `reward: null` and says why under `error`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minrl.utils.cli import before_imports, parse, run_main
from minrl.config import TaskOptions
from minrl.utils.task_names import task_key
from minrl.evaluate.config import EvaluateConfig

if __name__ == "__main__":
    before_imports(lambda arguments: parse(EvaluateConfig, arguments))

from minrl.rewards.completions import score_file
from minrl.utils.files import write_text
from minrl.utils.text import json_text, printable
from minrl.utils.launch import require_one_process
from minrl.rewards.judge import open_judge
from minrl.tasks import load_task
from minrl.types import require
from minrl.rewards.workers import Workers

INCOMPLETE = 1
"""Exit status where completions or verdicts are missing, or nothing could be scored."""


def main(arguments: Sequence[str]) -> int:
    """Evaluate models, or score a file."""
    require_one_process("evaluate.py")
    config, options = parse(EvaluateConfig, arguments)
    if config.model_names:
        config, options = _as_trained(arguments, config)
    for name in config.task_names:
        for note in load_task(name, options, config.data_of(task_key(name))).notes():
            sys.stderr.write(f"{name}: {note}\n")
    return _score(config, options) if config.completions else _evaluate(config, options)


def _as_trained(arguments: Sequence[str], config: EvaluateConfig) -> tuple[EvaluateConfig, TaskOptions]:
    """The config with what the runs among the models were trained with, where the arguments say nothing else."""
    from minrl.evaluate.runs import as_trained

    found, notes = as_trained(arguments, config)
    sys.stderr.writelines(f"{note}\n" for note in dict.fromkeys(notes))
    return found


def _score(config: EvaluateConfig, options: TaskOptions) -> int:
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
    said = f"{counts.rows} rows, {counts.solved} solved, {counts.failed} could not be scored{why}"
    sys.stderr.write(f"{'error: ' if nothing else ''}{output}: {said}\n")
    if counts.unjudged:
        sys.stderr.write(
            f"error: the judge did not say what {counts.unjudged} of {counts.rows} completions are worth (`error` in "
            "their rows): the same command asks again\n"
        )
    return INCOMPLETE if counts.unjudged or nothing else 0


def _evaluate(config: EvaluateConfig, options: TaskOptions) -> int:
    from minrl.evaluate.shown import tables, unscored
    from minrl.evaluate.stages import evaluate
    from minrl.utils.console import Screen
    from minrl.utils.console import print_tables

    with Screen(config.quiet) as screen:
        folder, summary = evaluate(config, options, screen)
    if summary is None:
        return 0
    result = _flat(summary) if len(summary["results"]) == 1 else summary
    if config.output.endswith(".json"):
        Path(config.output).parent.mkdir(parents=True, exist_ok=True)
        write_text(Path(config.output), json_text(result, indent=1) + "\n")
    if sys.stdout.isatty():
        print_tables(tables(summary), elsewhere=f"{folder}/summary.md")
    else:
        sys.stdout.write(json_text(result, indent=1) + "\n")
    failed = list(unscored(summary))
    sys.stderr.writelines(f"error: {line}\n" for line in failed)
    sys.stderr.write(f"{folder}: completions.jsonl, scores.parquet, summary.json, summary.csv, summary.md, charts/\n")
    return 0 if summary["complete"] and not failed else INCOMPLETE


def _flat(summary: dict[str, Any]) -> dict[str, Any]:
    """The result of one model on one task, with the settings that it was measured with."""
    (result,) = summary["results"]
    settings, judge = summary["settings"]["generate"], summary["settings"]["score"]["judge"]
    flat = {**result, "options": settings["tasks"][result["task"]]["options"]}
    if judge["judge_model"]:
        flat["judge"] = judge
    return {**flat, "seed": settings["seed"], "temperature": settings["temperature"]}


if __name__ == "__main__":
    run_main(main)
