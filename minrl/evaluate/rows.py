"""Rows that survive a kill: appended JSON lines, each with the key of its episode.

The key is (model, task, mode, index of the example, sample). Of two rows with the same key the later one holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.utils.files import append_jsonl, fsync, is_torn, read_jsonl, write_jsonl

Row = dict[str, Any]

SERVED_AS = "served_as"
"""The names that a server gave the model that answered, other than the name it was asked by."""


@dataclass(frozen=True)
class Key:
    """The episode of a row. `mode` is `sampled` or `greedy`, `index` counts the held-out examples."""

    model: str
    task: str
    mode: str
    index: int
    sample: int

    def as_row(self) -> Row:
        """The key's part of a row."""
        return dict(vars(self))


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row; `KeyError` if it has none."""
    return Key(row["model"], row["task"], row["mode"], row["index"], row["sample"])


class RowFile:
    """A file of rows. A line that a kill cut off is removed before anything is appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[Key, Row]:
        """The whole rows by key. Damaged lines are left out and reported."""
        if is_torn(self.path):
            logger.warning(f"{self.path}: the last line was cut off while it was written; it will be made again")
        rows: dict[Key, Row] = {}
        damaged: list[object] = []
        for row in read_jsonl(self.path, damaged.append):
            try:
                rows[key_of(row)] = row
            except (KeyError, TypeError):
                damaged.append(row)
        if damaged:
            logger.warning(f"{self.path}: {len(damaged)} damaged lines are left out; they will be made again")
        return rows

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows; they are on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(self.path, rows)
        fsync(self.path)

    def rewrite(self, rows: Iterable[Row]) -> None:
        """Replace all rows at once."""
        write_jsonl(self.path, rows)
