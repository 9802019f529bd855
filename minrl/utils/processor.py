"""The cores of this process, and the processor time of another one."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minrl.dataflow import require


def own_cores() -> list[int]:
    """The cores that this process may use, by its affinity mask where the system has one."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def control_groups(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[Path]:
    """The control group of this process (version 2) and those around it, whose limits hold for it too; `root` is the
    group of a container, and has the hierarchies of version 1.
    """
    with suppress(OSError), open(own) as file:
        paths = [line.strip()[3:] for line in file if line.startswith("0::")]
        group = Path(root, *(path.lstrip("/") for path in paths))
        return [one for one in (group, *group.parents) if one.is_relative_to(root)]
    return [Path(root)]


def cpu_cores(groups: Sequence[Path] | None = None) -> int:
    """The number of cores that this process may use, within the quotas of its control groups (versions 2 and 1)."""
    quotas = [_quota(group) for group in (control_groups() if groups is None else groups)]
    return max(1, int(min([len(own_cores()), *quotas])))


def _quota(group: Path) -> float:
    words: list[str] = []
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError):
            words = words or [word for name in names for word in _words(os.path.join(group, name))]
    return math.inf if not words or words[0] in ("max", "-1") else int(words[0]) / int(words[1])


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


def require_one_process(program: str) -> None:
    """Refuse to start a program several times that runs in one process."""
    count = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    require(count == "1", f"{program} runs in one process, got {count}: start it without a launcher")
