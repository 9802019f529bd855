"""The part of a reward that depends on length: a penalty on long solutions, or a target."""

import math

import pytest

from minrl.algorithms import choose_algorithm
from minrl.dataflow import Reward, UserError
from minrl.rewards.length import with_length
from tests.parsed import sized

SIGMOID_1 = math.e / (1 + math.e)


def config_of(**settings):
    return sized(**{"task": "a", "group_size": 4, "max_tokens": 64, "prompts_per_step": 1, **settings})


@pytest.fixture
def sampled(make_rollout):
    """Rollouts of given (length, reward)."""
    return lambda *pairs, **changes: [
        make_rollout([5], [6] * length, reward=Reward(reward) if isinstance(reward, float) else reward, **changes)
        for length, reward in pairs
    ]


def values(rollouts):
    return [one.reward and one.reward.value for one in rollouts]


def test_of_the_solutions_of_a_group_the_longer_lose_more_and_nothing_else_loses(sampled):
    # Solutions of 2 and 4 tokens: mean 3, std 1, so they lose 0.4 times the sigmoids of -1 and 1, which add up to 1.
    # A solution alone in its group is at the mean and loses 0.4 / 2. The lengths of failures do not enter.
    first = sampled((2, 1.0), (4, 1.0), (60, 0.0), (1, 0.25), (9, None))
    found = with_length([*first, *sampled((50, 1.0), (1, 0.0), group=1)], config_of(length_penalty=0.4))
    lost = [0.4 * (1 - SIGMOID_1), 0.4 * SIGMOID_1, 0.0, 0.0]
    assert values(found[:4]) == pytest.approx([1 - lost[0], 1 - lost[1], 0.0, 0.25], abs=1e-12)
    assert [one.reward.parts["length"] for one in found[:4]] == pytest.approx([-share for share in lost], abs=1e-12)
    assert found[4].reward is None
    assert values(found[5:]) == pytest.approx([0.8, 0.0], abs=1e-12)
    assert [one.reward.solved for one in found if one.reward] == [True, True, False, False, True, False]
    assert values(first) == [1.0, 1.0, 0.0, 0.25, None]  # what was given stays


def test_a_target_is_approached_from_both_sides_by_all_that_is_scored(sampled):
    # Half and twice the target are half of the longer one away, which costs half of 0.5, whatever is solved.
    rollouts = sampled((20, 1.0), (40, 0.5), (80, 0.0), (160, 1.0), (40, None))
    found = with_length(rollouts, config_of(length_target=40))
    assert values(found) == [0.75, 0.5, -0.25, 0.625, None]
    assert [one.reward.parts for one in found[:3]] == [{"length": -0.25}, {"length": 0.0}, {"length": -0.25}]
    assert [one.reward.solved for one in found[:4]] == [True, False, False, True]
    assert with_length(rollouts, config_of()) == rollouts


@pytest.mark.parametrize(("maximum", "lost"), [(10.0, 2.5), (0.0, 0.25)])
def test_what_is_lost_is_a_share_of_the_highest_reward(sampled, maximum, lost):
    reward = Reward(maximum, {"own": 3.0}, maximum)
    for settings in ({"length_penalty": 0.5}, {"length_target": 32}):
        (found,) = with_length(sampled((64, reward)), config_of(**settings))  # alone, or twice the target: half
        assert (found.reward.value, found.reward.maximum, found.reward.solved) == (maximum - lost, maximum, True)
        assert found.reward.parts == {"own": 3.0, "length": -lost}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length_penalty": 1.0}, "length_penalty must be"),
        ({"length_target": 65}, r"length_target \(65\) must be at most max_tokens \(64\)"),
        ({"length_penalty": 0.2, "length_target": 8}, "length_penalty 0.2 and length_target 8 .*: leave one out"),
    ],
)
def test_wrong_values_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message) as refused:
        choose_algorithm(config_of(**settings))
    assert "\n" not in str(refused.value)
