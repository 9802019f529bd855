"""The rows of a task: a local file or folder, a dataset of the hub, or rows made by a program; and their examples."""

import csv
import functools
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from minrl.dataflow import Example, Message, Mistake, Prompt, UserError, require
from minrl.tasks.task import Dataset, DeferredDataset, identity_of, in_hash_order, split
from minrl.utils.text import digest_of, first_line

T = TypeVar("T")
Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
"""The files of a folder that are read, in this order."""

MOST_LEFT_OUT = 0.05
"""The share of a split's rows that may be left out because they cannot be used."""


@dataclass(frozen=True)
class Source:
    """The rows of a task: their columns, and where they come from if no local file is named.

    `Source(columns=("question", "answer"))` has no rows of its own: they are those of a local file. Each row needs all
    `columns`. `splits` maps the task's names to the dataset's: `train` and `held_out`, `held_out` alone for evaluation
    only, or `all`, which is split by identity. `path` is a local file or folder, `rows` makes the rows.
    """

    hub_name: str = ""
    columns: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=lambda: {"all": "train"})
    configuration: str | None = None
    path: str = ""
    rows: Callable[[], Iterable[Row]] | None = None


def dataset_of(
    source: Source,
    data_path: str,
    example_of: Callable[[Row], Example],
    held_out_share: float = 0.2,
    by: Callable[[Example], str] = identity_of,
) -> DeferredDataset:
    """The examples of the rows, read when they are first used.

    The source's own splits are kept; rows without any are split by `by`: see `split`. A repeated example counts once,
    and a held-out problem is not trained on. `example_of` raises UserError for a row that it cannot use.
    """

    def load() -> Dataset:
        found = load_each(source, data_path, example_of)
        distinct = {name: list({one.id: one for one in examples}.values()) for name, examples in found.items()}
        if "all" in distinct:
            return split(distinct["all"], held_out_share, by)
        held_out = set(map(by, distinct["held_out"]))
        train = [one for one in distinct.get("train", []) if by(one) not in held_out]
        return Dataset(in_hash_order(train), in_hash_order(distinct["held_out"]), by)

    return DeferredDataset(load)


def load_each(source: Source, data_path: str, read: Callable[[Row], T]) -> dict[str, list[T]]:
    """What `read` makes of each row, by split: `train` and `held_out` if the source has them, else all under `all`.

    `data_path` is a file, a folder with a file for each split, such as `train.jsonl` and `test.jsonl`, or one that
    `datasets` saved. Empty: the source's own rows. Rows that lack a column, or on which `read` raises, are left out and
    named; where they are more than `MOST_LEFT_OUT` of a split, the first is refused.
    """
    where = data_path or source.path or source.hub_name or "the task's rows"
    return {
        name: _usable(rows, source, read, f"{where} ({name})")
        for name, rows in _splits(source, data_path or source.path).items()
    }


def _usable(rows: Sequence[Row], source: Source, read: Callable[[Row], T], where: str) -> list[T]:
    """What `read` makes of the rows that it can use. The others are logged."""
    require(len(rows) > 0, f"{where} has no rows: {_expected(source)}")
    made, unusable = [], list[str]()
    for number, row in enumerate(rows, 1):
        try:
            require(isinstance(row, Mapping), f"a row must be a dict, got {row!r:.60}")
            row = {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}
            lacking = [name for name in source.columns if row.get(name) in (None, "")]
            require(not lacking, f"lacks {', '.join(lacking)} (it has {', '.join(map(str, row))}): {_expected(source)}")
            made.append(read(row))
        except Mistake:
            raise
        except Exception as error:  # of the task's own code, for a row that it does not understand
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            unusable.append(f"row {number}: {' '.join(said.split())}")
    if unusable:
        line = f"{where}: {len(unusable)} of {len(rows)} rows left out: {unusable[0]}"
        require(len(unusable) <= MOST_LEFT_OUT * len(rows), line.replace("left out", "cannot be used"))
        _log_once(line)
    return made


@functools.cache
def _log_once(line: str) -> None:
    """Log it once, though a program may read the rows several times."""
    from loguru import logger  # each reward worker would pay for the import

    logger.warning(line)


def identity(text: str) -> str:
    """A short name of a problem, the same for texts that differ only in white space.

    >>> identity("1 +  1") == identity(" 1 + 1 ") != identity("1 + 2")
    True
    """
    return hashlib.sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()[:16]


def answer_text(value: object) -> str:
    """The answer of a row, a text or a number, as a text.

    >>> answer_text("18"), answer_text(18), answer_text(18.5)
    ('18', '18', '18.5')
    """
    right = isinstance(value, str | int | float) and not isinstance(value, bool) and value == value
    require(right, f"`answer` must be a text or a number, got {value!r:.60} ({type(value).__name__})")
    return str(value)


def example_of_row(row: Row, shown: Prompt, fields: Mapping[str, Any], system: str = "") -> Example:
    """The example of a row, which its content identifies."""
    name = digest_of([[shown, dict(sorted(row.items(), key=lambda item: str(item[0])))]])
    if system:
        messages: list[Message] = [{"role": "user", "content": shown}] if isinstance(shown, str) else shown
        shown = [{"role": "system", "content": system}, *messages]
    return Example(name, shown, fields)


def problem_of(example: Example) -> str:
    """What is held out together: equal prompts, whatever the system message and white space; without a prompt, equal
    rows.
    """
    if isinstance(example.prompt, str):
        return identity(example.prompt) if example.prompt else example.id
    said = [message["content"] for message in example.prompt if message["role"] not in ("system", "developer")]
    parts = [part for content in said for part in (content if isinstance(content, list) else [content])]
    return identity(" ".join(str(part["text"] if isinstance(part, Mapping) else part) for part in parts))


# Where rows come from


def _splits(source: Source, path: str) -> Mapping[str, Sequence[Row]]:
    if path:
        return _local(source, Path(path))
    if source.rows is not None:
        return {"all": list(source.rows())}
    require(bool(source.hub_name), f"the task has no data of its own: give --data-path {_expected(source)}")
    import datasets  # here, so that reward workers start without it

    try:
        return {
            name: datasets.load_dataset(source.hub_name, source.configuration, split=split_name).to_list()
            for name, split_name in source.splits.items()
        }
    except (OSError, ValueError) as error:  # datasets' and the hub's own errors are of these two kinds
        raise UserError(
            f"cannot load dataset {source.hub_name!r} of the hub: {first_line(error)}; give a local copy with "
            f"--data-path: {_expected(source)}"
        ) from error


def _local(source: Source, path: Path) -> Mapping[str, Sequence[Row]]:
    require(path.exists(), f"the data {path} does not exist: give {_expected(source)}")
    if path.is_file():
        return {"all": read_rows(path)}
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        import datasets

        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.Dataset):
            return {"all": saved.to_list()}
        lacking = [name for name in source.splits.values() if name not in saved]
        require(not lacking, f"{path} has no split {', '.join(lacking)}, only {', '.join(saved)}")
        return {name: saved[split_name].to_list() for name, split_name in source.splits.items()}
    found = {}
    for name, file_name in source.splits.items():
        files = [file for suffix in SUFFIXES if (file := path / f"{file_name}{suffix}").is_file()]
        require(bool(files), f"the data {path} has no {file_name}.jsonl: give {_expected(source)}")
        found[name] = read_rows(files[0])
    return found


def _expected(source: Source) -> str:
    files, columns = " and ".join(f"{name}.jsonl" for name in source.splits.values()), ", ".join(source.columns)
    with_columns = f" with the columns {columns}" if columns else ""
    return f"a JSONL, JSON, CSV or parquet file{with_columns}, or a folder with {files}"


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL, JSON, CSV or parquet file, also compressed by gzip, by the end of its name."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(path).to_pylist()
        else:
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
                rows = list(_read(file, path.name.removesuffix(".gz")))
    except (OSError, ValueError, EOFError, csv.Error) as error:  # pyarrow's and JSON's own are ValueErrors
        raise UserError(f"cannot read {path}: {first_line(error)}") from error
    for number, row in enumerate(rows, 1):
        require(isinstance(row, dict), f"{path}: row {number} must be an object, got {row!r:.60}")
    return rows


def _read(file: Any, name: str) -> Iterator[Any]:  # noqa: ANN401 - an open file
    if name.endswith(".csv"):
        csv.field_size_limit(2**31 - 1)  # Python's own limit is 131,072 characters
        header = next((line for line in file if line.strip()), "")
        delimiter = max(",;\t", key=header.count)
        (columns,) = csv.reader([header.strip()], delimiter=delimiter)
        yield from csv.DictReader(file, [name.strip() for name in columns], delimiter=delimiter)
    elif name.endswith(".json"):
        yield from json.load(file)
    else:
        for number, line in enumerate(file, 1):
            try:
                yield from [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error}): {line:.40}") from error
