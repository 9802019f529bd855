"""Files and folders that are whole or not there, and locks that end with the process that holds them."""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from minrl.system.disk import refusal, writing
from minrl.system.json_text import json_text
from minrl.types import UserError

LOCK = ".lock"
"""What a folder that is locked holds."""


@contextmanager
def whole(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write, which takes the place of what was at the path when all of it is on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with writing(path):
            with temporary.open(mode, **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of what was at the path when all of it is on the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with writing(temporary):
            temporary.mkdir(parents=True)
            yield temporary
            for inside in (*temporary.rglob("*"), temporary):
                fsync(inside)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            fsync(path.parent)
    except BaseException:  # a full disk, or a second Ctrl-C: what is half written takes room and is of no use
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def fsync(path: Path) -> None:
    """A file's content, or a folder's names, on the disk: a power failure does not change them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system inside names the path, also where it came from an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file that is whole or not there."""
    with whole(path) as file:
        file.write(json_text(record, indent=1))


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """What a JSON file holds; None where it is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def lock(path: Path, wait: bool = False) -> IO[str] | None:
    """Lock a file until what is returned is closed or the process ends, however it ends; None where another has it.

    The file says which process has it (`holder`). Whoever is told None has not changed it.
    """
    file = None
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.fstat(file.fileno()).st_nlink == 0:  # whoever had it removed it: what lies there now is another file
            file.close()
            return lock(path, wait) if wait else None
        _say_who(path, file.fileno())
    except OSError as error:
        if file is not None:
            file.close()
        if isinstance(error, BlockingIOError | FileNotFoundError):  # the latter: its folder was removed this moment
            return None
        raise UserError(f"cannot lock {path}: {refusal(error)}; it must be on a disk that can be written") from error
    return file


def _say_who(path: Path, descriptor: int) -> None:
    """Write into a file that this process has locked which process that is; a file that has no room for it goes."""
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError:
        path.unlink()
        raise


def holder(path: Path) -> str:
    """Which process has the lock of a file."""
    try:
        return path.read_text().strip() or "a process that has just begun"
    except OSError:  # it has ended since, and taken the file with it
        return "a process that has just ended"


def lock_in_turn(path: Path, say: Callable[[str], None]) -> IO[str]:
    """Lock a file; where another process has it, say so and wait."""
    held = lock(path)
    if held is None:
        say(holder(path))
        held = lock(path, wait=True)
    assert held is not None, "the folder of a lock that is waited for stays"
    return held


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file: spelled in other ways, through a link, or by a second name."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
