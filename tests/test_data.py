"""The rows of files, folders and programs, and those that cannot be used."""

import codecs
import csv
import gzip
import io
import json
import re

import pyarrow
import pyarrow.parquet
import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks.data import Source, dataset_of, load_each, read_rows
from minrl.tasks.task import is_held_out
from tests.runs import write_rows

SOURCE = Source("someone/sums", ("question", "answer"), {"train": "train", "held_out": "test"})
ROWS = [{"question": "1 + 1", "answer": "2"}, {"question": "a\u2028b", "answer": "3"}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()


def table(rows, delimiter=","):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".jsonl", codecs.BOM_UTF8 + LINES),
        (".json", json.dumps(ROWS, indent=1).encode()),
        (".jsonl.gz", gzip.compress(LINES, mtime=0)),
        (".parquet", parquet(ROWS)),
        *((".csv", codecs.BOM_UTF8 + table(ROWS, delimiter)) for delimiter in ",;"),
    ],
)
def test_every_kind_of_file_holds_the_same_rows(tmp_path, suffix, data):
    (tmp_path / f"rows{suffix}").write_bytes(data)
    assert read_rows(tmp_path / f"rows{suffix}") == ROWS
    for name in ("train", "test"):
        (tmp_path / f"{name}{suffix}").write_bytes(data)
    assert load_each(SOURCE, str(tmp_path), dict) == {"train": ROWS, "held_out": ROWS}
    assert load_each(SOURCE, str(tmp_path / f"rows{suffix}"), dict) == {"all": ROWS}


def test_folders_that_datasets_saved_are_read(tmp_path):
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "two")
    assert load_each(SOURCE, str(tmp_path / "one"), dict) == {"all": ROWS}
    assert load_each(SOURCE, str(tmp_path / "two"), dict) == {"train": ROWS, "held_out": ROWS}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"question": "1"}\n', "row 1: lacks answer .it has question.*columns question, answer"),
        ("a.jsonl", LINES + b"\n{oops", "cannot read .*a.jsonl: line 3 is not JSON .*: {oops"),
        ("a.jsonl", '{"question": "\xe9"}'.encode("latin-1"), "cannot read .*a.jsonl: .*utf-8.* byte 0xe9"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_one_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said) as caught:
        load_each(SOURCE, str(tmp_path / name), dict)
    assert "\n" not in str(caught.value)


def mixed(bad, good):
    """Rows of which the last ones cannot be used."""
    return [{"question": str(n), "answer": str(n) if n < good else "two"} for n in range(good + bad)]


def sums(path):
    source = Source(columns=("question", "answer"))
    return dataset_of(source, str(path), lambda row: Example(row["question"], "", {"answer": int(row["answer"])}))


def test_rows_that_cannot_be_used_are_left_out_counted_and_named_once(tmp_path, said):
    path = write_rows(tmp_path / "rows.jsonl", *[*mixed(bad=1, good=38), {"question": "lost"}])
    for _ in range(2):  # a program may make the task more than once
        dataset = sums(path)
        assert len(dataset.train) + len(dataset.held_out) == 38
    (line,) = said
    assert re.search(r"rows.jsonl \(all\): 2 of 40 rows left out: row 39: ValueError: .*two", line)


def test_more_than_the_share_of_rows_that_cannot_be_used_is_refused(tmp_path):
    """The share is 5 %: 2 of 40 rows, not 3 of 40."""
    sums(write_rows(tmp_path / "rows.jsonl", *mixed(bad=2, good=38))).sizes()
    path = write_rows(tmp_path / "rows.jsonl", *mixed(bad=3, good=37))
    with pytest.raises(UserError, match=r"\(all\): 3 of 40 rows cannot be used: row 38: ValueError"):
        sums(path).sizes()


def test_the_splits_of_rows_are_kept_or_made_by_identity(tmp_path):
    source, own = Source(columns=("question",)), Source(splits={"train": "train", "held_out": "test"})
    train = write_rows(tmp_path / "train.jsonl", *[{"question": str(n)} for n in range(20)])
    write_rows(tmp_path / "test.jsonl", *[{"question": str(n)} for n in range(18, 22)])
    example_of = lambda row: Example(row["question"], row["question"], {})  # noqa: E731
    for place in (train, tmp_path):
        dataset = dataset_of(source, str(place), example_of)
        assert len(dataset.train) + len(dataset.held_out) == 20
        assert dataset.held_out == [one for one in dataset.held_out if is_held_out(one.id, 0.2)] != []
    assert dataset_of(own, str(tmp_path), example_of).sizes() == (18, 4)  # without what is held out too
