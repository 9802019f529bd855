"""The uid and directory that a call of untrusted code has to itself, and how both are emptied."""

import fcntl
import os
import signal
import time

FIRST_UID, SLOTS = 60578, 606  # systemd's table of uids calls 60578..61183 unused
SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")


class Slot:
    """A number that no other call on this machine holds. It decides the uid and the directory on the disk. An earlier
    holder may have been killed: what it left is killed, or put aside to be removed when nobody waits.

    `folder` is ours alone. `shared`: the command may write to directories that everybody may write to.
    """

    def __init__(self, folder: str, shared: bool) -> None:
        for number in range(SLOTS):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(f"{folder}/{number}.lock", flags, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                os.close(self._lock)
        else:
            raise BlockingIOError(f"all {SLOTS} sandboxes of this machine are in use")
        self.uid = FIRST_UID + number if os.geteuid() == 0 else os.geteuid()
        self.work, self._aside, self._shared = f"{folder}/{number}", f"{folder}/{number}.aside", shared
        self.kill()
        if os.path.lexists(self.work):
            os.makedirs(self._aside, mode=0o700, exist_ok=True)
            os.rename(self.work, f"{self._aside}/{time.monotonic_ns()}")

    def kill(self) -> None:
        """Kill every process of this uid if it is ours alone."""
        if self.uid != os.geteuid():
            kill_uid(self.uid)

    def clean(self) -> None:
        """Kill what runs and remove what was made, which may take long: a program may have made very many files."""
        self.kill()
        if self._shared and self.uid != os.geteuid():
            remove_files_of(self.uid)
        for path in filter(os.path.lexists, (self.work, self._aside)):
            remove(path)


def remove(path: str) -> None:
    """Remove what untrusted code made: it may be closed to its owner, or nested too deep for Python."""
    if os.geteuid() != 0 and not os.path.islink(path):
        os.spawnv(os.P_WAIT, "/bin/chmod", ["chmod", "-R", "u+rwX", path])
    os.spawnv(os.P_WAIT, "/bin/rm", ["rm", "-rf", path])


def remove_files_of(uid: int) -> None:
    """Remove the uid's files in the directories that everybody may write to."""
    for folder in filter(os.path.isdir, SHARED):
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    theirs = entry.stat(follow_symlinks=False).st_uid == uid
                except FileNotFoundError:
                    continue  # somebody else's, and just removed
                if theirs:
                    remove(entry.path)


def kill_uid(uid: int) -> None:
    """Send SIGKILL to every process of the uid at once: the kernel holds a lock meanwhile, so no fork escapes."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            if os.getresuid() == (uid, uid, uid) and uid != 0:
                os.kill(-1, signal.SIGKILL)
        except OSError:
            pass  # nobody there to kill
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
