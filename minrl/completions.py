"""Scores completions that somebody already has, with a task's reward: no model, no torch.

Rows are JSON objects with `completion` and those of the example's fields that the reward reads. One row comes out for
each that goes in, in order; one that cannot be scored has `reward: null` and says why under `error`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minrl.judge import Judge, judgement
from minrl.tasks import Task
from minrl.types import Example, Job, Reward, UserError
from minrl.workers import Failure, Workers

CHUNK = 1024
"""Rows in memory at once."""


def score_file(
    task: Task, source: Path, output: Path, workers: Workers, judge: Judge | None = None
) -> tuple[int, int, int]:
    """Write a scored row for each row of `source`: rows, solved rows, rows that could not be scored.

    A judge is shown the row's `prompt` too, unless its own prompt leaves that out. The output appears when it is whole.
    """
    if task.reward is None:
        raise UserError(
            "this task is played over several turns and no single completion of it can be scored: "
            "leave out --completions and name a model with --checkpoint"
        )
    lines = read_lines(source, "completions")
    rows = solved = failed = 0
    temporary = output.with_name(output.name + ".tmp")
    output.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("w") as file:
        for start in range(0, len(lines), CHUNK):
            for row in score_lines(task, lines[start : start + CHUNK], workers, judge):
                file.write(json.dumps(row) + "\n")
                rows, solved, failed = rows + 1, solved + bool(row.get("solved")), failed + (row["reward"] is None)
    temporary.rename(output)
    return rows, solved, failed


def read_lines(source: Path, what: str) -> list[str]:
    """The lines of a file that are not blank. `what` says what they are, should it not be readable."""
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} in {source}: {error}") from error
    return [line for line in text.split("\n") if line.strip()]  # a string may hold U+2028: splitlines() splits there


def score_lines(task: Task, lines: list[str], workers: Workers, judge: Judge | None = None) -> Iterator[dict[str, Any]]:
    """The scored row of each line, in order."""
    rows = [_parsed(line) for line in lines]
    jobs = [_job(task, row, number) for number, row in enumerate(rows) if "error" not in row]
    rewards = workers.run(jobs)
    if judge is not None:
        rewards = _judged(judge, jobs, rewards, workers)
    results = iter(rewards)
    for row in rows:
        yield row if row.get("reward", ...) is None and "error" in row else _scored(row, next(results))


def _parsed(line: str) -> dict[str, Any]:
    """The row on a line, or what is wrong with it."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return _refused({}, f"not JSON: {error}")
    if not isinstance(row, dict):
        return _refused({"row": row}, "a row must be a JSON object with `completion` and the example's fields")
    row.pop("error", None)
    if not isinstance(row.get("completion"), str):
        return _refused(row, f"`completion` must be a string, got {type(row.get('completion')).__name__}")
    return row


def _job(task: Task, row: dict[str, Any], number: int) -> Job:
    assert task.reward is not None
    example = Example(str(row.get("id", number)), "", row)
    return Job(task.reward, (row["completion"], example), cheap=task.cheap)


def _judged(judge: Judge, jobs: list[Job], rewards: list[Any], workers: Workers) -> list[Any]:
    """The rewards with the judge's part, and what failed as it was."""
    scored = [index for index, reward in enumerate(rewards) if isinstance(reward, Reward)]
    asked = []
    for index in scored:
        completion, example = jobs[index].arguments
        asked.append(judgement(judge, rewards[index], example.fields.get("prompt"), completion, example))
    for index, reward in zip(scored, workers.run(asked), strict=True):
        rewards[index] = reward
    return rewards


def _scored(row: dict[str, Any], result: Reward | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        reason = result.reason.strip().splitlines()[-1]
        if reason.startswith("KeyError: "):
            reason = f"the row lacks {reason.removeprefix('KeyError: ')}, which the reward reads"
        return _refused(row, reason)
    return {**row, "reward": result.value, "solved": result.solved, "parts": dict(result.parts)}


def _refused(row: dict[str, Any], reason: str) -> dict[str, Any]:
    return {**row, "reward": None, "error": reason}
