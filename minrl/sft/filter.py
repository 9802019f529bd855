"""Keep the rows of a file whose response is correct by a task's reward, from the command line.

    python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl

Rows are JSON objects with `response` (or `completion`) and the fields that the reward reads, beside it or, as expert
iteration writes them, under `example`. A row with `"truncated": true` was cut off and is not correct, whatever its
reward: it would teach the model to end there. Kept rows are written unchanged and in order. The output appears when it
is whole. A row that cannot be scored is dropped and counted.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrl.dataflow import UserError
from minrl.rewards.completions import read_lines, score_lines
from minrl.rewards.workers import Workers
from minrl.sft.config import FilterConfig
from minrl.tasks import Task, load_task
from minrl.utils.cli import Command
from minrl.utils.files import atomic_write

EXAMPLE = "example"
"""The field of a row that may hold the fields that the reward reads, so that none replaces another."""


@dataclass
class Counts:
    """Numbers of rows read, kept and unscorable, and why the first of the latter could not be scored."""

    rows: int = 0
    kept: int = 0
    unscorable: int = 0
    first_reason: str = ""


def filter_file(task: Task, source: Path, output: Path, min_reward: float | None, workers: Workers) -> Counts:
    """Write the rows whose reward is at its maximum, or at least `min_reward`."""
    counts = Counts()
    with atomic_write(output) as file:
        lines = read_lines(source, "rows")
        for line, row, scored in score_lines(task, lines, workers, completed=_with_completion):
            counts.rows += 1
            if scored["reward"] is None:
                counts.unscorable += 1
                counts.first_reason = counts.first_reason or f"row {counts.rows}: {scored['error']}"
            elif row.get("truncated") is not True and (
                scored["solved"] if min_reward is None else scored["reward"] >= min_reward
            ):
                counts.kept += 1
                file.write(line + "\n")
    return counts


def _with_completion(row: dict[str, Any]) -> dict[str, Any]:
    """The row for scoring: its response under `completion`, the fields of its example at the top."""
    fields = row[EXAMPLE] if isinstance(row.get(EXAMPLE), dict) else {}
    return {**row, **fields, **({"completion": row["response"]} if "response" in row else {})}


def main(command: Command[FilterConfig]) -> int:
    """Filter a file and say how much of it was kept."""
    config = command.config
    task = load_task(config.reward.task, command.options, config.reward.data_path)
    if task.reward is None:
        raise UserError(f"{config.reward.task} is played over several turns: no single response of it can be scored")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.reward.task}: {note}\n")
    workers = Workers(config.reward.reward_workers, config.reward.reward_deadline_s)
    try:
        counts = filter_file(task, Path(config.data), Path(config.output), config.min_reward, workers)
    finally:
        workers.close()
    wrong = counts.rows - counts.kept - counts.unscorable
    why = f", the first ({counts.first_reason})" if counts.unscorable else ""
    sys.stderr.write(
        f"{config.output}: kept {counts.kept} of {counts.rows} rows; {wrong} are not correct, "
        f"{counts.unscorable} could not be scored{why}\n"
    )
    return 0
