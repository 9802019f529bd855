"""What a task's code hands over: numbers of all kinds are rewards, and each mistake is one line."""

import numpy as np
import pytest
import torch

from minrl.dataflow import Example, Mistake, Reward, UserError
from minrl.run.preflight import preflight
from minrl.tasks import Task
from minrl.tasks.checked import reward_of
from minrl.tasks.task import Dataset
from tests.parsed import sized

EXAMPLE = Example("3,4", "add 3 4", {"numbers": [3, 4], "check": lambda total: total == 7})
WHERE = "mistake in task mine, example '3,4': "


def paid(value):
    """What the task pays whose reward function returns the value, or raises it where it is a mistake."""
    return reward_of("mine", lambda completion, example: value, "7", EXAMPLE)


def test_a_reward_that_is_made_of_no_number_is_a_line_that_names_its_place():
    def reward(completion, example):
        made = object.__new__(Reward)  # nothing checks the types of its arguments outside the tests
        vars(made).update({"value": 1.0, "parts": {"form": None}, "maximum": 1.0, "full": None})
        made.__post_init__()
        return made

    with pytest.raises(Mistake) as refused:
        reward_of("mine", reward, "7", EXAMPLE)
    line, place = str(refused.value), reward.__code__.co_firstlineno + 3
    assert line.startswith(f"{WHERE}part 'form' of a reward must be a finite number, got None (NoneType)")
    assert line.endswith(f"(test_checked.py, line {place})")


def test_whatever_is_a_number_is_a_reward_and_what_is_none_says_what_came():
    made = paid(Reward(0.5, {"a": True, "b": np.int64(3), "c": torch.tensor(2)}))
    assert paid(torch.tensor([0.5])).value == made.value == 0.5
    assert all(type(one) is float for one in made.parts.values())
    for value, said in ((None, "None"), ([1.0], r"\[1\.0\]")):
        with pytest.raises(Mistake, match=said):
            paid(value)


def test_one_mistake_ends_the_run_before_step_1(policy, engine, workers):
    # Two completions that the reward has no mistake in, and two that it has.
    examples = [Example(str(n), f"numbers {n}", {"numbers": [n, 5]}) for n in (3, 4, 6, 7)]
    data = Dataset(examples, [Example("8", "numbers 8", {})])
    task = Task(data, lambda text, example: 1.0 if max(example["numbers"]) == 5 else None, cheap=True, name="mine")
    line = "the reward is None .NoneType.: return a number .* from every branch .the first of 2."
    with pytest.raises(UserError, match=f"^mistake in task mine, example '[67]': {line}") as refused:
        list(preflight(policy, engine, workers, task, sized(group_size=1, max_tokens=2)))
    assert "\n" not in str(refused.value)
