"""The rows of a task's examples: a public dataset, or a local copy with the same columns."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loguru import logger

from minrl.tasks.checked import require_example
from minrl.tasks.row_files import MOST_LEFT_OUT, read_each
from minrl.tasks.task import Dataset, DeferredDataset, identity_of, in_order_of_identity, split
from minrl.types import Example, Mistake, UserError, require
from minrl.utils.text import first_line

T = TypeVar("T")
Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".json", ".csv")
"""The files of a folder that are read, in this order."""

NAMED = 8
"""Of so many rows that are left out the reason is said, of the others the number alone."""


@dataclass(frozen=True)
class Source:
    """The rows of a task: their columns, and the hub's dataset that holds them if no local file is named.

    `Source(columns=("question", "answer"))` has no dataset: the rows are those of `--data-path`. Each row needs all
    `columns`. `splits` maps the task's names to the dataset's: `train` and `held_out`, `held_out` alone for evaluation
    only, or `all`, which is split by identity.
    """

    hub_name: str = ""
    columns: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=lambda: {"all": "train"})
    configuration: str | None = None


def dataset_of(
    source: Source,
    data_path: str,
    example_of: Callable[[Row], Example],
    held_out_share: float = 0.2,
    by: Callable[[Example], str] = identity_of,
) -> DeferredDataset:
    """The examples of the rows, read when they are first used.

    The source's own splits are kept; rows without any are split by `by`: see `split`. A repeated problem counts once,
    and a held-out one is not trained on. `example_of` raises UserError for a row that it cannot use: see `load_each`.
    """

    def load() -> Dataset:
        found = load_each(source, data_path, functools.partial(_checked, example_of))
        if "all" in found:
            try:
                return split(_by_identity(found["all"]).values(), held_out_share, by)
            except UserError as error:
                raise UserError(f"{data_path or source.hub_name}: {error}: give more rows") from error
        held_out, train = _by_identity(found["held_out"]).values(), _by_identity(found.get("train", [])).values()
        taken = set(map(by, held_out))
        return Dataset(
            in_order_of_identity(example for example in train if by(example) not in taken),
            in_order_of_identity(held_out),
            by,
        )

    return DeferredDataset(load)


def _checked(example_of: Callable[[Row], Example], row: Row) -> Example:
    example = example_of(row)
    require_example(example)
    return example


def _by_identity(examples: Iterable[Example]) -> dict[str, Example]:
    found: dict[str, Example] = {}
    for example in examples:
        found.setdefault(example.id, example)
    return found


def load_each(source: Source, data_path: str, read: Callable[[Row], T]) -> dict[str, list[T]]:
    """What `read` makes of each row, by split: see `load_rows`.

    Lines that hold no row, rows that lack a column, and those on which `read` raises UserError or stumbles over another
    kind of value, are left out, counted and named; where they are more than `MOST_LEFT_OUT` of a split, the first is
    refused.
    """

    def read_whole(row: Row) -> T:
        missing = [column for column in source.columns if row.get(column) is None or not str(row[column]).strip()]
        if missing:
            has = ", ".join(str(column) for column in row if column not in missing) or "nothing"
            raise UserError(f"lacks {', '.join(missing)} (it has {has}): {_expected(source)}")
        return read(row)

    where = data_path or source.hub_name
    return {name: _usable(rows, read_whole, f"{where} ({name})") for name, rows in _splits(source, data_path).items()}


def _usable(rows: Sequence[Row | UserError], read: Callable[[Row], T], where: str) -> list[T]:
    """What `read` makes of the rows that it can use. The others are said."""
    made, unusable = [], []
    for number, row in enumerate(rows, 1):
        try:
            if isinstance(row, UserError):
                raise row
            made.append(read(row))
        except Mistake as error:
            raise Mistake(f"row {number} of {where}: {error}") from error
        except UserError as error:
            unusable.append((number, str(error)))
        except KeyError as error:
            assert not isinstance(row, UserError)
            unusable.append((number, f"lacks {error} (it has {', '.join(map(str, row))})"))
        except (ArithmeticError, AttributeError, IndexError, RecursionError, TypeError, ValueError) as error:
            # another kind of value, or one that is nested too deeply
            unusable.append((number, f"not as the task reads it: {type(error).__name__}: {error}"))
    if unusable:
        unusable = [(number, " ".join(reason.split())) for number, reason in unusable]
        (number, reason), share = unusable[0], f"{len(unusable)} of {len(rows)} rows"
        if len(unusable) > MOST_LEFT_OUT * len(rows):
            also = "" if len(rows) == 1 else f" ({share} cannot be used, and at most {MOST_LEFT_OUT:.0%} are left out)"
            raise UserError(f"row {number} of {where}: {reason}{also}")
        named = "; ".join(f"row {number}: {reason:.100}" for number, reason in unusable[:NAMED])
        others = ", ".join(str(number) for number, _ in unusable[NAMED:])
        _say_once(f"{where}: {share} left out: {named}{'; rows ' if others else ''}{others}")
    return made


@functools.cache
def _say_once(line: str) -> None:
    """Say it once, though a program may read the rows several times."""
    logger.warning(line)


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


def load_rows(source: Source, data_path: str) -> dict[str, list[dict[str, Any]]]:
    """The rows by split: `train` and `held_out` if the source has them, else all under `all`.

    `data_path` is a JSONL file, a JSON file with a list, a CSV file, or a folder with a file for each split, such as
    `train.jsonl` and `test.jsonl`. Empty: the hub's dataset. A single file has no splits. `load_each` says which rows
    are left out.
    """
    return load_each(source, data_path, dict)


def _splits(source: Source, data_path: str) -> Mapping[str, Sequence[Row | UserError]]:
    require(
        bool(data_path or source.hub_name), f"the task has no data of its own: give --data-path {_expected(source)}"
    )
    splits: Mapping[str, Sequence[Row | UserError]] = (
        _local(source, Path(data_path)) if data_path else _from_hub(source)
    )
    for name, rows in splits.items():
        require(bool(rows), f"{data_path or source.hub_name} has no rows ({name}): {_expected(source)}")
    return splits


def _local(source: Source, path: Path) -> dict[str, list[Row | UserError]]:
    require(path.exists(), f"--data-path {path} does not exist: {_expected(source)}")
    if path.is_file():
        return {"all": read_each(path)}
    found = {}
    for name, file_name in source.splits.items():
        files = [path / f"{file_name}{suffix}" for suffix in SUFFIXES]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise UserError(f"--data-path {path} is a folder without {files[0].name}: {_expected(source)}")
        found[name] = read_each(file)
    return found


def _from_hub(source: Source) -> dict[str, list[dict[str, Any]]]:
    """The dataset by the `datasets` library, which caches it."""
    import datasets  # here, so that reward workers start without it
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
        reason = first_line(error)
        raise UserError(
            f"cannot load dataset {source.hub_name!r} of the hub{offline}: {reason}; give a local copy with "
            f"--data-path: {_expected(source)}"
        ) from error


def _expected(source: Source) -> str:
    files = " and ".join(f"{name}.jsonl" for name in source.splits.values())
    return f"a JSONL, JSON or CSV file with the columns {', '.join(source.columns)}, or a folder with {files}"
