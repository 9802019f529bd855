"""Learning rates, clipping and AdamW's step by hand. test_checkpoint.py saves and restores its moments."""

import math

import pytest
import torch

from minrl.dataflow import UserError
from minrl.models.sharding import named_weights
from minrl.optimizer import clipped_step, learning_rate, make_optimizer
from minrl.run.checkpoint import weights_sha256
from tests.parsed import sized


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "steps", "expected"),
    [
        # Warmup over 4 steps to the peak of 1; then 8 steps: half of the way is step 8. Beyond the last it stays.
        ("constant", 4, 12, {1: 0.25, 4: 1.0, 8: 1.0, 12: 1.0}),
        ("linear", 4, 12, {1: 0.25, 4: 1.0, 8: 0.1 + 0.9 / 2, 12: 0.1, 13: 0.1}),
        # cos(pi / 4) is 1 / sqrt(2) at a quarter of the way.
        ("cosine", 4, 12, {1: 0.25, 4: 1.0, 6: 0.1 + 0.9 * (1 + 2**-0.5) / 2, 8: 0.1 + 0.9 / 2, 12: 0.1, 13: 0.1}),
        ("linear", 1, 2, {2: 0.1}),  # one step after the warmup: the last
        ("cosine", 4, 3, {3: 0.75}),  # ends within its warmup
        ("linear", 0, 4, {1: 0.1 + 0.9 * 3 / 4}),
    ],
)
def test_the_learning_rate_warms_up_and_falls_to_a_tenth_by_default(schedule, warmup_steps, steps, expected):
    config = sized(learning_rate=1.0, schedule=schedule, warmup_steps=warmup_steps)
    assert {step: learning_rate(config, step, steps) for step in expected} == pytest.approx(expected, abs=1e-12)


def test_the_learning_rate_falls_to_the_share_that_is_set():
    config = sized(learning_rate=2.0, schedule="linear", warmup_steps=0, final_learning_rate_frac=0.25)
    assert [learning_rate(config, step, 8) for step in (4, 8)] == pytest.approx([1.25, 0.5], abs=1e-12)


def clipped_steps(policy, config, values):
    """Steps with gradients that are 1 but for one element; their norms."""
    optimizer = make_optimizer(policy, config)
    for value in values:
        for weight in policy.model.parameters():
            weight.grad = torch.ones_like(weight)
        policy.model.model.norm.weight.grad[3] = value
        yield clipped_step(policy, optimizer, config)


def test_a_gradient_that_is_not_finite_changes_nothing(make_policy):
    hit, spared = make_policy(0), make_policy(0)
    norms = list(clipped_steps(hit, sized(), (2.0, 1e30, 3.0)))  # the square of 1e30 overflows
    assert list(clipped_steps(spared, sized(), (2.0, 3.0))) == [norms[0], norms[2]]
    assert not math.isfinite(norms[1]) and weights_sha256(hit) == weights_sha256(spared)
    assert (hit.version, hit.skipped_steps) == (spared.version, spared.skipped_steps) == (2, 0)


def test_so_many_skipped_steps_in_a_row_stop_the_run(policy, said):
    values, norms = (math.nan, math.nan, 1.0, *[math.nan] * 5), []
    with pytest.raises(UserError, match=r"gradient of 5 optimizer steps in a row was not finite: .* lower --lear"):
        norms.extend(clipped_steps(policy, sized(), values))
    assert (policy.version, policy.skipped_steps) == (1, 5)
    assert ["5 in a row" in line for line in said] == [False] * 6 + [True]


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (0.5, 0.5 / 5)])
def test_a_gradient_is_scaled_down_to_the_largest_norm_and_used_once(policy, limit, scale):
    weight = policy.model.model.norm.weight
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    weight.grad[:2] = torch.tensor([3.0, -4.0])  # of norm 5
    optimizer = torch.optim.SGD([weight], lr=1.0)
    assert clipped_step(policy, optimizer, sized(max_grad_norm=limit)) == 5
    torch.testing.assert_close(before[:2] - weight[:2], scale * torch.tensor([3.0, -4.0]), atol=1e-6, rtol=0)
    assert torch.equal(weight[2:], before[2:]) and weight.grad is None


def test_adamw_in_8_bits_needs_bitsandbytes(policy, monkeypatch):
    monkeypatch.setattr("minrl.optimizer.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--optimizer adamw8bit needs bitsandbytes, which is not installed: run"):
        make_optimizer(policy, sized(optimizer="adamw8bit"))


def test_the_first_step_of_adamw_by_hand_and_only_matrices_decay(policy):
    # Moments start at 0 and are corrected for it: the first step is lr * gradient / (|gradient| + eps) = lr * sign.
    config = sized(learning_rate=0.01, weight_decay=0.1, adam_beta1=0.7, adam_beta2=0.8)
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    optimizer = make_optimizer(policy, config)
    assert all((g["lr"], g["betas"], g["fused"]) == (0.01, (0.7, 0.8), True) for g in optimizer.param_groups)
    before = {name: weight.detach().clone() for name, weight in named_weights(policy.model).items()}
    for weight in policy.model.parameters():
        weight.grad = torch.full_like(weight, -3.0)
    optimizer.step()
    assert {weight.ndim for weight in before.values()} == {1, 2}
    for name, weight in named_weights(policy.model).items():
        decayed = before[name] * (1 - 0.01 * 0.1) if weight.ndim == 2 else before[name]
        expected = decayed + 0.01 if weight.requires_grad else before[name]
        torch.testing.assert_close(weight.detach(), expected, atol=1e-6, rtol=0)
