"""Keep the rows of a file whose response is correct by a task's reward, from the command line.

    python -m minrl filter --task countdown --data samples.jsonl --output correct.jsonl

Rows are JSON objects with `response` (or `completion`) and the fields that the reward reads, beside it or, as expert
iteration writes them, under `example`; `ground_truth` is read as `answer` where there is none. A row with
`"truncated": true` was cut off and is not correct, whatever its reward: it would teach the model to end there. Kept
rows are written unchanged and in order. The output appears when it is whole. A row that cannot be scored is dropped and
counted; if none can, the exit status is 1. A reward in the form of TRL or verl names no maximum: `--min-reward` says
what is kept.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minrl.dataflow import Example, UserError
from minrl.rewards.completions import Counts, read_lines, score_lines
from minrl.rewards.workers import Workers
from minrl.sft.config import FilterConfig
from minrl.tasks import Task, load_task
from minrl.tasks.checked import is_prompt
from minrl.tasks.conventions import TrlOrVerlReward
from minrl.tasks.held_out import COLUMNS, divides_by_key, held_out_problems
from minrl.utils.cli import Command
from minrl.utils.files import atomic_write

EXAMPLE = "example"
"""The field of a row that may hold the fields that the reward reads, so that none replaces another."""


def filter_file(
    task: Task, source: Path, output: Path, min_reward: float | None, workers: Workers
) -> tuple[int, int, Counts]:
    """Write the rows whose reward is at its maximum, or at least `min_reward`, and that show no problem that the task
    holds out. Returns how many were written, how many show one, and the counts of all.
    """
    kept, leaked, verdicts = 0, 0, []
    shows_held_out = held_out_check(task)
    with atomic_write(output) as file:
        lines = read_lines(source, "rows")
        for line, row, verdict in score_lines(task, lines, workers, completed=_with_completion):
            verdicts.append(verdict)
            if verdict["reward"] is None or row.get("truncated") is True:
                continue
            if verdict["solved"] if min_reward is None else verdict["reward"] >= min_reward:
                if shows_held_out(_with_completion(row)):
                    leaked += 1
                    continue
                kept += 1
                file.write(line + "\n")
    return kept, leaked, Counts.of(verdicts)


def held_out_check(task: Task) -> Callable[[dict[str, Any]], bool]:
    """A function that says whether a row shows one of the task's held-out problems. What a task without its data holds
    out is not known, which is said.
    """
    try:
        held_out, problems = task.dataset.held_out, held_out_problems(task)
    except UserError as error:
        sys.stderr.write(f"rows are not compared with held-out problems, which are not there: {error}\n")
        return lambda row: False
    own_key = {task.dataset.key(example) for example in held_out if divides_by_key(task, example)}

    def shows(row: dict[str, Any]) -> bool:
        said = row["prompt"] if is_prompt(row.get("prompt")) else ""
        named = [value for name in COLUMNS if isinstance(value := row.get(name), str)]
        known = bool(own_key) and task.dataset.key(Example("", said, row)) in own_key
        return known or bool(problems.shown(said, *named, str(row["completion"])))

    return shows


def _with_completion(row: dict[str, Any]) -> dict[str, Any]:
    """The row for scoring: its response under `completion`, and the fields of its example alone where it has these."""
    answer = {"answer": row["ground_truth"]} if "ground_truth" in row else {}
    own = {name: value for name, value in row.items() if name not in ("response", "ground_truth", "truncated")}
    if isinstance(fields := row.get(EXAMPLE), dict):
        own = {**{name: own[name] for name in ("prompt", "completion") if name in own}, **fields}
    return {**answer, **own, **({"completion": row["response"]} if "response" in row else {})}


def main(command: Command[FilterConfig]) -> int:
    """Filter a file and say how much of it was kept."""
    config = command.config
    task = load_task(config.task, command.options, config.data_path)
    if task.reward is None:
        raise UserError(f"{config.task} is played over several turns: no single response of it can be scored")
    if isinstance(task.reward, TrlOrVerlReward) and config.min_reward is None and not task.reward.names_maximum:
        raise UserError(f"{config.task} names no maximum: say which rows are kept, as with --min-reward 1")
    for note in task.notes():  # before the workers start: they have the walls that it finds
        sys.stderr.write(f"{config.task}: {note}\n")
    workers = Workers(config.reward_workers, config.reward_deadline_s)
    try:
        kept, leaked, counts = filter_file(task, Path(config.data), Path(config.output), config.min_reward, workers)
    finally:
        workers.close()
    wrong = counts.rows - kept - leaked - counts.failed
    first = f", the first ({counts.reason})" if counts.failed else ""
    sys.stderr.write(
        f"{config.output}: kept {kept} of {counts.rows} rows; {wrong} incorrect, {leaked} of held-out problems, "
        f"{counts.failed} not scored{first}\n"
    )
    return int(counts.failed == counts.rows)
