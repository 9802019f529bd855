"""Rows that survive a kill: appended JSON lines, each with the key of its episode. Of two rows with one key the later
one holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger

from minrl.utils.files import append_jsonl, fsync, is_torn, read_jsonl

Row = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """An episode. `mode` is `sampled` or `greedy`, `index` counts the held-out examples."""

    model: str
    task: str
    mode: str
    index: int
    sample: int

    def as_row(self) -> Row:
        """The key's part of a row."""
        return dict(vars(self))


KEY = ("model", "task", "mode", "index", "sample")


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row; `KeyError` if it has none."""
    return Key(*(row[name] for name in KEY))


def read_rows(path: Path) -> list[Row]:
    """The whole rows of a file. Damaged lines are left out and reported."""
    damaged: list[object] = []
    rows = read_jsonl(path, damaged.append)
    whole = [row for row in rows if isinstance(row, dict) and row.keys() >= set(KEY)]
    lost = len(damaged) + len(rows) - len(whole) + is_torn(path)
    if lost:
        logger.warning(f"{path}: {lost} damaged lines are left out; they will be made again")
    return whole


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows; they are on disk when this returns."""
    append_jsonl(path, rows)
    fsync(path)
