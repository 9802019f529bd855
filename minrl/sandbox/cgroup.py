"""A control group for each call, where version 2 is mounted and we may use it: it counts all memory.

It lies beside the group that this process is in, so that the parent's limits hold, or below it, where that may have
groups. The controllers `memory` and `pids` must be given there: as root on a machine with systemd, in a
scope of one's own, in a container that hands a group over. Groups of the first version are left alone: they are no
longer given to users, and whoever made ours may not expect others in it.
"""

import os
import signal
import time
from collections.abc import Iterator

MIB = 2**20
NEEDED = {"memory", "pids"}
OVERHEAD_MIB, OVERHEAD_PIDS = 32, 8
"""For the walls' own processes, and for what the kernel keeps for a program that holds little."""
GIVE_UP_S = 10.0
ENTER = 'echo 0 > "$0/cgroup.procs"'


def place(proc: str = "/proc/self") -> tuple[str, str]:
    """The folder in which each call makes its group, or none and, if one looked right, why it cannot be used."""
    problem = ""
    for folder in filter(usable, folders(_lines(f"{proc}/mountinfo"), _lines(f"{proc}/cgroup"))):
        problem = trial(folder)
        if not problem:
            return folder, ""
    return "", problem


def folders(mountinfo: list[str], groups: list[str]) -> Iterator[str]:
    """The folders of the group that this process is in and of the one above it, where they are mounted."""
    own = next((line[3:] for line in groups if line.startswith("0::/")), "")
    for fields in (line.split() for line in mountinfo if own):
        root, mount = fields[3:5]
        inner = os.path.relpath(own, root)
        outside = ".." in f"{root}/{own}/{inner}".split("/")  # of our cgroup namespace, or of the mount
        if fields[fields.index("-") + 1] == "cgroup2" and not outside:
            ours = os.path.normpath(f"{mount}/{inner}")
            yield from (ours, os.path.dirname(ours)) if inner != "." else (ours,)


def usable(folder: str) -> bool:
    """Whether we seem to have the right to make groups in the folder that count memory and processes."""
    try:
        with open(f"{folder}/cgroup.subtree_control") as file:
            given = set(file.read().split())
    except OSError:
        return False
    return given >= NEEDED and os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


def trial(folder: str) -> str:
    """Why no group can be made in the folder, entered and removed; empty if one can. A call would fail for it."""
    import subprocess  # not in the process that watches a call: it would take each call 6 ms

    try:
        group = Group(folder, f"minrl-trial-{os.urandom(8).hex()}", 64, 8)
        try:
            ended = subprocess.run(["/bin/sh", "-c", ENTER, group.path], capture_output=True, text=True)
            group.exceeded()
        finally:
            group.remove()
    except OSError as error:
        return str(error)
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"exit status {ended.returncode}"


class Group:
    """The group of one call. `name` is the slot's, which nobody else holds: a group of that name was left behind."""

    def __init__(self, folder: str, name: str, memory_mib: int, processes: int) -> None:
        self.path = f"{folder}/{name}"
        self.remove()
        os.mkdir(self.path)
        try:
            self._limit(memory_mib + OVERHEAD_MIB, processes + OVERHEAD_PIDS)
        except OSError:
            self.remove()
            raise

    def enter(self) -> None:
        """Put this process, and all that it starts, into the group."""
        self._write("cgroup.procs", 0)

    def exceeded(self) -> bool:
        """Whether the kernel killed the group for its memory."""
        with open(f"{self.path}/memory.events") as file:
            return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)

    def remove(self) -> None:
        """Kill what is in the group, and remove it. The kernel takes a moment after the last process."""
        give_up = time.monotonic() + GIVE_UP_S
        while os.path.exists(self.path):
            self._kill()
            try:
                for folder, _, _ in os.walk(self.path, topdown=False):  # a program may have made groups below
                    os.rmdir(folder)
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.001)

    def _limit(self, memory_mib: int, processes: int) -> None:
        self._write("memory.max", memory_mib * MIB)
        self._write("memory.oom.group", 1)
        self._write("pids.max", processes)
        if os.path.exists(f"{self.path}/memory.swap.max"):  # the kernel may count none
            self._write("memory.swap.max", 0)

    def _kill(self) -> None:
        if os.path.exists(f"{self.path}/cgroup.kill"):
            return self._write("cgroup.kill", 1)
        for folder, _, _ in os.walk(self.path):  # before Linux 5.14
            for pid in filter(int, _lines(f"{folder}/cgroup.procs")):  # 0: one that we cannot see
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it has just ended
        return None

    def _write(self, name: str, value: int) -> None:
        file = os.open(f"{self.path}/{name}", os.O_WRONLY)  # some may not be read, even by their owner
        try:
            os.write(file, str(value).encode())
        finally:
            os.close(file)


def _lines(path: str) -> list[str]:
    """The lines of a file of the kernel, which a kernel may lack."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
