"""The rows of a local file, and why a line of it holds none."""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minrl.types import UserError, require

Row = Mapping[str, Any]

MOST_LEFT_OUT = 0.05
"""The share of a split's rows that may be left out because they cannot be used."""

_NO_UTF_8 = re.compile("[\udc80-\udcff]")
"""Bytes that are not UTF-8, as `surrogateescape` reads them."""

LONGEST_FIELD = 2**31 - 1
"""Characters of a value of a CSV file, of which Python's default is 131,072."""


def read_rows(path: Path) -> list[Row]:
    """The objects of a JSONL file, or of a JSON file that holds a list of them; the rows of a CSV file, as texts. A
    line that holds none is refused.
    """
    rows: list[Row] = []
    for number, row in enumerate(read_each(path), 1):
        if isinstance(row, UserError):
            raise UserError(f"row {number} of {path}: {row}") from row
        rows.append(row)
    return rows


def read_each(path: Path) -> list[Row | UserError]:
    """The rows of a file and, in place of each that cannot be read, why."""
    text = _text(path)
    if path.suffix.lower() == ".csv":
        return _csv_rows(path, text)
    if text.lstrip().startswith("["):
        try:
            return [_row(row, "it") for row in _parsed(text)]
        except UserError as error:
            if path.suffix.lower() != ".jsonl":  # in which a line may begin so
                raise UserError(f"{path} {error}") from error
    # a string may hold U+2028, which splitlines() splits at
    return [_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _text(path: Path) -> str:
    """The text of a file, in which bytes that are not UTF-8 are `_NO_UTF_8`. Refused if they are on more than a few of
    its lines: then it has another encoding.
    """
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)  # spreadsheets and Windows begin UTF-8 with a mark
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        text, wide = data.decode(errors="surrogateescape"), data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        lines = text.rstrip("\n").split("\n")
        if not wide and sum(map(bool, map(_NO_UTF_8.search, lines))) <= MOST_LEFT_OUT * len(lines):
            return text
        raise UserError(
            f"{path} is not UTF-8 text (byte {data[error.start]:#04x} at {error.start}): give JSONL, JSON or CSV, "
            f"and convert other encodings with iconv -f {'UTF-16' if wide else 'WINDOWS-1252'} -t UTF-8"
        ) from error


def _csv_rows(path: Path, text: str) -> list[Row | UserError]:
    """The rows of a CSV file, with the delimiter of its first line."""
    csv.field_size_limit(LONGEST_FIELD)
    header = re.sub('"[^"]*"', "", text.lstrip("\n").partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=True)
    found = _csv_lines(reader)
    columns = next(found, [])
    if isinstance(columns, UserError):
        raise UserError(f"{path}: {columns}")
    columns = [name.strip() for name in columns]
    named = [name for name in columns if name]  # spreadsheets write empty columns at the end
    require(len({*named}) == len(named), f"{path} has two columns of one name: {', '.join(named)}")
    rows: list[Row | UserError] = []
    for cells in found:
        if isinstance(cells, UserError):
            rows.append(cells)
        elif len(cells) != len(columns):
            rows.append(UserError(f"line {reader.line_num} has {len(cells)} values for {len(columns)} columns"))
        elif any(map(_NO_UTF_8.search, cells)):
            rows.append(UserError(f"line {reader.line_num} is not UTF-8 text"))
        else:
            rows.append({name: cell for name, cell in zip(columns, cells, strict=True) if name})
    return rows


def _csv_lines(reader: Any) -> Iterator[list[str] | UserError]:  # noqa: ANN401 - csv names no type
    """The cells of each row. A quotation mark that is not closed takes lines with it: each counts as one."""
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            for number in range(first, reader.line_num + 1):
                yield UserError(f"line {number} is not CSV: {error}")
        else:
            if cells:
                yield cells


def _line(text: str, number: int) -> Row | UserError:
    if _NO_UTF_8.search(text):
        return UserError(f"line {number} is not UTF-8 text")
    try:
        return _row(_parsed(text), f"line {number}")
    except UserError as error:
        return UserError(f"line {number} {error}: give JSON objects, one a line")


def _row(row: Any, place: str) -> Row | UserError:  # noqa: ANN401 - whatever the file says
    if not isinstance(row, dict):
        return UserError(f"{place} must be a JSON object, got {type(row).__name__}")
    return row


def _parsed(text: str) -> Any:  # noqa: ANN401 - whatever the JSON says
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for integers with more digits than Python reads
        raise UserError(f"is not JSON ({error})") from error
