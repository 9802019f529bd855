"""The process that watches one call of untrusted code: `minrl.sandbox` starts one for each call.

It reads the call, starts the command inside the level's walls, collects its output, and kills everything when the
command ends, exceeds a limit, or the caller is gone. It reaps all orphans below it before it answers, and removes what
the command made after that. It is a separate process so that the caller's death leaves nothing behind, and it imports
little because each call pays for its start: no `typing`, `re` or `subprocess`.
"""

import marshal
import os
import select
import signal
import time
from itertools import pairwise

from minrl.sandbox import landlock
from minrl.sandbox import walls as walls
from minrl.sandbox.cgroup import Group
from minrl.sandbox.files import LIBC, MAX_FILES, MIB, WORK, Call
from minrl.sandbox.slot import Slot, kill_uid
from minrl.sandbox.usage import descendants, files_made, pieces_held
from minrl.utils.processor import processor_s

TICK_S = 0.05
"""Seconds between two looks at what a call holds."""
LOOK_S, LOOK_AT_ONE_S = 0.25, 0.01
"""Processor time of a look, and more for each process allowed, as 256 open files take. Who needs more holds too much:
an open file with many locks may take seconds.
"""
KILL_S = 120.0
"""Seconds that killed processes may take to exit. Each closes all its files, which takes the kernel long where a file
has thousands of locks, and longer where the machine is busy.
"""
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Watch:
    """One call, from the start of its command until nothing of it is left."""

    def __init__(self, call: Call, slot: Slot, group: Group | None, connection: int) -> None:
        self.call, self.slot, self.group, self.connection = call, slot, group, connection
        self.status, self.exit_code = "", 0
        self.output: dict[int, bytearray] = {}
        self.started = self._looked = time.monotonic()
        self.limit_s = call["start_s"]
        self.said = b""
        self._unfed = memoryview(call["stdin"])

    def run(self) -> dict[str, object]:
        """Start, collect, kill, answer."""
        stdin, stdin_write = os.pipe()
        stdout, stdout_write = os.pipe()
        stderr, stderr_write = os.pipe()
        complaint, complaint_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_command([stdin, stdout_write, stderr_write], complaint_write)
        walls.forget(self.call, [stdin, stdout_write, stderr_write, complaint_write])
        self.output = {stdout: bytearray(), stderr: bytearray()}
        try:
            self._collect(stdin_write, complaint)
            used_s = sum((processor_s(pid, children=True) for pid in descendants(os.getpid())), 0.0)
        finally:
            self._kill()
        for fd in self.output:
            self._read(fd, to_its_end=True)
        while self._hear(complaint):
            pass
        late = b"" if self.status != "timeout" else f"it did not start within {self.call['start_s']:g} s".encode()
        failed = b"" if self.said == walls.STARTED else self.said or late or bytes(self.output[stderr]) or b"no reason"
        status, code = self._verdict()
        limit = self.call["output_bytes"]
        return {
            "failed": failed.decode(errors="replace"),
            "late": failed != b"" and failed == late,
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
            if self.group is not None:
                self.group.enter()
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

    def _collect(self, stdin: int, complaint: int) -> None:
        """Serve the pipes until the command ends, a limit is exceeded, or the caller is gone."""
        poll = select.poll()
        os.set_blocking(stdin, False)
        ended = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        for fd in [*self.output, complaint, self.connection, *([ended] if ended >= 0 else [])]:
            poll.register(fd, select.POLLIN)
        poll.register(stdin, select.POLLOUT)
        tick_s = TICK_S if ended >= 0 else TICK_S / 10
        while not self.status:
            left_s = self.started + self.limit_s - time.monotonic()
            for fd, _ in poll.poll(max(0.0, min(left_s, tick_s)) * 1000):
                if fd == self.connection:
                    self.status = "abandoned"
                elif not self._serve(fd, stdin, complaint):
                    poll.unregister(fd)
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status, self.exit_code = "ended", os.waitstatus_to_exitcode(wait_status)
            self.status = self.status or self._exceeded(left_s)

    def _serve(self, fd: int, stdin: int, complaint: int) -> bool:
        """Read or write a pipe that is ready. False at its end."""
        if fd == stdin:
            return self._feed(stdin)
        if fd == complaint:
            return self._hear(complaint)
        return fd not in self.output or self._read(fd)

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
        """Count what the processes hold, until it is too much or cannot be counted."""
        held, give_up = 0, time.thread_time() + LOOK_S + LOOK_AT_ONE_S * self.call["processes"]
        try:
            below = list(descendants(os.getpid()))
            for piece in pieces_held(below):
                held += piece
                if held > self.call["memory_mib"] * MIB or time.thread_time() > give_up:
                    return "memory"
                if time.monotonic() > self.started + self.limit_s:
                    return "timeout"
            return "memory" if files_made(below, WORK) > MAX_FILES else ""
        except OSError:  # by what the program does: no failure of the sandbox, which would leave it without a verdict
            return "memory"

    def _feed(self, stdin: int) -> bool:
        """Write what the command takes. Close the pipe at the end, or when the command has closed it."""
        try:
            self._unfed = self._unfed[os.write(stdin, self._unfed[:65536]) :]
        except BrokenPipeError:
            self._unfed = self._unfed[:0]
        if not self._unfed:
            os.close(stdin)
        return bool(self._unfed)

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
            if self.slot.uid != os.geteuid():
                kill_uid(self.slot.uid)
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
        if self.status in ("ended", "timeout") and self.group is not None and self.group.exceeded():
            return "memory", None
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


def group_of(call: Call, slot: Slot) -> Group | None:
    """The call's control group, where there are some. What lies in memory counts as memory there."""
    if not call["cgroup"]:
        return None
    memory_mib = call["memory_mib"] + (call["file_mib"] if call["level"] != "limits" else 0)
    return Group(call["cgroup"], f"minrl-{os.geteuid()}-{os.path.basename(slot.work)}", memory_mib, call["processes"])


def main(connection: int) -> None:
    """Serve the one call that comes over the connection."""
    with open(connection, "rb", closefd=False) as stream:
        call: Call = marshal.load(stream)
    for fd in (connection, call["channel"]):
        if fd >= 0:
            os.set_inheritable(fd, False)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o022)
    slot = group = None
    try:
        slot = Slot(call["folder"], shared=call["level"] == "limits" and not landlock.version())
        group = group_of(call, slot)
        answer = Watch(call, slot, group, connection).run()
    except Exception:  # the caller is told that the sandbox failed, not that the code did
        import traceback

        answer = {"failed": traceback.format_exc(), "late": False}
    try:
        with open(connection, "wb", closefd=False) as stream:
            marshal.dump(answer, stream)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the caller is gone and wants no answer
    if group is not None:
        group.remove()
    if slot is not None:
        slot.clean()  # last: it may take longer than the call did, and is no part of it
