"""Extraction: what each completion is paid."""

import pytest

from minrl.tasks import load_task
from minrl.tasks.extraction import FIELDS_REWARD, INSTRUCTION, KEYS_REWARD, ExtractionOptions, reward
from minrl.types import Example, UserError

EXAMPLE = Example("", INSTRUCTION, {"object": {"name": "Jack", "age": 78, "children": 3}})
RIGHT = '{"name": "Jack", "age": 78, "children": 3}'

SOLVED = {
    "plain": RIGHT,
    "another order, on several lines": '{\n  "age": 78,\n  "name": "Jack",\n  "children": 3\n}\n',
    "in a fence": f"```json\n{RIGHT}\n```",
    "after thoughts": f"<think> {{}} </think> {RIGHT}",
    "escaped letters": RIGHT.replace("Jack", "\\u004aack"),
}
PARTLY = {  # right fields of three
    "the age as text": ('{"name": "Jack", "age": "78", "children": 3}', 2),
    "the age as a float": ('{"name": "Jack", "age": 78, "children": 3.0}', 2),
    "another number": ('{"name": "Jack", "age": 78, "children": 4}', 2),
    "a key too many": ('{"name": "Jack", "age": 78, "children": 3, "city": "Vienna"}', 3),
    "lists of every answer": ('{"name": ["Jack", "Ann"], "age": [77, 78], "children": [3]}', 0),
    "null": ('{"name": null, "age": null, "children": null}', 0),
}
NOTHING = {
    "nothing in it": "{}",
    "the name alone": '{"name": "Jack"}',
    "a key that is missing": '{"name": "Jack", "age": 78}',
    "empty": "",
    "the sentence": "Jack, a singer from Vienna, is 78 years old and has 3 children.",
    "the prompt copied back": INSTRUCTION,
    "a remark before it": f"Sure: {RIGHT}",
    "two objects": f"{RIGHT}\n{RIGHT}",
    "a key twice": '{"name": "Ann", "name": "Jack", "age": 78, "children": 3}',
    "Python's quotation marks": RIGHT.replace('"', "'"),
    "not closed": RIGHT[:-1],
    "an array": f"[{RIGHT}]",
    "an object in it": '{"name": {"x": 1}, "age": 78, "children": 3}',
    "in the thoughts alone": f"<think> {RIGHT} </think>",
    "brackets in brackets": '{"name": ' + "[" * 100_000,
    "a long number": '{"name": "Jack", "children": 3, "age": ' + "7" * 10_000 + "}",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("completion", SOLVED.values(), ids=SOLVED)
def test_the_object_alone_is_paid_in_full(completion):
    assert reward(completion, EXAMPLE).value == 1.0


@pytest.mark.parametrize(("completion", "right"), PARTLY.values(), ids=PARTLY)
def test_another_object_with_all_keys_is_paid_by_its_right_fields_and_never_more_than_half(completion, right):
    paid = reward(completion, EXAMPLE).value
    assert paid == pytest.approx(KEYS_REWARD + FIELDS_REWARD * right / 3) and paid <= 0.5


@pytest.mark.parametrize("completion", NOTHING.values(), ids=NOTHING)
def test_what_is_no_object_with_all_keys_is_paid_nothing(completion):
    assert reward(completion, EXAMPLE).value == 0.0


def test_names_are_held_out_and_every_problem_can_be_solved():
    task = load_task("extraction")
    trained, held_out = (
        {one["object"]["name"] for one in side} for side in (task.dataset.train, task.dataset.held_out)
    )
    assert len(held_out) >= 10 and not trained & held_out
    for example in [*task.dataset.train, *task.dataset.held_out]:
        assert task.reward(task.solution(example), example).solved
        assert all(str(value) in example.prompt[0]["content"] for value in example["object"].values())


def test_a_share_that_leaves_no_names_is_refused():
    with pytest.raises(UserError, match=r"extraction\.held_out_share must be in \[0\.1, 0\.9\], got 1\.0"):
        ExtractionOptions(held_out_share=1.0)
