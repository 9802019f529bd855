"""The rows of files, folders and programs, and those that cannot be used."""

import codecs
import csv
import gzip
import io
import json
import re

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from minrl.tasks import load_task
from minrl.tasks.data import Source, dataset_of, load_rows, read_rows
from minrl.tasks.task import is_held_out
from minrl.types import Example, Mistake, UserError

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


def write(path, rows):
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".jsonl", LINES),
        (".jsonl", codecs.BOM_UTF8 + LINES),
        (".json", json.dumps(ROWS, indent=1).encode()),
        (".jsonl.gz", gzip.compress(LINES, mtime=0)),
        (".csv", gzip.compress(table(ROWS), mtime=0)),
        (".csv.gz", gzip.compress(table(ROWS), mtime=0)),
        (".parquet", parquet(ROWS)),
        *((".csv", mark + table(ROWS, delimiter)) for delimiter in ",;\t" for mark in (b"", codecs.BOM_UTF8)),
    ],
)
def test_every_kind_of_file_holds_the_same_rows(tmp_path, suffix, data):
    (tmp_path / f"rows{suffix}").write_bytes(data)
    assert read_rows(tmp_path / f"rows{suffix}") == ROWS
    for name in ("train", "test"):
        (tmp_path / f"{name}{suffix}").write_bytes(data)
    assert load_rows(SOURCE, str(tmp_path)) == {"train": ROWS, "held_out": ROWS}
    assert load_rows(SOURCE, str(tmp_path / f"rows{suffix}")) == {"all": ROWS}


def test_folders_that_datasets_saved_are_read(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "two")
    assert load_rows(SOURCE, str(tmp_path / "one")) == {"all": ROWS}
    assert load_rows(SOURCE, str(tmp_path / "two")) == {"train": ROWS, "held_out": ROWS}
    (tmp_path / "one" / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read .*one, which `datasets` saved: .*: save it again"):
        load_rows(SOURCE, str(tmp_path / "one"))
    with pytest.raises(UserError, match="has no split dev, only train, test"):
        load_rows(Source(splits={"held_out": "dev"}), str(tmp_path / "two"))


@pytest.mark.parametrize(
    "text",
    [
        "question,answer\nQ," + "A" * 200_000,  # a long document; Python's own limit is 131,072
        "\n\nquestion,answer\nQ,A",
        "question, answer\nQ,A",
        "question,answer,,\nQ,A,,",  # as spreadsheets write empty columns
        '"question";"answer";"one, two, three"\nQ;A;3',
    ],
    ids=["long", "empty lines", "space", "empty columns", "other delimiters in a name"],
)
def test_csv_files_as_people_have_them_are_read(tmp_path, text):
    (tmp_path / "rows.csv").write_text(text)
    (row,) = load_rows(Source(columns=("question", "answer")), str(tmp_path / "rows.csv"))["all"]
    assert (row["question"], set(row["answer"]), "" in row) == ("Q", {"A"}, False)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", b"question,answer\n1,2\n\n3,4,5\n", "line 4 has 3 values for 2 columns"),
        ("a.csv", b'question,answer\n1,"2\n', "line 2 is not CSV: unexpected end of data"),
        ("a.csv", b"question,answer,answer\n1,2,3\n", "has two columns of one name: question, answer, answer"),
        ("a.csv", b"question,answer\n", "has no rows"),
        ("a.jsonl", b'{"question": "1"}\n', "row 1 of .* lacks answer .it has question.*columns question, answer"),
        ("a.jsonl", b"[" * 100_000, "is not JSON"),
        ("a.json", json.dumps(ROWS).encode()[:-1], "a.json is not JSON"),
        ("a.jsonl", '{"question": "\xe9"}'.encode("latin-1"), "is not UTF-8 text .byte 0xe9.*-f WINDOWS-1252 -t U"),
        ("a.jsonl", '{"question": "1"}'.encode("utf-16"), "is not UTF-8 text .byte 0xff at 0.* -f UTF-16 -t UTF-8"),
        ("a.jsonl", b"\x89PNG\x0d\x0a\x1a\x0a\0\0", r"is not UTF-8 text .*: give JSONL, JSON, CSV or parquet$"),
        ("a.jsonl", b"PAR1\x15\x84", "cannot read .*a.jsonl as parquet: "),
        ("a.jsonl", gzip.compress(LINES, mtime=0)[:20], "cannot read .*a.jsonl: "),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_one_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said) as caught:
        load_rows(SOURCE, str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_place_that_lacks_rows_says_what_would_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write(tmp_path / "train.jsonl", ROWS)
    for source, path, line in (
        (SOURCE, str(tmp_path), r"without test\.jsonl: .*question, answer.*train\.jsonl and test\.jsonl"),
        (
            SOURCE,
            str(tmp_path / "no"),
            "does not exist: a JSONL, JSON, CSV or parquet file with the columns question",
        ),
        (SOURCE, "", "cannot load dataset 'someone/sums' of the hub.*--data-path"),
        (Source(columns=("a", "b")), "", "no data of its own: give --data-path a JSONL, .* the columns a, b"),
    ):
        with pytest.raises(UserError, match=line) as caught:
            load_rows(source, path)
        assert "\n" not in str(caught.value)


# Rows that cannot be used


GOOD = "".join(f'{{"question": "{n}", "answer": "{n}"}}\n' for n in range(100))
LINES = {
    "invalid": (b"{oops", "is not JSON"),
    "null": (b"null", "must be a JSON object, got NoneType"),
    "digits": (b'{"question": "1", "answer": ' + b"9" * 5000 + b"}", "is not JSON"),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", LINES)
def test_a_line_that_holds_no_row_costs_no_other(tmp_path, said, name, first):
    line, reason = LINES[name]
    path, good = tmp_path / "rows.jsonl", GOOD.encode()
    path.write_bytes(line + b"\n" + good if first else good + line)
    assert sum(sums(path).sizes()) == 100
    number = 1 if first else 101
    assert f"1 of 101 rows left out: row {number}: line {number} {reason}" in said[0]
    with pytest.raises(UserError, match=f"row {number} of .*: line {number} {reason}"):
        read_rows(path)  # demonstrations are refused


def test_a_line_of_a_csv_file_that_holds_no_row_costs_no_other(tmp_path, said):
    rows = [b"%d,%d" % (n, n) for n in range(100)]
    (tmp_path / "rows.csv").write_bytes(b"\n".join([b"question,answer", *rows[:50], b"1,2,3", *rows[50:]]))
    assert sum(sums(tmp_path / "rows.csv").sizes()) == 100
    assert "1 of 101 rows left out: row 51: line 52 has 3 values for 2 columns" in said[0]


def mixed(bad, good, kind="two"):
    """Rows of which the last ones cannot be used."""
    return [{"question": str(n), "answer": str(n) if n < good else kind} for n in range(good + bad)]


def sums(path, **others):
    source = Source(columns=("question", "answer"), **others)
    return dataset_of(source, str(path), lambda row: Example(row["question"], "", {"answer": int(row["answer"])}))


def test_rows_that_cannot_be_used_are_left_out_counted_and_named_once(tmp_path, said):
    path = write(tmp_path / "rows.jsonl", [*mixed(bad=1, good=38), {"question": "lost"}])
    reasons = r"row 39: not as the task reads it: ValueError: .*two.*; row 40: lacks answer \(it has question\)"
    for _ in range(2):  # a program may make the task more than once
        dataset = sums(path)
        assert len(dataset.train) + len(dataset.held_out) == 38
    (line,) = said
    assert re.search(rf"rows.jsonl \(all\): 2 of 40 rows left out: {reasons}", line)


@pytest.mark.parametrize("kind", ["two", " "])
def test_more_than_the_share_of_rows_that_cannot_be_used_is_refused(tmp_path, kind):
    """The share is 5 %: 2 of 40 rows, not 3 of 40."""
    sums(write(tmp_path / "rows.jsonl", mixed(bad=2, good=38, kind=kind))).sizes()
    path = write(tmp_path / "rows.jsonl", mixed(bad=3, good=37, kind=kind))
    with pytest.raises(UserError, match=r"^row 38 of .*\(3 of 40 rows cannot be used, and at most 5% are left out\)$"):
        sums(path).sizes()
    (tmp_path / "train.jsonl").write_text(path.read_text() + "".join(path.read_text() for _ in range(9)))
    write(tmp_path / "test.jsonl", mixed(bad=3, good=37, kind=kind))
    with pytest.raises(UserError, match=r"row 38 of .*\(held_out\)"):  # each split by itself
        write(tmp_path / "train.jsonl", mixed(bad=3, good=500))
        sums(tmp_path, splits={"train": "train", "held_out": "test"}).sizes()


def test_a_mistake_of_the_tasks_code_is_no_row_that_cannot_be_used(tmp_path):
    path = write(tmp_path / "rows.jsonl", mixed(bad=0, good=40))
    examples = lambda row: Example(row["question"], "", {}) if row["question"] != "7" else None  # noqa: E731
    with pytest.raises(Mistake, match=r"row 8 of .*a dataset holds Examples, got None"):
        dataset_of(Source(), str(path), examples).sizes()


BROKEN = {
    "gsm8k": ({"question": "What is {n} + 1?", "answer": "#### {n}"}, {"answer": "none"}),
    "math": ({"problem": "What is {n} + 1?", "solution": r"\boxed {n}"}, {"solution": r"\boxed{{}}"}),
    "countdown_3to4": ({"target": "{n}", "nums": "[{n}, 1, 2]"}, {"nums": "[1"}),
    "code": (
        {"task_id": "{n}", "text": "Number {n}.", "code": "def f(): return {n}", "test_setup_code": "#"}
        | {"test_list": ["assert f() == {n}", "assert f() != -1"]},
        {"test_list": ["assert f() =="]},
    ),
    "connections": (
        {"words": [f"{{n}} {n}" for n in range(16)]}
        | {"groups": [{"members": [f"{{n}} {n}" for n in range(first, first + 4)]} for first in (0, 4, 8, 12)]},
        {"words": ["one"]},
    ),
}


def numbered(value, n):
    """The template of a row with its number."""
    if isinstance(value, str):
        return value.format(n=n)
    each = value.items() if isinstance(value, dict) else enumerate(value)
    made = {key: numbered(part, n) for key, part in each}
    return made if isinstance(value, dict) else list(made.values())


@pytest.mark.parametrize("name", BROKEN)
def test_one_row_that_cannot_be_used_refuses_no_tasks_data(tmp_path, said, name):
    template, change = BROKEN[name]
    rows = [numbered(template, n) for n in range(40)]
    path = write(tmp_path / "rows.jsonl", [*rows, {**rows[0], **numbered(change, 0)}])
    assert sum(load_task(name, None, str(path)).dataset.sizes()) == 40
    assert "1 of 41 rows left out: row 41: " in said[0]


def test_the_splits_of_rows_are_kept_or_made_by_identity(tmp_path, said):
    source, own = Source(columns=("question",)), Source(splits={"train": "train", "held_out": "test"})
    train = write(tmp_path / "train.jsonl", [{"question": str(n)} for n in range(20)])
    write(tmp_path / "test.jsonl", [{"question": str(n)} for n in range(18, 22)])
    example_of = lambda row: Example(row["question"], row["question"], {})  # noqa: E731
    for place in (train, tmp_path):
        dataset = dataset_of(source, str(place), example_of)
        assert len(dataset.train) + len(dataset.held_out) == 20
        assert dataset.held_out == [one for one in dataset.held_out if is_held_out(one.id, 0.2)] != []
    assert dataset_of(own, str(tmp_path), example_of).sizes() == (18, 4)
    assert "2 training rows have a held-out problem and are left out" in said[-1]
