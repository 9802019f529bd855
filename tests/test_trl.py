"""Loss and gradient against TRL 1.16's, on the same log-probabilities, masks and rewards.

Where TRL's constants differ from the papers' they are set here: CISPO's bound is absolute, the importance weight is on
the policy term only, its KL correction is on or off by name. VESPO's ratio is to the engine, so TRL gets the weight
without a cap.
"""

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from gradients import fixed_rollouts, settings

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch, pack
from minrl.dataflow import Reward, TrainState
from minrl.losses import Tokens, policy_loss
from minrl.update import counted_rollouts, token_weights

pytestmark = pytest.mark.trl
pytest.importorskip("trl", reason="TRL is not installed: pip install -e .[bench]")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402 - after the skip
from trl.trainer.utils import nanstd  # noqa: E402

BOUND = 1e-5
GROUP_SIZE = 4
SHAPES = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")

NARROW = {"epsilon_low": 0.05, "epsilon_high": 0.1}
ICE_POP = {"importance_cap": 1.3, "importance_floor": 0.8, "importance_mode": "mask"}

# name: our row, our settings, TRL's loss_type and settings
CASES = {
    "grpo": ("grpo", {}, "grpo", {}),
    "two bounds": ("grpo", {"clip_low": 0.1, "clip_high": 0.3}, "grpo", {"epsilon_low": 0.1, "epsilon_high": 0.3}),
    "dr_grpo": ("dr_grpo", {}, "dr_grpo", {}),
    "dapo": ("dapo", {}, "dapo", {"epsilon_high": 0.28}),
    "cispo": ("cispo", {"clip_high": 0.5}, "cispo", {"epsilon_high": 1.5}),
    "sapo": ("sapo", {}, "sapo", {}),
    "gspo": ("gspo", {"clip_low": 0.05, "clip_high": 0.1}, "grpo", {"level": "sequence", **NARROW}),
    "luspo": ("luspo", {"clip_low": 0.05, "clip_high": 0.1}, "luspo", {"level": "sequence", **NARROW}),
    "vespo": ("vespo", {}, "vespo", {"cap": math.inf}),
    "off-policy mask": ("grpo", {"off_policy_mask": 0.02}, "grpo", {"threshold": 0.02}),
    "dual clip": ("dual_clip", {"clip_dual": 1.5}, "grpo", {"delta": 1.5}),
    "truncated importance weights": ("grpo", {"importance_cap": 1.2}, "grpo", {"cap": 1.2}),
    "IcePop": ("dapo", ICE_POP, "dapo", {"epsilon_high": 0.28, "cap": 1.3, "floor": 0.8}),
    "entropy where tokens are averaged": ("dapo", {"entropy_coef": 0.2}, "dapo", {"epsilon_high": 0.28, "bonus": 0.2}),
}  # fmt: skip

# name: our settings, TRL's settings
KL = {
    "off": ({}, {"beta": 0.0}),
    "naive": ({"kl_coef": 0.3, "kl_gradient": "naive"}, {"beta": 0.3, "corrected": False}),
    "exact": ({"kl_coef": 0.3, "kl_gradient": "exact"}, {"beta": 0.3, "corrected": True}),
}


@pytest.fixture(scope="module")
def known():
    """Rollouts whose rewards are all known, and every log-probability that a loss can ask for."""
    rollouts = [r for r in fixed_rollouts() if r.group != 2]
    for rollout in rollouts:
        rollout.reward = Reward(round(rollout.reward.value, 1))
    generator = torch.Generator().manual_seed(1)
    tokens = sum(r.num_sampled for r in rollouts)
    noise = lambda scale: scale * torch.randn(tokens, generator=generator, dtype=torch.float64)  # noqa: E731
    logprobs = -2 + noise(0.5)
    return SimpleNamespace(
        rollouts=rollouts,
        lengths=[r.num_sampled for r in rollouts],
        logprobs=logprobs,
        old_logprobs=logprobs + noise(0.3),
        ref_logprobs=logprobs + noise(0.4),
        rollout_logprobs=logprobs + noise(0.4),
        entropy=noise(0.1).abs() + 1,
    )


def padded(values, lengths, behind=0.0):
    """(S,) -> (N, T), zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(lengths)), batch_first=True, padding_value=behind)


def with_gradients(loss, logprobs, entropy):
    return loss, *torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True, materialize_grads=True)


def ours(known, row, changes):
    config = settings(row, **changes)
    algorithm, everything = choose_algorithm(config), range(len(known.rollouts))
    batch = make_batch(known.rollouts, compute_advantages(known.rollouts, algorithm, config, TrainState()).values)
    logprobs, entropy = known.logprobs.clone().requires_grad_(), known.entropy.clone().requires_grad_()
    weights = token_weights(batch, algorithm, counted_rollouts(batch, config), everything, config)[batch.rollout_of]
    at = pack(known.rollouts, everything).token_index
    tokens = Tokens(
        logprobs=logprobs[at],
        entropy=entropy[at],
        old_logprobs=known.old_logprobs[at],
        rollout_logprobs=known.rollout_logprobs[at],
        ref_logprobs=known.ref_logprobs[at] if config.kl_coef else None,
        teacher_logprobs=None,
        advantages=batch.advantages[at],
        token_weights=weights[at],
        rollout_of=batch.rollout_of[at],
        importance_cap=config.importance_cap,
    )
    return with_gradients(policy_loss(tokens, algorithm, config)[0], logprobs, entropy)


def theirs(known, loss_type, options, scaled):
    values = {"epsilon_low": 0.2, "epsilon_high": 0.2, "level": "token", "cap": 0.0, "bonus": 0.0, **options}
    logprobs, entropy = known.logprobs.clone().requires_grad_(), known.entropy.clone().requires_grad_()
    rewards = torch.tensor([r.reward.value for r in known.rollouts], dtype=torch.float64).view(-1, GROUP_SIZE)
    advantages = rewards - rewards.nanmean(1, keepdim=True)
    if scaled:
        advantages = advantages / (nanstd(rewards, dim=1)[:, None] + 1e-4)
    mask = padded(torch.ones_like(logprobs), known.lengths)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            padded(logprobs, known.lengths),
            padded(entropy, known.lengths),
            None,
        ),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=values.get("threshold"),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        importance_sampling_level=values["level"],
        beta=values.get("beta", 0.0),
        args=SimpleNamespace(
            use_bias_correction_kl=values.get("corrected", False),
            delta=values.get("delta"),
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            **{f"vespo_{name}": GRPOConfig.__dataclass_fields__[f"vespo_{name}"].default for name in SHAPES},
            steps_per_generation=1,
        ),
        loss_type=loss_type,
        epsilon_low=values["epsilon_low"],
        epsilon_high=values["epsilon_high"],
        use_vllm=values["cap"] > 0,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=settings("grpo").max_tokens,
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        _entropy_bonus_enabled=values["bonus"] > 0,
        use_adaptive_entropy=False,
        entropy_coef=values["bonus"],
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.zeros_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages.flatten(),
        "sampling_per_token_logps": padded(known.rollout_logprobs, known.lengths),
        "old_per_token_logps": padded(known.old_logprobs, known.lengths),
        "ref_per_token_logps": padded(known.ref_logprobs, known.lengths),
        "num_items_in_batch": mask.sum(),
    }
    if values["cap"]:
        ratio = (known.old_logprobs - known.rollout_logprobs).exp()
        kept = ratio.clamp(max=values["cap"])
        if "floor" in values:  # token_mask: what is outside of the bounds is 0
            kept = ratio.masked_fill((ratio < values["floor"]) | (ratio > values["cap"]), 0.0)
        inputs["importance_sampling_ratio"] = padded(kept, known.lengths, behind=1.0)  # exp of 0, as in TRL
    return with_gradients(GRPOTrainer._compute_loss(trainer, None, inputs), logprobs, entropy)


@pytest.mark.parametrize("kl", KL)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case, kl, known):
    row, changes, loss_type, options = CASES[case]
    if case in ("gspo", "luspo") and kl == "exact":
        pytest.skip("TRL corrects a sequence-level loss's KL by the ratio of the sequence; here it is the token's")
    found = ours(known, row, {"importance_cap": 0.0, **changes, **KL[kl][0]})
    expected = theirs(known, loss_type, {**options, **KL[kl][1]}, scaled=row != "dr_grpo")
    assert expected[1].abs().max() > 1e-3
    torch.testing.assert_close(found, expected, atol=BOUND, rtol=0)


def test_advantages_of_several_rewards_are_those_of_trls_normalize_then_sum(known):
    """Its lines are in the middle of a method that generates: here they are written out, with its own nanstd."""
    columns = torch.tensor([[r.reward.value, i % 3] for i, r in enumerate(known.rollouts)], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    grouped = columns.view(-1, GROUP_SIZE, 2)
    scores = (grouped - grouped.nanmean(1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    total = (scores.view(-1, 2) * weights).nansum(1)
    expected = (total - total.nanmean()) / (nanstd(total) + 1e-4)

    parts = [Reward(row[0], {"answer": row[0], "format": row[1]}) for row in columns.tolist()]
    rollouts = [replace(rollout, reward=reward) for rollout, reward in zip(known.rollouts, parts, strict=True)]
    config = settings("gdpo", reward_parts="answer,format:0.5")
    found = compute_advantages(rollouts, choose_algorithm(config), config, TrainState())
    torch.testing.assert_close(found.values, expected, atol=1e-7, rtol=0)
