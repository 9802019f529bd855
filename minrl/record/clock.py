"""Seconds and memory of a step by phase.

Each second belongs to exactly one phase, `time/other_s` if to no other, so the phases add up to the step. A step's
line is written before its checkpoint; the seconds of both count in the next step.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

OTHER = "time/other_s"
MEASURED = ("rollout", "update", "sync", "eval")
"""Phases after which GPU memory is measured."""


class PhaseClock:
    """The seconds of the current step by phase, and on CUDA the memory in use at the end of each."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._begun = self._mark = now()
        self._open: list[str] = []
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, float] = {}

    @contextmanager
    def timed(self, tag: str) -> Iterator[None]:
        """Count the seconds inside for the phase. Seconds of a nested phase count for that one only."""
        self._lap()
        self._open.append(tag)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()
        phase = tag.removeprefix("time/").removesuffix("_s")
        if phase in MEASURED and torch.cuda.is_available():
            self.memory[f"memory/{phase}_gib"] = card_memory_gib()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move seconds from one phase to another, at most what the first has."""
        moved = min(seconds, self.seconds.get(source, 0.0))
        if moved > 0:
            self.seconds[source] -= moved
            self.seconds[target] = self.seconds.get(target, 0.0) + moved

    def end_step(self) -> dict[str, float]:
        """End the step and begin the next; returns the seconds by tag."""
        self._lap()
        metrics = {**self.seconds, "time/step_s": self._mark - self._begun}
        self._begun, self.seconds = self._mark, {}
        return metrics

    def take_memory(self) -> dict[str, float]:
        """The memory of this process by tag, measured since the last call."""
        taken, self.memory = self.memory, {}
        return {**taken, "memory/peak_gib": peak_memory_gib()}

    def _lap(self) -> None:
        """Count the seconds since the last call for the current phase."""
        now, phase = self._now(), self._open[-1] if self._open else OTHER
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._mark
        self._mark = now


def speeds(metrics: Mapping[str, float], sampled_tokens: int) -> dict[str, float]:
    """Tokens per second of the step, its rollouts and its update, by tag."""
    tokens = {"step": sampled_tokens, "rollout": sampled_tokens, "update": metrics.get("update/computed_tokens", 0)}
    names = {"step": "tokens", "rollout": "rollout_tokens", "update": "update_tokens"}
    return {f"speed/{names[p]}_per_s": count / metrics[f"time/{p}_s"] for p, count in tokens.items() if count}


def peak_memory_gib() -> float:
    """Peak memory of the process, on the GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def card_memory_gib() -> float:
    """GPU memory in use, including vLLM's. torch keeps what a phase allocated, so this is the phase's peak."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30
