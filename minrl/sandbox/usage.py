"""What a call's processes use: the processes below the watcher, and the memory that they hold.

What is counted: pages of their own, their page tables, and for each descriptor the most that the kernel may keep behind
it. Whatever cannot be seen from here is refused by the filter of system calls.
"""

import os
from collections.abc import Iterator

KIB, MIB = 2**10, 2**20
COUNTED = ("RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:", "HugetlbPages:")
"""Lines of /proc/<pid>/status, in KiB. Shared memory counts in each process."""
BEHIND = {
    "pipe:": 64 * KIB,  # 16 pages, which the filter keeps from being more
    "socket:": 256 * KIB,  # net.core.wmem_default, and the message that passes it
    "anon_inode:[eventpoll]": 16 * MIB,  # an item for each file and each number below RLIMIT_NOFILE
    "/dev/p": 256 * KIB,  # a pseudo-terminal's buffers
    "/proc/": 64 * KIB,  # text that was made for a reader
}
"""The most that the kernel keeps for a descriptor, by what its link in /proc begins with."""
LOCK = 256
"""Bytes of a lock of a byte range; a file may have any number of them."""
UNSEEN = 64 * MIB
"""For a process whose descriptors we may not see: as many sockets as it may have."""


def children(pid: int) -> Iterator[int]:
    """The child processes of all threads of a process."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return  # the process has just ended


def descendants(pid: int) -> Iterator[int]:
    """All processes below this one, in however long a chain."""
    above = [pid]
    while above:
        below = list(children(above.pop()))
        yield from below
        above += below


def pieces_held(pids: list[int]) -> Iterator[int]:
    """The bytes of the processes' memory that is not backed by a file, then what the kernel may hold for them: piece by
    piece, so that who counts may stop.
    """
    seen = set[str]()
    for held in (_pages, lambda pid: _behind(pid, seen)):
        for pid in pids:
            try:
                yield from held(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            except PermissionError:
                yield UNSEEN


def _pages(pid: int) -> Iterator[int]:
    with open(f"/proc/{pid}/status") as file:
        yield KIB * sum(int(line.split()[1]) for line in file if line.startswith(COUNTED))


def _behind(pid: int, seen: set[str]) -> Iterator[int]:
    """The most that the kernel holds behind a process's descriptors. A pipe or socket that was `seen` counts once."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # just closed
        known = [most for start, most in BEHIND.items() if link.startswith(start)]
        if known:
            yield known[0] if link not in seen else 0
        elif link.startswith("/"):
            yield from _locks(pid, number)
        if link.startswith(("pipe:", "socket:")):
            seen.add(link)


def _locks(pid: int, descriptor: str) -> Iterator[int]:
    """The locks of an open file. Each descriptor of it counts them anew: nothing tells it from another open file."""
    try:
        with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:
            yield from (LOCK if line.startswith("lock:") else 0 for line in file)
    except FileNotFoundError:
        return  # just closed


def files_made(pids: list[int], folder: str) -> int:
    """Files and folders in the folder as the processes see it, if it is a file system of its own; else 0."""
    for pid in pids:
        root = f"/proc/{pid}/root"
        try:
            if os.stat(root + folder).st_dev != os.stat(root).st_dev:
                system = os.statvfs(root + folder)
                return system.f_files - system.f_ffree
        except OSError:
            continue  # it has ended, does not stand within the walls yet, or may not be seen
    return 0
