"""An episode in progress: what it waits for, what it ended with, or why it could not be ended."""

import sys
from random import Random

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure
from minrl.tasks import Dataset, Task
from minrl.types import SOLO, Example, Job, Reward, Turn

EXAMPLE = Example("3,4", "one", {"numbers": [3, 4]})


def playing(episode):
    """A play of the episode, which a task called `mine` makes of its example."""
    task = Task(Dataset([], [EXAMPLE]), None, episode=lambda example, rng: episode, name="mine")
    return Play(task, EXAMPLE, Random(0))


def returns(value):
    """An episode of one turn."""
    yield Turn(SOLO, "one")
    return value


def asks(message):
    """A turn whose type nothing checked, as outside the tests."""
    turn = object.__new__(Turn)
    vars(turn).update(role=SOLO, message=message, frozen=False)
    yield turn


def changes_its_example():
    EXAMPLE["numbers"].append((yield Turn(SOLO, "one")))
    return {SOLO: 1.0}


def asks_twice(closed):
    """Two turns whose completions it pays for, and a note of its end."""
    try:
        first = yield Turn(SOLO, "one")
        second = yield Turn(SOLO, "two")
        return {SOLO: Reward(float(first) + float(second))}
    finally:
        closed.append(True)


def test_a_play_waits_for_each_turn_and_ends_with_the_rewards():
    play = playing(asks_twice([]))
    assert (play.pending, play.rewards, play.failure) == (None, {}, None)
    play.advance(None)
    assert play.pending == Turn(SOLO, "one")
    play.advance("0.25")
    assert play.pending == Turn(SOLO, "two")
    play.advance("0.5")
    assert (play.pending, play.rewards, play.failure) == (None, {SOLO: Reward(0.75)}, None)


def test_what_the_tasks_code_raises_ends_the_play_with_its_traceback():
    play = playing(asks_twice([]))
    play.advance(None)
    play.advance("0.25")
    play.advance("half")
    assert "could not convert string to float: 'half'" in play.failure
    assert (play.pending, play.rewards) == (None, {})


def test_an_episode_that_calls_exit_ends_itself_alone():
    play = playing(sys.exit(3) for _ in [0])
    play.advance(None)
    assert play.lost and play.failure.strip().endswith("SystemExit: 3")


def test_a_job_that_failed_ends_the_play_and_closes_the_episode():
    closed = []
    play = playing(asks_twice(closed))
    play.advance(None)
    play.advance(Failure("the worker died"))
    assert (play.failure, play.pending, closed) == ("the worker died", None, [True])


@pytest.mark.parametrize(
    ("returned", "paid"),
    [(0.5, 0.5), (True, 1.0), (1, 1.0), (np.float32(0.25), 0.25), (torch.tensor([0.5]), 0.5), (Reward(0.75), 0.75)],
)
def test_a_role_may_be_paid_in_any_number(returned, paid):
    play = playing(returns({SOLO: returned}))
    play.advance(None)
    play.advance("said")
    assert play.rewards == {SOLO: Reward(paid)} and type(play.rewards[SOLO].value) is float


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        (returns(Reward(1.0)), "an episode must return the reward of each role, such as {SOLO: 1.0}, got Reward"),
        (returns(None), "an episode must return the reward of each role, such as {SOLO: 1.0}, got None (NoneType)"),
        (
            returns({SOLO: "good"}),
            f"the reward of {SOLO!r}: the value of a reward must be a finite number, got 'good' (str)",
        ),
        (returns({SOLO: 1.0, "black": None}), "the reward of 'black': the reward is None (NoneType): return a number"),
        (returns({}), f"the episode returned no reward for {SOLO!r}, which took a turn: it paid nobody"),
        (returns({SOLO: 1.0, "black": 1.0}), "the episode returned a reward for 'black', which took no turn"),
        (iter(["one"]), "an episode must be a function that yields turns, got one that returns <list_iterator"),
        ((one for one in ["one"]), "an episode must yield a Turn or a Job, got 'one' (str)"),
        (asks(7), "the message of a Turn must be a string or a list of messages"),
        (asks(["one"]), "the message of a Turn must be a string or a list of messages"),
        (changes_its_example(), "the task's code changed 'numbers' of the example"),
    ],
)
def test_a_mistake_of_an_episode_is_a_line_that_names_the_task_and_the_example(episode, reason):
    play = playing(episode)
    play.advance(None)
    if play.pending is not None:
        play.advance("said")
    assert play.problem.startswith(f"mistake in task mine, example '3,4': {reason}")
    assert "\n" not in play.problem and play.pending is None


def test_an_episode_in_which_nobody_took_a_turn_is_a_failure():
    def episode():
        yield Job(int, ("7",))
        return {SOLO: Reward(1.0)}

    play = playing(episode())
    play.advance(None)
    play.advance(7)
    assert play.failure.endswith("the episode ended before the policy took a turn")
    assert play.lost


def test_what_an_episode_prints_is_counted_and_a_run_draws_its_bars_meanwhile(said, capfd):
    console = Console(stderr=True, force_terminal=True)

    def episode():
        yield Turn(SOLO, "one")
        bars.refresh()
        print("mine", end="")
        return {SOLO: 1.0}

    play = playing(episode())
    with Progress("{task.description}", console=console, auto_refresh=False) as bars:
        bars.add_task("first")
        play.advance(None)
        bars.update(bars.add_task("second"), description="drawn meanwhile")
        play.advance("said")
        drawn = capfd.readouterr()
    assert play.rewards == {SOLO: Reward(1.0)}
    assert said == ["printed by the task: mine\n"]
    assert drawn.err.count("drawn meanwhile") == 1 and "mine" not in drawn.out


def test_a_job_is_waited_for_as_a_turn_is():
    def episode():
        yield Turn(SOLO, "one")
        result = yield Job(int, ("7",))
        return {SOLO: Reward(float(result), maximum=7.0)}

    play = playing(episode())
    play.advance(None)
    play.advance("said")
    assert play.pending == Job(int, ("7",))
    play.advance(7)
    assert play.rewards == {SOLO: Reward(7.0, maximum=7.0)}
