"""Why a run stops before its last step: its held-out scores, or a signal.

One score is better than another if the lower bound of its pass@1 is higher, or, where both are equal, its mean reward:
so also a task that is never solved in full has a best. None is better than one of 1: where all examples agree, its
interval is Wilson's over the examples, and of few of them wider than that of a lower score. The scores are part of the
trainer's state: a resumed run ends where the uninterrupted one does.
"""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import NamedTuple

from minrl.config import TrainerConfig
from minrl.dataflow import TrainState
from minrl.evaluate.statistics import Evaluation, shown
from minrl.models.distributed import Processes
from minrl.utils.signals import Stopped, answered, ignore_stop_signals, tell


class Score(NamedTuple):
    """pass@1 of the trained task after a step (0: of the start model) with its 95 % interval, and the mean reward."""

    step: int
    pass_at_1: float
    low: float
    high: float
    reward: float

    def __str__(self) -> str:
        return shown(self.pass_at_1, (self.low, self.high))


def scores_of(state: TrainState) -> list[Score]:
    """The scores of a run, in their order."""
    return [Score(int(step), *others) for step, *others in state.held_out]


def score_of(evaluation: Evaluation | None, step: int) -> Score | None:
    """The score of a step's evaluation; None if nothing could be scored."""
    if evaluation is None or not evaluation.measured:
        return None
    return Score(step, evaluation.pass_at_1, *evaluation.ci95, evaluation.reward_mean)


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


def ended_by(scores: Sequence[Score], config: TrainerConfig) -> str:
    """The setting, of `minrl.config.ENDS`, by which the run has ended: a lower bound reached `stop_at`, or `patience`
    evaluations came after the best one. Empty while it goes on.
    """
    best = best_of(scores)
    if any(0 < config.stop_at <= score.low for score in scores):
        return "stop_at"
    gained_nothing = best is not None and 0 < config.patience <= sum(score.step > best.step for score in scores)
    return "patience" if gained_nothing else ""


ECHO_S = 5.0
"""Under a launcher or a batch system, the same signal within this time is still the first: SLURM tells each process
and srun, which tells them too.
"""


class StepSignals:
    """The first signal lets the step end, so its checkpoint is whole. A second one stops at once."""

    def __init__(self, processes: Processes) -> None:
        self.stopped_by = 0  # a signal that any process had got when they last asked each other; 0: none
        self._processes, self._came, self._came_at = processes, 0, 0.0
        self._echoes = processes.count > 1 or "SLURM_JOB_ID" in os.environ
        self._answering: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> "StepSignals":
        self._answering = answered(self._answer)
        self._answering.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._answering.__exit__(None, None, None)

    def ended(self) -> None:
        """All processes end now. None is told to stop any more by a launcher that sees another end."""
        if self._processes.count > 1:
            ignore_stop_signals()
            self._answering = nullcontext()
            self._processes.wait()

    def ask(self) -> bool:
        """Whether any process got a signal. All must ask at the same moments, so that they stop together."""
        self.stopped_by = max(self._processes.gather([self._came]))
        return self.stopped_by > 0

    def _answer(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came and not (self._echoes and number == self._came and now - self._came_at < ECHO_S):
            raise Stopped(number)
        if self._came:
            return
        self._came, self._came_at = number, now
        if self._processes.main:
            tell(f"\n{signal.Signals(number).name}: stopping after this step; a second signal stops at once\n")
