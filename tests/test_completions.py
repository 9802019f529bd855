"""Scoring completions that somebody already has: one row out for each row in, in order, and no model."""

import json

import pytest

from minrl.completions import score_file
from minrl.tasks import load_task
from minrl.types import UserError
from minrl.workers import Workers

FIELDS = {"numbers": [3, 7, 5], "target": 9}
RIGHT, WRONG = "<answer> 7 + 5 - 3 </answer>", "<answer> 3 + 5 + 7 </answer>"


@pytest.fixture
def score(tmp_path):
    workers = Workers(1, 120.0)

    def run(*lines):
        source, output = tmp_path / "in.jsonl", tmp_path / "out/scored.jsonl"
        source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        counts = score_file(load_task("countdown"), source, output, workers)
        return counts, [json.loads(line) for line in output.read_text().split("\n")[:-1]]

    yield run
    workers.close()


def row(completion, **changes):
    return json.dumps({"completion": completion, **FIELDS, **changes}, ensure_ascii=False)


def test_rows_come_out_in_order_with_their_rewards(score):
    counts, rows = score(row(RIGHT, name="a"), row(WRONG, name="b"), row("", name="c"))
    assert counts == (3, 1, 0)  # rows, solved, failed
    assert [(r["name"], r["reward"], r["solved"]) for r in rows] == [
        ("a", 1.0, True),
        ("b", 0.1, False),
        ("c", 0.0, False),
    ]
    assert rows[0]["parts"] == {"format": 1.0, "correct": 1.0}
    assert rows[0]["completion"] == RIGHT and rows[0]["numbers"] == [3, 7, 5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('{"numbers": [3]}', "`completion` must be a string"),
        ('{"completion": 5}', "`completion` must be a string, got int"),
        (json.dumps({"completion": RIGHT, "numbers": [3, 7, 5]}), "the row lacks 'target', which the reward reads"),
        (json.dumps({"completion": RIGHT, "numbers": None, "target": 9}), "TypeError"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_row_is_null_and_says_why_and_the_others_are_scored(score, line, message):
    counts, rows = score(row(RIGHT), line, row(RIGHT))
    assert counts == (3, 2, 1)
    assert rows[1]["reward"] is None and message in rows[1]["error"]
    assert rows[0]["reward"] == rows[2]["reward"] == 1.0


def test_odd_line_separators_inside_a_completion_split_no_row(score):
    counts, rows = score(row(f"a\u2028b\u0085c\x1c {RIGHT}"), row(WRONG))
    assert counts == (2, 1, 0)
    assert [r["reward"] for r in rows] == [1.0, 0.1]


def test_a_rows_earlier_verdict_is_replaced(score):
    _, rows = score(row(RIGHT, reward=None, error="earlier", solved=False))
    assert rows[0]["reward"] == 1.0 and rows[0]["solved"] and "error" not in rows[0]


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for source in (tmp_path / "nowhere", tmp_path / "binary"):
        with pytest.raises(UserError, match="cannot read the completions") as refused:
            score_file(load_task("countdown"), source, tmp_path / "out", Workers(1, 1.0))
        assert "\n" not in str(refused.value)
