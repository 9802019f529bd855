import codecs
import csv
import io
import json

import pytest

from minrl.tasks.rows import Source, dataset_of, identity, load_rows, read_rows
from minrl.tasks.task import is_held_out, weighted
from minrl.types import Example, UserError

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
        ("question,answer\n1,2\n\n3,4,5\n", "line 4 of .* has 3 values for 2 columns"),
        ('question,answer\n1,"2\n', "line 2 of .* is not CSV: unexpected end of data"),
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
        ('{"question": "1", "answer": "2"}\n{oops\n', "line 2 of .* is not JSON"),
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
        with pytest.raises(UserError, match=rf"row 2 of .*rows.jsonl \(all\) is not as the task reads it: {reason}"):
            len(dataset_of(Source(), str(path), example_of).train)


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
            r"row 1 of .*rows.jsonl \(all\) lacks 'text' \(it has q",
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
