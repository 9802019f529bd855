"""How many cores this process may use."""

import os


def cpu_cores() -> int:
    """Cores that this process may use: those of its affinity mask, where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
