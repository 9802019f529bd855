"""The cores of this process."""

import os


def cpu_cores() -> int:
    """The number of cores that this process may use, by its affinity mask where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
