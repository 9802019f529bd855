"""Where the seconds and the memory of a step go.

Every second of a step belongs to exactly one phase, so that the phases add up to the step; what none of them claims is
`time/other_s`. A step's line is written before its checkpoint is, and the seconds of both count in the next step.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

OTHER = "time/other_s"
MEASURED = ("rollout", "update", "sync", "eval")
"""Phases after which the card's memory is looked at."""


class PhaseClock:
    """The seconds of the running step by phase, and on CUDA the memory taken at the end of each."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._begun = self._mark = now()
        self._open: list[str] = []
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, float] = {}

    @contextmanager
    def timed(self, tag: str) -> Iterator[None]:
        """Count the seconds inside as the phase's; inside another phase, as the inner one's alone."""
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
        """Count seconds of one phase as another's: at most what it has."""
        moved = min(seconds, self.seconds.get(source, 0.0))
        if moved > 0:
            self.seconds[source] -= moved
            self.seconds[target] = self.seconds.get(target, 0.0) + moved

    def end_step(self) -> dict[str, float]:
        """The step's seconds by tag. The next step begins."""
        self._lap()
        metrics = {**self.seconds, "time/step_s": self._mark - self._begun}
        self._begun, self.seconds = self._mark, {}
        return metrics

    def take_memory(self) -> dict[str, float]:
        """The memory of this process by tag, since this was last asked."""
        taken, self.memory = self.memory, {}
        return {**taken, "memory/peak_gib": peak_memory_gib()}

    def _lap(self) -> None:
        """Give the seconds since the last call to the phase that is going on."""
        now, phase = self._now(), self._open[-1] if self._open else OTHER
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._mark
        self._mark = now


def speeds(metrics: Mapping[str, float], sampled_tokens: int) -> dict[str, float]:
    """Tokens per second of the step, of its rollouts and of its update, by tag, from the step's other numbers."""
    tokens = {"step": sampled_tokens, "rollout": sampled_tokens, "update": metrics.get("update/computed_tokens", 0)}
    names = {"step": "tokens", "rollout": "rollout_tokens", "update": "update_tokens"}
    return {f"speed/{names[p]}_per_s": count / metrics[f"time/{p}_s"] for p, count in tokens.items() if count}


def peak_memory_gib() -> float:
    """The most memory the process has used: on the card where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def card_memory_gib() -> float:
    """What is taken on the card, by vLLM too. torch keeps what a phase has used, so this is the phase's peak."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30
