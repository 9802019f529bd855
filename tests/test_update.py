"""What must not change the gradient, for every row of ALGORITHMS; and what must."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gradients import CPU, Tap, fixed_rollouts, gradients, settings, tiny_policy

from minrl.algorithms import ALGORITHMS, choose_algorithm
from minrl.batch import make_batch, pack
from minrl.processes import Processes
from minrl.scoring import score
from minrl.types import Reward
from minrl.update import update_policy
from tests.casts import Casts

BOUND = 1e-6
"""In double precision; transformers' RMSNorm computes in float32 inside."""

GROUP_RELATIVE = [name for name, row in ALGORITHMS.items() if row.group_relative]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(Processes(CPU))


@pytest.fixture
def rollouts():
    return fixed_rollouts()


def assert_same(actual, expected, bound=BOUND):
    assert len(actual) == len(expected) > 0
    for new, old in zip(actual, expected, strict=True):
        assert max(float(gradient.abs().max()) for gradient in old.values()) > 1e-4, "a gradient of nothing"
        for name in old:
            torch.testing.assert_close(new[name], old[name], atol=bound, rtol=0, msg=name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_micro_batches(name, policy, rollouts):
    whole, _ = gradients(policy, rollouts, settings(name))
    for tokens in (1, 30):
        parts, _ = gradients(policy, rollouts, settings(name, micro_batch_tokens=tokens))
        assert_same(parts, whole)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_the_order_of_rollouts(name, policy, rollouts):
    straight, _ = gradients(policy, rollouts, settings(name))
    order = [7, 12, 0, 9, 3, 14, 5, 10, 1, 15, 6, 2, 13, 8, 4, 11]
    shuffled, _ = gradients(policy, [rollouts[i] for i in order], settings(name))
    assert_same(shuffled, straight)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_packing(name, policy, rollouts, monkeypatch):
    packed, _ = gradients(policy, rollouts, settings(name))
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    assert not policy.packed
    alone, _ = gradients(policy, rollouts, settings(name))
    assert_same(alone, packed)


def test_the_gradient_does_not_depend_on_the_number_of_processes(policy, rollouts, tmp_path):
    root = Path(__file__).parent.parent
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [*launch, str(root / "tests" / "gradients.py"), str(tmp_path / "two.pt"), *ALGORITHMS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    two = torch.load(tmp_path / "two.pt")
    for name in ALGORITHMS:
        one, _ = gradients(policy, rollouts, settings(name))
        assert_same(two[name], one)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_a_group_without_spread_only_counts_in_the_normaliser(name, policy, rollouts):
    # Group 1 has equal rewards. With its tokens replaced by others of the same number nothing changes, to the bit.
    expected, metrics = gradients(policy, rollouts, settings(name))
    others = [r if r.group != 1 else replace(r, ids=[*r.ids[:-1], (r.ids[-1] + 7) % 40 + 5]) for r in rollouts]
    actual, _ = gradients(policy, others, settings(name))
    assert_same(actual, expected, bound=0)
    assert metrics["policy/trained_token_frac"] < 1


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_nothing_to_learn_takes_no_optimizer_step(name, policy, rollouts):
    equal = [replace(r, reward=Reward(0.7)) for r in rollouts]
    seen, metrics = gradients(policy, equal, settings(name))
    assert seen == []
    assert metrics["policy/optimizer_steps"] == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_unscorable_rollouts_have_no_gradient_and_no_weight(name, policy, rollouts):
    without = [r for r in rollouts if r.reward is not None]
    assert len(without) == len(rollouts) - 1
    expected, _ = gradients(policy, without, settings(name))
    actual, _ = gradients(policy, rollouts, settings(name))
    assert_same(actual, expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tokens_that_were_not_sampled_have_no_gradient(name, policy, rollouts):
    # Each rollout ends with three given tokens, which nothing sampled can see: whatever they are, as labels they
    # must not count, and the gradient is that of the rollouts without them.
    expected, _ = gradients(policy, rollouts, settings(name))
    ended = [
        replace(
            r,
            ids=[*r.ids, 5, 6 + r.sample, 7],
            loss_mask=[*r.loss_mask, False, False, False],
            rollout_logprobs=[*r.rollout_logprobs, 0.0, 0.0, 0.0],
        )
        for r in rollouts
    ]
    actual, _ = gradients(policy, ended, settings(name))
    assert_same(actual, expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_policy_every_row_has_the_gradient_of_reinforce(name, policy, rollouts):
    row = ALGORITHMS[name]
    plain = replace(ALGORITHMS["reinforce"], advantage=row.advantage, aggregation=row.aggregation)
    config = settings(name, passes_per_step=1, importance_cap=0.0)
    expected, _ = gradients(policy, rollouts, config, row=plain)
    actual, _ = gradients(policy, rollouts, config)
    assert_same(actual, expected, bound=1e-9)


def test_the_ratio_is_at_the_level_of_the_row(policy, rollouts):
    row = ALGORITHMS["gspo"]
    wide = replace(row, limits=ALGORITHMS["grpo"].limits)
    (on_policy, moved), _ = gradients(policy, rollouts, settings("gspo", importance_cap=0.0), row=wide)
    (same, other), _ = gradients(
        policy, rollouts, settings("gspo", importance_cap=0.0), row=replace(wide, ratio_level="token")
    )
    assert_same([same], [on_policy])  # while the policy has not moved all ratios are 1
    assert max(float((moved[name] - other[name]).abs().max()) for name in moved) > 1e-4


@pytest.mark.parametrize(("level", "mode"), [("sequence", "truncate"), ("geometric", "truncate"), ("sequence", "mask")])
def test_the_engine_correction_of_a_sequence_scales_its_gradient(level, mode, policy, make_rollout):
    # One rollout, sampled by an engine that found its four tokens less likely by 0.1, 0.2, 0.3 and 0.4: the weight of
    # the sequence is e^1, of the geometric mean e^0.25.
    alone = make_rollout([5, 6], [7, 8, 9, 10])
    scored = score(policy.model, pack([alone], [0]), 1.0)[0].tolist()
    alone.rollout_logprobs[2:] = [value - gap for value, gap in zip(scored, (0.1, 0.2, 0.3, 0.4), strict=True)]
    config = {"passes_per_step": 1, "importance_level": level, "importance_mode": mode}
    expected, _ = gradients(policy, [alone], settings("reinforce_no_baseline", passes_per_step=1, importance_cap=0.0))
    for cap in (5.0, 2.0, 1.1):
        weight = {"sequence": math.e, "geometric": math.exp(0.25)}[level]
        weight = weight if weight <= cap else (cap if mode == "truncate" else 0.0)
        actual, metrics = gradients(policy, [alone], settings("reinforce_no_baseline", importance_cap=cap, **config))
        for name, gradient in actual[0].items():
            torch.testing.assert_close(gradient, weight * expected[0][name], atol=1e-6, rtol=0)
        assert metrics["engine/importance_cap_frac"] == float(weight in (0.0, cap))


def test_the_importance_weights_are_handed_over_token_by_token(policy, make_rollout):
    # Gaps of 0.1 and 1 in the first rollout (cut off at 2) and of -0.5 in the last; the second has no advantage.
    rollouts = [make_rollout([5, 6], [7, 8]), make_rollout([5, 6], [8, 9, 10]), make_rollout([5, 6], [9])]
    gaps = [[0.1, 1.0], None, [-0.5]]
    for one, gap in zip(rollouts, gaps, strict=True):
        scored = score(policy.model, pack([one], [0]), 1.0)[0].tolist()
        one.rollout_logprobs[2:] = [value - g for value, g in zip(scored, gap or [0.0] * 3, strict=True)]
    batch = make_batch(rollouts, torch.tensor([1.0, 0.0, 1.0]))
    config = settings("reinforce_no_baseline", passes_per_step=1, importance_level="token", importance_cap=2.0)
    used = {
        correct: update_policy(policy, Tap(policy.model), batch, choose_algorithm(config), config, 1, correct)
        for correct in (True, False)
    }
    expected = [math.exp(0.1), 2.0, *[math.nan] * 3, math.exp(-0.5)]
    torch.testing.assert_close(used[True].importance_weights.tolist(), expected, equal_nan=True, atol=1e-5, rtol=0)
    assert used[False].importance_weights is None


REGULARIZED = {"kl_coef": 0.3, "entropy_coef": 0.2}


@pytest.fixture
def with_reference(policy):
    policy.reference = tiny_policy(policy.processes, seed=1).model.requires_grad_(False)
    yield policy
    policy.reference = None


@pytest.mark.parametrize("gradient", ["exact", "naive"])
def test_the_gradient_with_kl_and_entropy_does_not_depend_on_micro_batches_or_order(gradient, with_reference, rollouts):
    config = settings("grpo", kl_gradient=gradient, **REGULARIZED)
    whole, metrics = gradients(with_reference, rollouts, config)
    parts, _ = gradients(with_reference, rollouts[::-1], settings("grpo", 30, kl_gradient=gradient, **REGULARIZED))
    assert_same(parts, whole)
    assert metrics["policy/ref_kl"] > 0
    # Group 1 has no spread and takes part all the same; the one rollout that could not be scored does not.
    sampled = sum(r.num_sampled for r in rollouts)
    unscorable = sum(r.num_sampled for r in rollouts if r.reward is None)
    assert metrics["policy/trained_token_frac"] == pytest.approx(1 - unscorable / sampled)


def test_kl_and_entropy_are_added_to_the_loss_by_token_weight(with_reference, rollouts):
    """The gradient of what is added, against autograd over the whole logits of each rollout by itself."""
    policy, model, coefficients = with_reference, with_reference.model, (0.3, 0.2)
    config = {"passes_per_step": 1, "kl_gradient": "naive", "kl_estimator": "k2", "importance_cap": 0.0}
    base, _ = gradients(policy, rollouts, settings("grpo", **config))
    full, _ = gradients(
        policy, rollouts, settings("grpo", kl_coef=coefficients[0], entropy_coef=coefficients[1], **config)
    )
    model.zero_grad()
    scored = [r for r in rollouts if r.reward is not None]
    for rollout in scored:
        ids, mask = torch.tensor([rollout.ids]), torch.tensor(rollout.loss_mask[1:])
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        reference = policy.reference(ids).logits[0, :-1].log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        label = ids[0, 1:, None]
        kl = (logprobs.gather(1, label) - reference.gather(1, label))[:, 0] ** 2 / 2
        added = ((coefficients[0] * kl - coefficients[1] * entropy) * mask).sum()
        (added / (len(scored) * rollout.num_sampled)).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(full[0][name] - base[0][name], weight.grad, atol=1e-6, rtol=0)
    model.zero_grad()


def test_a_rewarded_completion_becomes_likelier(policy, rollouts):
    seen, _ = gradients(policy, rollouts, settings("grpo", passes_per_step=1))
    best = [i for i, r in enumerate(rollouts) if r.group == 0 and r.reward.value == 1.0]
    stream = pack(rollouts, best)
    before = score(policy.model, stream, 1.0)[0].sum()
    weights = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, gradient in seen[0].items():
            weights[name] -= 0.01 * gradient
        after = score(policy.model, stream, 1.0)[0].sum()
        for name, gradient in seen[0].items():
            weights[name] += 0.01 * gradient
    assert after > before


def test_a_single_optimizer_step_scores_once(policy, rollouts):
    _, once = gradients(policy, rollouts, settings("grpo", passes_per_step=1))
    _, twice = gradients(policy, rollouts, settings("grpo", passes_per_step=2))
    assert once["policy/ratio_max"] == 1.0
    assert twice["policy/ratio_max"] > 1.0
    assert twice["update/computed_tokens"] == 2 * once["update/computed_tokens"]


def test_each_weight_is_cast_once_for_all_micro_batches(policy, rollouts, monkeypatch):
    policy.model.float()
    monkeypatch.setattr(policy.processes, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with Casts() as casts:
        steps, _ = gradients(policy, rollouts, settings("grpo", passes_per_step=1, micro_batch_tokens=12))
    assert len(steps) == 1
    # hidden size 32, two heads of 32, one for keys and values, an MLP of 96; one layer
    assert [casts.shapes[shape] for shape in [(64, 32), (32, 64), (32, 96)]] == [1, 1, 1]
    assert casts.shapes[32, 32] == casts.shapes[96, 32] == 2  # keys and values; gate and up
    assert all(gradient.dtype == torch.float32 for gradient in steps[0].values())
