"""Folders that can be written to, and one line where a write fails: a full disk, a read-only one, a file in the way."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minrl.types import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses inside is a `UserError` that names the path: a write to an open file would name none."""
    try:
        yield
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        raise UserError(f"cannot write {getattr(error, 'filename', None) or path}: {reason}") from error


def refusal(error: Exception) -> str | None:
    """Why the system refused a write; None where the error is another one."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is where a folder should be"
    if isinstance(error, shutil.Error):  # of a tree: (source, target, reason) of each file
        return str(error.args[0][0][2])
    if isinstance(error, OSError):
        return error.strerror or str(error)
    of_rust = re.search(r"([^:(]+) \(os error \d+\)", str(error))  # safetensors' and tokenizers' own classes
    return of_rust[1].strip() if of_rust else None


def require_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made, or the first that is there above it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with writing(folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".minrl-") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


def free_bytes(folder: Path) -> int:
    """What is free on the disk of a folder that may not be there yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
