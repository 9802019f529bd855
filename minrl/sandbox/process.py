"""The process that watches one call of untrusted code: `minrl.sandbox` starts one for each call.

It reads the call, starts the command inside the level's walls, collects its output, and kills everything when the
command ends, exceeds a limit, or the caller is gone. It reaps all orphans below it, answers, and removes what the
command made. It is a separate process so that the caller's death leaves nothing behind, and it imports little because
each call pays for its start: no `typing`, `re` or `subprocess`.
"""

import fcntl
import marshal
import os
import select
import signal
import time
from collections.abc import Iterator
from itertools import pairwise

from minrl.sandbox import walls as walls
from minrl.sandbox.walls import LIBC, MIB, Call
from minrl.utils.processor import processor_s

TICK_S = 0.05
"""Seconds between two looks at what a call holds."""
KILL_S = 120.0
"""Seconds that killed processes may take to exit, which is long where the machine is busy."""
FIRST_UID, SLOTS = 60578, 606  # systemd's table of uids calls 60578..61183 unused
COUNTED = ("RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:", "HugetlbPages:")
"""Lines of /proc/<pid>/status, in KiB. Shared memory counts in each process."""
DESCRIPTOR = 256 * 2**10
"""Bytes that count for each open descriptor: about what the kernel keeps for a full socket or pipe."""
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Slot:
    """A number that no other call on this machine holds. It decides the uid and the directory on the disk. An earlier
    holder may have been killed: what it left is removed. `folder` is ours alone.
    """

    def __init__(self, folder: str) -> None:
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
        self.work = f"{folder}/{number}"
        self.clean()

    def kill(self) -> None:
        """Kill every process of this uid at once if it is ours alone: the kernel holds a lock, so no fork escapes."""
        if self.uid == os.geteuid():
            return
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(self.uid, self.uid, self.uid)
                if os.getresuid() == (self.uid, self.uid, self.uid) and self.uid != 0:
                    os.kill(-1, signal.SIGKILL)
            except OSError:
                pass  # nobody there to kill
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def clean(self) -> None:
        """Kill what runs and remove what was made: it may be closed to its owner, or nested too deep for Python."""
        self.kill()
        if os.path.lexists(self.work):
            if os.geteuid() != 0:
                os.spawnv(os.P_WAIT, "/bin/chmod", ["chmod", "-R", "u+rwX", self.work])
            os.spawnv(os.P_WAIT, "/bin/rm", ["rm", "-rf", self.work])


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


def held_by(pid: int) -> int:
    """The bytes of a process's memory that no file backs, and what the kernel may hold behind its descriptors."""
    try:
        with open(f"/proc/{pid}/status") as file:
            pages = sum(int(line.split()[1]) for line in file if line.startswith(COUNTED))
        return 2**10 * pages + DESCRIPTOR * len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    except PermissionError:  # its descriptors may not be seen: it may have all of them
        return 2**10 * pages + DESCRIPTOR * walls.MAX_DESCRIPTORS


class Watch:
    """One call, from the start of its command until nothing of it is left."""

    def __init__(self, call: Call, slot: Slot, connection: int) -> None:
        self.call, self.slot, self.connection = call, slot, connection
        self.status, self.exit_code = "", 0
        self.output: dict[int, bytearray] = {}
        self.started = self._looked = time.monotonic()
        self.limit_s = call["start_s"]
        self.said = b""

    def run(self) -> dict[str, object]:
        """Start, collect, kill, answer."""
        stdin = walls.in_memory(self.call["stdin"])
        stdout, stdout_write = os.pipe()
        stderr, stderr_write = os.pipe()
        complaint, complaint_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_command([stdin, stdout_write, stderr_write], complaint_write)
        walls.close_descriptors(self.call, [stdin, stdout_write, stderr_write, complaint_write])
        self.output = {stdout: bytearray(), stderr: bytearray()}
        try:
            self._collect(complaint)
            used_s = sum((processor_s(pid, children=True) for pid in descendants(os.getpid())), 0.0)
        finally:
            self._kill()
        for fd in self.output:
            self._read(fd, to_its_end=True)
        while self._hear(complaint):
            pass
        late = b"" if self.status != "timeout" else f"{walls.LATE} {self.call['start_s']:g} s".encode()
        failed = b"" if self.said == walls.STARTED else self.said or late or bytes(self.output[stderr]) or b"no reason"
        status, code = self._verdict()
        limit = self.call["output_bytes"]
        return {
            "failed": failed.decode(errors="replace"),
            "status": status,
            "exit_code": code,
            "stdout": bytes(self.output[stdout][:limit]),
            "stderr": bytes(self.output[stderr][:limit]),
            "seconds": time.monotonic() - self.started,
            "processor_s": used_s,
        }

    def _become_command(self, streams: list[int], complaint: int) -> None:
        """In the child: never returns. An error before the command runs is written to the complaint."""
        try:
            os.setsid()
            self._keep_only([*streams, complaint, self.call["channel"]])
            walls.LAUNCH[self.call["level"]](self.call, self.slot.uid, self.slot.work, [*streams, complaint])
        except BaseException as error:  # the launcher's copy must not go on as a second launcher
            os.write(complaint, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(127)

    def _keep_only(self, descriptors: list[int]) -> None:
        """Close the watcher's own ends of all pipes: an open one would keep the other side waiting."""
        kept = [2, *sorted(fd for fd in descriptors if fd >= 3)]
        for last, following in pairwise([*kept, max(kept[-1] + 1, os.sysconf("SC_OPEN_MAX"))]):
            os.closerange(last + 1, following)

    def _collect(self, complaint: int) -> None:
        """Serve the pipes until the command ends, a limit is exceeded, or the caller is gone."""
        poll = select.poll()
        ended = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        for fd in [*self.output, complaint, self.connection, *([ended] if ended >= 0 else [])]:
            poll.register(fd, select.POLLIN)
        tick_s = TICK_S if ended >= 0 else TICK_S / 10
        while not self.status:
            left_s = self.started + self.limit_s - time.monotonic()
            for fd, _ in poll.poll(max(0.0, min(left_s, tick_s)) * 1000):
                if fd == self.connection:
                    self.status = "abandoned"
                elif fd != ended and not (self._hear(fd) if fd == complaint else self._read(fd)):
                    poll.unregister(fd)
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status, self.exit_code = "ended", os.waitstatus_to_exitcode(wait_status)
            self.status = self.status or self._exceeded(left_s)

    def _hear(self, complaint: int) -> bool:
        """Read the report of the start. The command's time counts from when all walls stand."""
        heard = os.read(complaint, 65536)
        self.said += heard
        if heard and self.said == walls.STARTED:
            self.started, self.limit_s = time.monotonic(), self.call["wall_s"]
        return bool(heard)

    def _exceeded(self, left_s: float) -> str:
        """The limit that the call has exceeded; empty if none."""
        if self._wrote_too_much():
            return "output"
        if left_s <= 0:
            return "timeout"
        if time.monotonic() - self._looked > TICK_S:
            self._looked = time.monotonic()
            return self._look()
        return ""

    def _look(self) -> str:
        """Count what the processes hold."""
        below = list(descendants(os.getpid()))
        try:
            too_much = sum(map(held_by, below)) > self.call["memory_mib"] * MIB
        except OSError:  # by what the program does: no failure of the sandbox, which would leave it without a verdict
            too_much = True
        return "memory" if too_much else ""

    def _read(self, fd: int, to_its_end: bool = False) -> bool:
        """Read what is available, at most a little more than the limit. False at the end of the stream."""
        read = self.output[fd]
        while len(read) <= self.call["output_bytes"]:
            chunk = os.read(fd, 65536)
            read += chunk
            if not chunk or not to_its_end:
                return bool(chunk)
        return True

    def _kill(self) -> None:
        """Kill and reap everything that runs below, in whatever session."""
        give_up, pause_s = time.monotonic() + KILL_S, 0.0005
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            self.slot.kill()
            for pid in list(descendants(os.getpid())):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > give_up:
                raise TimeoutError("processes of the call survive SIGKILL")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, TICK_S)  # the processor is theirs: to exit may take them long

    def _wrote_too_much(self) -> bool:
        return any(len(read) > self.call["output_bytes"] for read in self.output.values())

    def _verdict(self) -> tuple[str, int | None]:
        if self.status != "ended":
            return self.status, None
        code = self.exit_code
        if self.call["level"] != "limits" and code > 128:  # an init inside the walls reports a signal like a shell
            code = 128 - code
        if code == -signal.SIGXCPU:
            return "timeout", code
        if self._wrote_too_much():
            return "output", code
        return ("ok" if code == 0 else "error"), code


def main(connection: int) -> None:
    """Serve the one call that comes over the connection."""
    with open(connection, "rb", closefd=False) as stream:
        call: Call = marshal.load(stream)
    for fd in (connection, call["channel"]):
        if fd >= 0:
            os.set_inheritable(fd, False)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o022)
    slot = None
    try:
        slot = Slot(call["folder"])
        answer = Watch(call, slot, connection).run()
    except Exception:  # the caller is told that the sandbox failed, not that the code did
        import traceback

        answer = {"failed": traceback.format_exc()}
    try:
        with open(connection, "wb", closefd=False) as stream:
            marshal.dump(answer, stream)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the caller is gone and wants no answer
    if slot is not None:
        slot.clean()  # last: it is no part of the call's time
