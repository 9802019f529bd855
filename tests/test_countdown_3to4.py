"""Countdown as published: each project's prompt and pay, what hostile answers earn, and whose numbers are held out."""

import json

import datasets
import pytest

from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.countdown_3to4 import RECIPES, reward
from minrl.tasks.thoughts import heard

NINE = Example("3,5,7=9", "", {"numbers": [3, 7, 5], "target": 9})
RIGHT, MISSED = "7 + 5 - 3", "7 + 5 + 3"
WHOLE = "7 and 5 are 12 </think>\n<answer> {} </answer>"
LOOSE = "</think> So <answer> {} </answer>, I think."


def paid(recipe, completion, example=NINE):
    return reward(completion, example, RECIPES[recipe]).value


@pytest.mark.parametrize(
    ("recipe", "whole", "loose", "missed"),
    [
        ("tinyzero", 1, 1, 0.1),  # 1 for the answer, else 0.1 for an answer in tags, wherever
        ("tinyzero_instruct", 1, 1, 0.1),
        ("nano_aha_moment", 1, 1 / 2, 1 / 2),  # 1 for the answer and 1 for the form, of 2
        ("grpo_zero", 1, 1 / 1.1, 0.1 / 1.1),  # 1 for the answer and 0.1 for the form, of 1.1
        ("mini_r1", 1, 1 / 2, 1 / 2),
    ],
)
def test_each_recipe_pays_as_published(recipe, whole, loose, missed):
    assert paid(recipe, WHOLE.format(RIGHT)) == pytest.approx(whole)
    assert paid(recipe, LOOSE.format(RIGHT)) == pytest.approx(loose)
    assert paid(recipe, WHOLE.format(MISSED)) == pytest.approx(missed)
    assert paid(recipe, LOOSE.format(MISSED)) == pytest.approx(0.1 if recipe.startswith("tiny") else 0)
    for form in (WHOLE, LOOSE):
        assert reward(form.format(RIGHT), NINE, RECIPES[recipe]).solved
        assert not reward(form.format(MISSED), NINE, RECIPES[recipe]).solved


HOSTILE = [
    *("7 ** 5", "7 // 5 + 3", "9 ** 9 ** 9 ** 9", "+7 + 5 - 3", "~7 + 5 + 3", "7_5 - 3", "0x7 + 5 - 3"),
    *("7. + 5 - 3", "07 + 5 - 3", "75 - 3", "9", "", "7 + 5 - 3 = 9", "7(5) - 3", "7 + 5 - 3 # nine", "7 + 5\n- 3"),
    *("7 + 5 - 3 or 9", "(" * 100 + RIGHT + ")" * 100, "True + 7", "7 / 0", "[7, 5, 3][0]", "7 + 5 - 3 + 0 * 3"),
]
ELSEWHERE = [
    RIGHT,
    f"<answer> {RIGHT}",
    f"<think> <answer> {RIGHT} </answer> </think>",
    f"<think> <answer> {RIGHT} </answer> </think> so it is <answer> {MISSED} + 4 </answer>",
    f"<think>```\n<answer> {RIGHT} </answer></think>\n```\n",
    f"12 <think> <answer> {RIGHT} </answer>",
    f"12 <|im_end|> <answer> {RIGHT} </answer>",
    f"</think> <answer> {RIGHT} </answer> <answer> {RIGHT} </answer>",
    f"</think> <answer> <answer> {RIGHT} </answer> </answer>",
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_hostile_answer_and_one_that_is_not_behind_the_thoughts_earn_nothing(recipe):
    texts = [form.format(answer) for form in (WHOLE, LOOSE) for answer in HOSTILE] + ELSEWHERE
    assert [text[:80] for text in texts if paid(recipe, text) != 0] == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_answer_behind_a_thought_that_is_never_closed_is_paid_as_published(recipe):
    """In the thought of the prompt. TinyZero pays the form of an answer wherever it stands, others want a whole one."""
    tiny = recipe.startswith("tiny")
    prompt = RECIPES[recipe].ask([3, 7, 5], 9)
    for answer, correct in ((RIGHT, 1.0), (MISSED, 0.0)):
        text = heard(prompt, f"7 and 5 are 12 <answer> {answer} </answer>")
        assert text.startswith("<think>")
        paid = reward(text, NINE, RECIPES[recipe])
        assert paid.parts == {"correct": correct, "format": float(tiny)} and paid.solved is bool(correct)


def test_the_value_is_exact_and_within_a_hundred_thousandth_of_the_target():
    assert (
        paid("mini_r1", WHOLE.format("8 / (3 - 8 / 3)"), Example("", "", {"numbers": [3, 3, 8, 8], "target": 24})) == 1
    )
    large = Example("", "", {"numbers": [2**60, 1, 2], "target": 2**60})  # 2 ** 60 + 1 / 2 is the same float
    assert not reward(WHOLE.format(f"{2**60} + 1 / 2"), large, RECIPES["mini_r1"]).solved
    for divisor, right in ((100_001, True), (100_000, False)):
        example = Example("", "", {"numbers": [1, 1, divisor], "target": 1})
        assert reward(WHOLE.format(f"1 + 1 / {divisor}"), example, RECIPES["mini_r1"]).solved is right


@pytest.mark.parametrize(
    ("completion", "formed"),
    [
        ("<think> 12 </think>\n<answer>7 + 5</answer>", True),  # 3 is left out: wrong, in the form
        ("12 <answer> 9 </answer> </think>\n<answer>7 + 5</answer>", False),
        ("12 <think> 13 </think>\n<answer>7 + 5</answer>", False),
        ("12 </think>\nso <answer>7 + 5</answer>", False),
        ("12 </think>\n<answer>7 + 5</answer> done", False),
        ("12 </think>\n<answer>7 + 7</answer>", False),  # one 7 was given
    ],
)
def test_the_form_is_thoughts_then_an_answer_of_given_numbers_and_nothing_else(completion, formed):
    assert reward(completion, NINE, RECIPES["mini_r1"]).parts == {"correct": 0.0, "format": float(formed)}


def rows(count):
    """Each set of numbers with two targets, the second in another order, and its first problem once more."""
    for number in range(count):
        numbers = [number + 1, 40, 60]
        yield {"target": number + 101, "nums": numbers}
        yield {"target": number + 21, "nums": numbers[::-1]}
        yield {"target": number + 101, "nums": [60, number + 1, 40]}


def write(path, given):
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return str(path)


def test_the_rows_are_those_of_the_hub_or_of_a_csv_file(tmp_path, monkeypatch):
    def load_dataset(name, configuration, split):
        asked.append((name, configuration, split))
        return datasets.Dataset.from_list(list(rows(60)))

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    from_hub = load_task("countdown_3to4").dataset
    lines = [f'{row["target"]},"{row["nums"]}"' for row in rows(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["target,nums", *lines]))
    from_file = load_task("countdown_3to4", None, str(tmp_path / "rows.csv")).dataset
    assert asked == [] and list(from_hub.held_out) == list(from_file.held_out)
    assert asked == [("Jiayi-Pan/Countdown-Tasks-3to4", None, "train")]
    assert list(from_hub.train) == list(from_file.train)
    assert from_hub.train[0].category == {"numbers": "3"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": None}, "lacks target"),
        ({"target": 9.5}, "`target` must be an integer from 0, got 9.5"),
        ({"nums": [3]}, "`nums` must be a list of two integers from 0 or more, got [3]"),
        ({"nums": "[" * 100_000}, "RecursionError"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_and_said(change, reason, tmp_path, said):
    given = [*rows(20), {"target": 9, "nums": [3, 5, 7], **change}]
    assert sum(load_task("countdown_3to4", None, write(tmp_path / "rows.jsonl", given)).dataset.sizes()) == 40
    assert "1 of 61 rows left out: row 61: " in said[0] and reason in said[0]
