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
        (".csv.gz", gzip.compress(table(ROWS), mtime=0)),
        (".parquet", parquet(ROWS)),
        *((".csv", codecs.BOM_UTF8 + table(ROWS, delimiter)) for delimiter in ",;\t"),
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


def test_csv_files_as_people_have_them_are_read(tmp_path):
    for text in (
        "question,answer\nQ," + "A" * 200_000,  # a long document; Python's own limit is 131,072
        "\n\nquestion,answer\nQ,A",
        "question, answer\nQ,A",
        "question,answer,\nQ,A,",  # as spreadsheets write empty columns
    ):
        (tmp_path / "rows.csv").write_text(text)
        (row,) = read_rows(tmp_path / "rows.csv")
        assert (row["question"], {*row["answer"]}) == ("Q", {"A"})


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"question": "1"}\n', "row 1: lacks answer .it has question.*columns question, answer"),
        ("a.jsonl", b'[1]\n', r"row 1 must be an object, got \[1\]"),
        ("a.jsonl", LINES + b"\n{oops", "cannot read .*a.jsonl: line 3 is not JSON .*: {oops"),
        ("a.json", json.dumps(ROWS).encode()[:-1], "cannot read .*a.json: "),
        ("a.jsonl", '{"question": "\xe9"}'.encode("latin-1"), "cannot read .*a.jsonl: .*utf-8.* byte 0xe9"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:20], "cannot read .*a.jsonl.gz: "),
        ("a.parquet", LINES, "cannot read .*a.parquet: "),
        ("a.csv", b"question,answer\n", "has no rows"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_one_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said) as caught:
        load_each(SOURCE, str(tmp_path / name), dict)
    assert "\n" not in str(caught.value)


def test_a_place_that_lacks_rows_says_what_would_be_read(tmp_path):
    write_rows(tmp_path / "train.jsonl", *ROWS)
    for source, path, line in (
        (SOURCE, str(tmp_path), r"has no test\.jsonl: .*question, answer.*train\.jsonl and test\.jsonl"),
        (SOURCE, "", r"cannot load dataset 'someone/sums' of the hub.*--data-path"),
        (Source(columns=("a", "b")), "", r"no data of its own: give --data-path a JSONL, .* the columns a, b"),
    ):
        with pytest.raises(UserError, match=line):
            load_each(source, path, dict)


# Rows that cannot be used


def mixed(bad, good):
    """Rows of which the last ones cannot be used."""
    return [{"question": str(n), "answer": str(n) if n < good else "two"} for n in range(good + bad)]


def sums(path, **others):
    source = Source(columns=("question", "answer"), **others)
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
    write_rows(tmp_path / "test.jsonl", *mixed(bad=3, good=37))
    write_rows(tmp_path / "train.jsonl", *mixed(bad=3, good=500))
    with pytest.raises(UserError, match=r"\(held_out\): 3 of 40 rows .* row 38"):  # each split by itself
        sums(tmp_path, splits={"train": "train", "held_out": "test"}).sizes()


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
