"""Runs test programs in the sandbox: unreadable to themselves, heard over a descriptor of their own."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from minrl.sandbox.calls import Call, Limits, Outcome, SandboxError, start
from minrl.tasks.rust.compiler import COULD_NOT_RUN, Budget, first_line, toolchain, try_out
from minrl.types import UserError

PREFIX = "minrl-rust"
MANIFEST = '[package]\nname = "solution"\nversion = "0.1.0"\n'
"""A file that tests find in their folder, where cargo would have run them."""
REPORTED = (0, 101)
"""Exit statuses of a test program that ended normally: all passed, or some failed."""


@cache
def working_toolchain(folder: Path) -> Path:
    """`toolchain()`, after an empty package was built, linted and tested from end to end. `UserError`, in one line, if
    that does not work here: every right solution would earn nothing.
    """
    programs = toolchain()
    try:
        budget = Budget(Limits(), Limits(wall_s=60.0), time.monotonic() + 60)
        heard, _ = run_tests(try_out(), {"ran": "runs"}, folder, budget)
        if heard != {"ran"}:
            raise SandboxError("a test of nothing did not report itself")
    except SandboxError as error:
        raise UserError(
            f"Rust in {programs} does not run in the sandbox ({first_line(str(error))}): install Rust where every user "
            "may read it (RUSTUP_HOME=/opt/rustup), or bubblewrap; programs must be able to run in --rust.cache"
        ) from error
    return programs


def run_tests(program: bytes, marks: Mapping[str, str], folder: Path, budget: Budget) -> tuple[set[str], set[str]]:
    """The lines that the tests wrote to descriptor 3, and those of standard output. `marks` are the names of the tests
    by the line that each writes. If the program dies, those without their line run one at a time.
    """
    limits = replace(budget.tests, wall_s=max(1.0, min(budget.tests.wall_s, budget.left())))
    with _unreadable(program, folder) as path:
        ran, heard, said = _run_once([str(path), "--include-ignored", "--test-threads=1"], limits)
        left = limits.wall_s - ran.seconds
        for mark, name in marks.items() if ran.exit_code not in REPORTED else ():
            if left > 0 and mark not in heard | said:
                one = [str(path), "--include-ignored", "--exact", name]
                ran, *more = _run_once(one, replace(limits, wall_s=left))
                heard, said, left = heard | more[0], said | more[1], left - ran.seconds
    return heard, said


def _run_once(command: list[str], limits: Limits) -> tuple[Outcome, set[str], set[str]]:
    """Run a program with a socket as descriptor 3. Unlike a pipe, nothing opens it again by its name in /proc. The
    sandbox is given the file itself, not its folder: it then refuses to change modes.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        files, environment = {"Cargo.toml": MANIFEST}, {"RUST_BACKTRACE": "0"}
        call = Call(command, files, limits, readable=[command[0]], environment=environment, channel=theirs.fileno())
        reading = thread.submit(_received, ours, limits.output_bytes)
        try:
            ran = start(call).result()
        finally:
            theirs.shutdown(socket.SHUT_RDWR)  # whoever still holds it: no more is read
        heard = reading.result()
    if ran.exit_code in COULD_NOT_RUN and ran.status == "error":
        raise SandboxError(f"the test program could not run: {first_line(ran.stderr.decode(errors='replace'))}")
    return ran, _lines(heard), _lines(ran.stdout)


def _received(connection: socket.socket, most: int) -> bytes:
    """What comes until the end, read while it comes: who writes waits once the kernel's buffer is full. Of more than
    `most` bytes the rest is thrown away.
    """
    received = bytearray()
    while chunk := connection.recv(65536):
        received += chunk[: most - len(received)]
    return bytes(received)


def _lines(output: bytes) -> set[str]:
    return set(output.decode("utf-8", "replace").split("\n")) - {""}


@contextmanager
def _unreadable(program: bytes, folder: Path) -> Iterator[Path]:
    """The program as a file that the sandbox's user may run and nobody may read, so that the kernel shows a process
    neither its own file nor its memory. The file is ours, and read-only wherever there are walls.
    """
    _sweep(folder)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-{os.getpid()}-", dir=folder, ignore_cleanup_errors=True) as made:
        path = Path(made) / "program"
        path.write_bytes(program)
        path.chmod(0o111)
        path.parent.chmod(0o711)
        yield path


def _sweep(folder: Path) -> None:
    """Remove what processes left that were killed while a program ran."""
    for left in folder.glob(f"{PREFIX}-*-*"):
        owner = left.name.split("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and left.lstat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)


def program_folder(named: str) -> Path:
    """The folder of the test programs: the named one, which is made, or the temporary directory."""
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
    return Path(named or tempfile.gettempdir())
