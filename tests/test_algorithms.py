"""Rows of ALGORITHMS: what they teach, and which settings contradict them."""

import pytest
import torch

from minrl.advantages import no_reward
from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.config import AlgorithmConfig, RolloutConfig, SamplingConfig, TrainerConfig
from minrl.losses import LEVELS, Limits
from minrl.types import Reward, TrainState, UserError

PAID = [name for name, row in ALGORITHMS.items() if row.advantage is not no_reward]
GROUP_RELATIVE = [name for name, row in ALGORITHMS.items() if row.group_relative]


def chosen(group_size=4, refill_rounds=0, **settings):
    if settings.get("algorithm", "grpo") in ALGORITHMS.keys() - PAID:
        settings = {"teacher_id": "model", **settings}
    return choose_algorithm(
        TrainerConfig(
            algorithm=AlgorithmConfig(**settings),
            rollout=RolloutConfig(group_size=group_size, max_tokens=64),
            sampling=SamplingConfig(refill_rounds=refill_rounds),
        )
    )


def compared(rollouts, name="grpo", baselines=None, **settings):
    """The advantages, the baselines after them, and the share of groups without spread."""
    config = TrainerConfig(algorithm=AlgorithmConfig(algorithm=name, **settings), max_tokens=64)
    state = TrainState(baselines=dict(baselines or {}))
    found = compute_advantages(rollouts, ALGORITHMS[name], config, state)
    return found.values, state.baselines, found.metrics["reward/zero_spread_group_frac"]


def rollouts_of(make_rollout, groups):
    """Rollouts whose rewards are `groups[group][sample]`; None is unscorable."""
    return [
        make_rollout([5], [6, 7], group=group, sample=sample, reward=None if value is None else Reward(value))
        for group, values in enumerate(groups)
        for sample, value in enumerate(values)
    ]


def test_gpg_weighs_tokens_as_its_paper_does(make_rollout):
    """arXiv:2504.02546: the loss is 1 / (sum of |o_i|) times the sum over tokens of -A log pi (equation 5), with
    A = alpha (r - mean) / F_norm, alpha = B / (B - M) and F_norm = 1 (equation 7).
    """
    # B = 4 groups, of which M = 3 have no spread: alpha = 4. Of the one that has, r - mean is 1/2 and -1/2.
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.5]]
    rollouts = rollouts_of(make_rollout, rewards)
    lengths = torch.tensor([rollout.num_sampled for rollout in rollouts])  # two each, 16 in all
    weights = ALGORITHMS["gpg"].aggregation(lengths, torch.full_like(lengths, 8), len(rollouts), int(lengths.sum()))
    per_token = compared(rollouts, "gpg")[0] * weights
    torch.testing.assert_close(per_token.tolist(), [4 * 0.5 / 16, -4 * 0.5 / 16, *[0.0] * 6])
    # Completions are alike long, so this is what the useful group gives alone: 1/2 over its four tokens.
    assert per_token[0] == 0.5 / 4


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_groups_without_spread_are_made_up_for_by_a_row_or_by_dropping_them_and_not_twice(name, make_rollout):
    useful, equal = [[1.0, 0.0, 0.5]], [[1.0] * 3, [0.0] * 3, [0.25] * 3]
    alone = compared(rollouts_of(make_rollout, useful), name)[0]
    among = compared(rollouts_of(make_rollout, [*useful, *equal]), name)[0][:3]
    if ALGORITHMS[name].makes_up_for_equal_groups:
        torch.testing.assert_close(among, 4 * alone)
        with pytest.raises(UserError, match=f"{name} makes up for .* leave out drop_equal_groups") as refused:
            chosen(algorithm=name, drop_equal_groups=True)
        assert "\n" not in str(refused.value)
    else:
        torch.testing.assert_close(among, alone)
        assert chosen(algorithm=name, drop_equal_groups=True) == ALGORITHMS[name]


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_equal_rewards_teach_nothing(name, make_rollout):
    # 0.1 + 0.1 + 0.1 is not 3 * 0.1 in floating point: the advantage must be exactly 0 all the same.
    rollouts = rollouts_of(make_rollout, [[0.1] * 3, [0.7] * 7, [None, 0.3], [1.0, 0.0]])
    advantages = compared(rollouts, name)[0]
    assert (advantages[:-2] == 0).all()
    assert (advantages[-2:] != 0).any()


@pytest.mark.parametrize("name", PAID)
def test_better_rollouts_have_larger_advantages_and_unscorable_ones_none(name, make_rollout):
    rollouts = rollouts_of(make_rollout, [[1.0, 0.5, None, 0.0], [0.0, 1.0, 1.0, 1.0]])
    advantages = compared(rollouts, name)[0]
    assert advantages.dtype == torch.float64
    assert advantages[0] > advantages[1] > advantages[3]
    assert advantages[5] > advantages[4]
    assert advantages[2] == 0
    assert advantages.isfinite().all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_advantages_do_not_depend_on_the_order_of_rollouts(name, make_rollout):
    rollouts = rollouts_of(make_rollout, [[1.0, 0.5, None, 0.0], [0.0, 1.0, 1.0, 1.0]])
    order = [6, 3, 0, 5, 2, 7, 1, 4]
    straight, before, _ = compared(rollouts, name, {"policy": 0.3})
    shuffled, after, _ = compared([rollouts[i] for i in order], name, {"policy": 0.3})
    torch.testing.assert_close(shuffled, straight[order], atol=1e-12, rtol=0)
    torch.testing.assert_close(after, before, atol=1e-12, rtol=0)


def test_a_roles_baseline_is_its_own(make_rollout):
    # White always wins: nothing to learn from that, once the baselines know it.
    rollouts = [
        make_rollout([5], [6], group=group, role=role, reward=Reward(value))
        for group, (role, value) in enumerate([("white", 1.0), ("black", -1.0)] * 2)
    ]
    advantages, baselines, _ = compared(rollouts, "spiral", {"white": 1.0, "black": -1.0})
    assert (advantages == 0).all()
    assert baselines == {"white": 1.0, "black": -1.0}


def test_the_share_of_groups_without_spread_is_reported(make_rollout):
    rollouts = rollouts_of(make_rollout, [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.5, None]])
    assert compared(rollouts)[2] == 3 / 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_can_be_chosen(name):
    row = chosen(algorithm=name)
    assert row == ALGORITHMS[name]
    assert row.ratio_level in LEVELS


def test_every_row_has_the_bounds_that_its_comment_names():
    bounds = {
        "grpo": Limits(0.2, 0.2),
        "dr_grpo": Limits(0.2, 0.2),
        "dapo": Limits(0.2, 0.28),
        "gspo": Limits(3e-4, 4e-4),
        "cispo": Limits(clip_high=5.0 - 1, either_sign=True),
        "dual_clip": Limits(0.2, 0.2, 3.0),
        "reinforce_pp": Limits(0.2, 0.2),
        "distill": Limits(0.2, 0.2),
    }
    assert {name: row.limits for name, row in ALGORITHMS.items()} == {**dict.fromkeys(ALGORITHMS, Limits()), **bounds}
    alone = {name for name, row in ALGORITHMS.items() if not row.group_relative}
    assert alone == {"reinforce_pp", "reinforce", "reinforce_no_baseline", "spiral", "distill"}
    assert {name: row.ratio_level for name, row in ALGORITHMS.items() if row.ratio_level != "token"} == {
        "gspo": "geometric"
    }


def test_the_longest_turn_of_a_rollout_is_penalized(make_rollout):
    # Of at most 64 tokens in a turn the last 16 cost 1/16 each: a turn of 56 costs 8/16, whatever the turns before it.
    penalty = {"overlong": "penalize", "overlong_buffer": 16}
    turns = [[(1, 57)], [(1, 3), (5, 61)], [(1, 49), (60, 65)], []]
    rollouts = [make_rollout([5], [6], turns=bounds, reward=Reward(1.0)) for bounds in turns]
    advantages, _, equal = compared(rollouts, "reinforce_no_baseline", **penalty)
    assert (advantages.tolist(), equal) == ([0.5, 0.5, 1.0, 1.0], 0)
    assert compared(rollouts, "reinforce_no_baseline")[0].tolist() == [1.0] * 4


def test_limits_of_the_config_replace_those_of_the_row():
    assert chosen(algorithm="dapo").limits == Limits(0.2, 0.28)
    assert chosen(algorithm="dapo", clip_high=0.5).limits == Limits(0.2, 0.5)


@pytest.mark.parametrize(
    ("group_size", "settings", "message"),
    [
        (4, {"algorithm": "gpro"}, "no algorithm 'gpro'"),
        (1, {"algorithm": "grpo"}, "group_size must be at least 2"),
        (4, {"algorithm": "gspo", "importance_level": "token"}, "importance_level must not be token"),
        (4, {"algorithm": "reinforce", "clip_low": 0.1}, "reinforce has no clip_low"),
        (4, {"algorithm": "cispo", "clip_low": 0.1}, "cispo has no clip_low"),
        (4, {"kl_coef": 0.1, "kl_estimator": "k1", "kl_gradient": "naive"}, "naive gradient of k1 is 0"),
        (4, {"algorithm": "grpo", "clip_dual": 3.0}, "grpo has no clip_dual"),
        (4, {"algorithm": "reinforce", "drop_equal_groups": True}, "leave out drop_equal_groups and refill_rounds"),
        (4, {"algorithm": "reinforce", "refill_rounds": 1}, "leave out drop_equal_groups and refill_rounds"),
        (4, {"algorithm": "distill", "teacher_id": ""}, "distill learns from a teacher .* --teacher-id, or .*-prompt"),
        (4, {"algorithm": "distill", "overlong": "penalize", "overlong_buffer": 8}, "leave out overlong penalize"),
        (4, {"algorithm": "distill", "drop_equal_groups": True}, "leave out drop_equal_groups and refill_rounds"),
        (4, {"algorithm": "gspo", "teacher_id": "model"}, "gspo weighs whole sequences, and a teacher tokens: choose"),
        (
            4,
            {"teacher_weight": 0.5},
            "teacher_weight is read only with --teacher-id or --teacher-prompt",
        ),
        (4, {"teacher_id": "model", "teacher_weight": 0.0}, "teacher_weight must be above 0, got 0.0"),
        (4, {"overlong": "penalize", "overlong_buffer": 64}, r"overlong_buffer \(64\) must be below max_tokens \(64\)"),
    ],
)
def test_what_contradicts_the_row_is_refused_in_one_line(group_size, settings, message):
    with pytest.raises(UserError, match=message) as refused:
        chosen(group_size, **settings)
    assert "\n" not in str(refused.value)


def test_what_suits_the_row_is_not_refused():
    assert chosen(2, algorithm="grpo", drop_equal_groups=True, refill_rounds=1, importance_level="token")
    assert chosen(algorithm="gspo", importance_level="sequence")
    assert chosen(overlong="penalize", overlong_buffer=63) == ALGORITHMS["grpo"]
    assert chosen(algorithm="distill", overlong="mask") == ALGORITHMS["distill"]
    assert chosen(algorithm="rloo", teacher_prompt="{prompt} {answer}", teacher_weight=0.5) == ALGORITHMS["rloo"]


def test_a_teacher_alone_reads_no_reward(make_rollout):
    advantages, _, equal = compared(rollouts_of(make_rollout, [[1.0, 0.0, None], [0.5]]), "distill")
    assert advantages.tolist() == [0.0] * 4 and equal == 0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_second_pass_needs_a_ratio_to_the_policy_that_sampled(name):
    # What the loss says at a ratio of 2 it says at 1 too where there is no ratio: it cannot tell a policy that moved.
    row, logprobs, advantages = ALGORITHMS[name], torch.tensor([-1.0]), torch.tensor([1.0])
    losses = [row.surrogate(logprobs, torch.tensor([ratio]), advantages, row.limits) for ratio in (1.0, 2.0)]
    assert row.has_ratio == (losses[0].item() != losses[1].item())
    assert chosen(algorithm=name, minibatches_per_pass=2) == row
    if row.has_ratio:
        assert chosen(algorithm=name, passes_per_step=2) == row
        return
    with pytest.raises(UserError, match=f"{name} has no ratio .* passes_per_step must be 1, got 2") as refused:
        chosen(algorithm=name, passes_per_step=2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in GROUP_RELATIVE])
def test_rows_that_need_no_group_take_single_completions(name):
    assert chosen(1, algorithm=name) == ALGORITHMS[name]


ROW = """
from minrl.advantages import mean_only
from minrl.losses import Algorithm, policy_gradient, token_mean
def best(groups):
    return groups.scored - groups.scored.max()
mine = Algorithm(best, policy_gradient, token_mean, group_relative=False)
"""


def test_a_row_of_a_file_is_an_algorithm(make_rollout, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(ROW)
    monkeypatch.chdir(tmp_path)
    config = TrainerConfig(algorithm="own.py:mine")
    assert config.algorithm.algorithm == f"{tmp_path}/own.py:mine"  # a resumed run finds it from any folder
    assert config.what == "countdown-mine"
    rollouts = rollouts_of(make_rollout, [[1.0, 0.25], [0.5, None]])
    found = compute_advantages(rollouts, choose_algorithm(config), config, TrainState())
    assert found.values.tolist() == [0.0, -0.75, -0.5, -1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py:mine", r"no file .*absent\.py"),
        ("own.py:yours", r"has no Algorithm 'yours': its Algorithms are mine"),
        ("own.py:best", r"has no Algorithm 'best': its Algorithms are mine"),
        ("empty.py:mine", r"it has no minrl\.losses\.Algorithm"),
        ("broken.py:mine", r"broken\.py cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_without_the_row_is_refused_in_one_line(name, message, tmp_path, monkeypatch):
    for file, text in (("own.py", ROW), ("empty.py", ""), ("broken.py", "1 / 0")):
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"--algorithm .*{name}: .*{message}") as refused:
        choose_algorithm(TrainerConfig(algorithm=name))
    assert "\n" not in str(refused.value)
