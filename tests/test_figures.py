"""pass@k over examples and differences by hand."""

import numpy as np
import pytest

from minrl.evaluate.figures import EpisodeScore, example_values, in_roles, paired_difference, pass_figure
from minrl.types import Reward
from minrl.utils.statistics import wilson
from minrl.utils.text import json_text, plain


def score(index, solved, role="policy"):
    reward = None if solved is None else Reward(float(solved))
    return EpisodeScore("m", "t", "sampled", index, f"e{index}", role, reward, 3.0, False)


def test_a_value_for_each_example_is_the_mean_of_its_roles():
    scores = [score(0, 1, "x"), score(0, 0, "x"), score(0, 0, "o"), score(0, 0, "o"), score(1, 1, "x")]
    assert example_values(scores, 1) == {0: 0.25, 1: 1.0}
    assert example_values(scores, 2) == {0: 0.5}  # only the first has two samples
    value, _, examples = pass_figure(scores, 2)
    assert (value, examples) == (0.5, 1)


def test_a_lost_episode_is_a_sample_of_each_role_of_its_example():
    # Example 0 lost one of two episodes of x and o, example 1 all of its two.
    scores = in_roles([score(0, 1, "x"), score(0, 1, "o"), score(0, None, ""), score(1, None, ""), score(1, None, "")])
    assert example_values(scores, 1) == {0: 0.5, 1: 0.0}
    assert example_values(scores, 2) == {0: 1.0, 1: 0.0}
    assert pass_figure(scores, 1)[0] == 2 / 8  # two roles of four episodes
    # Where each example has a role of its own, a lost one is of nobody in particular.
    assert pass_figure(in_roles([score(0, 1, "x"), score(1, 1, "o"), score(2, None, "")]), 1)[0] == 2 / 3


def test_where_nothing_could_be_scored_there_is_no_value():
    value, ci95, _ = pass_figure([score(0, None), score(1, None)], 1)
    assert np.isnan([value, *ci95]).all()


def test_the_paired_interval_is_narrower_than_the_two_apart():
    # 100 examples of very different difficulty; the second model solves 10 more of them and loses none.
    before = [[True]] * 45 + [[False]] * 55
    after = [[True]] * 55 + [[False]] * 45
    found = paired_difference(before, after)
    assert found["difference"] == pytest.approx(0.1)
    assert (found["better"], found["worse"], found["same"]) == (10, 0, 90)
    # The standard error is sqrt(0.1 * 0.9 / 100) = 0.03; apart it would be sqrt(2 * 0.25 / 100) = 0.07.
    low, high = found["ci95"]
    assert low == pytest.approx(0.1 - 1.96 * 0.03, abs=0.012) and high == pytest.approx(0.1 + 1.96 * 0.03, abs=0.012)


def test_models_that_agree_on_every_example_are_no_certainty():
    zeros = [[False]] * 40
    found = paired_difference(zeros, zeros)
    # Both are 0 of 40, whose Wilson interval ends at 0.0876: so far may each be above the other.
    assert found["difference"] == 0.0
    assert found["ci95"] == pytest.approx([-wilson(0.0, 40)[1], wilson(0.0, 40)[1]])


UNEQUAL = [score(i, i >= 50) for i in range(100) for _ in range(4 if i < 50 else 8)]
"""50 examples with four samples that fail, and 50 with eight that solve."""


def test_pass_at_1_and_its_interval_are_of_the_same_share_where_examples_have_unequal_samples():
    value, (low, high), examples = pass_figure(UNEQUAL, 1)
    assert (value, examples) == (8 / 12, 100)
    # With s of 100 resampled examples solved, the share is 8 s / (4 (100 - s) + 8 s) = 2 s / (100 + s), and s has a
    # standard deviation of 5: its middle 95 % are about 40 and 60.
    assert low == pytest.approx(2 * 40 / 140, abs=0.012) and high == pytest.approx(2 * 60 / 160, abs=0.012)


def test_the_difference_is_that_of_the_two_figures_where_examples_have_unequal_samples():
    # One model solves the examples that have more samples; the other has as many of each, and solves every half.
    before = [[True] * 8 if index >= 50 else [False] * 4 for index in range(100)]
    after = [[True, False]] * 100
    found = paired_difference(before, after)
    assert found["difference"] == pytest.approx(0.5 - pass_figure(UNEQUAL, 1)[0])
    # The second share is 0.5 in each resample, the first as above.
    low, high = pass_figure(UNEQUAL, 1)[1]
    assert found["ci95"] == pytest.approx([0.5 - high, 0.5 - low])
    # Against itself every resample differs by nothing, which is no certainty.
    low, high = paired_difference(before, before)["ci95"]
    assert low < -0.05 and high > 0.05


def test_json_has_no_nan():
    value = {"a": [float("nan"), 1.0], "b": (2.0, "x", None, float("inf"))}
    assert plain(value) == {"a": [None, 1.0], "b": [2.0, "x", None, None]}
    assert json_text(value) == '{"a": [null, 1.0], "b": [2.0, "x", null, null]}'
    assert json_text({"b": 1}, indent=1) == '{\n "b": 1\n}'
