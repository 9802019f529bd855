import codecs
import csv
import io
import json
import re

import pytest

from minrl.tasks import load_task
from minrl.tasks.row_files import read_rows
from minrl.tasks.rows import Source, dataset_of, identity, load_rows
from minrl.tasks.task import is_held_out, weighted
from minrl.types import Example, Mistake, UserError

SOURCE = Source("someone/sums", ("question", "answer"), {"train": "train", "held_out": "test"})
ROWS = [{"question": "1 + 1", "answer": "2"}, {"question": "a\u2028b", "answer": "3"}]


def write(path, rows):
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    return path


def test_jsonl_and_a_json_list_hold_the_same_rows(tmp_path):
    lines = write(tmp_path / "rows.jsonl", ROWS)
    whole = tmp_path / "rows.json"
    whole.write_text(json.dumps(ROWS, indent=1))
    assert read_rows(lines) == read_rows(whole) == ROWS
    assert load_rows(SOURCE, str(lines)) == {"all": ROWS}


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_rows(path) == ROWS


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_csv_holds_the_same_rows(tmp_path, delimiter, mark):
    rows = [*ROWS, {"question": 'he said "1, 2; 3"\nand went', "answer": "6"}]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "all.CSV").write_bytes(mark + text.getvalue().encode())
    assert load_rows(SOURCE, str(tmp_path / "all.CSV")) == {"all": rows}
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_bytes(mark + text.getvalue().encode())
    assert load_rows(SOURCE, str(tmp_path)) == {"train": rows, "held_out": rows}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question\n1\n", "row 1 of .* lacks answer"),
        ("question,answer\n1,2\n\n3,4,5\n", "line 4 has 3 values for 2 columns"),
        ('question,answer\n1,"2\n', "line 2 is not CSV: unexpected end of data"),
        ("question,answer,answer\n1,2,3\n", "has two columns of one name: question, answer, answer"),
        ("question,answer\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_a_broken_csv_file_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load_rows(SOURCE, str(tmp_path / "rows.csv"))
    assert "\n" not in str(caught.value)


def test_a_folder_keeps_the_splits_of_its_files(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:1])
    write(tmp_path / "test.jsonl", ROWS[1:])
    assert load_rows(SOURCE, str(tmp_path)) == {"train": ROWS[:1], "held_out": ROWS[1:]}


def test_a_folder_that_lacks_a_split_is_refused(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match=r"without test\.jsonl: .*question, answer.*train\.jsonl and test\.jsonl"):
        load_rows(SOURCE, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"question": "1"}\n', "row 1 of .* lacks answer .it has question.*columns question, answer"),
        ('{"question": "1", "answer": "2"}\n{oops\n', "line 2 is not JSON"),
        ("[1]", "row 1 of .* must be a JSON object, got int"),
        ("[" * 100_000, "is not JSON"),
        ("", "has no rows"),
        ('{"question": "é"}'.encode("latin-1"), r"is not UTF-8 text .byte 0xe9 at 14.*iconv -f WINDOWS-1252 -t UTF-8"),
        ('{"question": "1"}'.encode("utf-16"), r"is not UTF-8 text .byte 0xff at 0.*iconv -f UTF-16 -t UTF-8"),
        (b"PAR1\x15\x84", "is not UTF-8 text .*: give JSONL, JSON or CSV"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, text, said):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=said) as caught:
        load_rows(SOURCE, str(path))
    assert "\n" not in str(caught.value)


GOOD = "".join(f'{{"question": "{n}", "answer": "{n}"}}\n' for n in range(100))
LINES = {
    "invalid": (b"{oops", "is not JSON"),
    "broken off": (b'{"question": "1", "ans', "is not JSON"),
    "null": (b"null", "must be a JSON object, got NoneType"),
    "list": (b"[1, 2]", "must be a JSON object, got list"),
    "text": (b'"x"', "must be a JSON object, got str"),
    "digits": (b'{"question": "1", "answer": ' + b"9" * 5000 + b"}", "is not JSON"),
    "nested": (b"[" * 100_000, "is not JSON"),
    "byte": (b'{"question": "\xe9", "answer": "1"}', "is not UTF-8 text"),
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


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "has 1 values for 2 columns"),
        (b"1,2,3", "has 3 values for 2 columns"),
        (b'"odd" quoted,2', "is not CSV: "),
        (b"\xe9,2", "is not UTF-8 text"),
    ],
)
def test_a_line_of_a_csv_file_that_holds_no_row_costs_no_other(tmp_path, said, line, reason):
    rows = [b"%d,%d" % (n, n) for n in range(100)]
    (tmp_path / "rows.csv").write_bytes(b"\n".join([b"question,answer", *rows[:50], line, *rows[50:]]))
    assert sum(sums(tmp_path / "rows.csv").sizes()) == 100
    assert f"1 of 101 rows left out: row 51: line 52 {reason}" in said[0]


def test_a_quotation_mark_that_takes_lines_with_it_counts_each(tmp_path):
    rows = [f"{n},{n}" for n in range(100)]
    (tmp_path / "rows.csv").write_text("\n".join(["question,answer", *rows[:50], '"1,2', *rows[50:]]))
    with pytest.raises(UserError, match=r"line 52 is not CSV: .* \(51 of 101 rows cannot be used"):
        sums(tmp_path / "rows.csv").sizes()


def test_a_document_that_breaks_off_and_another_encoding_are_refused_in_one_line(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([json.loads(line) for line in GOOD.splitlines()])[:-1])
    with pytest.raises(UserError, match=r"rows.json is not JSON"):
        sums(tmp_path / "rows.json").sizes()
    for text in (GOOD.encode("utf-16"), GOOD.replace('"1', '"\xe9').encode("latin-1")):
        (tmp_path / "rows.jsonl").write_bytes(text)
        with pytest.raises(UserError, match=r"rows.jsonl is not UTF-8 text .*iconv"):
            sums(tmp_path / "rows.jsonl").sizes()


def test_a_path_that_is_not_there_says_what_would_be_read(tmp_path):
    with pytest.raises(UserError, match="does not exist: a JSONL, JSON or CSV file with the columns question, answer"):
        load_rows(SOURCE, str(tmp_path / "nowhere.jsonl"))


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


def test_a_row_with_another_kind_of_value_is_named(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": "1", "answer": "2"}, {"question": "2", "answer": "two"}])
    for example_of, reason in (
        (lambda row: Example(row["question"], "", {"answer": int(row["answer"])}), "ValueError: invalid literal .*two"),
        (lambda row: Example(row["question"], "", {"answer": int(row["answer"] != "two") or row.text}), "Attribute"),
    ):
        with pytest.raises(UserError, match=rf"row 2 of .*rows.jsonl \(all\): not as the task reads it: {reason}"):
            len(dataset_of(Source(), str(path), example_of).train)


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


def test_many_rows_that_are_left_out_are_named_by_their_numbers(tmp_path, said):
    sums(write(tmp_path / "rows.jsonl", mixed(bad=12, good=400))).sizes()
    (line,) = said
    assert "12 of 412 rows left out: row 401: " in line
    assert line.count("ValueError") == 8 and line.endswith("; rows 409, 410, 411, 412\n")


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


def test_half_a_character_in_a_problem_is_no_reason_to_stop(tmp_path):
    """JSON may hold half of a pair of UTF-16; the preflight leaves such prompts out."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"question": "{n} \\ud800"}}\n' for n in range(20)))
    dataset = dataset_of(Source(), str(path), lambda row: Example(row["question"], identity(row["question"]), {}))
    assert len({example.prompt for example in [*dataset.train, *dataset.held_out]}) == 20


def test_rows_without_a_dataset_of_the_hub_are_those_of_the_users_file(tmp_path):
    mine = Source(columns=("question", "answer"))
    with pytest.raises(
        UserError, match=r"no data of its own: give --data-path a JSONL, .* the columns question, answer"
    ):
        load_rows(mine, "")
    path = write(tmp_path / "train.jsonl", [{"question": str(n), "answer": "2"} for n in range(20)])
    example_of = lambda row: Example(row["question"], row["question"], {"answer": row["answer"]})  # noqa: E731
    for place in (path, tmp_path):
        dataset = dataset_of(mine, str(place), example_of)
        assert len(dataset.train) + len(dataset.held_out) == 20
        assert dataset.held_out == [one for one in dataset.held_out if is_held_out(one.id, 0.2)] != []


@pytest.mark.parametrize(
    ("example_of", "line"),
    [
        (
            lambda row: Example(row["question"], row["text"], {}),
            r"row 1 of .*rows.jsonl \(all\): lacks 'text' \(it has q",
        ),
        (
            lambda row: {"prompt": row["question"]},
            r"row 1 of .*rows.jsonl \(all\): a dataset holds Examples, got {'pro",
        ),
    ],
)
def test_a_row_that_becomes_no_example_is_named(tmp_path, example_of, line):
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(UserError, match=line):
        len(dataset_of(Source(), str(path), example_of).train)


def test_a_hub_that_cannot_be_reached_names_the_dataset_and_the_way_out(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"cannot load dataset 'someone/sums' of the hub.*--data-path") as caught:
        load_rows(SOURCE, "")
    assert "\n" not in str(caught.value)


def test_weights_bound_the_reward_and_only_whole_parts_reach_its_maximum():
    weights = {"tests": 0.6, "build": 0.3, "style": 0.1}
    assert weighted({"tests": 1.0, "build": 1.0, "style": 1.0}, weights).solved
    assert weighted({"tests": 0.5, "build": 1.0, "style": 0.0}, weights).value == pytest.approx(0.6)
    assert not weighted({"tests": 1.0, "build": 1.0, "style": 1 - 1e-6}, weights).solved
    with pytest.raises(AssertionError, match="outside"):
        weighted({"tests": 1.5, "build": 1.0, "style": 1.0}, weights)
