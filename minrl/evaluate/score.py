"""The second stage: the reward of every completion, in workers under a deadline.

scores.jsonl has a line for each role of each episode. It is written in portions, so that a kill loses few. An episode
without a reward is unscorable, with a reason, and not solved.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.evaluate.generate import EvaluationPlan, Key, Row, append_rows, episode_rng, facts_of, key_of, read_rows
from minrl.rewards.chat_client import no_answer
from minrl.rewards.episode import Play
from minrl.rewards.judge import Judge, judged
from minrl.rewards.workers import Workers
from minrl.types import Job, Reward
from minrl.utils.console import activity
from minrl.utils.files import write_jsonl

PER_WORKER = 16
"""Episodes of each worker that are scored between two writes to the disk."""

NOBODY = ""
"""The role of an episode that failed before the model's first turn."""

PART, CATEGORY = "part/", "category/"

Scores = dict[Key, list[Row]]
"""The lines of each episode's roles."""


def read_scores(path: Path, rows: Mapping[Key, Row]) -> Scores:
    """The stored scores of these very completions, without those that a failing judge left open. Scores of episodes
    that are not among the rows are kept.
    """
    found: dict[Key, dict[str, Row]] = {}
    for line in read_rows(path):
        key = key_of(line)
        if key not in rows or ("error" not in rows[key] and line["of"] == digest(rows[key])):
            found.setdefault(key, {})[line["role"]] = line
    return {
        key: list(lines.values())
        for key, lines in found.items()
        if key not in rows or ([*lines] == _roles(rows[key]) and not any(map(judge_failed, lines.values())))
    }


def score(
    plan: EvaluationPlan, path: Path, rows: Mapping[Key, Row], scores: Scores, workers: Workers, judge: Judge | None
) -> None:
    """Add the missing scores to `scores` and to the file, which gets those of the plan first, in its order."""
    todo, size = unscored(plan, rows, scores), PER_WORKER * workers.count
    if not todo:
        return
    with activity("scoring", len(todo)) as report:
        for start in range(0, len(todo), size):
            new = score_rows(plan, [rows[key] for key in todo[start : start + size]], workers, judge)
            append_rows(path, [line for lines in new for line in lines])
            scores.update(zip(todo[start : start + size], new, strict=True))
            report(start + len(new))
    ordered = dict.fromkeys([*(key for key in plan.all_keys() if key in scores), *scores])
    write_jsonl(path, (line for key in ordered for line in scores[key]))


def unscored(plan: EvaluationPlan, rows: Mapping[Key, Row], scores: Scores) -> list[Key]:
    """The plan's episodes that have a completion and no score."""
    return [key for key in plan.all_keys() if "error" not in rows.get(key, {"error": ""}) and key not in scores]


def judge_failed(line: Mapping[str, Any]) -> bool:
    """Whether the judge's server failed; the next command scores the completion again."""
    return no_answer(line["unscorable"] or "")


def digest(row: Row) -> str:
    """A digest of what is scored: the completions of a row, and their rewards if they were rewarded as played."""
    texts = [turn["completion"] for turn in row.get("turns", (row,)) if "completion" in turn]
    return hashlib.sha256(json.dumps([texts, row.get("rewards")]).encode()).hexdigest()[:16]


def score_rows(plan: EvaluationPlan, rows: Sequence[Row], workers: Workers, judge: Judge | None) -> list[list[Row]]:
    """The lines of each row."""
    plays = {key_of(row): play for row in rows if (play := _answered(plan, row, judge)) is not None}
    while waiting := [(play, play.pending) for play in plays.values() if isinstance(play.pending, Job)]:
        for (play, _), result in zip(waiting, workers.run([job for _, job in waiting]), strict=True):
            play.advance(result)
    problem = next((play.problem for play in plays.values() if play.problem is not None), None)
    if problem:
        logger.warning(f"some completions cannot be scored, such as:\n{problem.strip()}")
    return [list(_lines(row, plays.get(key_of(row)))) for row in rows]


def _answered(plan: EvaluationPlan, row: Row, judge: Judge | None) -> Play | None:
    """A single turn with its completion, waiting for its reward; None for what was rewarded as played, or failed."""
    key, task = key_of(row), next(task for task in plan.tasks if task.name == row["task"])
    if task.task.episode is not None or "failure" in row:
        return None
    play = Play(judged(task.task, judge), task.examples[key.index], episode_rng(plan.config.seed, key))
    play.advance(None)
    play.advance(row["completion"])
    return play


def _roles(row: Row) -> list[str]:
    return list(facts_of(row)) or [NOBODY]


def _lines(row: Row, play: Play | None) -> Iterator[Row]:
    """A line for each role of the evaluated model."""
    facts = facts_of(row)
    for role in _roles(row):
        reward, problem = None, row.get("failure")
        if play is not None:
            reward, problem = play.rewards.get(role), play.unscorable(role)
        elif role in row.get("rewards", {}):
            reward = Reward(**row["rewards"][role])
        elif problem is None:
            problem = f"the episode returned no reward for {role!r}, which took a turn"
        yield {
            **key_of(row).as_row(),
            "example": row["example"],
            "role": role,
            "reward": None if reward is None else reward.value,
            "maximum": None if reward is None else reward.maximum,
            "solved": reward is not None and reward.solved,
            "unscorable": None if problem is None else problem.strip().splitlines()[-1],
            **{"tokens": None, "finish_reason": None, **facts.get(role, {})},
            "refused": row.get("refused"),
            "of": digest(row),
            **{CATEGORY + name: value for name, value in row["category"].items()},
            **{PART + name: value for name, value in (reward.parts if reward else {}).items()},
        }
