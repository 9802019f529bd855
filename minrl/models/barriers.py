"""Waiting at barriers beside a process that takes a core.

libgomp's threads spin for milliseconds after each parallel region before they sleep, which is fastest on a quiet
machine. Where another process computes on a core, they spin for a thread that does not run, on the core that it waits
for. libgomp spins 100 times only while it has more threads than cores: another team of threads, which sleeps, is kept
for as long as threads of this process wait for a core. What is computed, and in which parts, stays the same.
"""

import ctypes
import os
import time
from functools import cache
from pathlib import Path
from threading import Thread

import torch

OWN_SPINS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The variables by which a user says how long threads spin."""

BUSY_S, BUSY = 0.5, 0.25
"""A thread that waits for a core for this share of so many seconds has a neighbour. Beside a loop on one of two cores
the threads together waited for 1.0 of the time, on a quiet machine for 0.06 (at most 0.19).
"""

QUIET_S, QUIET = 2.0, 0.15
"""The same for the end of it. Threads that spin less waited for 0.5 beside a loop, and for 0.1 without."""


@cache
def spin_less_when_busy() -> None:
    """From now on let torch's threads spin less while another process takes a core. Nothing where a variable of the
    user says how long they spin, or where torch's threads are not libgomp's.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if library.exists() and not any(name in os.environ for name in OWN_SPINS):
        gomp = ctypes.CDLL(str(library))  # finds what torch is linked with
        if hasattr(gomp, "GOMP_parallel"):
            Thread(target=_watch, args=(gomp,), daemon=True).start()


def _watch(gomp: ctypes.CDLL) -> None:
    while _longest_wait(BUSY_S) < BUSY:
        pass
    gomp.GOMP_parallel(ctypes.CDLL(None).free, None, len(os.sched_getaffinity(0)) + 1, 0)  # each thread: free(NULL)
    while _longest_wait(QUIET_S) > QUIET:
        pass
    Thread(target=_watch, args=(gomp,), daemon=True).start()  # the team ends with the thread that made it


def _longest_wait(period_s: float) -> float:
    """The longest time for which a thread of this process was ready and had no core, as a share of the next seconds."""
    before, start = _waits(), time.perf_counter()
    time.sleep(period_s)
    waited = [seconds - before.get(thread, seconds) for thread, seconds in _waits().items()]
    return max(waited) / (time.perf_counter() - start)


def _waits() -> dict[str, float]:
    """Seconds for which each thread of this process has waited for a core."""
    waits = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            waits[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
        except OSError:  # the thread has ended, or the kernel does not count
            waits[thread] = 0.0
    return waits
