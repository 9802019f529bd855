"""The nouns: what they say of themselves, and what they are where nothing is said."""

import pytest

from minrl.types import SOLO, Example, Reward, Rollout


def test_an_example_has_the_fields_of_its_task_and_no_others():
    example = Example("3,5", "numbers 3 5", {"numbers": [3, 5]})
    assert example["numbers"] == [3, 5]
    with pytest.raises(KeyError):
        example["target"]


def test_a_reward_is_at_most_1_where_nothing_is_said():
    assert Reward(0.5) == Reward(0.5, {}, 1.0)
    assert [Reward(value).solved for value in (0.0, 0.99, 1.0)] == [False, False, True]
    assert [Reward(value, maximum=4.0).solved for value in (1.0, 3.9, 4.0)] == [False, False, True]


def test_parts_of_a_reward_have_texts_for_names():
    reward = object.__new__(Reward)  # a task may break the type that its reward states
    vars(reward).update(value=0.0, parts={1: 0.5, "form": 1}, maximum=1.0, full=None)
    reward.__post_init__()
    assert reward.parts == {"1": 0.5, "form": 1.0}


def test_a_rollout_counts_what_was_sampled_and_knows_whether_it_was_cut_off():
    mask = [False, False, True, True, True]
    rollout = Rollout([11, 12, 21, 22, 2], mask, [0.0] * 5, [(2, 5)], 2, "example", 0, 0, SOLO, 0, 0)
    assert rollout.num_sampled == 3
    assert not rollout.truncated
    assert (rollout.reward, rollout.text, rollout.slot, rollout.episode) == (None, "", 0, [])
    rollout.finish_reason = "length"
    assert rollout.truncated
