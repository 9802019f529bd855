"""Learning rates by hand, AdamW's step by hand, and moments that go to the disk and back, in 8 bits too."""

from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from minrl.checkpoint import weights_sha256
from minrl.config import OptimizerConfig
from minrl.optimizer import learning_rate, load_optimizer, make_optimizer, save_optimizer
from minrl.policy import master_weights
from minrl.types import UserError

needs_bitsandbytes = (
    pytest.mark.optim8bit,
    pytest.mark.skipif(
        find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: make setup EXTRA=optim8bit"
    ),
)


def in_8_bits(test):
    """Runs where bitsandbytes is installed."""
    for mark in needs_bitsandbytes:
        test = mark(test)
    return test


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Warmup over 4 steps to the peak of 1; then 8 steps: half of the way is step 8.
        ("constant", {1: 0.25, 4: 1.0, 8: 1.0, 12: 1.0}),
        ("linear", {1: 0.25, 4: 1.0, 8: 0.1 + 0.9 / 2, 12: 0.1}),
        # cos(pi / 4) is 1 / sqrt(2) at a quarter of the way.
        ("cosine", {1: 0.25, 4: 1.0, 6: 0.1 + 0.9 * (1 + 2**-0.5) / 2, 8: 0.1 + 0.9 / 2, 12: 0.1}),
    ],
)
def test_the_learning_rate_warms_up_and_falls_to_a_tenth(schedule, expected):
    config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=4)
    for step, rate in expected.items():
        assert learning_rate(config, step, 12) == pytest.approx(rate, abs=1e-12)


def test_without_warmup_the_first_step_is_at_the_peak():
    config = OptimizerConfig(learning_rate=0.5, schedule="constant", warmup_steps=0)
    assert learning_rate(config, 1, 1) == 0.5


def test_the_first_step_of_adamw_by_hand_and_only_matrices_decay(policy):
    # Moments start at 0 and are corrected for it: the first step is lr * gradient / (|gradient| + eps) = lr * sign.
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    optimizer = make_optimizer(policy, config)
    before = {name: weight.detach().clone() for name, weight in master_weights(policy.model).items()}
    for weight in policy.model.parameters():
        weight.grad = torch.full_like(weight, -3.0)
    optimizer.step()
    assert {weight.ndim for weight in before.values()} == {1, 2}
    for name, weight in master_weights(policy.model).items():
        decayed = before[name] * (1 - 0.01 * 0.1) if weight.ndim == 2 else before[name]
        torch.testing.assert_close(weight.detach(), decayed + 0.01, atol=1e-6, rtol=0)


def test_weights_that_do_not_train_are_left_out(policy):
    policy.model.requires_grad_(False)
    head = policy.model.get_output_embeddings().weight.requires_grad_()
    optimizer = make_optimizer(policy, OptimizerConfig())
    assert [weight for group in optimizer.param_groups for weight in group["params"]] == [head]


def step(policy, optimizer):
    policy.model(torch.tensor([[5, 6, 7]])).logits.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", ["adamw", pytest.param("adamw8bit", marks=needs_bitsandbytes)])
def test_saved_moments_continue_bit_for_bit(tmp_path, make_policy, name):
    config = OptimizerConfig(optimizer=name, learning_rate=1e-2)
    policies = [make_policy(0), make_policy(0)]
    first, second = [make_optimizer(policy, config) for policy in policies]
    for _ in range(3):
        step(policies[0], first)
    save_optimizer(first, policies[0], tmp_path / "optimizer.safetensors")
    policies[1].model.load_state_dict(policies[0].model.state_dict())
    load_optimizer(second, policies[1], tmp_path / "optimizer.safetensors")
    for _ in range(3):
        step(policies[0], first)
        step(policies[1], second)
    assert weights_sha256(policies[0]) == weights_sha256(policies[1])
    forgetful = make_policy(0)
    forgetful.model.load_state_dict(policies[0].model.state_dict())
    step(forgetful, make_optimizer(forgetful, config))
    step(policies[0], first)
    assert weights_sha256(policies[0]) != weights_sha256(forgetful)


@in_8_bits
def test_moments_in_8_bits_are_near_those_in_32(tmp_path, make_policy):
    # One step is lr * sign(gradient) up to what 8 bits round; the larger moments take a byte each.
    moved = {}
    for name in ("adamw", "adamw8bit"):
        policy = make_policy(0)
        before = {key: weight.detach().clone() for key, weight in master_weights(policy.model).items()}
        optimizer = make_optimizer(policy, OptimizerConfig(optimizer=name, learning_rate=1e-3))
        step(policy, optimizer)
        moved[name] = {key: weight.detach() - before[key] for key, weight in master_weights(policy.model).items()}
    for key, change in moved["adamw"].items():
        torch.testing.assert_close(moved["adamw8bit"][key], change, atol=1e-4, rtol=0)
    save_optimizer(optimizer, policy, tmp_path / "optimizer.safetensors")
    saved = load_file(tmp_path / "optimizer.safetensors")
    weights = master_weights(policy.model)
    small = {key for key, weight in weights.items() if weight.numel() < 4096}
    assert small and small < set(weights)
    for key in weights:
        assert saved[f"state1:{key}"].dtype == (torch.float32 if key in small else torch.uint8)


def test_8_bits_without_the_library_are_refused_in_one_line(policy, monkeypatch):
    monkeypatch.setattr("minrl.optimizer.find_spec", lambda name: None)
    with pytest.raises(UserError, match="make setup EXTRA=optim8bit") as refused:
        make_optimizer(policy, OptimizerConfig(optimizer="adamw8bit"))
    assert "\n" not in str(refused.value)
