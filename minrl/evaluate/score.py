"""The second stage: the reward of every completion, in workers under a deadline.

A row that has been scored has `scores`, a verdict for each role of the evaluated model. An episode without a reward is
unscorable, with a reason, and not solved.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.dataflow import SOLO, Job, Reward
from minrl.evaluate.generate import EvaluationPlan, Key, Row, append_rows, episode_rng, key_of
from minrl.rewards.chat_client import no_answer
from minrl.rewards.episode import Play
from minrl.rewards.judge import Judge, judged
from minrl.rewards.workers import Workers
from minrl.utils.console import activity

PER_WORKER = 16
"""Episodes of each worker that are scored between two writes to the disk."""

NOBODY = ""
"""The role of an episode that failed before the model's first turn."""


def score(plan: EvaluationPlan, path: Path, rows: dict[Key, Row], workers: Workers, judge: Judge | None) -> None:
    """Add the missing scores to the rows, and these rows to the file again."""
    todo, size = unscored(plan, rows), PER_WORKER * workers.count
    with activity("scoring", len(todo)) as report:
        for start in range(0, len(todo), size):
            new = score_rows(plan, [rows[key] for key in todo[start : start + size]], workers, judge)
            append_rows(path, rows, new)
            report(start + len(new))


def unscored(plan: EvaluationPlan, rows: Mapping[Key, Row]) -> list[Key]:
    """The plan's episodes that have a completion and no verdict, or lack one because a judge's server failed."""
    answered = (key for key in plan.all_keys() if "error" not in rows.get(key, {"error": ""}))
    return [key for key in answered if "scores" not in rows[key] or judge_failed(rows[key])]


def judge_failed(row: Row) -> bool:
    """Whether the judge's server failed; the next command scores the completion again."""
    return any(no_answer(verdict["unscorable"] or "") for verdict in row.get("scores", ()))


def score_rows(plan: EvaluationPlan, rows: Sequence[Row], workers: Workers, judge: Judge | None) -> list[Row]:
    """The rows with their verdicts."""
    plays = {key_of(row): play for row in rows if (play := _answered(plan, row, judge)) is not None}
    while waiting := [(play, play.pending) for play in plays.values() if isinstance(play.pending, Job)]:
        for (play, _), result in zip(waiting, workers.run([job for _, job in waiting]), strict=True):
            play.advance(result)
    problem = next((play.problem for play in plays.values() if play.problem is not None), None)
    if problem:
        logger.warning(f"some completions cannot be scored, such as:\n{problem.strip()}")
    return [{**row, "scores": list(_verdicts(row, plays.get(key_of(row))))} for row in rows]


def _answered(plan: EvaluationPlan, row: Row, judge: Judge | None) -> Play | None:
    """A single turn with its completion, waiting for its reward; None for what was rewarded as played, or failed."""
    key, task = key_of(row), next(task for task in plan.tasks if task.name == row["task"])
    if task.task.episode is not None or "failure" in row:
        return None
    play = Play(judged(task.task, judge), task.examples[key.index], episode_rng(plan.config.seed, key))
    play.advance(None)
    play.advance(row["completion"])
    return play


def facts_of(row: Row) -> Mapping[str, Mapping[str, Any]]:
    """The tokens and the finish reason of each role of a row."""
    return row["roles"] if "roles" in row else {SOLO: {name: row[name] for name in ("tokens", "finish_reason")}}


def _verdicts(row: Row, play: Play | None) -> Iterator[Row]:
    """A verdict for each role of the evaluated model."""
    for role in facts_of(row) or [NOBODY]:
        reward, problem = None, row.get("failure")
        if play is not None:
            reward, problem = play.rewards.get(role), play.unscorable(role)
        elif role in row.get("rewards", {}):
            reward = Reward(**row["rewards"][role])
        elif problem is None:
            problem = f"the episode returned no reward for {role!r}, which took a turn"
        yield {
            "role": role,
            "reward": None if reward is None else reward.value,
            "maximum": None if reward is None else reward.maximum,
            "solved": reward is not None and reward.solved,
            "unscorable": None if problem is None else problem.strip().splitlines()[-1],
            "parts": {} if reward is None else dict(reward.parts),
        }
