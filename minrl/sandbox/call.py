"""The nouns of the sandbox: a call of untrusted code, what it may use, how it ended, and the levels of its walls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from minrl.types import require

Status = Literal["ok", "error", "timeout", "memory", "output"]
LEVELS = {
    "bubblewrap": "bubblewrap: no network, no processes but its own, no files but the system's programs, read-only",
    "namespaces": "own namespaces: no network, no processes but its own, no files but the system's programs, read-only",
    "limits": "limits alone: killed, limited and cut off from most files, but it sees other processes",
}
"""The levels, the strongest first, with what each gives."""
LEVEL_VARIABLE = "MINRL_SANDBOX_LEVEL"
"""The environment variable by which a run gives its level to its workers."""


class SandboxError(RuntimeError):
    """The sandbox itself failed, so nothing is known about the code. A reward that raises it is unscorable."""


class SandboxLate(SandboxError):
    """The walls did not stand in time, as on a machine that is busy."""


def require_one_level(found: Sequence[str]) -> None:
    """The processes of a run find their levels themselves: rewards under different walls cannot be compared."""
    levels = [name for name in LEVELS if name in found]
    require(
        len(levels) < 2,
        f"the processes of the run have different levels of the sandbox, {' and '.join(levels)}: start all of them "
        f"with {LEVEL_VARIABLE}={(levels or [''])[-1]}, or make the stronger one work on every machine",
    )


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
    """Size of each file; of all files together where they lie in memory (every level but `limits`)."""
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
    writable: Sequence[str | Path] = ()
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
