"""Advantages against numbers worked out by hand."""

from dataclasses import replace

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
    no_reward,
    normalize_each_part,
    normalize_rewards_over_batch,
    normalize_rewards_per_group,
    overlong_penalty,
    relative_to_mean,
    teacher_preference,
)

GROUP_RELATIVE = [normalize_rewards_per_group, mean_only, leave_one_out, relative_to_mean, group_policy_gradient]
UNSCORABLE = 9.0
"""The reward of rollouts that could not be scored: no function may read it."""

# Group 0: rewards 1 0 0 0, mean 1/4. Group 1: three times 0.1, whose mean is rounded. Group 2: 1 and 0, mean 1/2.
REWARDS = [1, 0, 0, 0, 0.1, 0.1, 0.1, 1, UNSCORABLE, 0]
GROUP_OF = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
# Unbiased variance of group 0: ((3/4)^2 + 3 (1/4)^2) / 3 = 1/4, std 1/2. Of group 2: 2 (1/2)^2 / 1, std 0.70710678.
Z_SCORES = [0.75 / 0.5001, *[-0.25 / 0.5001] * 3, 0, 0, 0, 0.5 / 0.70720678, 0, -0.5 / 0.70720678]
CENTERED = [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0.5, 0, -0.5]
Z = 0.5 / (0.57735027 + 1e-4)


def groups_of(rewards, group_of, roles=None, baselines=None):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    roles = roles or ["policy"] * len(rewards)
    return Groups(rewards, rewards != UNSCORABLE, torch.tensor(group_of), roles, baselines or {})


@pytest.mark.parametrize(
    ("advantage", "rewards", "group_of", "expected"),
    [
        (normalize_rewards_per_group, REWARDS, GROUP_OF, Z_SCORES),
        (mean_only, REWARDS, GROUP_OF, CENTERED),
        # The others' mean is 0 for the first of group 0, 1/3 for the rest; in group 2 it is the other scorable one.
        (leave_one_out, REWARDS, GROUP_OF, [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 1, 0, -1]),
        # Centered, over 1/4 and over 1/2; a group whose mean is not positive is not divided by it.
        (relative_to_mean, REWARDS, GROUP_OF, [3, -1, -1, -1, 0, 0, 0, 1, 0, -1]),
        (relative_to_mean, [-1, 1, -2, 1], [0, 0, 1, 1], [0] * 4),
        # B = 3 groups, one of which has no spread: alpha = 3 / 2. Below, three of four could be scored, one has spread.
        (group_policy_gradient, REWARDS, GROUP_OF, [1.5 * value for value in CENTERED]),
        (group_policy_gradient, [1, 0, 0.5, 9, 9, 9, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3], [1.5, -1.5, *[0] * 6]),
        (group_policy_gradient, [1, 0] * 3 + [5], [0, 0, 1, 1, 2, 2, 3], [2 / 3, -2 / 3] * 3 + [0]),  # not in float32
        (no_baseline, REWARDS, GROUP_OF, [1, 0, 0, 0, 0.1, 0.1, 0.1, 1, 0, 0]),
        (no_reward, [1, 0], [0, 0], [0, 0]),
        # Groups ignored: mean 1/2, unbiased variance 4 (1/4) / 3 = 1/3, std 0.57735027.
        (normalize_rewards_over_batch, [1, 0, 0, 1, 9], [0, 0, 1, 1, 1], [Z, -Z, -Z, Z, 0]),
        # A group of one, and one of which nothing could be scored.
        *((row, [0.5, 9, 9, 9], [0, 0, 1, 1], [0] * 4) for row in GROUP_RELATIVE),
    ],
)
def test_advantages_by_hand(advantage, rewards, group_of, expected):
    found = advantage(groups_of(rewards, group_of))
    torch.testing.assert_close(found.tolist(), list(map(float, expected)), atol=1e-8, rtol=0)


def test_each_part_is_normalized_in_its_group_before_the_sum_and_the_sum_over_the_step():
    # Two groups of two, and one rollout that could not be scored. The answer decides the first group, the format, with
    # half the weight, both: z-scores are 0.5 / (0.7071 + 1e-4) whatever the scale of a part.
    groups = groups_of([0, 0, 0, 0, UNSCORABLE], [0, 0, 1, 1, 1])
    answer, form = ([1, 0, 1, 1, 9], [0, 8, 0, 8, 9])
    parts = [(1.0, torch.tensor(answer, dtype=torch.float64)), (0.5, torch.tensor(form, dtype=torch.float64))]
    z, z8 = 0.5 / (0.5**0.5 + 1e-4), 4 / (32**0.5 + 1e-4)
    total = [z - z8 / 2, z8 / 2 - z, -z8 / 2, z8 / 2, 0]
    std = (sum(value**2 for value in total) / 3) ** 0.5
    found = normalize_each_part(replace(groups, parts=parts))
    torch.testing.assert_close(found.tolist(), [value / (std + 1e-4) for value in total], atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("before", "rewards", "roles", "advantages", "after"),
    [
        # white: b = 0.4, rewards 1 and 0; then 0.95 * 0.4 + 0.05 * 0.5 = 0.405. black: 0.95 * -0.2 + 0.05 * -1 = -0.24.
        (
            {"white": 0.4, "black": -0.2, "absent": 7.0},
            [1, -1, 0, UNSCORABLE],
            ["white", "black", "white", "black"],
            [0.6, -0.8, -0.4, 0],
            {"white": 0.405, "black": -0.24, "absent": 7.0},
        ),
        # A baseline starts from 0; a role that could not be scored keeps its own.
        ({"black": -0.2}, [1, UNSCORABLE], ["white", "black"], [1, 0], {"white": 0.05, "black": -0.2}),
    ],
)
def test_each_roles_moving_average_is_read_before_it_moves(before, rewards, roles, advantages, after):
    groups = groups_of(rewards, range(len(rewards)), roles, dict(before))
    torch.testing.assert_close(moving_average_baseline(groups).tolist(), list(map(float, advantages)))
    torch.testing.assert_close(moved_baselines(groups), after, atol=1e-12, rtol=0)
    assert groups.baselines == before


def test_spread_is_more_than_rounding_and_leaves_out_the_unscorable():
    assert groups_of([*REWARDS, 1, UNSCORABLE], [*GROUP_OF, 3, 3]).spread.tolist() == [True, False, True, False]
    # The tolerance of `solved`: 1e-9 of the larger reward, or 1e-12.
    pairs = [0.1 + 0.2, 0.3, 1e6, 1e6 + 1e-4, 0, 5e-13, UNSCORABLE, UNSCORABLE, 0.3, 0.3 + 1e-8, 0, 1e-11]
    assert groups_of(pairs, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]).spread.tolist() == [False] * 4 + [True] * 2
    for advantage in GROUP_RELATIVE:
        assert advantage(groups_of([0.1 + 0.2, 0.3], [0, 0])).tolist() == [0, 0]


def test_a_teacher_prefers_what_it_finds_likelier_than_the_policy_that_sampled():
    teacher, old = (torch.tensor(values, dtype=torch.float64).log() for values in ([0.5, 0.25], [0.25, 0.5]))
    torch.testing.assert_close(teacher_preference(teacher, old), torch.tensor([2, 0.5], dtype=torch.float64).log())


def test_the_overlong_penalty_falls_linearly_within_its_buffer():
    # Up to 10 - 4 = 6 tokens nothing, then a quarter for each token.
    assert overlong_penalty(torch.tensor([1, 6, 7, 9, 10]), 10, 4).tolist() == [0, 0, -0.25, -0.75, -1]
    assert overlong_penalty(torch.tensor([1, 6]), 0, 0).tolist() == [0, 0]
