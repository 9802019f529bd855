"""An episode in progress: what it waits for, what it ended with, or why it could not be ended."""

import pytest

from minrl.rewards.episode import Play
from minrl.rewards.workers import Failure
from minrl.types import SOLO, Job, Reward, Turn


def returns(value):
    """An episode of one turn."""
    yield Turn(SOLO, "one")
    return value


def asks_twice(closed):
    """Two turns whose completions it pays for, and a note of its end."""
    try:
        first = yield Turn(SOLO, "one")
        second = yield Turn(SOLO, "two")
        return {SOLO: Reward(float(first) + float(second))}
    finally:
        closed.append(True)


def test_a_play_waits_for_each_turn_and_ends_with_the_rewards():
    play = Play(asks_twice([]))
    assert (play.pending, play.rewards, play.failure) == (None, {}, None)
    play.advance(None)
    assert play.pending == Turn(SOLO, "one")
    play.advance("0.25")
    assert play.pending == Turn(SOLO, "two")
    play.advance("0.5")
    assert (play.pending, play.rewards, play.failure) == (None, {SOLO: Reward(0.75)}, None)


def test_what_the_tasks_code_raises_ends_the_play_with_its_traceback():
    play = Play(asks_twice([]))
    play.advance(None)
    play.advance("0.25")
    play.advance("half")
    assert "could not convert string to float: 'half'" in play.failure
    assert (play.pending, play.rewards) == (None, {})


def test_a_job_that_failed_ends_the_play_and_closes_the_episode():
    closed = []
    play = Play(asks_twice(closed))
    play.advance(None)
    play.advance(Failure("the worker died"))
    assert (play.failure, play.pending, closed) == ("the worker died", None, [True])


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (Reward(1.0), "an episode must return the reward of each role, got Reward"),
        ({SOLO: 1.0}, f"the reward of {SOLO!r} must be a Reward, got 1.0"),
        ({SOLO: Reward(1.0), "black": None}, "the reward of 'black' must be a Reward, got None"),
    ],
)
def test_what_is_no_reward_of_each_role_is_a_failure_that_says_so(returned, reason):
    play = Play(returns(returned))
    play.advance(None)
    play.advance("said")
    assert reason in play.failure
    assert (play.pending, play.rewards) == (None, {})


def test_an_episode_in_which_nobody_took_a_turn_is_a_failure():
    def episode():
        yield Job(int, ("7",))
        return {SOLO: Reward(1.0)}

    play = Play(episode())
    play.advance(None)
    play.advance(7)
    assert play.failure == "the episode ended before the policy took a turn"
    assert play.lost


def test_a_job_is_waited_for_as_a_turn_is():
    def episode():
        yield Turn(SOLO, "one")
        result = yield Job(int, ("7",))
        return {SOLO: Reward(float(result), maximum=7.0)}

    play = Play(episode())
    play.advance(None)
    play.advance("said")
    assert play.pending == Job(int, ("7",))
    play.advance(7)
    assert play.rewards == {SOLO: Reward(7.0, maximum=7.0)}
