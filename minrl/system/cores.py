"""The cores of this process."""

import os


def own_cores() -> list[int]:
    """The cores that this process may use, by its affinity mask where the system has one."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cpu_cores() -> int:
    """The number of cores that this process may use."""
    return len(own_cores())
