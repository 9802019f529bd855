"""Memory and processor time in use, once a step: of the process, its reward workers and what they started.

Read from /proc, in about a millisecond. Where the system has none (macOS), the numbers are those of the process alone,
without memory in use. Children that come and go between two readings count once their parent has waited for them.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from minrl.record.clock import card_memory_gib
from minrl.system.cores import cpu_cores

GB = 1e9
PROC = Path("/proc")
CPU_TIMES = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, after the name of the program."""


class Usage:
    """What this process uses, measured from one call to the next."""

    def __init__(self) -> None:
        self._at, self._cpu_s = time.perf_counter(), cpu_seconds()

    def take(self) -> dict[str, float]:
        """Values by tag; a tag that the platform cannot measure is left out."""
        now, cpu_s = time.perf_counter(), cpu_seconds()
        share = (cpu_s - self._cpu_s) / max(1e-9, now - self._at) / cpu_cores()
        self._at, self._cpu_s = now, cpu_s
        memory = resident_bytes()
        return {
            **({} if memory is None else {"system/memory_gb": memory / GB}),
            "system/cpu_percent": 100 * max(0.0, share),
            **({"system/device_memory_gb": card_memory_gib() * 2**30 / GB} if torch.cuda.is_available() else {}),
        }


def resident_bytes() -> int | None:
    """Resident memory of the process tree; pages that two processes share count in both. None without /proc."""
    pages = [int(fields[1]) for pid in process_tree() if (fields := _fields(pid, "statm"))]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None


def cpu_seconds() -> float:
    """Processor time of the process tree, and of the children that it waited for."""
    ticks = [int(one) for pid in process_tree() for one in _fields(pid, "stat")[CPU_TIMES]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else sum(os.times()[:4])


def process_tree() -> Iterator[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for pid in found:  # which grows
        yield pid
        for children in (PROC / str(pid) / "task").glob("*/children"):
            found.extend(map(int, _text(children).split()))


def _fields(pid: int, name: str) -> list[str]:
    """The numbers of a file in /proc, without the program's name; none if the process ended."""
    return _text(PROC / str(pid) / name).rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # there is no /proc, or the process ended a moment ago
        return ""
