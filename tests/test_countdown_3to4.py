"""Countdown as published: the form of each project, and whose numbers are held out. `answers.py` has what is paid."""

import pytest

from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.countdown_3to4 import RECIPES, reward
from minrl.tasks.thoughts import heard
from tests.runs import write_rows

NINE = Example("3,5,7=9", "", {"numbers": [3, 7, 5], "target": 9})
RIGHT, MISSED = "7 + 5 - 3", "7 + 5 + 3"


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_answer_behind_a_thought_that_is_never_closed_is_paid_as_published(recipe):
    """In the thought of the prompt. TinyZero pays the form of an answer wherever it stands, others want a whole one."""
    tiny = recipe.startswith("tiny")
    prompt = RECIPES[recipe].ask([3, 7, 5], 9)
    for answer, correct in ((RIGHT, 1.0), (MISSED, 0.0)):
        text = heard(prompt, f"7 and 5 are 12 <answer> {answer} </answer>")
        assert text.startswith("<think>")
        paid = reward(text, NINE, RECIPES[recipe])  # solved by the answer, whatever the form
        assert paid.parts == {"correct": correct, "format": float(tiny)} and paid.solved is bool(correct)


FORMED = {
    "<think> 12 </think>\n<answer>7 + 5</answer>": 1.0,  # 3 is left out: wrong, in the form
    "12 <think> 13 </think>\n<answer>7 + 5</answer>": 0.0,
    "12 </think>\nso <answer>7 + 5</answer>": 0.0,
    "12 </think>\n<answer>7 + 5</answer> done": 0.0,
    "12 </think>\n<answer>7 + 7</answer>": 0.0,  # one 7 was given
}


def test_the_form_is_thoughts_then_an_answer_of_given_numbers_and_nothing_else():
    for completion, formed in FORMED.items():
        assert reward(completion, NINE, RECIPES["mini_r1"]).parts == {"correct": 0.0, "format": formed}


def rows(count):
    """Each set of numbers with two targets, the second in another order, and its first problem once more."""
    for number in range(count):
        numbers = [number + 1, 40, 60]
        yield {"target": number + 101, "nums": numbers}
        yield {"target": number + 21, "nums": numbers[::-1]}
        yield {"target": number + 101, "nums": [60, number + 1, 40]}


def test_rows_of_a_csv_file_are_those_of_the_hub_and_one_that_cannot_be_used_is_left_out(tmp_path, said):
    lines = [f'{row["target"]},"{row["nums"]}"' for row in rows(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["target,nums", *lines]))
    from_csv = load_task("countdown_3to4", None, str(tmp_path / "rows.csv")).dataset
    given = write_rows(tmp_path / "rows.jsonl", *rows(20), {"target": 9, "nums": [3]})
    as_on_the_hub = load_task("countdown_3to4", None, str(given)).dataset
    for name in ("train", "held_out"):
        assert list(getattr(from_csv, name)) == list(getattr(as_on_the_hub, name))
    assert sum(from_csv.sizes()) == 40 and from_csv.train[0].category == {"numbers": "3"}
    assert "1 of 61 rows left out: row 61: `nums` must be a list of two integers from 0 or more, got [3]" in said[0]
