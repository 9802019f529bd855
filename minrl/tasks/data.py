"""The rows of a task: a local file or folder, a dataset of the hub, or rows made by a program; and their examples."""

import codecs
import csv
import functools
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from minrl.dataflow import Example, Mistake, UserError, require
from minrl.tasks.checked import HALF, encodable, require_example
from minrl.tasks.task import Dataset, DeferredDataset, identity_of, in_order_of_identity, split
from minrl.utils.text import LFS_POINTER, first_line, printable, stable_text

T = TypeVar("T")
Row = Mapping[str, Any]
Rows = Sequence[Row | UserError]
"""Rows and, in place of each that cannot be read, why."""

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
"""The files of a folder that are read, in this order."""

MOST_LEFT_OUT = 0.05
"""The share of a split's rows that may be left out because they cannot be used."""

NAMED = 8
"""Of so many rows that are left out the reason is logged."""

LONGEST_FIELD = 2**31 - 1
"""Characters of a value of a CSV file, of which Python's default is 131,072."""


@dataclass(frozen=True)
class Source:
    """The rows of a task: their columns, and where they come from if no local file is named.

    `Source(columns=("question", "answer"))` has no rows of its own: they are those of `--data-path`. Each row needs all
    `columns`. `splits` maps the task's names to the dataset's: `train` and `held_out`, `held_out` alone for evaluation
    only, or `all`, which is split by identity. `path` is a local file or folder, `rows` makes the rows.
    A row that lacks one of the columns that the reward `reads`, or holds None there, is left out.
    """

    hub_name: str = ""
    columns: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=lambda: {"all": "train"})
    configuration: str | None = None
    path: str = ""
    rows: Callable[[], Iterable[Row]] | None = None
    reads: tuple[str, ...] = ()

    def name(self, data_path: str) -> str:
        """What messages call the rows."""
        return data_path or self.path or self.hub_name or "the task's rows"


def dataset_of(
    source: Source,
    data_path: str,
    example_of: Callable[[Row], Example],
    held_out_share: float = 0.2,
    by: Callable[[Example], str] = identity_of,
) -> DeferredDataset:
    """The examples of the rows, read when they are first used.

    The source's own splits are kept; rows without any are split by `by`: see `split`. A repeated example counts once,
    and a held-out problem is not trained on; both are logged. `example_of` raises UserError for a row that it cannot
    use: see `load_each`.
    """
    where = source.name(data_path)

    def load() -> Dataset:
        found = load_each(source, data_path, functools.partial(_checked, example_of))
        distinct = {name: _distinct(examples) for name, examples in found.items()}
        repeats = [f"{where} ({name}): {line}" for name in found if (line := _repeats(found[name], distinct[name], by))]
        if "all" in distinct:
            require(held_out_share > 0, f"{where} has no splits of its own: hold out a share, such as 0.2")
            try:
                dataset = split(distinct["all"], held_out_share, by)
            except UserError as error:
                raise UserError("; ".join([f"{where}: {error}: give more rows", *repeats])) from error
        else:
            taken, train = set(map(by, distinct["held_out"])), distinct.get("train", [])
            free = [example for example in train if by(example) not in taken]
            if len(free) < len(train):
                repeats.append(
                    f"{where}: {len(train) - len(free)} training rows have a held-out problem and are left out"
                )
            dataset = Dataset(in_order_of_identity(free), in_order_of_identity(distinct["held_out"]), by)
        for line in repeats:
            _log_once(line, "WARNING" if "left out" in line else "INFO")
        return dataset

    return DeferredDataset(load)


def _checked(example_of: Callable[[Row], Example], row: Row) -> Example:
    example = example_of(row)
    require_example(example)
    require(encodable(example.prompt), f"its prompt holds {HALF}")
    return example


def _distinct(examples: Iterable[Example]) -> list[Example]:
    """The examples, each identity once."""
    found: dict[str, Example] = {}
    for example in examples:
        found.setdefault(example.id, example)
    return list(found.values())


def _repeats(examples: Sequence[Example], distinct: Sequence[Example], by: Callable[[Example], str]) -> str:
    """How many examples repeat an identity or a problem, in words; empty if none does."""
    first, problems = {one.id: one for one in distinct}, Counter(map(by, distinct))
    repeats = [one for one in examples if one is not first[one.id]]
    others = sum(stable_text(first[one.id].fields) != stable_text(one.fields) for one in repeats)
    shared = sum(count for count in problems.values() if count > 1) if by is not identity_of else 0
    counts = [
        f"{len(repeats)} repeat another and are left out" * bool(repeats),
        f"{others} of these have the problem of another and other values" * bool(others),
        f"{shared} share their problem with rows of other values: all are kept, on one side" * bool(shared),
    ]
    return f"of {len(examples)} rows {'; '.join(filter(None, counts))}" if any(counts) else ""


def load_each(source: Source, data_path: str, read: Callable[[Row], T]) -> dict[str, list[T]]:
    """What `read` makes of each row, by split: `train` and `held_out` if the source has them, else all under `all`.

    `data_path` is a file in JSONL, JSON, CSV or parquet, also compressed by gzip, a folder with a file for each split,
    such as `train.jsonl` and `test.jsonl`, or one that `datasets` saved. Empty: the source's own rows.

    Lines that hold no row, rows that lack a column or hold half a character, and those on which `read` raises UserError
    or stumbles over another kind of value, are left out, counted and named; where they are more than `MOST_LEFT_OUT` of
    a split, the first is refused.
    """
    where = source.name(data_path)
    return {name: _usable(rows, source, read, f"{where} ({name})") for name, rows in _splits(source, data_path).items()}


def load_rows(source: Source, data_path: str) -> dict[str, list[dict[str, Any]]]:
    """The rows by split: see `load_each`."""
    return load_each(source, data_path, dict)


def _usable(rows: Rows, source: Source, read: Callable[[Row], T], where: str) -> list[T]:
    """What `read` makes of the rows that it can use. The others are logged."""
    made, unusable = [], []
    for number, row in enumerate(rows, 1):
        try:
            _require_row(row, source)
            made.append(read(row))  # type: ignore[arg-type]
        except Mistake as error:
            raise Mistake(f"row {number} of {where}: {error}") from error
        except UserError as error:
            unusable.append((number, str(error)))
        except KeyError as error:
            unusable.append((number, f"lacks {error} (it has {', '.join(map(str, row))})"))  # type: ignore[arg-type]
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            unusable.append((number, f"not as the task reads it: {type(error).__name__}: {error}"))
    if unusable:
        unusable = [(number, " ".join(reason.split())) for number, reason in unusable]
        (number, reason), share = unusable[0], f"{len(unusable)} of {len(rows)} rows"
        if len(unusable) > MOST_LEFT_OUT * len(rows):
            also = "" if len(rows) == 1 else f" ({share} cannot be used, and at most {MOST_LEFT_OUT:.0%} are left out)"
            raise UserError(f"row {number} of {where}: {reason}{also}")
        named = "; ".join(f"row {number}: {reason:.100}" for number, reason in unusable[:NAMED])
        _log_once(f"{where}: {share} left out: {named}{'; ...' if len(unusable) > NAMED else ''}")
    return made


def _require_row(row: object, source: Source) -> None:
    """Refuse what is no row, or one that lacks a column or holds what cannot be encoded."""
    if isinstance(row, UserError):
        raise row
    require(isinstance(row, Mapping), f"a row must be a dict, got {row!r:.60} ({type(row).__name__})")
    assert isinstance(row, Mapping)
    missing = [name for name in source.columns if row.get(name) is None or not str(row[name]).strip()]
    if missing:
        has = ", ".join(str(name) for name in row if name not in missing) or "nothing"
        raise UserError(f"lacks {', '.join(missing)} (it has {has}): {_expected(source)}")
    for name, value in row.items():
        require(encodable([name, value]), f"{printable(str(name))} holds {HALF}")
    lacks = [name for name in source.reads if row.get(name) is None]
    require(not lacks, f"{', '.join(lacks)} is missing or None, and the reward reads it; read optional ones by row.get")


@functools.cache
def _log_once(line: str, level: str = "WARNING") -> None:
    """Log it once, though a program may read the rows several times."""
    from loguru import logger  # each reward worker would pay for the import

    logger.log(level, line)


# Identities and answers


def identity(text: str) -> str:
    """A short name of a problem, the same for texts that differ only in white space.

    >>> identity("1 +  1") == identity(" 1 + 1 ") != identity("1 + 2")
    True
    """
    return hashlib.sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()[:16]


def is_answer(value: object) -> bool:
    """Whether a value of a row is a text or a number, which an answer can be."""
    return isinstance(value, str) or (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


def answer_text(value: object) -> str:
    """The answer of a row as a text.

    >>> answer_text("18"), answer_text(18), answer_text(18.5)
    ('18', '18', '18.5')
    """
    require(is_answer(value), f"`answer` must be a text or a number, got {value!r:.60} ({type(value).__name__})")
    return str(value)


# Where rows come from


def _splits(source: Source, data_path: str) -> Mapping[str, Rows]:
    path = data_path or source.path
    if path:
        splits = _local(source, Path(path))
    elif source.rows is not None:
        made: object = source.rows()
        is_list = isinstance(made, Iterable) and not isinstance(made, str | bytes | Mapping)
        require(is_list, f"`data` must make a list of rows, got {made!r:.60} ({type(made).__name__})", Mistake)
        splits = {"all": list(made)}  # type: ignore[call-overload]
    else:
        require(bool(source.hub_name), f"the task has no data of its own: give --data-path {_expected(source)}")
        splits = _from_hub(source)
    for name, rows in splits.items():
        require(len(rows) > 0, f"{source.name(data_path)} has no rows ({name}): {_expected(source)}")
    return splits


def _local(source: Source, path: Path) -> Mapping[str, Rows]:
    require(path.exists(), f"--data-path {path} does not exist: {_expected(source)}")
    if path.is_file():
        return {"all": read_each(path)}
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _saved(source, path)
    found = {}
    for name, file_name in source.splits.items():
        files = [path / f"{file_name}{suffix}" for suffix in SUFFIXES]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise UserError(f"--data-path {path} is a folder without {files[0].name}: {_expected(source)}")
        found[name] = read_each(file)
    return found


def _saved(source: Source, path: Path) -> Mapping[str, Rows]:
    """The rows of a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    import datasets  # here, so that reward workers start without it

    try:
        found = datasets.load_from_disk(str(path))
        each = {"": found} if isinstance(found, datasets.Dataset) else found
        rows = {name: split.to_list() for name, split in each.items()}
    except Exception as error:  # of a damaged folder the library raises anything
        raise UserError(f"cannot read {path}, which `datasets` saved: {first_line(error)}: save it again") from error
    if "" in rows:
        return {"all": rows[""]}
    lacking = [split_name for split_name in source.splits.values() if split_name not in rows]
    require(not lacking, f"{path} has no split {', '.join(lacking)}, only {', '.join(rows)}")
    return {name: rows[split_name] for name, split_name in source.splits.items()}


def _from_hub(source: Source) -> Mapping[str, Rows]:
    """The dataset by the `datasets` library, which caches it."""
    import datasets
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        return {
            name: [
                dict(row)
                for row in datasets.load_dataset(
                    source.hub_name, source.configuration, split=split_name, trust_remote_code=False
                )
            ]
            for name, split_name in source.splits.items()
        }
    except (OSError, ValueError) as error:  # datasets' and the hub's own errors are of these two kinds
        offline = " (offline mode is on: HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else ""
        raise UserError(
            f"cannot load dataset {source.hub_name!r} of the hub{offline}: {first_line(error)}; give a local copy with "
            f"--data-path: {_expected(source)}"
        ) from error


def _expected(source: Source) -> str:
    files, columns = " and ".join(f"{name}.jsonl" for name in source.splits.values()), ", ".join(source.columns)
    with_columns = f" with the columns {columns}" if columns else ""
    return f"a JSONL, JSON, CSV or parquet file{with_columns}, or a folder with {files}"


# Files


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. A line that holds none is refused."""
    rows: list[Row] = []
    for number, row in enumerate(read_each(path), 1):
        if isinstance(row, UserError):
            raise UserError(f"row {number} of {path}: {row}") from row
        rows.append(row)
    return rows


def read_each(path: Path) -> Rows:
    """The rows of a file and, in place of each that cannot be read, why. The first bytes tell gzip and parquet; the
    values of a CSV file are texts.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data, path = gzip.decompress(data), path.with_suffix("") if path.suffix == ".gz" else path
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    require(not data.startswith(LFS_POINTER), f"{path} is a pointer of Git LFS: fetch the file by `git lfs pull`")
    if data[:4] == b"PAR1":
        return _parquet_rows(path, data)
    text = _text(path, data.removeprefix(codecs.BOM_UTF8))  # spreadsheets and Windows begin UTF-8 with a mark
    if path.suffix.lower() == ".csv":
        return _csv_rows(path, text)
    if text.lstrip().startswith("["):
        try:
            return [_object(row, "it") for row in _parsed(text)]
        except UserError as error:
            if path.suffix.lower() != ".jsonl":  # in which a line may begin so
                raise UserError(f"{path} {error}") from error
    # a string may hold U+2028, which splitlines() splits at
    return [_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parquet_rows(path: Path, data: bytes) -> Rows:
    import pyarrow.parquet  # here, so that reward workers start without it

    try:
        return pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own are of these two kinds
        raise UserError(f"cannot read {path} as parquet: {first_line(error)}") from error


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        convert = f", and convert it with iconv -f {'UTF-16' if wide else 'WINDOWS-1252'} -t UTF-8"
        raise UserError(
            f"{path} is not UTF-8 text (byte {data[error.start]:#04x} at {error.start}): give JSONL, JSON, CSV or "
            f"parquet{'' if 0 in data and not wide else convert}"
        ) from error


def _csv_rows(path: Path, text: str) -> Rows:
    """The rows of a CSV file, with the delimiter of its first line."""
    csv.field_size_limit(LONGEST_FIELD)
    header = re.sub('"[^"]*"', "", text.lstrip("\n").partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num} is not CSV: {error}") from error
    columns = [name.strip() for name in lines[0][1]] if lines else []
    named = [name for name in columns if name]  # spreadsheets write empty columns at the end
    require(len({*named}) == len(named), f"{path} has two columns of one name: {', '.join(named)}")
    return [
        {name: cell for name, cell in zip(columns, cells, strict=True) if name}
        if len(cells) == len(columns)
        else UserError(f"line {number} has {len(cells)} values for {len(columns)} columns")
        for number, cells in lines[1:]
    ]


def _line(text: str, number: int) -> Row | UserError:
    try:
        return _object(_parsed(text), f"line {number}")
    except UserError as error:
        return UserError(f"line {number} {error}: give JSON objects, one a line")


def _object(row: Any, place: str) -> Row | UserError:  # noqa: ANN401 - whatever the file says
    return row if isinstance(row, dict) else UserError(f"{place} must be a JSON object, got {type(row).__name__}")


def _parsed(text: str) -> Any:  # noqa: ANN401 - whatever the JSON says
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for integers with more digits than Python reads
        raise UserError(f"is not JSON ({error})") from error
