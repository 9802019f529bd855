"""Scoring completions that somebody already has: one row out for each row in, in order, and no model."""

import json

import pytest

from minrl.__main__ import main
from minrl.dataflow import Reward, UserError
from minrl.rewards.completions import Counts, score_file
from minrl.rewards.workers import Workers
from minrl.tasks import Task, load_task

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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('{"numbers": [3]}', "`completion` must be a string"),
        (json.dumps({"completion": RIGHT, "numbers": [3, 7, 5]}), "the row lacks 'target', which the reward reads"),
        (json.dumps({"completion": RIGHT, "numbers": None, "target": 9}), "TypeError"),
    ],
)
def test_a_bad_row_is_null_and_says_why_and_the_others_are_scored(score, line, message):
    counts, rows = score(row(RIGHT), line, row(RIGHT))
    assert counts == Counts(3, 2, 1)
    assert rows[1]["reward"] is None and message in rows[1]["error"]
    assert rows[0]["reward"] == rows[2]["reward"] == 1.0


def test_a_row_keeps_what_it_holds_but_an_earlier_verdict(score):
    own = {"x": 1e308, "y": [1.5, 10**30], "é": "é", "z": "a\u2028b"}
    earlier = {"reward": 0.25, "solved": False, "parts": [1], "error": "none"}
    _, (first,) = score(row(RIGHT, **own, **earlier))
    assert first == {**json.loads(row(RIGHT, **own)), "reward": 1.0, "solved": True, "parts": first["parts"]}
    assert first["parts"] != earlier["parts"]


def test_the_file_of_the_completions_is_not_written_over(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(row(RIGHT))
    (tmp_path / "link").symlink_to(source)
    for output in (source, tmp_path / "." / "in.jsonl", tmp_path / "link"):
        with pytest.raises(UserError, match="is the file of the completions, which is kept: name another file"):
            score_file(load_task("countdown"), source, output, Workers(1, 1.0))
    assert source.read_text() == row(RIGHT) and len(list(tmp_path.iterdir())) == 2


def test_a_reward_that_is_none_is_null_and_says_why(tmp_path):
    paid = {"number": 1, "text": "1", "more": Reward(2.0, maximum=2.0), "right": Reward(0.7 + 0.2 + 0.1)}

    def reward(text, example):
        return paid[text] if text in paid else Reward(2.0)

    task = Task(load_task("countdown").dataset, reward, cheap=True)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"completion": "{text}"}}\n' for text in (*paid, "above")))
    assert score_file(task, tmp_path / "in.jsonl", tmp_path / "out.jsonl", Workers(1, 1.0)) == Counts(5, 3, 2)
    written = (tmp_path / "out.jsonl").read_text()
    number, text, *solved, above = map(json.loads, written.splitlines())
    assert number["reward"] == 1.0 and all(one["solved"] for one in (number, *solved))
    assert "mistake in the task, example '1': the value of a reward (" in text["error"]
    assert "must be at most its maximum, got 2 of 1" in above["error"]


def test_a_file_of_which_nothing_could_be_scored_is_an_error_that_says_why(tmp_path, capsys):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flags = ["--task", "countdown", "--completions", str(source), "--output", str(output), "--reward-workers", "1"]
    source.write_text('{"completion": "3 + 5"}\n' * 3)
    assert main(["evaluate", *flags]) == 1
    why = "the first because: row 1: the row lacks 'numbers', which the reward reads"
    assert f"error: {output}: 3 rows, 0 solved, 3 could not be scored, {why}\n" in capsys.readouterr().err
    assert len(output.read_text().splitlines()) == 3
    source.write_text(row(RIGHT) + "\n{\n")
    assert main(["evaluate", *flags]) == 0
    said = capsys.readouterr().err
    assert f"{output}: 2 rows, 1 solved, 1 could not be scored, the first because: row 2: not JSON" in said
    assert "error" not in said
