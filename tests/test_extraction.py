"""Extraction: what each completion is paid."""

import pytest

from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.extraction import FIELDS_REWARD, INSTRUCTION, KEYS_REWARD, reward

EXAMPLE = Example("", INSTRUCTION, {"object": {"name": "Jack", "age": 78, "children": 3}})
RIGHT = '{"name": "Jack", "age": 78, "children": 3}'

FIELDS = {2: KEYS_REWARD + FIELDS_REWARD * 2 / 3, 3: KEYS_REWARD + FIELDS_REWARD, "none": 0.0, "all": 1.0}
PAID = [
    *(("all", text) for text in (RIGHT, f"```json\n{RIGHT}\n```", f"<think> {{}} </think> {RIGHT}")),
    ("all", '{\n  "age": 78,\n  "name": "\\u004aack",\n  "children": 3\n}\n'),
    (2, '{"name": "Jack", "age": "78", "children": 3}'),
    (2, '{"name": "Jack", "age": 78, "children": 3.0}'),
    (2, '{"name": "Jack", "age": 78, "children": 4}'),
    (3, '{"name": "Jack", "age": 78, "children": 3, "city": "Vienna"}'),
    *(("none", text) for text in ('{"name": "Jack", "age": 78}', "", INSTRUCTION, RIGHT[:-1])),
    *(("none", text) for text in (f"Sure: {RIGHT}", f"{RIGHT}\n{RIGHT}", f"[{RIGHT}]", f"<think> {RIGHT} </think>")),
    ("none", RIGHT.replace('"', "'")),
    ("none", '{"name": "Ann", "name": "Jack", "age": 78, "children": 3}'),
    ("none", '{"name": {"x": 1}, "age": 78, "children": 3}'),
    ("none", '{"name": ' + "[" * 100_000),
    ("none", '{"name": "Jack", "children": 3, "age": ' + "7" * 10_000 + "}"),
    ("none", "\ud800"),
]


@pytest.mark.parametrize(("fields", "completion"), PAID)
def test_the_object_alone_is_paid_in_full_and_another_with_all_keys_by_its_right_fields(fields, completion):
    assert reward(completion, EXAMPLE).value == pytest.approx(FIELDS[fields]) and FIELDS[3] <= 0.5


def test_names_are_held_out_and_every_problem_can_be_solved():
    task = load_task("extraction")
    trained, held_out = (
        {one["object"]["name"] for one in side} for side in (task.dataset.train, task.dataset.held_out)
    )
    assert len(held_out) >= 10 and not trained & held_out
    for example in [*task.dataset.train, *task.dataset.held_out]:
        assert task.reward(task.solution(example), example).solved
        assert all(str(value) in example.prompt[0]["content"] for value in example["object"].values())
