"""Files of rows, broken in every way: the line says which row of which file, and what was expected."""

import gzip
import json

import pytest

from tests.wrong_uses import TINY, refused  # noqa: F401 - a fixture

ROW = {"question": "What is 1 + 1?", "answer": "It is 2.\n#### 2"}
LINE = json.dumps(ROW) + "\n"
MANY = "".join(json.dumps({**ROW, "question": f"What is {n} + 1?"}) + "\n" for n in range(40))
SHOWN = json.dumps({"prompt": "1 + 1", "response": "2"}) + "\n"


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


DATA = {
    "a table with commas": ("question,answer\n1 + 1,2\n", "not JSON"),
    "Python's quotes": (str(ROW), "line 1", "not JSON"),
    "many lines cut": (MANY + (LINE[:30] + "\n") * 3, "line 41", "not JSON"),
    "one object over all rows": (json.dumps({"data": [ROW]}), "row 1", "lacks question, answer", "it has data"),
    "a column renamed half way": (MANY + MANY.replace("answer", "solution"), "row 41", "lacks answer", "40 of 80 rows"),
    "a question that is null": (lines({**ROW, "question": None}), "row 1", "question"),
    "an answer without its mark": (lines({**ROW, "answer": "two"}), "row 1", "####"),
    "the same row again and again": (LINE * 40, "a dataset needs held-out examples"),
    "a compressed file": (gzip.compress(MANY.encode()), "is not UTF-8 text"),
    "Windows' 16 bits": (MANY.encode("utf-16"), "is not UTF-8 text"),
    "Latin letters of old": (MANY.replace("What", "Wh\u00e4t").encode("latin-1"), "is not UTF-8 text", "WINDOWS-1252"),
    "a number of too many digits": ('{"question": "1", "answer": ' + "9" * 5000 + "}", "line 1", "not JSON"),
}
"""What the file of `--data-path` holds, and what the line must say. Others are in test_rows.py."""


@pytest.mark.parametrize("case", DATA)
def test_a_broken_file_of_a_task_is_one_line(refused, tmp_path, monkeypatch, case):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    content, *words = DATA[case]
    (tmp_path / "mine.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    flags = ["--task", "gsm8k", "--data-path", "mine.jsonl", "--model-id", "nowhere", *TINY.split()]
    refused("train", flags, "mine.jsonl", *words)


FOLDERS = {
    "empty": {},
    "of other names": {"training.jsonl": LINE, "validation.jsonl": LINE},
    "with an empty split": {"train.jsonl": MANY, "test.jsonl": ""},
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_broken_folder_of_a_task_is_one_line(refused, tmp_path, monkeypatch, case):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name, content in FOLDERS[case].items():
        (tmp_path / "mine" / name).write_text(content)
    flags = ["--task", "gsm8k", "--data-path", "mine", "--model-id", "nowhere", *TINY.split()]
    refused("train", flags, "mine", "columns question, answer", "train.jsonl and test.jsonl")


ROWS = {
    "sft: a table": ("prompt,response\n1,2\n", "rows.jsonl", "line 1 is not JSON"),
    "sft: other columns": (
        lines({"question": "1", "answer": "2"}),
        "row 1",
        "it has question, answer",
        "--prompt-column",
    ),
    "sft: a list of texts": (json.dumps(["1", "2"]), "row 1", "must be a JSON object, got str"),
    "filter: of 16 bits": (SHOWN.encode("utf-16"), "cannot read the rows in rows.jsonl"),
    "evaluate: of 16 bits": (SHOWN.encode("utf-16"), "cannot read the completions in rows.jsonl"),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_broken_file_of_rows_is_one_line(refused, tmp_path, monkeypatch, case):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    content, *words = ROWS[case]
    (tmp_path / "rows.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    program = case.partition(":")[0]
    flags = {
        "sft": "--data rows.jsonl --model-id nowhere --device cpu --quiet",
        "filter": "--task countdown --data rows.jsonl --output kept.jsonl --reward-workers 1",
        "evaluate": "--task countdown --completions rows.jsonl --quiet --reward-workers 1",
    }
    refused(program, flags[program].split(), *words)
