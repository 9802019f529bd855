"""Advantages against numbers worked out by hand."""

from itertools import product

import pytest
import torch

from minrl.advantages import (
    Groups,
    group_policy_gradient,
    leave_one_out,
    mean_only,
    moved_baselines,
    moving_average_baseline,
    no_baseline,
    normalize_rewards_over_batch,
    normalize_rewards_per_group,
    overlong_penalty,
    relative_to_mean,
)

# Group 0: rewards 1 0 0 0, mean 1/4. Group 1: three times 0.1, whose mean is rounded. Group 2: 1 and 0, mean 1/2, and
# one that could not be scored, whose reward (9) nobody may read.
REWARDS = torch.tensor([1, 0, 0, 0, 0.1, 0.1, 0.1, 1, 9, 0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
SCORABLE = REWARDS != 9
SOLO = ["policy"] * 10

# Unbiased variance of group 0: ((3/4)^2 + 3 (1/4)^2) / 3 = (12/16) / 3 = 1/4, so std 1/2.
# Of group 2: ((1/2)^2 + (1/2)^2) / 1 = 1/2, so std 0.70710678.
Z_SCORES = [0.75 / 0.5001, *[-0.25 / 0.5001] * 3, 0, 0, 0, 0.5 / 0.70720678, 0, -0.5 / 0.70720678]
CENTRED = [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0.5, 0, -0.5]
# Group 0: the others' mean is 0 for the first, 1/3 for the rest. Group 2: the other scorable one alone.
LEFT_OUT = [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 1, 0, -1]
# Centred, over 1/4 and over 1/2.
OVER_MEAN = [3, -1, -1, -1, 0, 0, 0, 1, 0, -1]
# B = 3 groups, one of which has no spread: alpha = 3 / 2.
GPG = [1.5 * value for value in CENTRED]
RAW = [1, 0, 0, 0, 0.1, 0.1, 0.1, 1, 0, 0]


def computed(advantage, *given):
    """The advantages, and the baselines after the step."""
    groups = Groups(*given)
    return advantage(groups), moved_baselines(groups) if advantage is moving_average_baseline else groups.baselines


def spread(rewards, scorable, groups):
    """Whether each group's rewards differ."""
    return Groups(rewards, scorable, groups, [], {}).spread


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (normalize_rewards_per_group, Z_SCORES),
        (mean_only, CENTRED),
        (leave_one_out, LEFT_OUT),
        (relative_to_mean, OVER_MEAN),
        (group_policy_gradient, GPG),
        (no_baseline, RAW),
    ],
)
def test_advantages_by_hand(advantage, expected):
    advantages, baselines = computed(advantage, REWARDS, SCORABLE, GROUPS, SOLO, {})
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)
    assert baselines == {}


@pytest.mark.parametrize(
    "advantage",
    [normalize_rewards_per_group, mean_only, leave_one_out, relative_to_mean, group_policy_gradient],
)
def test_a_group_of_one_or_of_none_that_could_be_scored_teaches_nothing(advantage):
    rewards = torch.tensor([0.5, 9, 9, 9], dtype=torch.float64)
    advantages, _ = computed(advantage, rewards, rewards < 9, torch.tensor([0, 0, 1, 1]), SOLO[:4], {})
    assert advantages.tolist() == [0, 0, 0, 0]


def test_gpg_counts_the_groups_of_which_anything_could_be_scored():
    # Three of the four groups could be scored, one of them has spread: alpha = 3, and half on either side of its mean.
    rewards = torch.tensor([1, 0, 0.5, 9, 9, 9, 1, 1], dtype=torch.float64)
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    advantages, _ = computed(group_policy_gradient, rewards, rewards < 9, groups, SOLO[:8], {})
    assert advantages.tolist() == [1.5, -1.5, 0, 0, 0, 0, 0, 0]


def test_batch_normalisation_by_hand():
    # 1 0 | 0 1 and one unscorable: mean 1/2, unbiased variance 4 (1/4) / 3 = 1/3, std 0.57735027, groups ignored.
    rewards, scorable = torch.tensor([1.0, 0, 0, 1, 9], dtype=torch.float64), torch.tensor([True] * 4 + [False])
    groups = torch.tensor([0, 0, 1, 1, 1])
    advantages, _ = computed(normalize_rewards_over_batch, rewards, scorable, groups, ["policy"] * 5, {})
    a = 0.5 / (0.57735027 + 1e-4)
    torch.testing.assert_close(advantages.tolist(), [a, -a, -a, a, 0.0], atol=1e-8, rtol=0)


def test_the_moving_average_is_read_before_it_is_updated_and_kept_for_each_role():
    rewards = torch.tensor([1.0, -1, 0, 9], dtype=torch.float64)
    scorable, groups = torch.tensor([True, True, True, False]), torch.tensor([0, 1, 2, 3])
    roles = ["white", "black", "white", "black"]
    # white: b = 0.4, rewards 1 and 0 -> 0.6 and -0.4; then 0.95 * 0.4 + 0.05 * 0.5 = 0.405.
    # black: b = -0.2, reward -1 -> -0.8; then 0.95 * -0.2 + 0.05 * -1 = -0.24. The unscorable one is not read.
    before = {"white": 0.4, "black": -0.2, "absent": 7.0}
    advantages, after = computed(moving_average_baseline, rewards, scorable, groups, roles, before)
    torch.testing.assert_close(advantages.tolist(), [0.6, -0.8, -0.4, 0.0], atol=1e-12, rtol=0)
    torch.testing.assert_close(after, {"white": 0.405, "black": -0.24, "absent": 7.0}, atol=1e-12, rtol=0)
    assert before == {"white": 0.4, "black": -0.2, "absent": 7.0}


def test_a_role_that_could_not_be_scored_keeps_its_baseline():
    rewards, roles = torch.tensor([1.0, 9.0], dtype=torch.float64), ["white", "black"]
    advantages, after = computed(
        moving_average_baseline, rewards, rewards < 9, torch.tensor([0, 1]), roles, {"black": -0.2}
    )
    assert advantages.tolist() == [1.0, 0.0]
    assert after == {"white": pytest.approx(0.05), "black": -0.2}


def test_a_roles_baseline_starts_from_zero():
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    advantages, after = computed(moving_average_baseline, rewards, rewards >= 0, torch.tensor([0, 0]), SOLO[:2], {})
    assert advantages.tolist() == [1.0, 0.0]
    assert after == {"policy": pytest.approx(0.05 * 0.5)}


@pytest.mark.parametrize("advantage", [normalize_rewards_per_group, normalize_rewards_over_batch])
def test_normalised_advantages_do_not_depend_on_shift_and_hardly_on_scale(advantage):
    base, _ = computed(advantage, REWARDS, SCORABLE, GROUPS, SOLO, {})
    shifted, _ = computed(advantage, REWARDS + 3, SCORABLE, GROUPS, SOLO, {})
    scaled, _ = computed(advantage, REWARDS * 1000, SCORABLE, GROUPS, SOLO, {})
    torch.testing.assert_close(shifted, base, atol=1e-10, rtol=0)
    torch.testing.assert_close(scaled, base, atol=0, rtol=4e-4)  # the epsilon: 1e-4 beside a std of 0.3 to 0.7


def test_a_group_whose_mean_is_not_positive_is_not_divided_by_it():
    rewards = torch.tensor([-1.0, 1.0, -2.0, 1.0], dtype=torch.float64)
    advantages, _ = computed(relative_to_mean, rewards, rewards < 2, torch.tensor([0, 0, 1, 1]), SOLO[:4], {})
    assert advantages.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_relative_to_mean_climbs_the_log_likelihood_of_success_cut_before_order_n(p):
    # The score of an outcome r is (r - p) / (p (1 - p)) dp; d/dp of -sum (1 - p)^k / k is sum (1 - p)^(k - 1).
    n = 4
    gradient = 0.0
    for outcomes in product([0.0, 1.0], repeat=n):
        rewards = torch.tensor(outcomes, dtype=torch.float64)
        advantages, _ = computed(
            relative_to_mean, rewards, rewards < 2, torch.zeros(n, dtype=torch.int64), SOLO[:n], {}
        )
        chance = torch.where(rewards > 0, p, 1 - p).prod()
        gradient += float(chance * (advantages * (rewards - p) / (p * (1 - p))).mean())
    assert gradient == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)))


def test_spread_is_exact_and_leaves_out_the_unscorable():
    assert spread(REWARDS, SCORABLE, GROUPS).tolist() == [True, False, True]
    alone = torch.tensor([1.0, 9.0], dtype=torch.float64)
    assert spread(alone, alone < 9, torch.tensor([0, 0])).tolist() == [False]


@pytest.mark.parametrize(
    ("buffer", "penalties"),
    [
        # Up to 10 - 4 = 6 tokens nothing, then a quarter for each token.
        (4, [0, 0, -0.25, -0.75, -1]),
        (1, [0, 0, 0, 0, -1]),
        (0, [0, 0, 0, 0, 0]),
    ],
)
def test_the_overlong_penalty_falls_linearly_within_its_buffer(buffer, penalties):
    assert overlong_penalty(torch.tensor([1, 6, 7, 9, 10]), 10, buffer).tolist() == penalties


def test_without_a_buffer_and_a_limit_there_is_no_overlong_penalty():
    assert overlong_penalty(torch.tensor([1, 6, 10]), 0, 0).tolist() == [0, 0, 0]
