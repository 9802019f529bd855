"""Learning rates by hand, AdamW's step by hand, and moments that go to the disk and back, in 8 bits too."""

import math
from importlib.util import find_spec

import pytest
import torch
from loguru import logger
from safetensors.torch import load_file

from minrl.config import OptimizerConfig
from minrl.models import moments
from minrl.models.sharding import master_weights
from minrl.optimizer import clipped_step, learning_rate, make_optimizer
from minrl.run.checkpoint import optimizer_tensors, restore_optimizer, save_optimizer, weights_sha256
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


def with_gradient(policy, value):
    """Every gradient is 1, but for one element."""
    for weight in policy.model.parameters():
        weight.grad = torch.ones_like(weight)
    policy.model.model.norm.weight.grad[3] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])  # the square of 1e30 overflows
def test_a_gradient_that_is_not_finite_changes_nothing(make_policy, value):
    hit, spared = make_policy(0), make_policy(0)
    config = OptimizerConfig()
    optimizers = {id(policy): make_optimizer(policy, config) for policy in (hit, spared)}
    for policy, values in ((hit, (2.0, value, 3.0)), (spared, (2.0, 3.0))):
        for one in values:
            with_gradient(policy, one)
            norm = clipped_step(policy, optimizers[id(policy)], config)
            assert math.isfinite(norm) == (one is not value)
            assert policy.skipped_steps == (one is value)
    assert hit.version == spared.version == 2
    assert weights_sha256(hit) == weights_sha256(spared)
    for mine, other in zip(*(o.state.values() for o in optimizers.values()), strict=True):
        assert all(torch.equal(mine[key], other[key]) for key in ("step", "exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (100.0, 1.0), (0.5, 0.5 / 5)])
def test_a_gradient_is_scaled_down_to_the_largest_norm_and_used_once(policy, limit, scale):
    weight = policy.model.model.norm.weight
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    weight.grad[:2] = torch.tensor([3.0, -4.0])  # of norm 5
    optimizer = torch.optim.SGD([weight], lr=1.0)
    assert clipped_step(policy, optimizer, OptimizerConfig(max_grad_norm=limit)) == 5
    torch.testing.assert_close(before[:2] - weight[:2], scale * torch.tensor([3.0, -4.0]), atol=1e-6, rtol=0)
    assert torch.equal(weight[2:], before[2:]) and weight.grad is None


def test_a_skipped_step_is_said_with_how_many_more_there_may_be(policy):
    said, config = [], OptimizerConfig(max_skipped_steps=3)
    optimizer = make_optimizer(policy, config)
    sink = logger.add(said.append, format="{message}")
    for _ in range(2):
        with_gradient(policy, math.nan)
        clipped_step(policy, optimizer, config)
    logger.remove(sink)
    told = "optimizer step skipped: the norm of its gradient is nan ({} in a row; the run stops at 3)\n"
    assert said == [told.format(1), told.format(2)]


def test_so_many_skipped_steps_in_a_row_stop_the_run(policy):
    config = OptimizerConfig(max_skipped_steps=3)
    optimizer = make_optimizer(policy, config)
    for value in (math.nan, math.nan, 1.0, math.nan, math.nan):
        with_gradient(policy, value)
        clipped_step(policy, optimizer, config)
    with_gradient(policy, math.nan)
    with pytest.raises(UserError, match=r"gradient of 3 optimizer steps in a row was not finite .* lower --learning-r"):
        clipped_step(policy, optimizer, config)
    assert (policy.version, policy.skipped_steps) == (1, 3)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_ends_at_a_tenth_in_runs_of_any_length(schedule):
    config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=1)
    assert learning_rate(config, 2, 2) == pytest.approx(0.1)  # one step after the warmup: the last
    assert learning_rate(config, 5, 4) == pytest.approx(0.1)  # beyond the last, no lower
    # A run that ends within its warmup never falls.
    for steps, rate in ((3, 0.75), (4, 1.0)):
        config = OptimizerConfig(learning_rate=1.0, schedule=schedule, warmup_steps=4)
        assert learning_rate(config, steps, steps) == rate


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


def test_moments_decay_by_the_settings_and_the_kernel_is_fused(policy):
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, adam_beta1=0.7, adam_beta2=0.8)
    optimizer = make_optimizer(policy, config)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["fused"]) == (0.01, (0.7, 0.8), True)


def test_weights_that_do_not_train_are_left_out(policy):
    policy.model.requires_grad_(False)
    head = policy.model.get_output_embeddings().weight.requires_grad_()
    optimizer = make_optimizer(policy, OptimizerConfig())
    assert [weight for group in optimizer.param_groups for weight in group["params"]] == [head]
    before = head.detach().clone()
    step(policy, optimizer)  # no vector is among them
    assert not torch.equal(head, before)


class InBlocks(torch.optim.Optimizer):
    """Keeps its state as bitsandbytes does: steps in an int, and one table of the codes for all weights."""

    def __init__(self, weights):
        super().__init__(weights, {})
        self.codes = torch.arange(4.0)

    def step(self):
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state.setdefault("step", 0)
            state["step"] += 1
            state["qmap1"], state["state1"] = self.codes, torch.full_like(weight, 7, dtype=torch.uint8)


def test_state_in_blocks_is_read_back_as_it_was(policy, tmp_path):
    written = InBlocks(policy.model.parameters())
    written.step()
    written.step()
    save_optimizer(optimizer_tensors(written, policy), tmp_path / "optimizer.safetensors")
    read = InBlocks(policy.model.parameters())
    restore_optimizer(tmp_path, policy, read)
    for weight in policy.model.parameters():
        assert type(read.state[weight]["step"]) is int and read.state[weight]["step"] == 2
        assert read.state[weight]["qmap1"].tolist() == [0, 1, 2, 3]
        assert torch.equal(read.state[weight]["state1"], torch.full_like(weight, 7, dtype=torch.uint8))


def test_a_count_of_steps_in_float32_stays_one(policy, tmp_path):
    optimizer = make_optimizer(policy, OptimizerConfig())
    step(policy, optimizer)
    save_optimizer(optimizer_tensors(optimizer, policy), tmp_path / "optimizer.safetensors")
    read = make_optimizer(policy, OptimizerConfig())
    restore_optimizer(tmp_path, policy, read)
    for weight in policy.model.parameters():
        assert read.state[weight]["step"].dtype == torch.float32 and read.state[weight]["step"] == 1


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
    save_optimizer(optimizer_tensors(first, policies[0]), tmp_path / "optimizer.safetensors")
    policies[1].model.load_state_dict(policies[0].model.state_dict())
    restore_optimizer(tmp_path, policies[1], second)
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
    save_optimizer(optimizer_tensors(optimizer, policy), tmp_path / "optimizer.safetensors")
    saved = load_file(tmp_path / "optimizer.safetensors")
    weights = master_weights(policy.model)
    small = {key for key, weight in weights.items() if weight.numel() < 4096}
    assert small and small < set(weights)
    for key in weights:
        assert saved[f"state1:{key}"].dtype == (torch.float32 if key in small else torch.uint8)


@in_8_bits
def test_parts_of_a_weight_are_updated_as_the_whole_is(monkeypatch):
    import bitsandbytes.functional as library
    from bitsandbytes.optim import AdamW8bit

    monkeypatch.setattr(moments, "PART", 2 * moments.BLOCK)
    sizes = []
    update = library.optimizer_update_8bit_blockwise
    monkeypatch.setattr(
        library, "optimizer_update_8bit_blockwise", lambda *a, **k: (sizes.append(a[1].numel()), update(*a, **k))
    )
    ended = []
    for kind in (AdamW8bit, moments.adamw_8bit):
        sizes.clear()
        generator = torch.Generator().manual_seed(0)
        shapes = (43, 101), (3, 5), (64, 80)
        weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        weights[2].data = weights[2].data.T
        optimizer = kind([{"params": weights, "weight_decay": 0.1}], lr=0.01, betas=(0.7, 0.8))
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator).T.contiguous().T
            optimizer.step()
        ended.append([*weights, *(optimizer.state[weights[0]][name] for name in ("state1", "state2", "absmax2"))])
    assert sizes[:9] == [512] * 8 + [43 * 101 - 8 * 512]
    for whole, parts in zip(*ended, strict=True):
        assert torch.equal(whole, parts)


def test_8_bits_are_those_of_the_library_with_the_same_settings(policy, monkeypatch):
    monkeypatch.setattr("minrl.optimizer.find_spec", lambda name: name)
    monkeypatch.setattr(
        "minrl.optimizer.adamw_8bit", lambda groups, **settings: torch.optim.AdamW(groups, **settings, eps=0.5)
    )
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "adam_beta1": 0.7, "adam_beta2": 0.8}
    theirs, torchs = (make_optimizer(policy, OptimizerConfig(optimizer=o, **settings)) for o in ("adamw8bit", "adamw"))
    for group, other in zip(theirs.param_groups, torchs.param_groups, strict=True):
        assert (group["eps"], other["eps"]) == (0.5, 1e-8)
        for name in ("params", "lr", "betas", "weight_decay"):
            assert group[name] == other[name]


def test_8_bits_without_the_library_are_refused_in_one_line(policy, monkeypatch):
    monkeypatch.setattr("minrl.optimizer.find_spec", lambda name: None)
    with pytest.raises(UserError, match="make setup EXTRA=optim8bit") as refused:
        make_optimizer(policy, OptimizerConfig(optimizer="adamw8bit"))
    assert "\n" not in str(refused.value)
