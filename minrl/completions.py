"""Scores completions that somebody already has, with a task's reward: no model, no torch.

Rows are JSON objects with `completion` and those of the example's fields that the reward reads. One row comes out for
each that goes in, in order; one that cannot be scored has `reward: null` and says why under `error`. Nothing is lost:
what a row held under the names of the verdict stands under `given`, and a line that is no JSON under `line`.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from minrl.files import same_file, whole
from minrl.json_text import json_text
from minrl.judge import Judge, judgement
from minrl.tasks import Task
from minrl.types import Example, Job, Reward, UserError
from minrl.workers import Failure, Workers

CHUNK = 1024
"""Rows in memory at once."""

VERDICT = ("reward", "solved", "parts", "error")
"""What scoring adds to a row."""

GIVEN = "given"
"""Where a scored row keeps what it held under the names of the verdict before."""


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
    if same_file(output, source):
        raise UserError(f"--output {output} is the file of the completions, which is kept: name another file")
    lines = read_lines(source, "completions")
    rows = solved = failed = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    with whole(output) as file:
        for start in range(0, len(lines), CHUNK):
            for row in score_lines(task, lines[start : start + CHUNK], workers, judge):
                file.write(json_text(row) + "\n")
                rows, solved, failed = rows + 1, solved + bool(row.get("solved")), failed + (row["reward"] is None)
    return rows, solved, failed


def read_lines(source: Path, what: str) -> list[str]:
    """The lines of a file that are not blank. `what` says what they are, should it not be readable."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} in {source}: {error}") from error
    return [line for line in text.split("\n") if line.strip()]  # a string may hold U+2028: splitlines() splits there


def score_lines(task: Task, lines: list[str], workers: Workers, judge: Judge | None = None) -> Iterator[dict[str, Any]]:
    """The scored row of each line, in order."""
    rows = [_parsed(line) for line in lines]
    jobs = [_job(task, row, number) for number, row in enumerate(rows) if isinstance(row, dict)]
    rewards = workers.run(jobs)
    if judge is not None:
        rewards = _judged(judge, jobs, rewards, workers)
    results = iter(rewards)
    for line, row in zip(lines, rows, strict=True):
        yield _scored(row, next(results)) if isinstance(row, dict) else _refused(line, row)


def _parsed(line: str) -> dict[str, Any] | str:
    """The row on a line as it was before it was ever scored, or what is wrong with the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of an integer that has more digits than Python reads
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return "a row must be a JSON object with `completion` and the example's fields"
    if not isinstance(row.get("completion"), str):
        return f"`completion` must be a string, got {type(row.get('completion')).__name__}"
    return _unscored(row)


def _unscored(row: dict[str, Any]) -> dict[str, Any]:
    """A row that was scored without the verdict, and with what it held under those names; any other as it is."""
    given = row.get(GIVEN)
    if not isinstance(given, dict) or not given.keys() <= set(VERDICT):
        return row
    return {**{name: value for name, value in row.items() if name not in (*VERDICT, GIVEN)}, **given}


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
        known = {name: value for name, value in example.fields.items() if name not in (*VERDICT, GIVEN)}
        shown = replace(example, fields=known)  # no verdict is a reference
        asked.append(judgement(judge, rewards[index], known.get("prompt"), completion, shown))
    for index, reward in zip(scored, workers.run(asked), strict=True):
        rewards[index] = reward
    return rewards


def _scored(row: dict[str, Any], result: Any) -> dict[str, Any]:  # noqa: ANN401 - the task's own code may return anything
    if isinstance(result, Failure):
        reason = result.reason.strip().splitlines()[-1]
        if reason.startswith("KeyError: "):
            reason = f"the row lacks {reason.removeprefix('KeyError: ')}, which the reward reads"
        return _with_verdict(row, {"reward": None, "error": reason})
    if not isinstance(result, Reward):
        return _with_verdict(row, {"reward": None, "error": f"the task's reward must return a Reward, got {result!r}"})
    verdict = {"reward": result.value, "solved": result.solved, "parts": dict(result.parts)}
    return _with_verdict(row, verdict)


def _refused(line: str, reason: str) -> dict[str, Any]:
    """What is written for a line that is no row to score."""
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        return _with_verdict(
            _unscored(row) if isinstance(row, dict) else {"row": row}, {"reward": None, "error": reason}
        )
    return {"line": line, "reward": None, "error": reason}


def _with_verdict(row: dict[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The row and its verdict; what the row held under the verdict's names is kept apart."""
    given = {name: row[name] for name in VERDICT if name in row}
    return {
        **{name: value for name, value in row.items() if name not in given},
        **verdict,
        **({GIVEN: given} if given else {}),
    }
