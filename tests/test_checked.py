"""What a task's code hands over: numbers of all kinds are rewards, and each mistake is one line."""

import pytest

from minrl.config import RolloutConfig, TrainerConfig
from minrl.dataflow import SOLO, Example, Mistake, Reward, Turn, UserError
from minrl.rewards.workers import Workers
from minrl.run.preflight import preflight
from minrl.tasks import Task
from minrl.tasks.checked import played, reward_of
from minrl.tasks.task import Dataset, split
from tests import rewards

EXAMPLE = Example("3,4", "add 3 4", {"numbers": [3, 4], "check": lambda total: total == 7})
WHERE = "mistake in task mine, example '3,4': "


def paid(value):
    """What the task pays whose reward function returns the value, or raises it where it is a mistake."""
    return reward_of("mine", lambda completion, example: value, "7", EXAMPLE)


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ({"parts": {"form": None}}, "part 'form' of a reward must be a finite number, got None (NoneType)"),
        ({"value": "1"}, "the value of a reward must be a finite number, got '1' (str)"),
    ],
)
def test_a_reward_that_is_made_of_no_numbers_is_a_line_that_names_its_place(values, got):
    def reward(completion, example):
        made = object.__new__(Reward)  # nothing checks the types of its arguments outside the tests
        vars(made).update({"value": 1.0, "parts": {}, "maximum": 1.0, "full": None, **values})
        made.__post_init__()
        return made

    with pytest.raises(Mistake) as refused:
        reward_of("mine", reward, "7", EXAMPLE)
    line, place = str(refused.value), reward.__code__.co_firstlineno + 3
    assert line.startswith(WHERE + got) and line.endswith(f"(test_checked.py, line {place})")


@pytest.mark.parametrize(
    "change",
    [
        lambda example: example["numbers"].sort(reverse=True),
        lambda example: example.prompt.append({"role": "user", "content": "more"}),
    ],
)
def test_what_a_reward_or_an_episode_changes_is_seen_by_no_other_completion(change):
    def episode(example, rng):
        change(example)
        yield Turn(SOLO, "add")
        return {SOLO: 1.0}

    fields = {"numbers": [3, 4], "check": lambda total: total == 7}
    example = Example("3,4", [{"role": "user", "content": "add"}], fields)
    assert reward_of("mine", lambda completion, own: [change(own), 1.0][1], "7", example) == Reward(1.0)
    next(played("mine", episode, example, None))
    assert (example["numbers"], len(example.prompt)) == ([3, 4], 1)


def test_one_mistake_ends_the_run_before_step_1(policy, engine):
    # Two completions that the reward has no mistake in, and two that it has.
    examples = [Example(str(n), f"numbers {n}", {"numbers": [n, 5]}) for n in (3, 4, 6, 7)]
    data, reward = Dataset(examples, [Example("8", "numbers 8", {})]), rewards.forgets_to_return
    task = Task(data, reward, cheap=True, name="mine")
    line = "the reward is None .NoneType.: return a number .* from every branch .the first of 2."
    workers = Workers(1, deadline_s=120.0)
    try:
        with pytest.raises(UserError, match=f"^mistake in task mine, example '[67]': {line}") as refused:
            config = TrainerConfig(rollout=RolloutConfig(group_size=1, max_tokens=2))
            list(preflight(policy, engine, workers, task, config))
    finally:
        workers.close()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("prompt", None, "the prompt of an example must be a string or a list of messages .* got None .* example 'a'"),
        ("fields", "7", "the fields of an example must be a dict of what the reward reads, got '7' .str. in example"),
        ("category", "easy", "the category of an example must be a dict such as .* got 'easy' .str. in example 'a'"),
    ],
)
def test_an_example_that_cannot_be_shown_or_read_is_refused_in_a_line(name, value, line):
    example = Example("a", "add", {})
    vars(example)[name] = value
    with pytest.raises(UserError, match=line):
        Dataset([], [example])


def test_an_id_of_several_problems_is_refused():
    def examples(*given):
        return [Example(*one) for one in given]

    many = examples(*(("3", f"{n} + 1", {"answer": n + 1}) for n in range(10)), ("4", "1 + 3", {"answer": 4}))
    with pytest.raises(UserError, match=r"^'3' is the id of 10 examples: give each problem an id of its own$"):
        split(many, 0.5)
    # One problem in other words, and one prompt with two answers.
    assert split(examples(("1", "1 + 1", {"answer": 2}), ("1", "one and one", {"answer": 2}), ("2", "", {})), 1.0)
    assert split(examples(("1", "a color", {"answer": "red"}), ("1", "a color", {"answer": "blue"})), 1.0)
