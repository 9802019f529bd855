"""The second stage: the reward of every completion, in workers under a deadline.

Each recorded episode is played again (see `episodes`). An episode without a reward is unscorable, with a reason, and
not solved. So is one whose jobs return other results now, if the first results were not recorded. Scores are written
in portions, so that a kill loses few of them; the table appears when it is whole.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.evaluate.episodes import JOBS, as_stored, episode_rng, spoken_of, turns_of
from minrl.evaluate.plan import EvaluationPlan
from minrl.evaluate.results import of_other_programs, unpacked
from minrl.evaluate.rows import Key, Row, RowFile, key_of
from minrl.evaluate.table import NOBODY, read_table, write_table
from minrl.rewards.chat_client import no_answer
from minrl.rewards.episode import Play
from minrl.rewards.workers import Workers
from minrl.types import Job, Reward, Turn, UserError
from minrl.utils.console import Screen

PARTIAL = "scores.partial.jsonl"
UNKNOWN = object()
OTHERWISE = "what its jobs answered was not written down, and they answer otherwise now"
"""The beginning of the reason why such an episode cannot be scored."""

EXCERPT = 160
"""Characters of a prompt that a refusal repeats."""

NAMED = 10
"""The most examples that the warning about unscorable episodes names."""

SCORED = ("role", "reward", "maximum", "solved", "parts", "unscorable")
"""The columns of a role's score."""

PER_WORKER = 16
"""Episodes of each worker that are scored between two writes to the disk."""


def score(
    plan: EvaluationPlan, folder: Path, table: Path, rows: Mapping[Key, Row], workers: Workers, screen: Screen
) -> None:
    """Write the table of the scores of all rows that hold a completion."""
    partial = RowFile(folder / PARTIAL)
    kept = {key: row for key, row in partial.read().items() if key in rows and row["of"] == digest(rows[key])}
    known = {key: row for key, row in kept.items() if not any(map(asked_again, row["scores"]))}
    known.update(finished_scores(table, rows))
    todo = [key for key, row in rows.items() if "error" not in row and key not in known]
    size, failures = PER_WORKER * workers.count, list[str]()
    with screen.progress("scoring", len(known) + len(todo), done=len(known)) as report:
        for start in range(0, len(todo), size):
            keys = todo[start : start + size]
            new, found = score_rows(plan, [rows[key] for key in keys], workers)
            if found and not failures:
                logger.warning(f"some episodes cannot be scored, the first because:\n{found[0].strip()}")
            failures += found
            partial.append(new)
            known.update({key_of(row): row for row in new})
            report(len(known), "")
    ordered = [known[key] for key in rows if key in known]
    _say_otherwise(ordered, rows)
    write_table(table, [(rows[key_of(row)], row) for row in ordered])
    partial.path.unlink(missing_ok=True)


def _say_otherwise(scored: Sequence[Row], rows: Mapping[Key, Row]) -> None:
    """Warn about the episodes whose jobs return other results than before."""
    reasons = {key_of(row): [one["unscorable"] or "" for one in row["scores"]] for row in scored}
    lost = [rows[key]["example"] for key, of_row in reasons.items() if any(one.startswith(OTHERWISE) for one in of_row)]
    if lost:
        named = ", ".join(list(dict.fromkeys(lost))[:NAMED])
        logger.warning(
            f"{len(lost)} of {len(rows)} episodes cannot be scored and count as not solved (of the examples {named}): "
            f"{OTHERWISE}; --force generate plays them again"
        )


def is_whole(table: Path, rows: Mapping[Key, Row]) -> bool:
    """Whether the table has the scores of all these completions and of nothing else."""
    wanted = {key for key, row in rows.items() if "error" not in row}
    scored = read_table(table)
    if scored is None or {key_of(one) for one in scored} != wanted or any(map(asked_again, scored)):
        return False
    return all(one["of"] == digest(rows[key_of(one)]) for one in scored)


def finished_scores(table: Path, rows: Mapping[Key, Row]) -> dict[Key, Row]:
    """The table's scores of these very completions, in the form of the partial file."""
    found: dict[Key, Row] = {}
    for one in read_table(table) or ():
        key = key_of(one)
        if key in rows and not asked_again(one) and one["of"] == digest(rows[key]):
            row = found.setdefault(key, {**key.as_row(), "of": one["of"], "scores": []})
            row["scores"].append({name: one[name] for name in SCORED})
    return found


def asked_again(score: Mapping[str, Any]) -> bool:
    """Whether a later run scores this again: the judge's server failed, or the score lacks `solved`."""
    return "solved" not in score or no_answer(score["unscorable"] or "")


def digest(row: Row) -> str:
    """A digest of what is scored: the completions of a row and the results of its jobs."""
    said: Any = None if "error" in row else [[turn.role, turn.completion] for turn in turns_of(row)]
    told = (row.get(JOBS) or {}).get("results")
    return hashlib.sha256(json.dumps([said, told] if told else said).encode()).hexdigest()[:16]


def score_rows(plan: EvaluationPlan, rows: Sequence[Row], workers: Workers) -> tuple[list[Row], list[str]]:
    """A row of scores for each row of completions, and why some have none."""
    replays = [_Replay(plan, row) for row in rows]
    while waiting := [replay for replay in replays if replay.play.pending is not None]:
        jobs = [replay.play.pending for replay in waiting]
        for replay, result in zip(waiting, workers.run([j for j in jobs if isinstance(j, Job)]), strict=True):
            replay.advance(result)
    scored = [replay.scored() for replay in replays]
    return scored, [replay.play.problem for replay in replays if replay.play.problem is not None]


class _Replay:
    """An episode that is answered from its record. After each call it waits for a job, or is over."""

    def __init__(self, plan: EvaluationPlan, row: Row) -> None:
        self.row, self.key = row, key_of(row)
        planned = plan.task(self.key.task)
        self._answers = iter(turns_of(row))
        self._results, self._worked_anew = iter(unpacked(row.get(JOBS), planned.programs)), False
        self._changed_since = of_other_programs(row.get(JOBS), planned.programs)
        self._example = planned.examples[self.key.index].id
        rng = episode_rng(plan.config.seed, self.key.index, self.key.sample)
        self.play = Play(planned.task, planned.examples[self.key.index], rng)
        self.advance(None)

    def advance(self, value: Any) -> None:  # noqa: ANN401 - a job's result
        """Continue with a job's result, up to the next job without a recorded result."""
        self.play.advance(value)
        while self.play.pending is not None:
            if isinstance(self.play.pending, Turn):
                self._answer(self.play.pending)
            elif (result := next(self._results, UNKNOWN)) is not UNKNOWN:
                self.play.advance(result)
            else:
                self._worked_anew = True
                return

    def _answer(self, asked: Turn) -> None:
        """Answer with the recorded completion. An episode that asks something else is not scored."""
        said = next(self._answers, None)
        if said is None and "failure" in self.row:
            self.play.fail(self.row["failure"])
        elif said is None or (said.role, said.prompt) != (asked.role, as_stored(asked.message)):
            self._refuse((asked.role, asked.message), said and (said.role, said.prompt))
        else:
            self.play.advance(said.completion)

    def _refuse(self, now: Any, then: Any) -> None:  # noqa: ANN401 - a role and a prompt, or None
        """Refuse a changed program. If a job without a recorded result was run again, its result may have changed: then
        this episode alone is unscorable.
        """
        asked, answered = _excerpt(now), _excerpt(then)
        problem = f"the episode of example {self._example} asks {asked} where its completions answer {answered}"
        if self._changed_since or not self._worked_anew:
            raise UserError(
                f"{self.key.task}: {problem}: it was changed since they were generated; generate them again with "
                "--force generate"
            )
        self.play.fail(f"{OTHERWISE}: {problem}")

    def scored(self) -> Row:
        """The scores of the evaluated model's roles, with the reason of those that have none."""
        unused = None if self.play.failure else next(self._answers, None)
        if unused is not None:
            self._refuse(None, (unused.role, unused.prompt))
        scores = []
        for role in spoken_of(self.row) or (NOBODY,):
            problem = self.play.unscorable(role)
            reason = None if problem is None else problem.strip().splitlines()[-1]
            scores.append({"role": role, **_plain(self.play.rewards.get(role)), "unscorable": reason})
        return {**self.key.as_row(), "of": digest(self.row), "scores": scores}


def _excerpt(turn: Any) -> str:  # noqa: ANN401 - a role and a prompt, or None
    if turn is None:
        return "nothing"
    text = repr(turn)
    return text if len(text) <= EXCERPT else f"{text[: EXCERPT // 2]} ... {text[-EXCERPT // 2 :]}"


def _plain(reward: Reward | None) -> dict[str, Any]:
    if reward is None:
        return {"reward": None, "maximum": None, "solved": False, "parts": {}}
    return {"reward": reward.value, "maximum": reward.maximum, "solved": reward.solved, "parts": dict(reward.parts)}
