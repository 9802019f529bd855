"""A control group for each call, where version 2 is mounted and we may use it: it counts all memory.

It lies beside the group that this process is in, so that the parent's limits hold, or below it, where that may have
groups. The controllers `memory` and `pids` must be given there: as root on a machine with systemd, in a
scope of one's own, in a container that hands a group over. Groups of the first version are left alone: they are no
longer given to users, and whoever made ours may not expect others in it.
"""

import contextlib
import os
import time

MIB = 2**20
NEEDED = {"memory", "pids"}
OVERHEAD_MIB, OVERHEAD_PIDS = 32, 8
"""For the walls' own processes, and for what the kernel keeps for a program that holds little."""


def place() -> str:
    """The folder in which each call makes its group; empty if there is none that we may use."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    roots = {fields[4]: fields[3] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"}
    with open("/proc/self/cgroup") as file:
        own = next((line.strip()[3:] for line in file if line.startswith("0::")), "")
    for mount, root in roots.items() if own else ():
        ours = os.path.normpath(f"{mount}/{os.path.relpath(own, root)}")
        for folder in (ours, os.path.dirname(ours)):
            if folder.startswith(mount) and usable(folder):
                return folder
    return ""


def usable(folder: str) -> bool:
    """Whether we may make groups in the folder that count memory and processes."""
    try:
        with open(f"{folder}/cgroup.subtree_control") as file:
            given = set(file.read().split())
    except OSError:
        return False
    return given >= NEEDED and os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


class Group:
    """The group of one call. `name` is the slot's, which nobody else holds: a group of that name was left behind."""

    def __init__(self, folder: str, name: str, memory_mib: int, processes: int) -> None:
        self.path = f"{folder}/{name}"
        self.remove()
        os.mkdir(self.path)
        self._write("memory.max", (memory_mib + OVERHEAD_MIB) * MIB)
        self._write("memory.oom.group", 1)
        self._write("pids.max", processes + OVERHEAD_PIDS)
        if os.path.exists(f"{self.path}/memory.swap.max"):  # the kernel may count none
            self._write("memory.swap.max", 0)

    def enter(self) -> None:
        """Put this process, and all that it starts, into the group."""
        self._write("cgroup.procs", 0)

    def exceeded(self) -> bool:
        """Whether the kernel killed the group for its memory."""
        with open(f"{self.path}/memory.events") as file:
            return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)

    def remove(self) -> None:
        """Kill what is in the group, and remove it. The kernel takes a moment after the last process."""
        give_up = time.monotonic() + 10.0
        while os.path.exists(self.path):
            with contextlib.suppress(FileNotFoundError):  # before Linux 5.14; the call's processes are dead
                self._write("cgroup.kill", 1)
            try:
                os.rmdir(self.path)
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.001)

    def _write(self, name: str, value: int) -> None:
        with open(f"{self.path}/{name}", "r+") as file:
            file.write(str(value))
