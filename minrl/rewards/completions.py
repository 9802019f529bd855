"""Scores given completions with a task's reward, without a model or torch.

Rows are JSON objects with `completion` and the fields of the example that the reward reads. Each input row has one
output row, in order. A row that cannot be scored has `reward: null` and the reason under `error`. All input is kept:
values under the names of the verdict move to `given`, and a line that is no object moves to `line`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from minrl.dataflow import Example, Job, Prompt, Reward, UserError, require
from minrl.rewards.chat_client import no_answer
from minrl.rewards.workers import Failure, Workers
from minrl.tasks import Task
from minrl.utils.files import atomic_write

Row = dict[str, Any]

CHUNK = 1024
"""Rows scored together."""

GIVEN = "given"
"""Where a scored row keeps the values that it had under the names of the verdict."""

VERDICT = ("reward", "solved", "parts", "error", GIVEN)
"""What scoring adds to a row."""


@runtime_checkable
class Judge(Protocol):
    """`minrl.rewards.judge.Judge`, which is imported only if there is a judge."""

    def reward(self, reward: Reward, prompt: Prompt | None, completion: str, example: Example) -> Reward:
        """The reward with the judge's part."""


@dataclass(frozen=True)
class Counts:
    """Counts of rows: all, solved, failed to be scored, and failed because no judge answered. `reason` is why the
    first that failed did.
    """

    rows: int = 0
    solved: int = 0
    failed: int = 0
    unjudged: int = 0
    reason: str = field(default="", compare=False)

    def and_one(self, verdict: Mapping[str, Any]) -> "Counts":
        """The counts with one more row."""
        unjudged = no_answer(verdict.get("error", ""))
        solved, failed = bool(verdict.get("solved")), verdict["reward"] is None
        reason = self.reason or (f"row {self.rows + 1}: {verdict['error']}" if failed else "")
        return Counts(self.rows + 1, self.solved + solved, self.failed + failed, self.unjudged + unjudged, reason)


def score_file(task: Task, source: Path, output: Path, workers: Workers, judge: Judge | None = None) -> Counts:
    """Write a scored row for each row of `source`; the output is whole or not there.

    A judge is shown the row's `prompt` too, unless the judge's own prompt omits it.
    """
    if task.reward is None:
        raise UserError(
            "this task is played over several turns and no single completion of it can be scored: "
            "leave out --completions and name a model with --checkpoint"
        )
    if output.resolve() == source.resolve():
        raise UserError(f"--output {output} is the file of the completions, which is kept: name another file")
    lines, counts = read_lines(source, "completions"), Counts()
    with atomic_write(output) as file:
        for _, row, verdict in score_lines(task, lines, workers, judge):
            file.write(_written(row, verdict) + "\n")
            counts = counts.and_one(verdict)
    return counts


def read_lines(source: Path, what: str) -> list[str]:
    """The lines of a file that are not blank. `what` names them in the error if the file cannot be read."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} in {source}: {error}") from error
    lines = [line for line in text.split("\n") if line.strip()]  # a string may hold U+2028: splitlines() splits there
    require(bool(lines), f"{source} has no {what}: give JSON objects, one a line")
    return lines


def score_lines(
    task: Task,
    lines: Sequence[str],
    workers: Workers,
    judge: Judge | None = None,
    completed: Callable[[Row], Row] = lambda row: row,
) -> Iterator[tuple[str, Row, Row]]:
    """Each line, the row on it, and the verdict on what `completed` makes of the row, in order."""
    for start in range(0, len(lines), CHUNK):
        chunk = lines[start : start + CHUNK]
        rows = list(map(_parsed, chunk))
        asked = [(_with_text(completed(row)), problem) for row, problem in rows]
        for line, (row, _), verdict in zip(chunk, rows, _verdicts(task, asked, workers, judge), strict=True):
            yield line, row, verdict


def _verdicts(task: Task, rows: Sequence[tuple[Row, str]], workers: Workers, judge: Judge | None) -> Iterator[Row]:
    """The verdict on each row, of which some cannot be scored for the reason beside them."""
    kinds = [type(row.get("completion")) for row, _ in rows]
    problems = [
        problem or ("" if kind is str else f"`completion` must be a string, got {kind.__name__}")
        for kind, (_, problem) in zip(kinds, rows, strict=True)
    ]
    jobs = [_job(task, row, number) for number, (row, _) in enumerate(rows) if not problems[number]]
    rewards = workers.run(jobs)
    results = iter(rewards if judge is None else _judged(judge, jobs, rewards, workers))
    for problem in problems:
        yield {"reward": None, "error": problem} if problem else _verdict(next(results))


def _with_text(row: Row) -> Row:
    """The row with its completion as a text where it is a list of one message of the assistant, as TRL has it."""
    said = row.get("completion")
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict):
        more = {name for name, value in said[0].items() if value} - {"role", "content"}  # which would be dropped
        if said[0].get("role") == "assistant" and isinstance(said[0].get("content"), str) and not more:
            return {**row, "completion": said[0]["content"]}
    return row


def _parsed(line: str) -> tuple[Row, str]:
    """The row on a line, and why it cannot be scored, or nothing."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also for an integer with more digits than Python reads
        return {"line": line}, f"not JSON: {error}"
    if isinstance(row, dict):
        return row, ""
    return {"line": line}, "a row must be a JSON object with `completion` and the example's fields"


def _job(task: Task, row: dict[str, Any], number: int) -> Job:
    example = Example(str(row.get("id", number)), "", row)
    return task.reward_job(row["completion"], example)


def _judged(judge: Judge, jobs: list[Job], rewards: list[Any], workers: Workers) -> list[Any]:
    """The rewards with the judge's part; failures are unchanged."""
    scored = [index for index, reward in enumerate(rewards) if isinstance(reward, Reward)]
    asked = []
    for index in scored:
        completion, example = jobs[index].arguments
        known = {name: value for name, value in example.fields.items() if name not in VERDICT}
        shown = replace(example, fields=known)  # a verdict is no reference
        asked.append(Job(judge.reward, (rewards[index], known.get("prompt"), completion, shown), waits=True))
    for index, reward in zip(scored, workers.run(asked), strict=True):
        rewards[index] = reward
    return rewards


def _verdict(result: Reward | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        reason = result.reason.strip().splitlines()[-1]
        if reason.startswith("KeyError: "):
            reason = f"the row lacks {reason.removeprefix('KeyError: ')}, which the reward reads"
        return {"reward": None, "error": reason}
    return {"reward": result.value, "solved": result.solved, "parts": dict(result.parts)}


def _written(fields: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """The row with its verdict; the row's own values under the verdict's names move to `given`."""
    given = {name: value for name, value in fields.items() if name in VERDICT}
    others = {name: value for name, value in fields.items() if name not in VERDICT}
    return json.dumps({**others, **verdict, **({GIVEN: given} if given else {})})
