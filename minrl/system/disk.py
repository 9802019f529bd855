"""Writable folders, and one line for a refused write: disk full, read-only, a file in the way."""

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
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    with writing(folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".minrl-") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
