"""The cores of this process, and the processor time of another one."""

import math
import os
from contextlib import suppress


def own_cores() -> list[int]:
    """The cores that this process may use, by its affinity mask where the system has one."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cpu_cores(group: str | os.PathLike[str] = "/sys/fs/cgroup") -> int:
    """The number of cores that this process may use, within a container's quota (cgroup versions 2 and 1)."""
    words: list[str] = []
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError):
            words = words or [word for name in names for word in _words(os.path.join(group, name))]
    quota = math.inf if not words or words[0] in ("max", "-1") else int(words[0]) / int(words[1])
    return max(1, int(min(len(own_cores()), quota)))


def _words(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()


def processor_s(pid: int, *, children: bool, proc: str = "/proc") -> float:
    """Seconds that a process has had, `children` with those that it waited for; 0 for one that has ended, and where
    the system does not tell.
    """
    try:
        with open(f"{proc}/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the program's name may hold anything
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
