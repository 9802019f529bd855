"""Seconds of a step by phase, and on CUDA the memory in use at the end of each.

    @timed("update")                    or          with timed("save"):
    def update_policy(...): ...                         save_checkpoint(...)

Each second belongs to the innermost phase, or to `other`, so the phases add up to the step. Every thread has timers of
its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

MEASURED = ("rollout", "update", "sync", "eval")
"""Phases after which GPU memory is measured."""


class Timers(threading.local):
    """The seconds of the current step."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._open: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Begin a step now."""
        self._started = self._mark = self.now()
        self._seconds: dict[str, float] = {}
        self._memory: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the seconds inside for the phase."""
        self._lap()
        self._open.append(phase)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()
        if phase in MEASURED and torch.cuda.is_available():
            self._memory[f"memory/{phase}_gib"] = device_memory() / 2**30

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move seconds from one phase to another, at most what the first has."""
        moved = min(seconds, self._seconds.get(source, 0.0))
        if moved > 0:
            self._seconds[source] -= moved
            self._seconds[target] = self._seconds.get(target, 0.0) + moved

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """End the step and begin the next. Returns its seconds and its memory by tag."""
        self._lap()
        seconds = {f"time/{phase}_s": value for phase, value in self._seconds.items()}
        taken = {**seconds, "time/step_s": self._mark - self._started}, self._memory
        self._started, self._seconds, self._memory = self._mark, {}, {}
        return taken

    def _lap(self) -> None:
        """Count the seconds since the last call for the current phase."""
        now, phase = self.now(), self._open[-1] if self._open else "other"
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._mark
        self._mark = now


TIMERS = Timers()
timed = TIMERS.timed


def device_memory() -> int:
    """Bytes in use on the GPU, vLLM's included. torch keeps what a phase allocated, so this is the phase's peak."""
    free, total = torch.cuda.mem_get_info()
    return total - free
