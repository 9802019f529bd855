"""Scores given completions with a task's reward, without a model or torch.

Rows are JSON objects with `completion` and the fields of the example that the reward reads, and its `prompt` where the
reward reads that. A reward that sees a group is called with all rows of a prompt. Each input row has one output row, in
order: the input's with the verdict `reward`, `solved` and `parts`. A row that cannot be scored has `reward: null` and
the reason under `error`; a line that is no object moves to `line`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minrl.dataflow import Example, Job, Reward, UserError, require
from minrl.rewards.chat_client import no_answer
from minrl.rewards.groups import run_grouped
from minrl.rewards.workers import Failure, Workers
from minrl.tasks import Task
from minrl.tasks.checked import is_prompt
from minrl.utils.files import atomic_write
from minrl.utils.text import digest_of, end_of

if TYPE_CHECKING:
    from minrl.rewards.judge import Judge  # which is imported only if there is a judge

Row = dict[str, Any]

CHUNK = 1024
"""Rows scored together."""

VERDICT = ("reward", "solved", "parts", "error")
"""What scoring adds to a row, in place of what it has under these names."""


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

    @classmethod
    def of(cls, verdicts: Sequence[Mapping[str, Any]]) -> "Counts":
        """The counts of the rows with these verdicts."""
        errors = {row: verdict["error"] for row, verdict in enumerate(verdicts, 1) if verdict["reward"] is None}
        solved, unjudged = sum(bool(one.get("solved")) for one in verdicts), sum(map(no_answer, errors.values()))
        reason = next((f"row {row}: {error}" for row, error in errors.items()), "")
        return cls(len(verdicts), solved, len(errors), unjudged, reason)


def score_file(task: Task, source: Path, output: Path, workers: Workers, judge: "Judge | None" = None) -> Counts:
    """Write a scored row for each row of `source`; the output is whole or not there."""
    if task.reward is None:
        raise UserError(
            "this task is played over several turns and no single completion of it can be scored: "
            "leave out --completions and name a model with --checkpoint"
        )
    if output.resolve() == source.resolve():
        raise UserError(f"--output {output} is the file of the completions, which is kept: name another file")
    lines, verdicts = read_lines(source, "completions"), []
    with atomic_write(output) as file:
        for _, row, verdict in score_lines(task, lines, workers, judge):
            verdicts.append(verdict)
            file.write(json.dumps({**_without_verdict(row), **verdict}) + "\n")
    return Counts.of(verdicts)


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
    judge: "Judge | None" = None,
    completed: Callable[[Row], Row] = lambda row: row,
) -> Iterator[tuple[str, Row, Row]]:
    """Each line, the row on it, and the verdict on what `completed` makes of the row, in order. The reward and the
    judge are given the row's `prompt` too.
    """
    size = len(lines) if task.group else CHUNK  # rows of a prompt may stand anywhere
    for start in range(0, len(lines), size):
        chunk = lines[start : start + size]
        rows = [_checked(line, completed) for line in chunk]
        jobs = [_job(task, asked, number) for number, (_, asked, problem) in enumerate(rows, start) if not problem]
        rewards = run_grouped([(_group_of(job.arguments[1]), job) for job in jobs], workers)
        results = iter(rewards if judge is None else _with_judge(judge, jobs, rewards, workers))
        for line, (row, _, problem) in zip(chunk, rows, strict=True):
            yield line, row, {"reward": None, "error": problem} if problem else _verdict(next(results))


def _checked(line: str, completed: Callable[[Row], Row]) -> tuple[Row, Row, str]:
    """The row on a line, what `completed` makes of it, and why that cannot be scored; empty if it can."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also for an integer with more digits than Python reads
        return {"line": line}, {}, f"not JSON: {error}"
    if not isinstance(row, dict):
        return {"line": line}, {}, "a row must be a JSON object with `completion` and the example's fields"
    asked = completed(row)
    kind = type(asked.get("completion"))
    return row, asked, "" if kind is str else f"`completion` must be a string, got {kind.__name__}"


def _job(task: Task, row: Row, number: int) -> Job:
    """The reward's job for a row, which may have no prompt."""
    prompt = row["prompt"] if is_prompt(row.get("prompt")) else ""
    return task.reward_job(row["completion"], Example(str(row.get("id", number)), prompt, row))


def _group_of(example: Example) -> str:
    """What rows of one group have in common: their prompt; without one, their fields."""
    own = {name: value for name, value in example.fields.items() if name not in ("id", "completion")}
    return digest_of([example.prompt or own])


def _with_judge(judge: "Judge", jobs: list[Job], rewards: list[Any], workers: Workers) -> list[Any]:
    """The rewards with the judge's part; failures are unchanged."""
    asked = {}
    for number, (job, reward) in enumerate(zip(jobs, rewards, strict=True)):
        if isinstance(reward, Reward):
            completion, example = job.arguments
            example = replace(example, fields=_without_verdict(example.fields))  # a verdict is no reference
            asked[number] = Job(judge.reward, (reward, example.prompt, completion, example), waits=True)
    judged = dict(zip(asked, workers.run([*asked.values()]), strict=True))
    return [judged.get(number, reward) for number, reward in enumerate(rewards)]


def _without_verdict(fields: Mapping[str, Any]) -> Row:
    return {name: value for name, value in fields.items() if name not in VERDICT}


def _verdict(result: Reward | Failure) -> Row:
    if isinstance(result, Failure):
        reason = end_of(result.reason)
        if reason.startswith("KeyError: "):
            reason = f"the row lacks {reason.removeprefix('KeyError: ')}, which the reward reads"
        return {"reward": None, "error": reason}
    return {"reward": result.value, "solved": result.solved, "parts": dict(result.parts)}
