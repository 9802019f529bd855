"""scores.parquet: a line for each role of each scored episode, with a column for each part and each category."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

from minrl.evaluate.episodes import spoken_of
from minrl.evaluate.rows import Row
from minrl.utils.files import whole

PART, CATEGORY = "part/", "category/"

NOBODY = ""
"""The role of an episode that failed before the model's first turn."""

COLUMNS = {
    "model": arrow.string(),
    "task": arrow.string(),
    "mode": arrow.string(),
    "index": arrow.int64(),
    "example": arrow.string(),
    "sample": arrow.int64(),
    "role": arrow.string(),
    "reward": arrow.float64(),
    "maximum": arrow.float64(),
    "solved": arrow.bool_(),
    "unscorable": arrow.string(),
    "tokens": arrow.int64(),
    "finish_reason": arrow.string(),
    "refused": arrow.string(),
    "of": arrow.string(),
}
"""`unscorable` is the reason for a missing reward, `refused` the server's reason for a refusal, `of` a hash of the
scored completion."""


def write_table(path: Path, scored: Sequence[tuple[Row, Row]]) -> None:
    """Write the table of (completion, scores), whole or not at all."""
    lines = [line for completion, scores in scored for line in _lines(completion, scores)]
    names = sorted({name for line in lines for name in line if name not in COLUMNS})
    fields = [*COLUMNS.items(), *((n, arrow.float64() if n.startswith(PART) else arrow.string()) for n in names)]
    table = arrow.table(
        {name: arrow.array([line.get(name) for line in lines], type=kind) for name, kind in fields},
        schema=arrow.schema(fields),
    )
    with whole(path, "wb") as file:
        parquet.write_table(table, file)


def _lines(completion: Row, scores: Row) -> list[dict[str, Any]]:
    shared = {name: completion[name] for name in ("model", "task", "mode", "index", "example", "sample")}
    spoken = spoken_of(completion)
    lines = []
    for one in scores["scores"]:
        line = {**shared, **spoken.get(one["role"], {}), "refused": completion.get("refused"), "of": scores["of"]}
        line.update({name: one[name] for name in ("role", "reward", "maximum", "solved", "unscorable")})
        line.update({PART + name: value for name, value in one["parts"].items()})
        line.update({CATEGORY + name: value for name, value in completion["category"].items()})
        lines.append(line)
    return lines


def read_table(path: Path) -> list[dict[str, Any]] | None:
    """The lines of the table, with `parts` and `category` as dictionaries; None if there is no whole table."""
    try:
        lines = parquet.read_table(path).to_pylist()
    except (OSError, arrow.ArrowInvalid):
        return None
    return [_read(line) for line in lines]


def _read(line: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in line.items() if name in COLUMNS}
    for prefix, name in ((PART, "parts"), (CATEGORY, "category")):
        plain[name] = {k[len(prefix) :]: v for k, v in line.items() if k.startswith(prefix) and v is not None}
    return plain
