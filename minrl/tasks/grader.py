"""The function of a job that grades a completion, its result where the completion broke it, and bounds of its time.

What a completion causes is scored, what the machine causes is not. A completion that takes too long or too much memory
to grade, or that ends the process that grades it, earns the worst reward: with none it would have advantage 0, which
is more than a wrong answer has.
"""

import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minrl.dataflow import Reward

Reason = Literal["timeout", "memory", "crash"]

MEMORY_MIB = 512
"""What grading one answer may add to the memory of its process."""

KILL_AFTER_S = 2
"""Seconds of processor time between the alarm and the death of a process that did not heed it."""

_PROFILED = ~0 << 3
"""Linux's number of this process's CPUCLOCK_PROF, the clock of ITIMER_PROF and RLIMIT_CPU."""
_SIZE = Path("/proc/self/statm")


class OutOfTime(BaseException):
    """The time limit has passed. No `Exception`, because the libraries it interrupts catch those."""


@dataclass(frozen=True)
class Grader:
    """The function of a job that judges a completion.

    `otherwise(reason)` is its result where the completion broke it. `warm()` loads what it needs, before its deadline
    counts. Both functions and `warm` must be picklable. Within `seconds` its own limits have ended it, so that its
    deadline is no earlier.
    """

    function: Callable[..., Any]
    otherwise: Callable[[Reason], Any]
    warm: Callable[[], object] | None = None
    seconds: float = 0.0

    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """The function's result."""
        try:
            return self.function(*arguments)
        except (MemoryError, RecursionError):
            return self.otherwise("memory")
        except OutOfTime:
            return self.otherwise("timeout")


def worst_reward(worst: float, reason: Reason) -> Reward:
    """The reward of a completion that broke its grader."""
    return Reward(worst, {f"grader_{reason}": 1.0})


@contextmanager
def bounded(seconds: float, memory_mib: int = MEMORY_MIB) -> Iterator[None]:
    """In the block, raise `OutOfTime` after so many seconds of processor time, and again each second for code that
    caught it, and `MemoryError` where the process would hold so much more memory than before (0: without limit).

    A process that the alarm does not interrupt, such as in a power of integers, dies by SIGXCPU `KILL_AFTER_S` later.
    Works in a main thread, where rewards run; elsewhere Python raises `ValueError`.
    """

    def expire(*_: object) -> None:
        raise OutOfTime

    most_s = math.ceil(_limited_s() + seconds) + KILL_AFTER_S
    previous = signal.signal(signal.SIGPROF, expire)
    try:
        with _limited(resource.RLIMIT_CPU, most_s), _limited(resource.RLIMIT_AS, _memory(memory_mib)):
            try:
                signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
                yield
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, previous)


def _limited_s() -> float:
    """The processor time that RLIMIT_CPU is compared with. Linux counts it in ticks, and on a busy machine a process
    that lives for minutes is many seconds ahead of what getrusage says.
    """
    if sys.platform == "linux":
        return time.clock_gettime(_PROFILED)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory(more_mib: int) -> int:
    """The address space of this process and so much more, in bytes; no limit where the system does not tell it."""
    if not more_mib or not _SIZE.exists():
        return resource.RLIM_INFINITY
    return int(_SIZE.read_text().split()[0]) * resource.getpagesize() + more_mib * 2**20


@contextmanager
def _limited(name: int, most: int) -> Iterator[None]:
    """The soft limit is at most this inside."""
    before, hard = resource.getrlimit(name)
    known = [limit for limit in (most, before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(name, (min(known, default=resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(name, (before, hard))
