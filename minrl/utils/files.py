"""Whole files and folders, JSONL files that survive a kill, locks that end with their process, refused writes."""

import csv
import fcntl
import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import stat
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
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
    """Write a text file, whole or not at all; so do the four writers below."""
    with atomic_write(path) as file:
        file.write(text)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    write_text(path, json_text(record, indent=1))


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write a line of JSON for each record."""
    with atomic_write(path) as file:
        file.writelines(json_text(record) + "\n" for record in records)


def write_packed(path: Path, records: Iterable[Any]) -> None:
    """Write compressed lines of JSON, the same bytes for the same records."""
    with atomic_write(path, "wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) as file:
        file.writelines(f"{json_text(record)}\n".encode() for record in records)


def read_packed(path: Path) -> list[Any]:
    """The values of compressed lines of JSON. Raises `UserError` in one line if the file cannot be read."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from error


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


def read_jsonl(path: Path) -> list[Any]:
    """The values of a JSONL file, None for NaN and infinities; [] if the file is missing. A torn last line is left out.
    Raises `UserError` for another line that is not JSON.
    """
    return [_value(path, line) for line in whole_lines(path)]


def cut_jsonl(path: Path, keeps: Callable[[Any], bool]) -> None:
    """Keep the lines of a JSONL file whose value `keeps` takes, without a torn last line. The file is written only
    where something is cut.
    """
    kept = [line + b"\n" for line in whole_lines(path) if keeps(_value(path, line))]
    if path.exists() and sum(map(len, kept)) < path.stat().st_size:
        with atomic_write(path, "wb") as file:
            file.writelines(kept)


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file without a torn last one, which a kill cut off; [] if the file is missing."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def read_line(line: bytes) -> Any:  # noqa: ANN401 - whatever the line holds
    """The value of a line of JSONL, None for NaN and infinities."""
    text = line.decode(errors="backslashreplace")  # bytes that are not UTF-8 become \x.., which is not JSON
    return json.loads(text, parse_constant=lambda name: None)


def _value(path: Path, line: bytes) -> Any:  # noqa: ANN401 - whatever the line holds
    try:
        return read_line(line)
    except json.JSONDecodeError as error:
        found = f"{error.msg}: {error.doc[:40]!r}"
        raise UserError(f"{path} is damaged: a line is not JSON ({found}): remove that line") from error


def append_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Append a line of JSON for each record. A torn last line is removed."""
    with writing(path), path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.writelines(f"{json_text(record)}\n".encode() for record in records)


def lock(path: Path) -> AbstractContextManager[Any] | None:
    """Lock a file until the end of the context that is returned, or of the process, however it ends; None if another
    process has the lock. The file names the process that has it (`holder`).
    """
    from filelock import FileLock, Timeout  # for 40 ms, which reward workers do without

    try:  # the fallback to a file that says "locked" would outlive a process that is killed
        held = FileLock(path, timeout=0, fallback_to_soft=False).acquire()
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        return held
    except Timeout:
        return None
    except OSError as error:
        if not path.parent.exists():  # it was just removed
            return None
        raise UserError(f"cannot lock {path}: {refusal(error)}; it must be on a disk that can be written") from error


def is_locked(path: Path) -> bool:
    """Whether a process has the lock of a file, which stays as it is and may be another user's."""
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
    return (path.read_text().strip() if path.exists() else "") or "a process that has just begun"


EXTRAS = ("openenv",)
"""The extras that users' files import."""


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
        extra = (getattr(error, "name", "") or "").partition(".")[0]
        fix = f": make setup EXTRA={extra}, or pip install 'minrl[{extra}]'" if extra in EXTRAS else ""
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {reason}{place}{fix}") from error


@contextmanager
def installed(extra: str, package: str) -> Iterator[None]:
    """A library that is imported inside and is not installed as a `UserError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        remedy = f"make setup EXTRA={extra}, or pip install {package}"
        raise UserError(f"{error.name} is not installed: {remedy}") from error


def imported_file(path: str, what: str) -> ModuleType:
    """A user's file as a module. `what` asked for it."""
    require(Path(path).is_file(), f"{what}: no file {path}")
    spec = importlib.util.spec_from_file_location(f"minrl_own_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    with importing(f"{what}: {path}"):
        spec.loader.exec_module(module)
    return module
