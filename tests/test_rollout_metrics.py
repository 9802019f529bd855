"""Numbers, distributions and samples of a step's rollouts, by hand."""

import numpy as np
import pytest
import torch

from minrl.record.rollout_metrics import distributions, markdown, rollout_metrics, samples
from minrl.types import Reward
from minrl.viewer.lines import rollout_line

RIGHT, WRONG = Reward(1.0, {"format": 1.0}), Reward(0.0, {"format": 0.5})


def test_groups_are_solved_by_none_some_or_all_of_their_rollouts(make_rollout):
    outcomes = {0: [RIGHT, RIGHT], 1: [RIGHT, WRONG], 2: [WRONG, WRONG], 3: [WRONG, None], 4: [None, None]}
    rollouts = [make_rollout([1], [2], group=group, reward=r) for group, rewards in outcomes.items() for r in rewards]
    metrics = rollout_metrics(rollouts, 4)
    # Of the four groups that could be scored: one all, one some, and two none, the unscorable left out.
    assert metrics["reward/solve_all_group_frac"] == 0.25
    assert metrics["reward/solve_some_group_frac"] == 0.25
    assert metrics["reward/solve_none_group_frac"] == 0.5


def test_right_and_wrong_completions_have_a_length_each(make_rollout):
    lengths = [(RIGHT, 2), (RIGHT, 4), (WRONG, 6), (None, 8)]
    rollouts = [make_rollout([1], [2] * length, reward=reward) for reward, length in lengths]
    metrics = rollout_metrics(rollouts, 10)
    assert metrics["rollout/completion_tokens_solved_mean"] == 3.0
    assert metrics["rollout/completion_tokens_unsolved_mean"] == 6.0
    assert metrics["rollout/limit_frac"] == pytest.approx(20 / 40)
    nothing_solved = rollout_metrics(rollouts[2:], 10)
    assert "rollout/completion_tokens_solved_mean" not in nothing_solved


def test_where_nothing_could_be_scored_there_is_no_reward_and_no_outcome(make_rollout):
    metrics = rollout_metrics([make_rollout([1], [2], reward=None)], 4)
    assert {tag: value for tag, value in metrics.items() if tag.startswith("reward/")} == {"reward/unscorable_frac": 1}
    assert not any("group_frac" in tag or "solved_mean" in tag for tag in metrics)


def test_one_token_and_none_are_counted_as_what_they_are(make_rollout):
    one, none = make_rollout([1], [2]), make_rollout([1], [], turns=[])
    metrics = rollout_metrics([one], 1)
    assert (metrics["rollout/limit_frac"], metrics["rollout/entropy"]) == (1, 1)
    metrics = rollout_metrics([none], 1)
    assert (metrics["rollout/limit_frac"], metrics["rollout/entropy"]) == (0, 0)


def test_each_role_has_the_mean_of_its_own_rewards_and_parts(make_rollout):
    given = [("a", 1.0), ("a", 0.0), ("b", 0.25), ("b", None)]
    rollouts = [
        make_rollout([1], [2], role=role, reward=None if value is None else Reward(value, {"legal": value / 2}))
        for role, value in given
    ]
    by_role = {tag: value for tag, value in rollout_metrics(rollouts, 4).items() if tag.startswith("reward/role")}
    assert by_role == {
        "reward/role/a": 0.5,
        "reward/role/a/legal": 0.25,
        "reward/role/b": 0.25,
        "reward/role/b/legal": 0.125,
    }
    assert not any(tag.startswith("reward/role") for tag in rollout_metrics(rollouts[:2], 4))  # that of all is its own


def test_the_share_of_the_limit_is_a_turns(make_rollout):
    two_turns = make_rollout([1], [2, 2, 3, 3], turns=[(1, 3), (3, 5)])
    assert rollout_metrics([two_turns], 8)["rollout/limit_frac"] == 0.25  # two tokens of eight in each


def test_distributions_hold_raw_weights_of_what_was_scored(make_rollout):
    rollouts = [make_rollout([1], [2, 3], reward=RIGHT), make_rollout([1], [4], reward=None)]
    found = distributions(rollouts, torch.tensor([-1.0 + np.log(3.0), -1.0, torch.nan]))
    # The engine's log-probabilities are -1: weights 3 and 1, however high, and none for what was not computed.
    np.testing.assert_allclose(found["engine/importance_weight"], [3.0, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(found["rollout/completion_tokens"], [2, 1])
    np.testing.assert_array_equal(found["reward/value"], [1.0])


def lines_of(rollouts):
    return [rollout_line(rollout, "train", "shown", 0.5, None) for rollout in rollouts]


def test_samples_are_the_best_the_worst_the_longest_and_one_cut_off(make_rollout):
    rollouts = [
        make_rollout([1], [2], reward=Reward(0.5)),
        make_rollout([1], [2], reward=RIGHT),
        make_rollout([1], [2], reward=WRONG),
        make_rollout([1], [2] * 5, reward=None),
        make_rollout([1], [2] * 3, reward=Reward(0.5), finish_reason="length"),
        make_rollout([1], [2] * 4, reward=Reward(0.5), finish_reason="length"),
    ]
    lines = lines_of(rollouts)
    assert samples(lines) == [lines[1], lines[2], lines[3], lines[4]]
    assert samples(lines[1:2]) == [lines[1]]
    assert samples([]) == []
    assert samples(lines[3:4]) == [lines[3]]


def test_a_sample_is_shown_as_text_whatever_it_says(make_rollout):
    rollout = make_rollout([1], [2], reward=WRONG, text="<script>alert(1)</script>\n# not a title")
    (line,) = lines_of([rollout])
    shown = markdown([line]).split("\n")
    assert shown[0] == "**reward 0 · advantage +0.50 · format 0.5 · 1 tokens · stop · policy**"
    assert shown[2:] == ["    shown", "    --------", "    <script>alert(1)</script>", "    # not a title"]


def test_a_sample_without_reward_parts_and_advantage_says_what_there_is(make_rollout):
    lines = [rollout_line(make_rollout([1], [2], reward=None, text="a"), "train", "p", None, None)] * 2
    one = "**unscorable · 1 tokens · stop · policy**\n\n    p\n    --------\n    a"
    assert markdown(lines) == f"{one}\n\n{one}"


def test_a_sample_of_2000_characters_is_shown_whole_and_one_more_is_cut(make_rollout):
    texts = (markdown(lines_of([make_rollout([1], [2], text="a" * n + "z")])) for n in (1999, 2000))
    whole, cut = (text.replace("\n    ", "") for text in texts)  # without the line breaks
    assert "a" * 1999 + "z" in whole and "characters" not in whole
    assert "-" + "a" * 1000 + "... 1 characters ..." + "a" * 999 + "z" in cut


def test_a_long_sample_is_shortened_in_the_middle(make_rollout):
    (line,) = lines_of([make_rollout([1], [2], text="a" * 3000 + "z")])
    shown = markdown([line])
    assert "\n    ... 1001 characters ...\n" in shown and shown.endswith("z") and len(shown) < 2300


def test_episodes_that_never_began_are_unscorable_and_nothing_else(make_rollout):
    rollouts = [make_rollout([1], [2], reward=reward) for reward in (RIGHT, WRONG, None)]
    metrics, without = rollout_metrics(rollouts, 4, num_lost=5), rollout_metrics(rollouts, 4)
    assert metrics.pop("reward/unscorable_frac") == 1 - 2 / 8
    assert without.pop("reward/unscorable_frac") == 1 - 2 / 3
    assert metrics == without
