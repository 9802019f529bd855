"""The held-out scores of a run: which one is the best, whether the last has fallen, and whether they end the run.

One score is better than another if the lower bound of its pass@1 is higher, or, where both are equal, its mean reward:
so also a task that is never solved in full has a best. None is better than one of 1: where all examples agree, its
interval is Wilson's over the examples, and of few of them wider than that of a lower score. The scores are part of the
trainer's state: a resumed run ends where the uninterrupted one does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from minrl.config import EvaluationConfig
from minrl.types import TrainState


class Score(NamedTuple):
    """pass@1 of the trained task after a step (0: of the start model) with its 95 % interval, and the mean reward."""

    step: int
    pass_at_1: float
    low: float
    high: float
    reward: float

    def __str__(self) -> str:
        return f"{self.pass_at_1:.1%} ({self.low:.1%} to {self.high:.1%})"

    @property
    def after(self) -> str:
        """When it was measured."""
        return f"at step {self.step}" if self.step else "before the first step"


def score_in(metrics: Mapping[str, Any], task: str, step: int) -> Score | None:
    """The score of a task in the metrics of a step; None if nothing could be scored."""
    tags = [f"eval/{task}/{name}" for name in ("pass@1", "pass@1_low", "pass@1_high", "reward_mean")]
    return Score(step, *(metrics[tag] for tag in tags)) if metrics.keys() >= {*tags} else None


def scores_of(state: TrainState) -> list[Score]:
    """The scores of a run, in their order."""
    return [Score(int(step), *others) for step, *others in state.held_out]


def note_score(state: TrainState, score: Score | None) -> None:
    """Add a score to the state, in place of one of the same step."""
    if score is not None:
        state.held_out = [*(list(row) for row in state.held_out if row[0] != score.step), list(score)]


def best_of(scores: Iterable[Score]) -> Score | None:
    """The best score, the first of equal ones.

    >>> best_of([Score(0, 0.5, 0.4, 0.6, 0.7), Score(5, 0.6, 0.4, 0.8, 0.8), Score(9, 0.6, 0.4, 0.8, 0.8)]).step
    5
    """
    return max(scores, key=lambda score: (score.pass_at_1 >= 1, score.low, score.reward), default=None)


def fall(scores: Sequence[Score]) -> str:
    """A line on the last score if its interval lies wholly below that of the best; else empty."""
    best = best_of(scores)
    if best is None or scores[-1].high >= best.low:
        return ""
    return f"held-out pass@1 has fallen to {scores[-1]} from {best}, the best, {best.after}"


def ended_by(scores: Sequence[Score], config: EvaluationConfig) -> str:
    """The setting, of `minrl.config.ENDS`, by which the run has ended; empty while it goes on."""
    best = best_of(scores)
    if best is None:
        return ""
    if _reached(scores, config):
        return "stop_at"
    return "patience" if 0 < config.patience <= _since(best, scores) else ""


def why_ended(scores: Sequence[Score], config: EvaluationConfig) -> str:
    """Why the run has ended, in a sentence; empty while it goes on."""
    best, by = best_of(scores), ended_by(scores, config)
    if best is None or not by:
        return ""
    reached = _reached(scores, config)
    if reached is not None:
        return f"held-out pass@1 is {reached} {reached.after}: its lower bound has reached --stop-at {config.stop_at:g}"
    count = _since(best, scores)
    gained = f"{count} evaluation{'s' * (count > 1)} gained nothing (--patience {config.patience})"
    return f"{gained} over held-out pass@1 {best} {best.after}"


def _reached(scores: Iterable[Score], config: EvaluationConfig) -> Score | None:
    """The first score whose lower bound is that of --stop-at."""
    return next((score for score in scores if 0 < config.stop_at <= score.low), None)


def _since(best: Score, scores: Sequence[Score]) -> int:
    """How many evaluations came after the best one."""
    return sum(score.step > best.step for score in scores)
