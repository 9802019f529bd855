"""Rows that survive a kill: JSON lines that are appended, each with the key of the episode it is about.

A row is of (model, task, mode, index of the example, sample). Where a key stands twice, the later row holds.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from loguru import logger

from minrl.system.files import whole
from minrl.system.json_text import json_text

Row = dict[str, Any]

SERVED_AS = "served_as"
"""What a row, and a result, keeps of the names by which a server called the model that answered, but for the one that
it was asked by.
"""


@dataclass(frozen=True)
class Key:
    """Which episode a row is about. `mode` is `sampled` or `greedy`, `index` counts the held-out examples."""

    model: str
    task: str
    mode: str
    index: int
    sample: int

    def as_row(self) -> Row:
        """The part of a row that says which it is."""
        return dict(vars(self))


def key_of(row: Mapping[str, Any]) -> Key:
    """The key that a row carries; `KeyError` where it carries none."""
    return Key(row["model"], row["task"], row["mode"], row["index"], row["sample"])


class RowFile:
    """A file of rows. What a kill cut off is no row, and is cut away before anything is appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[Key, Row]:
        """The whole rows by key. A line that is none is left out, and said."""
        if not self.path.exists():
            return {}
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            logger.warning(f"{self.path}: the last line was cut off while it was written; it will be made again")
        rows, damaged = {}, 0
        for line in data[:end].split(b"\n")[:-1]:
            try:
                row = json.loads(line)
                rows[key_of(row)] = row
            except (ValueError, KeyError, TypeError):
                damaged += 1
        if damaged:
            logger.warning(f"{self.path}: {damaged} damaged lines are left out; they will be made again")
        return rows

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows, on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            self._cut_torn_line(file)
            file.write("".join(json_text(row) + "\n" for row in rows).encode())
            file.flush()
            os.fsync(file.fileno())

    def _cut_torn_line(self, file: IO[bytes]) -> None:
        """End the file after its last whole line."""
        size = file.seek(0, os.SEEK_END)
        if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
            file.truncate(self.path.read_bytes().rfind(b"\n") + 1)

    def rewrite(self, rows: Iterable[Row]) -> None:
        """These rows and no others, in this order, in one instant."""
        with whole(self.path) as file:
            file.writelines(json_text(row) + "\n" for row in rows)
