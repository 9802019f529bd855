"""The data types: defaults and derived values."""

from dataclasses import asdict, replace

import pytest
import torch

from minrl.dataflow import SOLO, Job, LostEpisode, Mistake, Request, Reward, Rollout, TrainState, Turn, finite


def test_a_reward_is_solved_at_its_maximum():
    assert [Reward(value).solved for value in (0.0, 0.99, 1.0)] == [False, False, True]
    assert [Reward(value, maximum=4.0).solved for value in (1.0, 3.9, 4.0)] == [False, False, True]
    assert Reward(0.6, full=True).solved and not Reward(1.0, full=False).solved  # what the task says
    reward = object.__new__(Reward)  # a task may break the types that its reward states
    vars(reward).update(value=0.0, parts={1: 0.5, "form": 1}, maximum=1.0, full="no")
    with pytest.raises(Mistake, match="full must be True, False or None, got 'no'"):
        reward.__post_init__()
    vars(reward).update(full=1)
    reward.__post_init__()
    assert reward.full is True and reward.parts == {"1": 0.5, "form": 1.0}


def test_a_rollout_counts_what_was_sampled_and_whether_it_was_cut_off():
    rollout = Rollout([11, 12, 21, 22, 2], [False] * 2 + [True] * 3, [0.0] * 5, [(2, 5)], 2, "", 0, 0, SOLO, 0, 0)
    assert (rollout.num_sampled, rollout.truncated) == (3, False)
    assert (rollout.reward, rollout.text, rollout.slot, rollout.episode, rollout.max_tokens) == (None, "", 0, [], 0)
    rollout.finish_reason = "length"
    assert rollout.truncated
    assert (rollout.player, replace(rollout, task="chess").player) == (SOLO, f"chess/{SOLO}")


def test_a_reward_is_finite_in_float32():
    largest = 2.0**128 - 2.0**104
    assert [finite("it", one) for one in (largest, -largest, torch.tensor([0.5]))] == [largest, -largest, 0.5]
    for number in (2.0**128, -(2.0**128), float("nan"), "1", None):
        with pytest.raises(Mistake, match="it must be a finite number"):
            finite("it", number)


def test_a_turn_is_the_policys_own_and_a_job_a_workers_unless_it_says_otherwise():
    turn, job = Turn("a", ""), Job(max)
    assert not any((turn.frozen, turn.optional, job.cheap, job.waits, job.group, Request([], 0, 1).frozen))


def test_a_state_begins_at_zero_and_holds_that_of_each_of_several_tasks():
    state = TrainState()
    assert not any(asdict(state).values()) and not LostEpisode("1").truncated
    assert state.of("") is state and state.of("a") is state.of("a") is state.tasks["a"]
