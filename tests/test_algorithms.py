"""Rows of ALGORITHMS: what they teach, and which settings contradict them."""

from dataclasses import replace

import pytest
import torch

from minrl.advantages import no_reward
from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.dataflow import Reward, TrainState, UserError
from minrl.losses import Limits, policy_gradient
from tests.conftest import rollout_of
from tests.parsed import parsed, sized

REWARDED = [name for name, row in ALGORITHMS.items() if row.advantage is not no_reward]
GROUP_RELATIVE = [name for name, row in ALGORITHMS.items() if row.group_relative]
NEEDED = {"gdpo": {"reward_parts": "part"}, "distill": {"teacher_id": "model"}}


def chosen(algorithm="grpo", **settings):
    settings = {"group_size": 2, "max_tokens": 64, "algorithm": algorithm, **NEEDED.get(algorithm, {}), **settings}
    return choose_algorithm(sized(**settings))


def refusal(algorithm, **settings):
    """The one line with which the settings are refused."""
    with pytest.raises(UserError) as refused:
        chosen(algorithm, **settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def compared(rollouts, name="grpo", baselines=None, **settings):
    """The advantages, the baselines after them, and the share of groups without spread."""
    config = sized(algorithm=name, **NEEDED.get(name, {}), **settings, max_tokens=64)
    state = TrainState(baselines=dict(baselines or {}))
    found = compute_advantages(rollouts, ALGORITHMS[name], config, state)
    return found.values, state.baselines, found.metrics["reward/zero_spread_group_frac"]


def rollouts_of(groups):
    """Rollouts whose rewards are `groups[group][sample]`; None is unscorable."""
    return [
        rollout_of([5], [6, 7], group=group, example_id=f"example {group}", sample=sample, reward=reward)
        for group, values in enumerate(groups)
        for sample, value in enumerate(values)
        for reward in [None if value is None else Reward(value, {"part": value})]
    ]


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_equal_rewards_teach_nothing_and_are_compensated_for_once(name):
    # 0.1 + 0.1 + 0.1 is not 3 * 0.1 in floating point: the advantage must be exactly 0 all the same.
    equal, useful = [[0.1] * 3, [0.7] * 3, [None, 0.3]], [[1.0, 0.0, 0.5]]
    alone, among = compared(rollouts_of(useful), name)[0], compared(rollouts_of([*equal, *useful]), name)[0]
    assert (among[:-3] == 0).all() and (alone != 0).any()
    # gpg makes up for groups without spread; gdpo divides by the deviation of all ten scored rollouts.
    scale = {"gpg": 4, "gdpo": ((10 - 1) / (3 - 1)) ** 0.5}.get(name, 1)
    torch.testing.assert_close(among[-3:], scale * alone, rtol=1e-3 if name == "gdpo" else 1e-7, atol=1e-8)
    assert chosen(name, refill_rounds=1) == ALGORITHMS[name]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_better_rollouts_have_larger_advantages_in_any_order_and_unscorable_ones_none(name):
    rollouts, order = rollouts_of([[1.0, 0.5, None, 0.0], [0.0, 1.0, 1.0, 1.0]]), [6, 3, 0, 5, 2, 7, 1, 4]
    advantages, before, _ = compared(rollouts, name, {"policy": 0.3})
    if name in REWARDED:
        assert advantages[0] > advantages[1] > advantages[3] and advantages[5] > advantages[4]
    else:
        assert (advantages == 0).all()
    assert advantages[2] == 0 and advantages.isfinite().all() and advantages.dtype == torch.float64
    shuffled, after, _ = compared([rollouts[i] for i in order], name, {"policy": 0.3})
    torch.testing.assert_close(shuffled, advantages[order], atol=1e-12, rtol=0)
    torch.testing.assert_close(after, before, atol=1e-12, rtol=0)
    assert (after["policy"] != 0.3) == (name in ("reinforce", "spiral"))  # whose moving average has moved


@pytest.mark.house
def test_every_row_can_be_chosen_and_has_the_bounds_that_its_comment_names():
    clip = Limits(0.2, 0.2)
    bounds = dict.fromkeys(("grpo", "dr_grpo", "reinforce_pp", "distill"), clip)
    bounds |= {"gdpo": clip, "luspo": Limits(2e-3, 2.5e-3), "dppo": Limits(0.15, 0.15)}
    bounds |= {"dapo": Limits(0.2, 0.28), "gspo": Limits(3e-4, 4e-4), "dual_clip": Limits(0.2, 0.2, 3.0)}
    bounds |= {"cispo": Limits(clip_high=5.0 - 1, either_sign=True)}
    assert {name: chosen(name) for name in ALGORITHMS} == ALGORITHMS
    unbounded = Limits()
    assert [row.limits for row in ALGORITHMS.values()] == [bounds.get(name, unbounded) for name in ALGORITHMS]
    no_groups = ["reinforce_pp", "reinforce", "reinforce_no_baseline", "spiral", "distill"]
    assert [name for name in ALGORITHMS if name not in GROUP_RELATIVE] == no_groups
    levels = {"gspo": "geometric", "luspo": "geometric", "vespo": "sequence"}
    assert [row.ratio_level for row in ALGORITHMS.values()] == [levels.get(name, "token") for name in ALGORITHMS]


def test_the_limits_of_the_config_replace_the_rows_and_some_rows_need_no_group():
    assert chosen("dapo", clip_high=0.5).limits == Limits(0.2, 0.5)
    assert chosen("spiral", group_size=1) == ALGORITHMS["spiral"]
    assert chosen("grpo", length_target=64) == ALGORITHMS["grpo"]


def test_the_longest_turn_of_a_rollout_is_penalized():
    # Of at most 64 tokens in a turn the last 16 cost 1/16 each: a turn of 56 costs 8/16, whatever the turns before it.
    turns = [[(1, 57)], [(1, 3), (5, 61)], [(1, 49), (60, 65)], []]
    rollouts = [rollout_of([5], [6], turns=bounds, reward=Reward(1.0)) for bounds in turns]
    advantages, _, equal = compared(rollouts, "reinforce_no_baseline", overlong_buffer=16)
    assert (advantages.tolist(), equal) == ([0.5, 0.5, 1.0, 1.0], 0)
    assert compared(rollouts, "reinforce_no_baseline")[0].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("grpo", {"kl_coef": 0.1, "kl_estimator": "k1", "kl_gradient": "naive"}, "naive gradient of k1 is 0"),
        ("grpo", {"group_size": 1}, "group_size must be at least 2"),
        ("gspo", {"importance_level": "token"}, "importance_level must not be token"),
        ("reinforce", {"clip_low": 0.1}, "reinforce has no clip_low"),
        ("reinforce", {"refill_rounds": 1}, "leave out refill_rounds"),
        ("distill", {"teacher_id": ""}, "distill learns from a teacher"),
        ("distill", {"overlong_buffer": 8}, "leave out overlong_buffer"),
        ("gspo", {"teacher_id": "model"}, "gspo weighs whole sequences, and a teacher tokens"),
        ("grpo", {"reward_parts": "part"}, "no other algorithm reads reward_parts"),
        ("gdpo", {"overlong_buffer": 8}, "without overlong_buffer"),
        ("gdpo", {"length_penalty": 0.5}, "with length among them for a length penalty"),
        ("dppo", {"importance_floor": 0.5}, "dppo has no importance weight"),
        ("vespo", {"importance_level": "sequence"}, "its ratio is to the engine: leave out importance_level"),
        ("grpo", {"overlong_buffer": 2, "max_tokens": 2}, "overlong_buffer (2) must be below max_tokens (2)"),
    ],
)
def test_what_contradicts_the_row_is_refused_in_one_line(algorithm, settings, message):
    assert message in refusal(algorithm, **settings)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_second_pass_needs_a_ratio_to_the_policy_that_sampled(name):
    # What the loss says at a ratio of 2 it says at 1 too where there is no ratio: it cannot tell a policy that moved.
    row, logprobs, advantages = ALGORITHMS[name], torch.tensor([-1.0]), torch.tensor([1.0])
    found = [row.surrogate(logprobs, torch.tensor([ratio]), advantages, row.limits) for ratio in (1.0, 2.0)]
    losses = [one[0] if isinstance(one, tuple) else one for one in found]
    assert row.has_ratio == (losses[0].item() != losses[1].item())
    if row.has_ratio:
        assert chosen(name, passes_per_step=2) == row
    else:
        assert f"{name} has no ratio" in refusal(name, passes_per_step=2)


def test_a_part_that_no_reward_of_the_first_step_has_is_refused_and_later_counts_as_0():
    rollouts = rollouts_of([[1.0, 0.0, None, 1.0]])
    config = sized(algorithm="gdpo", reward_parts="part,prat:2", max_tokens=64)
    with pytest.raises(UserError) as refused:
        compute_advantages(rollouts, ALGORITHMS["gdpo"], config, TrainState(step=1))
    known = "which reward_parts names: the parts of the rewards are part: did you mean part?"
    assert str(refused.value) == f"no reward has a part 'prat', {known}"
    later = compute_advantages(rollouts, ALGORITHMS["gdpo"], config, TrainState(step=2))
    assert later.values.tolist() == compared(rollouts, "gdpo")[0].tolist()


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        (lambda groups: groups.mean, "must return a number for each of 4 rollouts, shape (4,), got (2,)"),
        (
            lambda groups: groups.scored / groups.std[groups.group_of],
            "is not finite for example 'example 1', whose group has the rewards 0, 0",
        ),
    ],
)
def test_an_advantage_that_is_no_number_is_refused_by_its_row(advantage, message, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "mine", replace(ALGORITHMS["rloo"], advantage=advantage))
    with pytest.raises(UserError) as refused:
        compared(rollouts_of([[1.0, 0.0], [0.0, 0.0]]), "mine")
    assert str(refused.value) == f"the advantage of mine {message}"


ROW = """
from dataclasses import dataclass
from minrl.losses import Algorithm, policy_gradient, token_mean
@dataclass(frozen=True)
class Options:
    '''Settings.'''
    share: float = 1.0
    '''Of the best.'''
def best(groups, options):
    return groups.scored - options.share * groups.scored.max()
mine = Algorithm(best, policy_gradient, token_mean, group_relative=False, options=Options)
"""


def test_a_row_of_a_file_is_an_algorithm_whose_options_are_flags(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(ROW)
    monkeypatch.chdir(tmp_path)
    config, options = parsed(["--algorithm", "own.py:mine", "--mine.share", "0.5"])
    assert config.algorithm == f"{tmp_path}/own.py:mine"  # a resumed run finds it from any folder
    assert config.what == "countdown-mine"
    config = sized(algorithm="own.py:mine")
    for given, expected in ((None, [0.0, -0.75, -0.5, -1.0]), (options, [0.5, -0.25, 0.0, -0.5])):
        row = choose_algorithm(config, given)
        found = compute_advantages(rollouts_of([[1.0, 0.25], [0.5, None]]), row, config, TrainState())
        assert found.values.tolist() == expected and row.surrogate is policy_gradient
    assert "has no Algorithm 'yours': its Algorithms are mine" in refusal("own.py:yours")
    assert "no file " in refusal("absent.py:mine")
