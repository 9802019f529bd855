"""What is on the machine of a run and of the sandbox's users: processes and files.

Only what nobody holds counts as left over: other runs may use other slots of the sandbox at the same time, and the
lock of a slot says whether somebody does.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minrl.sandbox import calls
from minrl.sandbox.process import FIRST_UID, SLOTS

UIDS = range(FIRST_UID, FIRST_UID + SLOTS)
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")


def slots_folder() -> str:
    """Where the slots of this machine's sandboxes are."""
    return str(calls._message(calls.Call([]), "")["folder"])


def status_of(pid: int | str, name: str) -> int:
    """A number of /proc/PID/status; 0 where the process is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def held(number: int, folder: str) -> bool:
    """Whether somebody holds a slot of the sandbox."""
    with suppress(FileNotFoundError), open(f"{folder}/{number}.lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def left_over(folder: str) -> list[str]:
    """Processes and files of sandbox users whose slot nobody holds, and what lies in such slots.

    Of root's sandboxes alone: another user's programs have that user's uid. All is looked at again after the slots are
    seen to be free, since a call may have ended in between.
    """
    free = {(uid, what) for uid, what in _theirs(folder) if not held(uid - FIRST_UID, folder)}
    return sorted(what for _, what in free & {*_theirs(folder)})


def _theirs(folder: str) -> Iterator[tuple[int, str]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if (uid := status_of(pid, "Uid")) in UIDS and status_of(pid, "VmRSS"):
            yield uid, f"process {pid}"
    for shared in filter(os.path.isdir, SHARED):
        with os.scandir(shared) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if (uid := entry.stat(follow_symlinks=False).st_uid) in UIDS:
                        yield uid, f"file {entry.path}"
    with suppress(FileNotFoundError):
        yield from ((FIRST_UID + int(name), f"file {folder}/{name}") for name in os.listdir(folder) if name.isdigit())
