"""The cores of this process, and the processor time of another one."""

import math
import os
from pathlib import Path


def own_cores() -> list[int]:
    """The cores that this process may use, by its affinity mask where the system has one."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cpu_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """The number of cores that this process may use, within a container's quota (cgroup versions 2 and 1)."""
    two, one = group / "cpu.max", group / "cpu/cpu.cfs_quota_us"
    words = ["max"]
    if two.exists():
        words = two.read_text().split()
    elif one.exists():
        words = [one.read_text().strip(), one.with_name("cpu.cfs_period_us").read_text().strip()]
    quota = math.inf if words[0] in ("max", "-1") else int(words[0]) / int(words[1])
    return max(1, int(min(len(own_cores()), quota)))


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
