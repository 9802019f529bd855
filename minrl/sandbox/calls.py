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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from minrl.dataflow import UserError, require
from minrl.sandbox import seccomp, walls
from minrl.utils.files import private_folder

Status = Literal["ok", "error", "timeout", "memory", "output"]
LEVELS = {
    "namespaces": "own namespaces: no network, no processes but its own, no files but the system's programs, read-only",
    "limits": "limits alone: killed, limited and cut off from most files, but it sees other processes",
}
"""The levels, the strongest first, with what each gives."""
LEVEL_VARIABLE = "MINRL_SANDBOX_LEVEL"
"""The environment variable by which a run gives its level to its workers."""
START_S = 60.0
"""Seconds until the walls must stand. A call's own seconds count from then."""
TRIAL_S = 240.0
"""Seconds for the walls of a trial, and for its command."""
GRACE_S = 150.0
"""Seconds for killing what runs, more than `process.KILL_S`, and for removing what it made."""
START = "import sys; sys.path.append(sys.argv[1]); from minrl.sandbox.process import main; main(int(sys.argv[2]))"
INTERPRETER = [path for name in ("bin", "lib", "lib64") if (path := Path(sys.base_prefix) / name).exists()]
ROOT = str(Path(__file__).resolve().parents[2])


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the code. A reward that raises it is unscorable."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one call may use."""

    wall_s: float = 10.0
    """Seconds from start to end."""
    cpu_s: float = 10.0
    """Seconds of processor time, for each process; rounded up to whole ones."""
    memory_mib: int = 1024
    """Address space of each process, and what all of them hold together."""
    file_mib: int = 64
    """Size of each file; of all files together where they lie in memory (level `namespaces`)."""
    processes: int = 64
    """Processes and threads at a time."""
    output_bytes: int = 65536
    """Of standard output and of standard error, each. A command that writes more is killed."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value > 0, f"{name} must be above 0, got {value}")


@dataclass(frozen=True)
class Call:
    """A command and its inputs. `channel` is a descriptor of ours that becomes the command's descriptor 3."""

    command: Sequence[str]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    stdin: bytes = b""
    readable: Sequence[str | Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    channel: int = -1

    def __post_init__(self) -> None:
        for name in self.files:
            parts = PurePosixPath(name).parts
            if not parts or name != "/".join(parts) or ".." in parts or "\0" in name or name.startswith("/"):
                raise ValueError(f"a file's name must be a plain relative path, got {name!r}")


@dataclass(frozen=True)
class Outcome:
    """How a call ended: `ok` with exit status 0, `error` with another one or a signal (negative, as in `subprocess`),
    else the limit that was exceeded. `stdout` and `stderr` are cut at `output_bytes`.
    """

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    processor_s: float = 0.0
    """Seconds of processor time of what still ran when a limit was exceeded."""

    @property
    def text(self) -> str:
        """Standard output as text, with invalid UTF-8 replaced."""
        return self.stdout.decode(errors="replace")


class Running:
    """A started call. `result()` waits for its end, `cancel()` kills it; both leave nothing behind."""

    def __init__(self, call: Call, level_name: str, start_s: float) -> None:
        try:
            message = marshal.dumps({**_message(call, level_name), "start_s": start_s})
        except OSError as error:
            raise SandboxError(str(error)) from error
        ours, theirs = socket.socketpair()
        self._longest_s = start_s + call.limits.wall_s + GRACE_S
        self._connection = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, ROOT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()] + ([call.channel] if call.channel >= 0 else []),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # it outlives a kill of our process group, and cleans up
            )
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
        except (EOFError, OSError) as error:
            raise SandboxError(f"the sandbox's process died ({type(error).__name__} {error})") from error
        finally:
            self.cancel()
        if failed := answer.pop("failed"):
            raise SandboxError(f"the sandbox could not run the command: {failed.strip()}")
        return Outcome(**answer)

    def cancel(self) -> None:
        """Kill whatever still runs, remove its files and wait for the end of both."""
        self._connection.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
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
        "environment": dict(call.environment),
        "channel": call.channel,
        "level": level_name,
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
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command on the files. It may read `readable`, a list of existing paths."""
    return start(Call(command, files or {}, limits or Limits(), stdin, readable, environment or {})).result()


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
    said = [f"untrusted code runs under {LEVELS[chosen]}"]
    if chosen == "limits" and not seccomp.exists():
        said.append("it may open sockets, since this machine has no filter of system calls")
    if chosen == "limits" and not walls.landlock_version():
        said.append("it is NOT cut off from files that others may read, since this kernel has no Landlock")
        if os.geteuid() != 0:
            said.append("as you are not root it may change YOUR files and kill your processes")
    return "; ".join(said)


@functools.cache
def _unavailable(name: str) -> str:
    """Why a level does not work here; empty if it does."""
    return _trial(["sh", "-c", "echo $((6 * 7))"], name)


def _trial(command: Sequence[str], level_name: str) -> str:
    """Why a command that should print 42 does not; empty if it does. It has much time: that the machine is busy says
    nothing about the command, and must not choose a weaker level.
    """
    late = f"a trial of the sandbox ({level_name}) was late: the machine is too busy to tell"
    try:
        outcome = start(Call(command, limits=Limits(wall_s=TRIAL_S, cpu_s=TRIAL_S)), level_name, TRIAL_S).result()
    except SandboxError as error:
        require(walls.LATE not in str(error), late)
        return str(error)
    require(outcome.status != "timeout", late)
    return "" if outcome.stdout == b"42\n" else f"a trial run gave {outcome}"


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
        "/usr/bin/python3"
    )


def describe_python() -> str:
    """One line for the user: the interpreter of untrusted programs. Raises UserError if there is none."""
    command = python()[0]
    other = command != os.path.realpath(sys.executable)
    return f"programs run with {command}" + (", since the sandbox's user cannot run this one" if other else "")
