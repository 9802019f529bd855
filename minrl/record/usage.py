"""Memory and processor time in use, once a step: of the process, its reward workers and what they started.

Read from /proc, in about a millisecond. Where the system has none (macOS), the numbers are those of the process alone,
without memory in use. Children that come and go between two readings count once their parent has waited for them.
"""

import os
import time
from collections.abc import Iterator

import torch

from minrl.record.clock import card_memory_gib
from minrl.utils.processor import cpu_cores, processor_s

GB = 1e9
PROC = "/proc"


class Usage:
    """What this process uses, measured from one call to the next."""

    def __init__(self) -> None:
        self._at, (self._cpu_s, _) = time.perf_counter(), cpu_and_memory()

    def take(self) -> dict[str, float]:
        """Values by tag; a tag that the platform cannot measure is left out."""
        now, (cpu_s, memory) = time.perf_counter(), cpu_and_memory()
        share = (cpu_s - self._cpu_s) / max(1e-9, now - self._at) / cpu_cores()
        self._at, self._cpu_s = now, cpu_s
        return {
            **({} if memory is None else {"system/memory_gb": memory / GB}),
            "system/cpu_percent": 100 * max(0.0, share),
            **({"system/device_memory_gb": card_memory_gib() * 2**30 / GB} if torch.cuda.is_available() else {}),
        }


def cpu_and_memory() -> tuple[float, int | None]:
    """Processor time, in seconds, and resident memory, in bytes, of the process tree. The time includes that of
    children that were waited for; pages that two processes share count in both. Without /proc: of this process, and
    None.
    """
    seconds, pages = 0.0, 0
    for pid in process_tree():
        seconds += processor_s(pid, children=True, proc=PROC)
        pages += sum(map(int, _text(f"{PROC}/{pid}/statm").split()[1:2]))
    if not pages:
        return sum(os.times()[:4]), None
    return seconds, pages * os.sysconf("SC_PAGE_SIZE")


def process_tree() -> Iterator[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for pid in found:  # which grows
        yield pid
        try:
            threads = os.listdir(f"{PROC}/{pid}/task")
        except OSError:  # there is no /proc, or the process ended a moment ago
            continue
        for thread in threads:
            found.extend(map(int, _text(f"{PROC}/{pid}/task/{thread}/children").split()))


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:  # as above
        return ""
