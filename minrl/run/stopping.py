"""Signals stop a run after its step, in all its processes."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from minrl.models.processes import Processes
from minrl.utils.signals import Stopped, answered, ignore_stop_signals, tell

ECHO_S = 5.0
"""Under a launcher or a batch system, the same signal within this time is still the first: SLURM tells each process
and srun, which tells them too.
"""


class _CutShort(Stopped):
    """The current activity is abandoned; the program goes on."""


class StepSignals:
    """The first signal lets the step end, so its checkpoint is whole. A second one stops at once.

    `stopped_by` is a signal that any process had got when they last asked each other; 0: none.
    """

    def __init__(self, processes: Processes) -> None:
        self.stopped_by = 0
        self._processes, self._came, self._came_at, self._cuts = processes, 0, 0.0, False
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

    @contextmanager
    def cutting_short(self) -> Iterator[None]:
        """Abandon what runs inside at the first signal, unless other processes would wait for this one."""
        self._cuts = self._processes.count == 1
        try:
            yield
        except _CutShort:
            pass
        finally:
            self._cuts = False

    def _answer(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came and not (self._echoes and number == self._came and now - self._came_at < ECHO_S):
            raise Stopped(number)
        if self._came:
            return
        self._came, self._came_at = number, now
        if self._processes.main:
            tell(f"\n{signal.Signals(number).name}: stopping after this step; a second signal stops at once\n")
        if self._cuts:
            raise _CutShort(number)
