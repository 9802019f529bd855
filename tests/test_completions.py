"""Scoring completions that somebody already has: one row out for each row in, in order, and no model."""

import json

import pytest

from minrl.__main__ import main
from minrl.rewards.completions import Counts, score_file
from minrl.tasks import load_task

FIELDS = {"numbers": [3, 7, 5], "target": 9}
RIGHT, WRONG = "<answer> 7 + 5 - 3 </answer>", "<answer> 3 + 5 + 7 </answer>"


@pytest.fixture
def score(tmp_path, workers):
    def run(*lines):
        source, output = tmp_path / "in.jsonl", tmp_path / "out/scored.jsonl"
        source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        counts = score_file(load_task("countdown"), source, output, workers)
        return counts, [json.loads(line) for line in output.read_text().split("\n")[:-1]]

    return run


def row(completion, **changes):
    return json.dumps({"completion": completion, **FIELDS, **changes}, ensure_ascii=False)


def test_a_bad_row_is_null_and_says_why_and_the_others_are_scored(score):
    bad = {
        "{": "not JSON",
        '{"numbers": [3]}': "`completion` must be a string",
        json.dumps({"completion": RIGHT, "numbers": [3, 7, 5]}): "the row lacks 'target', which the reward reads",
        row(RIGHT, numbers=None): "TypeError",
    }
    counts, (first, *others, last) = score(row(RIGHT), *bad, row(RIGHT))
    assert counts == Counts(6, 2, 4) and first["reward"] == last["reward"] == 1.0
    for one, message in zip(others, bad.values(), strict=True):
        assert one["reward"] is None and message in one["error"]


def test_a_row_keeps_what_it_holds_but_an_earlier_verdict(score):
    own = {"x": 1e308, "y": [1.5, 10**30], "é": "é", "z": "a\u2028b"}
    earlier = {"reward": 0.25, "solved": False, "parts": [1], "error": "none"}
    _, (first,) = score(row(RIGHT, **own, **earlier))
    assert first == {**json.loads(row(RIGHT, **own)), "reward": 1.0, "solved": True, "parts": first["parts"]}
    assert first["parts"] != earlier["parts"]


def test_a_file_of_which_nothing_could_be_scored_is_an_error_that_says_why(tmp_path, capsys):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flags = ["--task", "countdown", "--completions", str(source), "--output", str(output), "--reward-workers", "1"]
    source.write_text('{"completion": "3 + 5"}\n' * 3)
    assert main(["evaluate", *flags]) == 1
    why = "the first because: row 1: the row lacks 'numbers', which the reward reads"
    assert f"error: {output}: 3 rows, 0 solved, 3 could not be scored, {why}\n" in capsys.readouterr().err
    assert len(output.read_text().splitlines()) == 3
