"""Runs untrusted code behind walls and limits, and kills it with everything it started.

    run([*python(), "main.py"], {"main.py": "print(6 * 7)"})    ->    Outcome("ok", 0, b"42\\n", ...)

The command runs in an empty directory that holds only the files it was given; nothing it writes there outlives the
call. The walls around it depend on the machine: see `level()`. A verdict on a program is never formed inside the
sandbox: callers compare the output, or judge from another process (`channel`).
"""

import functools
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from minrl.sandbox import cgroup, landlock
from minrl.sandbox import filter as sandbox_filter
from minrl.sandbox.call import LEVEL_VARIABLE as LEVEL_VARIABLE
from minrl.sandbox.call import LEVELS as LEVELS
from minrl.sandbox.call import Call as Call
from minrl.sandbox.call import Limits as Limits
from minrl.sandbox.call import Outcome as Outcome
from minrl.sandbox.call import SandboxError as SandboxError
from minrl.sandbox.call import SandboxLate as SandboxLate
from minrl.types import UserError, require
from minrl.utils.files import private_folder
from minrl.utils.processor import cpu_cores

PATIENCE = (1, 2, 4)
START_S = 60.0
"""Seconds until the walls must stand. A call's own seconds count from then."""
GRACE_S, TIDY_S = 150.0, 1.0
"""Seconds for killing what runs, more than `process.KILL_S`, and for which a call waits until its files are removed."""
START = "import sys; sys.path.append(sys.argv[1]); from minrl.sandbox.process import main; main(int(sys.argv[2]))"
INTERPRETER = [path for name in ("bin", "lib", "lib64") if (path := Path(sys.base_prefix) / name).exists()]
ROOT = str(Path(__file__).resolve().parents[2])


class Running:
    """A started call. `result()` waits for its end, `cancel()` kills it; both leave nothing behind."""

    _tidying: ClassVar[list[subprocess.Popen[bytes]]] = []
    """Those that have answered and still remove what their command made."""

    def __init__(self, call: Call, level_name: str, start_s: float) -> None:
        self._tidying[:] = [process for process in self._tidying if process.poll() is None]
        try:
            message = marshal.dumps({**_message(call, level_name), "start_s": start_s})
        except OSError as error:
            raise SandboxError(str(error)) from error
        ours, theirs = socket.socketpair()
        passed = [theirs.fileno()] + ([call.channel] if call.channel >= 0 else [])
        self._longest_s = start_s + call.limits.wall_s + GRACE_S
        self._connection, self._answered = ours, False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, ROOT, str(theirs.fileno())],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,  # it outlives a kill of our process group, and cleans up
        )
        theirs.close()
        try:
            ours.sendall(message)
        except OSError as error:
            self.cancel()
            raise SandboxError(f"the sandbox's process died at its start ({error})") from error

    def result(self) -> Outcome:
        """How the call ended. Raises SandboxError if the sandbox itself failed."""
        self._connection.settimeout(self._longest_s)
        try:
            with self._connection.makefile("rb") as stream:
                answer = marshal.load(stream)
            self._answered = True
        except (EOFError, OSError) as error:
            raise SandboxError(f"the sandbox's process died ({type(error).__name__} {error})") from error
        finally:
            self.cancel()
        failed, late = answer.pop("failed"), answer.pop("late")
        if failed:
            raise (SandboxLate if late else SandboxError)(f"the sandbox could not run the command: {failed.strip()}")
        return Outcome(**answer)

    def cancel(self) -> None:
        """Kill whatever still runs and wait for its end."""
        self._connection.close()
        try:
            self._process.wait(timeout=TIDY_S if self._answered else GRACE_S)
        except subprocess.TimeoutExpired:
            if self._answered:
                self._tidying.append(self._process)
                return
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _message(call: Call, level_name: str) -> dict[str, object]:
    """The call in plain types, for another process."""
    common = Path("/tmp" if os.geteuid() == 0 else tempfile.gettempdir())
    return {
        **vars(call.limits),
        "cpu_s": max(1, int(-(-call.limits.cpu_s // 1))),
        "command": list(call.command),
        "files": {name: text.encode() if isinstance(text, str) else text for name, text in call.files.items()},
        "stdin": call.stdin,
        "readable": [os.path.abspath(path) for path in [*call.readable, *INTERPRETER]],
        "writable": [os.path.abspath(path) for path in call.writable],
        "environment": dict(call.environment),
        "channel": call.channel,
        "level": level_name,
        "cgroup": _cgroup()[0],
        # Root's calls must all lock their slots in one place, whatever TMPDIR says: the slots decide the uids, and two
        # calls with one uid would kill each other.
        "folder": str(private_folder(common / f"minrl-sandbox-{os.geteuid()}")),
    }


def start(call: Call, level_name: str = "", start_s: float = 0.0) -> Running:
    """Start a call without waiting for it. Empty `level_name`: the strongest level of this machine."""
    return Running(call, level_name or level(), start_s or START_S)


def run(
    command: Sequence[str],
    files: Mapping[str, str | bytes] | None = None,
    limits: Limits | None = None,
    *,
    stdin: bytes = b"",
    readable: Sequence[str | Path] = (),
    writable: Sequence[str | Path] = (),
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command on the files. It may read `readable` and change `writable`, lists of existing paths."""
    return start(Call(command, files or {}, limits or Limits(), stdin, readable, writable, environment or {})).result()


def run_all(calls: Sequence[Call], at_once: int = 0, level_name: str = "") -> list[Outcome]:
    """Run calls in parallel, `at_once` at a time (0: one per usable core). The outcomes come in order."""
    chosen = level_name or level()
    with ThreadPoolExecutor(at_once or cpu_cores()) as threads:
        return list(threads.map(lambda call: start(call, chosen).result(), calls))


def level() -> str:
    """The name of the strongest level that works on this machine. The processes that this one starts have the same."""
    require(sys.platform == "linux", f"untrusted code needs Linux, whose walls it runs behind: this is {sys.platform}")
    given = os.environ.get(LEVEL_VARIABLE, "")
    if given:
        require(given in LEVELS, f"{LEVEL_VARIABLE} must be one of {', '.join(LEVELS)}, got {given!r}: unset it")
        return given
    working = next((name for name in LEVELS if not _unavailable(name)), "")
    failures = {} if working else {name: _unavailable(name) for name in LEVELS}
    require(not failures, f"no sandbox works on this machine, so untrusted code cannot run: {failures}")
    os.environ[LEVEL_VARIABLE] = working
    return working


def describe() -> str:
    """One line for the user: the walls around untrusted code on this machine."""
    chosen = level()
    reason = _unavailable(chosen)
    require(not reason, f"the sandbox's level {chosen!r} ({LEVEL_VARIABLE}) does not work here: {reason}")
    walls = f"untrusted code runs under {LEVELS[chosen]}"
    warnings = [text for holds, text in _warnings(chosen) if holds]
    folder, problem = _cgroup()
    counted = "a control group counts all memory" if folder else ""
    unused = f"no control group counts its memory, as none could be made: {problem}" if problem else ""
    return "; ".join(filter(None, [walls, *warnings, counted, unused]))


def _warnings(chosen: str) -> Iterator[tuple[bool, str]]:
    limits, filtered, ruled = chosen == "limits", sandbox_filter.exists(), landlock.version() > 0
    yield limits and not filtered, "it may open sockets, since this machine has no filter of system calls"
    yield limits and not ruled, "it is NOT cut off from files that others may read, since this kernel has no Landlock"
    yield (
        limits and not ruled and os.geteuid() != 0,
        "as you are not root it may change YOUR files and kill your processes: install bubblewrap",
    )


@functools.cache
def _cgroup() -> tuple[str, str]:
    """The folder of the calls' control groups, or none and why."""
    return cgroup.place()


@functools.cache
def _unavailable(name: str) -> str:
    """Why a level does not work here; empty if it does."""
    return _trial(["sh", "-c", "echo $((6 * 7))"], name)


def _trial(command: Sequence[str], level_name: str) -> str:
    """Why a command that should print 42 does not; empty if it does. A late one is tried again and given more time:
    that the machine is busy says nothing about the command, and must not choose a weaker level.
    """
    for patience in PATIENCE:
        call = Call(command, limits=Limits(wall_s=10.0 * patience, cpu_s=10.0 * patience))
        try:
            outcome = start(call, level_name, START_S * patience).result()
        except SandboxLate:
            continue
        except SandboxError as error:
            return str(error)
        if outcome.status != "timeout":
            return "" if outcome.stdout == b"42\n" else f"a trial run gave {outcome}"
    raise UserError(f"{len(PATIENCE)} trials of the sandbox ({level_name}) were late: the machine is too busy to tell")


def python(level_name: str = "") -> tuple[str, ...]:
    """The interpreter's command for untrusted programs: this one without its site packages, or the system's if the
    unprivileged uid cannot reach this one.
    """
    return _python(level_name or level())


@functools.cache
def _python(chosen: str) -> tuple[str, ...]:
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3"]
    for candidate in candidates:
        command = (candidate, "-I", "-S", "-B")
        if not _trial([*command, "-c", "print(6 * 7)"], chosen):
            return command
    raise UserError(
        f"untrusted programs can run neither of {candidates} (the sandbox's level is {chosen!r}): install "
        "/usr/bin/python3, or bubblewrap"
    )


def describe_python() -> str:
    """One line for the user: the interpreter of untrusted programs. Raises UserError if there is none."""
    command = python()[0]
    other = command != os.path.realpath(sys.executable)
    return f"programs run with {command}" + (", since the sandbox's user cannot run this one" if other else "")
