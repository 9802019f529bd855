"""An episode in progress: what it waits for, what it ended with, or why it could not be ended."""

import sys
from random import Random

import pytest

from minrl.dataflow import SOLO, Example, Job, Reward, Turn
from minrl.rewards.episode import Play, first_message
from minrl.rewards.workers import Failure
from minrl.tasks import Dataset, Task

EXAMPLE = Example("3,4", "one", {"numbers": [3, 4]})


def played(episode, *answers):
    """A play of the episode, which a task called `mine` makes of its example, after these answers."""
    task = Task(Dataset([], [EXAMPLE]), None, episode=lambda example, rng: episode, name="mine")
    play = Play(task, EXAMPLE, Random(0))
    for answer in (None, *answers):
        if answer is None or play.pending is not None:
            play.advance(answer)
    return play


def test_the_first_message_is_that_of_the_first_turn_or_the_examples_prompt():
    def first(*steps):
        return first_message(
            Task(Dataset([], [EXAMPLE]), None, episode=lambda example, rng: (yield from steps)), EXAMPLE
        )

    assert first(Turn(SOLO, "first")) == "first"
    assert first(Job(float, ("0.5",))) == first(Turn(SOLO, "other", frozen=True)) == first(1) == "one"
    assert first_message(Task(Dataset([], [EXAMPLE]), lambda text, example: 0.0), EXAMPLE) == "one"


def returns(value):
    """An episode of one turn."""
    yield Turn(SOLO, "one")
    return value


def two_turns(closed):
    """Two turns and a job, whose results it is paid for, and a note of its end."""
    try:
        first = yield Turn(SOLO, "one")
        second = yield Job(float, ("0.5",))
        third = yield Turn(SOLO, "two")
        return {SOLO: Reward(float(first) + second + float(third))}
    finally:
        closed.append(True)


def test_a_play_waits_for_each_turn_and_job_and_ends_with_the_rewards():
    steps = [Turn(SOLO, "one"), Job(float, ("0.5",)), Turn(SOLO, "two"), None]
    for count, pending in enumerate(steps):
        play = played(two_turns([]), *["0.25", 0.5, "0.125"][:count])
        assert (play.pending, play.failure) == (pending, None)
    assert play.rewards == {SOLO: Reward(0.875)}


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        (["0.25", 0.5, "half"], "could not convert string to float: 'half'"),  # with its traceback
        (["0.25", Failure("the worker died")], "the worker died"),
    ],
)
def test_what_the_tasks_code_raises_or_a_job_that_failed_ends_the_play_and_closes_the_episode(answers, failure):
    closed = []
    play = played(two_turns(closed), *answers)
    assert failure in play.failure and not play.lost
    assert (play.pending, play.rewards, closed) == (None, {}, [True])


def test_an_episode_in_which_nobody_took_a_turn_is_lost():
    def episode():
        yield Job(int, ("7",))
        return {SOLO: Reward(1.0)}

    play = played(episode(), 7)
    assert play.lost and play.failure.endswith("the episode ended before the policy took a turn")
    exits = played(sys.exit(3) for _ in [0])  # ends itself alone
    assert exits.lost and exits.failure.strip().endswith("SystemExit: 3")


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        (returns(Reward(1.0)), "an episode must return the reward of each role, such as {SOLO: 1.0}, got Reward"),
        (returns({SOLO: "good"}), "the value of a reward (return a number"),
        (returns({SOLO: 1.0, "black": 1.0}), "the episode returned a reward for 'black', which took no turn"),
        ((one for one in ["one"]), "an episode must yield a Turn, with a string or a list of messages"),
    ],
)
def test_a_mistake_of_an_episode_is_a_line_that_names_the_task_and_the_example(episode, reason):
    play = played(episode, "said")
    assert play.problem.startswith(f"mistake in task mine, example '3,4': {reason}")
    assert "\n" not in play.problem and play.pending is None
