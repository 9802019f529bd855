"""Keep the rows of a file whose response is correct by a task's reward, from the command line.

    python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl

Rows are JSON objects with `response` (or `completion`) and the fields that the reward reads, beside it or, as expert
iteration writes them, under `example`; `ground_truth` is read as `answer` where there is none. A row with
`"truncated": true` was cut off and is not correct, whatever its reward: it would teach the model to end there. Kept
rows are written unchanged and in order. The output appears when it is whole. A row that cannot be scored is dropped and
counted; if none can, the exit status is 1.
"""

import sys
from pathlib import Path
from typing import Any

from minrl.dataflow import UserError
from minrl.rewards.completions import Counts, read_lines, score_lines
from minrl.rewards.workers import Workers
from minrl.sft.config import FilterConfig
from minrl.tasks import Task, load_task
from minrl.utils.cli import Command
from minrl.utils.files import atomic_write

EXAMPLE = "example"
"""The field of a row that may hold the fields that the reward reads, so that none replaces another."""


def filter_file(
    task: Task, source: Path, output: Path, min_reward: float | None, workers: Workers
) -> tuple[int, Counts]:
    """Write the rows whose reward is at its maximum, or at least `min_reward`: how many, and the counts of all."""
    kept, counts = 0, Counts()
    with atomic_write(output) as file:
        lines = read_lines(source, "rows")
        for line, row, verdict in score_lines(task, lines, workers, completed=_with_completion):
            counts = counts.and_one(verdict)
            if verdict["reward"] is None or row.get("truncated") is True:
                continue
            if verdict["solved"] if min_reward is None else verdict["reward"] >= min_reward:
                kept += 1
                file.write(line + "\n")
    return kept, counts


def _with_completion(row: dict[str, Any]) -> dict[str, Any]:
    """The row for scoring: its response under `completion`, the fields of its example at the top."""
    answer = {"answer": row["ground_truth"]} if "ground_truth" in row else {}
    fields = row[EXAMPLE] if isinstance(row.get(EXAMPLE), dict) else {}
    return {**answer, **row, **fields, **({"completion": row["response"]} if "response" in row else {})}


def main(command: Command[FilterConfig]) -> int:
    """Filter a file and say how much of it was kept."""
    config = command.config
    task = load_task(config.task, command.options, config.data_path)
    if task.reward is None:
        raise UserError(f"{config.task} is played over several turns: no single response of it can be scored")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.task}: {note}\n")
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    try:
        kept, counts = filter_file(task, Path(config.data), Path(config.output), config.min_reward, workers)
    finally:
        workers.close()
    sys.stderr.write(
        f"{config.output}: kept {kept} of {counts.rows} rows; {counts.rows - kept - counts.failed} are not correct, "
        f"{counts.failed} could not be scored{f', the first ({counts.reason})' if counts.failed else ''}\n"
    )
    return int(counts.failed == counts.rows)
