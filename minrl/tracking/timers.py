"""Seconds of a step by phase; memory, and how busy the machine is.

    @timed("update")                    or          with timed("save"):
    def update_policy(...): ...                         save_checkpoint(...)

Each second belongs to the innermost phase, or to `other`, so the phases add up to the step. Every thread has timers of
its own. On CUDA the memory in use is measured at the end of some phases.
"""

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
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

    def note(self, tag: str, value: float) -> None:
        """Add a number of the step that is no phase, such as the seconds of another thread."""
        self._memory[tag] = value

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """End the step and begin the next. Returns its seconds by tag, and its memory and what was noted."""
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


def usage() -> dict[str, float]:
    """By tag: the peak memory of this process, and what the machine uses; of its processors the share of the time
    since the last call.
    """
    values = {"memory/peak_gib": peak_memory() / 2**30, "system/memory_gib": psutil.virtual_memory().used / 2**30}
    if torch.cuda.is_available():
        values["system/device_memory_gib"] = device_memory() / 2**30
    return {**values, "system/cpu_percent": psutil.cpu_percent()}


def device_memory() -> int:
    """Bytes in use on the GPU, vLLM's included. torch keeps what a phase allocated, so this is the phase's peak."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def peak_memory() -> int:
    """Bytes of the process's peak memory, on the GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB
