"""The processor time of another process, as the system's /proc tells it."""

import os


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
