"""Memory and processor time of the process, its reward workers and what they started, once a step."""

import resource
import sys
import time
from contextlib import suppress

import psutil
import torch

from minrl.utils.processor import cpu_cores
from minrl.utils.timers import device_memory


class Usage:
    """What the process tree uses, from one call of `take` to the next."""

    def __init__(self) -> None:
        self._at, (self._cpu_s, _) = time.perf_counter(), cpu_and_memory()

    def take(self) -> dict[str, float]:
        """Values by tag."""
        now, (cpu_s, memory) = time.perf_counter(), cpu_and_memory()
        share = max(0.0, cpu_s - self._cpu_s) / max(1e-9, now - self._at) / cpu_cores()
        self._at, self._cpu_s = now, cpu_s
        values = {"memory/peak_gib": peak_memory() / 2**30, "system/memory_gb": memory / 1e9}
        if torch.cuda.is_available():
            values["system/device_memory_gb"] = device_memory() / 1e9
        return {**values, "system/cpu_percent": 100 * share}


def cpu_and_memory() -> tuple[float, int]:
    """Seconds of processor time, with that of children that were waited for, and bytes of resident memory. Pages that
    two processes share count in both.
    """
    own, seconds, memory = psutil.Process(), 0.0, 0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended a moment ago
            seconds += sum(process.cpu_times()[:4])  # user and system, of the process and of such children
            memory += process.memory_info().rss
    return seconds, memory


def peak_memory() -> int:
    """Bytes of the process's peak memory, on the GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB
