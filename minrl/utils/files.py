"""Whole files and folders, JSONL files that survive a kill, locks that end with their process, refused writes."""

import csv
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from minrl.dataflow import UserError, require
from minrl.utils.text import json_text

PACKAGE = Path(__file__).parents[1]
LOCK = ".lock"
"""The file in a locked folder."""
TEMPORARY = ".tmp"
"""Ends the name of what is not whole yet."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a refused write inside into a `UserError` that names the path, which errors of open files do not."""
    try:
        yield
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        raise UserError(f"cannot write {getattr(error, 'filename', None) or path}: {reason}") from error


def refusal(error: Exception) -> str | None:
    """Why the system refused a write; None for other errors."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is where a folder should be"
    if isinstance(error, shutil.Error):  # of copytree: (source, target, reason) of each file
        return str(error.args[0][0][2])
    if isinstance(error, OSError):
        return error.strerror or str(error)
    of_rust = re.search(r"([^:(]+) \(os error \d+\)", str(error))  # of safetensors and tokenizers
    return of_rust[1].strip() if of_rust else None


def require_writable(folder: Path) -> None:
    """Raise `UserError` if no file can be written to the folder, or to its nearest existing parent."""
    folder = _existing(folder)
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder that may not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def private_folder(path: Path) -> Path:
    """Make a folder with a known name where everybody may write, such as /tmp, or take the one that is there if nobody
    but this user can have put anything into it. Raises PermissionError for others. Those may pass and see nothing.
    """
    try:
        os.mkdir(path, 0o711)
        os.chmod(path, 0o711)  # whatever the umask is
    except FileExistsError:
        pass
    found = os.lstat(path)
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{path} may hold what others put there: remove it, or set TMPDIR to a folder of your own"
        )
    return path


@contextmanager
def atomic_write(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write, in a folder that is made for it. It replaces the path once all of it is on disk."""
    require(not path.is_dir(), f"cannot write {path}: it is a folder; name a file")
    temporary = path.with_name(path.name + TEMPORARY)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill. It replaces the path once all of it is on disk."""
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
    except BaseException:  # such as a full disk or a second Ctrl-C: half a folder is useless and takes room
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def names_in(folder: Path) -> list[str]:
    """The names in a folder, without its lock and without a file that a kill left half written."""
    return [name for name in os.listdir(folder) if name != LOCK and not name.endswith(TEMPORARY)]


def fsync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; so do the three writers below."""
    with atomic_write(path) as file:
        file.write(text)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    write_text(path, json_text(record, indent=1))


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write a line of JSON for each record."""
    with atomic_write(path) as file:
        file.writelines(json_text(record) + "\n" for record in records)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table with these columns; a row may lack some of them."""
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """The value of a JSON file; None if it is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_record(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty if it is missing. Raises `UserError` if it holds something else."""
    value = read_json(path) if path.exists() else {}
    require(isinstance(value, dict), f"{path} is damaged: it is no JSON object; put it back, or remove it")
    return value


def read_jsonl(path: Path, damaged: Callable[[str], object] | None = None) -> list[Any]:
    """The values of a JSONL file, None for NaN and infinities; [] if the file is missing.

    A torn last line is left out. `damaged` is called with each other line that is not JSON, as a power failure may
    leave it; without `damaged` such a line raises `UserError`.
    """
    return [value for _, value in _whole_lines(path, _content(path), damaged)]


def cut_jsonl(path: Path, keeps: Callable[[Any], bool], damaged: Callable[[str], object] | None = None) -> list[Any]:
    """Keep the lines of a JSONL file whose value `keeps` takes, without a torn last line; returns their values. What is
    damaged is cut too, as in `read_jsonl`. The file is written only where something is cut.
    """
    before = _content(path)
    kept = [(line, value) for line, value in _whole_lines(path, before, damaged) if keeps(value)]
    if sum(len(line) for line, _ in kept) < len(before):
        with atomic_write(path, "wb") as file:
            file.writelines(line for line, _ in kept)
    return [value for _, value in kept]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _whole_lines(path: Path, content: bytes, damaged: Callable[[str], object] | None) -> Iterator[tuple[bytes, Any]]:
    for line in content.split(b"\n")[:-1]:
        try:
            value = read_line(line)
        except json.JSONDecodeError as error:
            if damaged is None:
                found = f"{error.msg}: {error.doc[:40]!r}"
                raise UserError(f"{path} is damaged: a line is not JSON ({found})") from error
            damaged(error.doc)
            continue
        yield line + b"\n", value


def read_line(line: bytes) -> Any:  # noqa: ANN401 - whatever the line holds
    """The value of a line of JSONL, None for NaN and infinities."""
    text = line.decode(errors="backslashreplace")  # bytes that are not UTF-8 become \x.., which is not JSON
    return json.loads(text, parse_constant=lambda name: None)


def append_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Append a line of JSON for each record. A torn last line is removed."""
    with writing(path):
        if is_torn(path):
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        with path.open("a", encoding="utf-8", newline="") as file:
            file.writelines(json_text(record) + "\n" for record in records)


def is_torn(path: Path) -> bool:
    """Whether the last line of a file lacks its end, because a kill cut it off."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def lock(path: Path, wait: bool = False) -> IO[str] | None:
    """Lock a file until the result is closed or the process ends; None if another process has the lock.

    The file names the process that has the lock (`holder`).
    """
    file = None
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.fstat(file.fileno()).st_nlink == 0:  # its holder removed it; the path leads to another file now
            file.close()
            return lock(path, wait) if wait else None
        _name_holder(path, file.fileno())
    except OSError as error:
        if file is not None:
            file.close()
        if isinstance(error, BlockingIOError | FileNotFoundError):  # the latter: its folder was just removed
            return None
        raise UserError(f"cannot lock {path}: {refusal(error)}; it must be on a disk that can be written") from error
    return file


def _name_holder(path: Path, descriptor: int) -> None:
    """Write the name of this process into the locked file, which is removed if the disk has no room."""
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError:
        path.unlink()
        raise


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file, which stays as it is."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def holder(path: Path) -> str:
    """The process that has the lock of a file."""
    try:
        return path.read_text().strip() or "a process that has just begun"
    except OSError:  # it ended and removed the file
        return "a process that has just ended"


def lock_in_turn(path: Path, say: Callable[[str], None]) -> IO[str]:
    """Lock a file. If another process has it, name that process and wait."""
    held = lock(path)
    if held is None:
        say(holder(path))
        held = lock(path, wait=True)
    assert held is not None, "the folder of a lock that is waited for stays"
    return held


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Whatever a user's module raises while it is imported inside, as a `UserError` in one line with the place."""
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())
        lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename[0] != "<"]
        lines = [one for one in lines if not Path(one.filename).is_relative_to(PACKAGE)]
        place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {reason}{place}") from error
