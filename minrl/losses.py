"""The loss of each sampled token, and its weight.

N rollouts, S sampled tokens. Every function is pure. `policy_loss` combines the parts; the other losses are per token,
in nats times advantage. Surrogates take the ratio ρ = π / π_old at the level of their algorithm: per token, or one for
a whole sequence. GRPO (arXiv:2402.03300, equation 3; the row `grpo` of minrl/algorithms.py) minimizes over the counted
rollouts o_i of an optimizer step, with rewards r_i,

    sum_i 1 / (N |o_i|) sum_t -c_t min(ρ_t A_i, clip(ρ_t, 0.8, 1.2) A_i)  with  A_i = (r_i - mean) / (std + 1e-4)

where mean and unbiased std are those of its group's rewards, and c is 1 unless the engine's probabilities differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minrl.advantages import Advantage, teacher_preference
from minrl.config import TrainerConfig
from minrl.dataflow import require

WEIGHT, WEIGHT_SQUARED = "engine/weight", "engine/weight_squared"
"""Of these means `update_policy` makes the effective sample size."""

SAPO_TEMPERATURES = (1.0, 1.05)
"""τ of the gate for positive and for other advantages, from the experiments of arXiv:2511.20347."""

VESPO_SHAPES = (2.0, 3.0), (3.0, 2.0)
"""k and λ of VESPO's weight for advantages from 0 up, and for negative ones: TRL 1.16's values."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the ratio: 1 - `clip_low`, 1 + `clip_high`, and `clip_dual` for negative advantages. inf: none.
    `either_sign`: the upper bound applies to advantages of either sign. DPPO bounds the change of a probability.
    """

    clip_low: float = inf
    clip_high: float = inf
    clip_dual: float = inf
    either_sign: bool = False


Surrogate = Callable[..., Float[Tensor, " S"] | tuple[Float[Tensor, " S"], dict[str, Tensor]]]
"""(logprobs, ratio, advantages, limits) -> loss of each token, or that and curves: values of each token by tag"""

Aggregation = Callable[[Int[Tensor, " N"], Int[Tensor, " N"], int, int], Float[Tensor, " N"]]
"""(length of each completion, longest one allowed, rollouts of the optimizer step, tokens of the optimizer step)
-> weight of each completion's tokens"""


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Algorithm:
    """Advantage, surrogate, aggregation of tokens, and the level and limits of the ratio.

    `ratio_level` is a key of `LEVELS`. `group_relative`: a rollout is compared with its group only, so a group of one
    has no gradient. `to_engine`: the ratio is π / π_rollout, and there is no importance weight. `options`: a dataclass
    whose fields are flags, `--ROW.FIELD`, of a row in a file; the functions with a parameter `options` are given them.
    """

    advantage: Advantage
    surrogate: Surrogate
    aggregation: Aggregation
    limits: Limits = NO_LIMITS
    ratio_level: str = "token"
    group_relative: bool = True
    options: type | None = None
    to_engine: bool = False

    @property
    def has_ratio(self) -> bool:
        """Whether the surrogate depends on the ratio to the policy that sampled."""
        return self.surrogate is not policy_gradient


@dataclass(frozen=True)
class Tokens:
    """The S sampled tokens of a micro-batch of whole rollouts. `ref_logprobs` is None without a KL term,
    `teacher_logprobs` without a teacher; `importance_cap` is 0 without a correction of the engine.
    """

    logprobs: Float[Tensor, " S"]
    entropy: Float[Tensor, " S"]
    old_logprobs: Float[Tensor, " S"]
    rollout_logprobs: Float[Tensor, " S"]
    ref_logprobs: Float[Tensor, " S"] | None
    teacher_logprobs: Float[Tensor, " S"] | None
    advantages: Float[Tensor, " S"]
    token_weights: Float[Tensor, " S"]
    rollout_of: Int[Tensor, " S"]
    importance_cap: float


def policy_loss(
    tokens: Tokens, algorithm: Algorithm, settings: TrainerConfig
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """sum_t w_t (c_t L_t + kl_coef KL_t - entropy_coef H_t), and curves: the values of the tokens, by tag.

    L is the algorithm's surrogate, w the token weights of its aggregation, and c = π_old / π_rollout corrects for the
    engine (measured, but not applied if the cap is 0). GRPO's form is at the top of this file. A curve is the mean over
    the tokens; those whose tag ends in `_max` and `_min` are extremes.
    """
    advantages, old, curves = tokens.advantages, tokens.old_logprobs, {"policy/entropy": tokens.entropy}
    if tokens.teacher_logprobs is not None:
        preference = teacher_preference(tokens.teacher_logprobs, old)
        advantages = advantages + settings.teacher_weight * preference
        curves |= {"teacher/kl": -preference, "teacher/preferred_frac": preference > 0}

    sampled = tokens.rollout_logprobs if algorithm.to_engine else old
    ratio = LEVELS[algorithm.ratio_level](tokens.logprobs - sampled, tokens.rollout_of).exp()
    found = algorithm.surrogate(tokens.logprobs, ratio, advantages, algorithm.limits)
    per_token, own = found if isinstance(found, tuple) else (found, {})
    for what, values in {"the loss": per_token, **own}.items():  # a mean would be weighted once more
        shape, each = getattr(values, "shape", None), tokens.logprobs.shape
        row = f"the surrogate of {settings.algorithm} must return {what} of each token, shape {tuple(each)}"
        require(shape == each, f"{row}, got {shape if shape is None else tuple(shape)}")
    low, high = clipped_fractions(ratio, advantages, algorithm.limits)
    curves |= {"policy/clip_low_frac": low, "policy/clip_high_frac": high, "policy/ratio_max": ratio, **own}
    if settings.off_policy_mask:
        dropped = off_policy(tokens, settings.off_policy_mask)
        per_token = torch.where(dropped, 0.0, per_token)
        curves["policy/off_policy_mask_frac"] = dropped

    gap = old - tokens.rollout_logprobs
    level = algorithm.ratio_level if settings.importance_level == "auto" else settings.importance_level
    raw = LEVELS[level](gap, tokens.rollout_of).exp()
    curves |= {"engine/logprob_gap_mean": gap.abs(), "engine/logprob_gap_max": gap.abs()}
    curves |= {"engine/kl": gap.exp() - 1 - gap, "engine/importance_weight_mean": raw}
    curves |= {"engine/importance_weight_min": raw, "engine/importance_weight_max": raw}
    if tokens.importance_cap:
        cap, floor = tokens.importance_cap, settings.importance_floor
        weight, exceeds = importance_weights(raw, cap, settings.importance_mode, floor)
        per_token = per_token * weight
        curves |= {"engine/importance_cap_frac": exceeds, WEIGHT: weight, WEIGHT_SQUARED: weight**2}

    if tokens.ref_logprobs is not None:
        estimator, gradient = settings.kl_estimator, settings.kl_gradient
        kl = kl_penalty(tokens.logprobs, old, tokens.ref_logprobs, estimator, gradient)
        per_token = per_token + settings.kl_coef * kl
        curves["policy/ref_kl"] = kl
    if settings.entropy_coef:
        per_token = per_token - settings.entropy_coef * tokens.entropy
    loss = (per_token * tokens.token_weights).sum()
    return loss, {tag: values.detach() for tag, values in curves.items()}


def policy_gradient(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """-A log π: the score function estimator of REINFORCE (Williams 1992, doi:10.1007/BF00992696), and of GPG
    (arXiv:2504.02546, equation 5 of its ICLR 2026 version).

    There is no ratio to the policy that sampled.
    """
    return -advantages * logprobs


def clipped_surrogate(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """-min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) with ρ = exp(log π - log π_old).

    arXiv:1707.06347, equation 7; per token as in arXiv:2402.03300, equation 3, without its KL term;
    with two bounds as in DAPO (arXiv:2503.14476, equation 8); with a sequence's ratio GSPO (arXiv:2507.18071,
    equation 5).
    """
    clipped = ratio.clamp(1 - limits.clip_low, 1 + limits.clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def dual_clipped_surrogate(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """The clipped surrogate, and where A < 0 no loss above -c A with c = clip_dual: arXiv:1912.09729, equation 5.

    That is -max(min(ρ A, clip(ρ) A), c A), with c > 1: the gradient of a token whose ratio exceeds c becomes 0.
    """
    loss = clipped_surrogate(logprobs, ratio, advantages, limits)
    return torch.where(advantages < 0, torch.minimum(loss, -limits.clip_dual * advantages), loss)


def clipped_weight(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """-sg[min(ρ, 1 + clip_high)] A log π, sg stopping the gradient: CISPO, arXiv:2506.13585, equations 4 and 5.

    Every token keeps a gradient. There is no lower bound, as in the paper's experiments. Where others name an absolute
    bound b (arXiv:2510.13786, TRL), clip_high is b - 1.
    """
    return -ratio.detach().clamp(max=1 + limits.clip_high) * advantages * logprobs


def soft_gate(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """-(4 / τ) sigmoid(τ (ρ - 1)) A: SAPO, arXiv:2511.20347, section 3, equations 5 and 6, with τ = 1 where A > 0 and
    1.05 elsewhere. The gradient fades smoothly as ρ leaves 1, where it is that of REINFORCE.
    """
    positive, negative = (ratio.new_full((), value) for value in SAPO_TEMPERATURES)
    temperature = torch.where(advantages > 0, positive, negative)
    return -(4 / temperature) * torch.sigmoid(temperature * (ratio - 1)) * advantages


def gamma_weight(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> Float[Tensor, " S"]:
    """-sg[φ(w)] A log π with φ(w) = w^k exp(λ (1 - w)), w the product of the sequence's ratios, and k, λ = 2, 3 where
    A >= 0, else 3, 2: VESPO, arXiv:2602.10693. φ(1) = 1, and φ fades on both sides.
    """
    w = ratio.detach().clamp(max=exp(20))  # where φ is 0: w itself may be infinite
    above, below = (w**k * torch.exp(fade * (1 - w)) for k, fade in VESPO_SHAPES)
    return -torch.where(advantages >= 0, above, below) * advantages * logprobs


def divergence_mask(
    logprobs: Float[Tensor, " S"], ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> tuple[Float[Tensor, " S"], dict[str, Tensor]]:
    """-M ρ A, where M is 0 if A > 0 and π - π_rollout > clip_high, or A < 0 and π_rollout - π > clip_low, else 1: DPPO,
    arXiv:2602.04879, equations 11 and 12 with the binary total variation of its equation 13.

    ρ itself is not bounded: a rare token whose ratio is large has hardly moved the distribution.
    """
    probability = logprobs.detach().exp()
    change = probability - probability / ratio.detach()
    low, high = (change < -limits.clip_low) & (advantages < 0), (change > limits.clip_high) & (advantages > 0)
    curves = {"policy/clip_low_frac": low, "policy/clip_high_frac": high}
    return torch.where(low | high, 0.0, -ratio * advantages), curves


def sequence_mean(
    lengths: Int[Tensor, " N"], longest: Int[Tensor, " N"], num_rollouts: int, num_tokens: int
) -> Float[Tensor, " N"]:
    """1 / (N |o_i|): the mean over rollouts of the mean over tokens (arXiv:2402.03300, equation 3)."""
    return 1 / (num_rollouts * lengths.clamp(min=1).double())


def sequence_sum(
    lengths: Int[Tensor, " N"], longest: Int[Tensor, " N"], num_rollouts: int, num_tokens: int
) -> Float[Tensor, " N"]:
    """1 / N: the mean over rollouts of the sum over tokens. With GSPO's ratio it is LUSPO (arXiv:2602.05261), which
    multiplies the loss of a sequence by its length.
    """
    return torch.full((len(lengths),), 1 / max(1, num_rollouts), dtype=torch.float64)


def token_mean(
    lengths: Int[Tensor, " N"], longest: Int[Tensor, " N"], num_rollouts: int, num_tokens: int
) -> Float[Tensor, " N"]:
    """1 / sum |o_i|: the mean over all tokens (DAPO, arXiv:2503.14476, equation 8; CISPO, arXiv:2506.13585, its 4).

    Departure: the papers sum over one group and average the groups; here, as in verl, over the optimizer step.
    """
    return torch.full((len(lengths),), 1 / max(1, num_tokens), dtype=torch.float64)


def constant_length(
    lengths: Int[Tensor, " N"], longest: Int[Tensor, " N"], num_rollouts: int, num_tokens: int
) -> Float[Tensor, " N"]:
    """1 / (N L) with L the longest completion allowed: the sum over tokens up to a constant (Dr. GRPO,
    arXiv:2503.20783, section 3.2, whose example of such a constant is the generation budget).

    The action of this policy gradient is the completion. In a task of several turns L is the limit of one turn; each of
    several tasks has its own.
    """
    return 1 / (num_rollouts * longest.double())


def per_sequence(log_ratio: Float[Tensor, " S"], rollout_of: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """The log ratio of the whole completion (the sum over its tokens), at each of its tokens."""
    sums, place = _sums(log_ratio, rollout_of)
    return sums[place]


def geometric_mean(log_ratio: Float[Tensor, " S"], rollout_of: Int[Tensor, " S"]) -> Float[Tensor, " S"]:
    """The mean log ratio of the completion's tokens, at each of its tokens: GSPO, arXiv:2507.18071, equation 7."""
    (sums, place), (lengths, _) = _sums(log_ratio, rollout_of), _sums(torch.ones_like(log_ratio), rollout_of)
    return (sums / lengths.clamp(min=1))[place]


LEVELS = {"token": lambda log_ratio, rollout_of: log_ratio, "sequence": per_sequence, "geometric": geometric_mean}
"""Levels of a ratio. `rollout_of` is the rollout of each token; all tokens of a rollout must be present."""


def k1(logprobs: Float[Tensor, " S"], ref_logprobs: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """log π / π_ref: unbiased for KL(π, π_ref), of either sign (Schulman 2020, http://joschu.net/blog/kl-approx.html)."""
    return logprobs - ref_logprobs


def k2(logprobs: Float[Tensor, " S"], ref_logprobs: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """(log π / π_ref)^2 / 2: biased, little where the two are close, never negative (Schulman 2020)."""
    return (logprobs - ref_logprobs) ** 2 / 2


def k3(logprobs: Float[Tensor, " S"], ref_logprobs: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """π_ref / π - 1 - log π_ref / π: unbiased, never negative (Schulman 2020; arXiv:2402.03300, equation 4)."""
    return torch.expm1(ref_logprobs - logprobs) - (ref_logprobs - logprobs)


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(
    logprobs: Float[Tensor, " S"],
    old_logprobs: Float[Tensor, " S"],
    ref_logprobs: Float[Tensor, " S"],
    estimator: str,
    gradient: str,
) -> Float[Tensor, " S"]:
    """KL(π, π_ref) of the next token, estimated at the sampled one, with the gradient of the divergence ("exact") or
    of the estimator ("naive").

    With x ~ π the gradient of KL is E[k1 ∇log π], whatever the value is estimated with. The estimators' own
    gradients are on average: k1: E[∇log π] = 0. k2: E[k1 ∇log π], which is right. k3:
    E[(1 - π_ref / π) ∇log π] = ∇KL(π_ref, π), the reverse divergence (arXiv:2402.03300, equation 21, has the
    coefficient; arXiv:2510.01555 compares the three).

    The exact form is weighted by ρ = π / π_old, since x ~ π_old: its gradient ρ k1 ∇log π is also that of ρ k3, the
    estimate of arXiv:2512.02556. The naive one is not, as in arXiv:2402.03300. Both take the prefixes as given.
    """
    value = KL_ESTIMATORS[estimator](logprobs, ref_logprobs)
    if gradient == "naive":
        return value
    detached = logprobs.detach()
    ratio = (detached - old_logprobs).exp()
    return ratio * (value.detach() + k1(detached, ref_logprobs) * (logprobs - detached))


def importance_weights(
    weights: Float[Tensor, " S"], cap: float, mode: str, floor: float = 0.0
) -> tuple[Float[Tensor, " S"], Bool[Tensor, " S"]]:
    """min(max(w, floor), cap) with w = π_old / π_rollout, and whether w is outside: corrects for an engine whose
    probabilities are not the policy's.

    Truncated importance sampling (Ionides 2008, doi:10.1198/106186008X320456) with a fixed cap; Ionides lets it grow
    with the number of samples. With mode "mask" a weight outside becomes 0, which is IcePop (arXiv:2510.18855) at the
    level of tokens, with floor 0.5 and cap 5.
    """
    outside = (weights > cap) | (weights < floor)
    return torch.where(outside, weights.clamp(floor, cap) if mode == "truncate" else 0.0, weights), outside


def off_policy(tokens: Tokens, threshold: float) -> Bool[Tensor, " S"]:
    """Tokens of the completions with A < 0 and (1 / |o|) sum_t log π_rollout / π > threshold, which the policy has left
    behind: DeepSeek-V3.2, arXiv:2512.02556, equation 9, whose π_old is the engine's. They have no policy loss.
    """
    log_ratio = geometric_mean(tokens.rollout_logprobs - tokens.logprobs.detach(), tokens.rollout_of)
    return (tokens.advantages < 0) & (log_ratio > threshold)


def clipped_fractions(
    ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: Limits
) -> tuple[Bool[Tensor, " S"], Bool[Tensor, " S"]]:
    """Tokens with zero gradient because of the lower bound, and because of an upper one."""
    low = (ratio < 1 - limits.clip_low) & (advantages < 0)
    bounded = advantages != 0 if limits.either_sign else advantages > 0
    high = (ratio > 1 + limits.clip_high) & bounded
    dual = (ratio > limits.clip_dual) & (advantages < 0)
    return low, high | dual


def _sums(values: Float[Tensor, " S"], rollout_of: Int[Tensor, " S"]) -> tuple[Float[Tensor, " S"], Int[Tensor, " S"]]:
    """Sums over each rollout's tokens, and where each token finds its own: below S, which the host knows."""
    place = torch.searchsorted(rollout_of.sort().values, rollout_of)
    return torch.zeros_like(values).index_add(0, place, values), place
