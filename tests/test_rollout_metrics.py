"""Numbers of a step's rollouts, by hand."""

import pytest

from minrl.dataflow import Reward
from minrl.tracking.metrics import rollout_metrics

RIGHT, WRONG = Reward(1.0, {"format": 1.0}), Reward(0.0, {"format": 0.5})
LIMIT = {"": 4}


def test_the_numbers_of_four_rollouts_by_hand(make_rollout):
    rollouts = [
        make_rollout([1, 2], [3, 4], reward=Reward(1.0, {"format": 1.0})),
        make_rollout([1, 2], [3], reward=Reward(0.0, {"format": 0.0}), finish_reason="length"),
        make_rollout([1, 2], [3, 4, 5], reward=Reward(0.2, {"format": 1.0})),
        make_rollout([1, 2, 3, 4], [5, 6], reward=None),
    ]
    expected = {
        # Of the three scored: mean 1.2 / 3 = 0.4, variance (0.36 + 0.16 + 0.04) / 3, one of three solved.
        "reward/mean": 0.4,
        "reward/std": (0.56 / 3) ** 0.5,
        "reward/solved_frac": 1 / 3,
        "reward/part/format": 2 / 3,
        "rollout/completion_tokens_solved_mean": 2,
        "rollout/completion_tokens_unsolved_mean": 2,
        # Of all four: one unscorable, one truncated; 2 + 1 + 3 + 2 = 8 tokens, each sampled at log-probability -1.
        "reward/unscorable_frac": 0.25,
        "rollout/truncated_frac": 0.25,
        "rollout/completion_tokens_mean": 2,
        "rollout/completion_tokens_max": 3,
        "rollout/limit_frac": 8 / (4 * 4),
        "rollout/prompt_tokens_mean": 2.5,
        "rollout/entropy": 1,
    }
    found = rollout_metrics(rollouts, LIMIT)
    assert {tag: found[tag] for tag in expected} == pytest.approx(expected)  # a curve may be added
    lost = rollout_metrics(rollouts, LIMIT, num_lost=4)  # episodes that never began
    assert lost == pytest.approx({**found, "reward/unscorable_frac": 5 / 8})
    nothing_scored = rollout_metrics(rollouts[3:], LIMIT)
    assert {tag for tag in nothing_scored if tag.startswith("reward/") or "solved" in tag} == {"reward/unscorable_frac"}


def test_groups_are_solved_by_none_some_or_all_of_their_rollouts(make_rollout):
    outcomes = {0: [RIGHT, RIGHT], 1: [RIGHT, WRONG], 2: [WRONG, WRONG], 3: [WRONG, None], 4: [None, None]}
    rollouts = [make_rollout([1], [2], group=group, reward=r) for group, rewards in outcomes.items() for r in rewards]
    metrics = rollout_metrics(rollouts, LIMIT)
    # Of the four groups that could be scored: one all, one some, and two none, the unscorable left out.
    assert [metrics[f"reward/solve_{some}_group_frac"] for some in ("all", "some", "none")] == [0.25, 0.25, 0.5]


def test_each_role_has_the_mean_of_its_own_rewards_and_parts(make_rollout):
    given = [("a", 1.0), ("a", 0.0), ("b", 0.25), ("b", None)]
    rewards = [None if value is None else Reward(value, {"legal": value / 2}) for _, value in given]
    rollouts = [make_rollout([1], [2], role=role, reward=r) for (role, _), r in zip(given, rewards, strict=True)]
    found = {tag: value for tag, value in rollout_metrics(rollouts, LIMIT).items() if tag.startswith("reward/role")}
    means = {"a": 0.5, "a/legal": 0.25, "b": 0.25, "b/legal": 0.125}
    assert found == {f"reward/role/{name}": mean for name, mean in means.items()}
    alone = rollout_metrics(rollouts[:2], LIMIT)
    assert not any(tag.startswith("reward/role") for tag in alone)  # the mean of all is its own
