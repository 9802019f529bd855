"""What is minimised for each sampled token, and how much each token weighs.

N rollouts, S sampled tokens. Every function is pure. Losses are per token, in nats times advantage; the sum of
loss times token weight over an optimizer step's tokens is what is differentiated.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minrl.config import AlgorithmConfig

Surrogate = Callable[
    [Float[Tensor, " S"], Float[Tensor, " S"], Float[Tensor, " S"], AlgorithmConfig], Float[Tensor, " S"]
]
"""(logprobs, old_logprobs, advantages, limits) -> loss of each token"""

Aggregation = Callable[[Int[Tensor, " N"], int, int], Float[Tensor, " N"]]
"""(completion lengths, rollouts of the optimizer step, tokens of the optimizer step) -> weight of a rollout's tokens"""


def policy_gradient(
    logprobs: Float[Tensor, " S"],
    old_logprobs: Float[Tensor, " S"],
    advantages: Float[Tensor, " S"],
    limits: AlgorithmConfig,
) -> Float[Tensor, " S"]:
    """-A log π: the score function estimator of REINFORCE (Williams 1992) and GPG (arXiv:2504.02546)."""
    return -advantages * logprobs


def clipped_surrogate(
    logprobs: Float[Tensor, " S"],
    old_logprobs: Float[Tensor, " S"],
    advantages: Float[Tensor, " S"],
    limits: AlgorithmConfig,
) -> Float[Tensor, " S"]:
    """-min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) with ρ = exp(log π - log π_old).

    arXiv:1707.06347, equation 7; per token as in arXiv:2402.03300, equation 3, without its KL term, which is off.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - limits.clip_low, 1 + limits.clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def sequence_mean(lengths: Int[Tensor, " N"], num_rollouts: int, num_tokens: int) -> Float[Tensor, " N"]:
    """1 / (N |o_i|): the mean over rollouts of the mean over tokens (arXiv:2402.03300, equation 3)."""
    return 1 / (num_rollouts * lengths.clamp(min=1).double())


def token_mean(lengths: Int[Tensor, " N"], num_rollouts: int, num_tokens: int) -> Float[Tensor, " N"]:
    """1 / sum |o_i|: the mean over all tokens (arXiv:2504.02546, equation of the GPG objective)."""
    return torch.full((len(lengths),), 1 / max(1, num_tokens), dtype=torch.float64)


def importance_weights(
    old_logprobs: Float[Tensor, " S"], rollout_logprobs: Float[Tensor, " S"], cap: float
) -> Float[Tensor, " S"]:
    """min(π_old / π_rollout, cap) per token: corrects for an engine whose probabilities are not the policy's.

    Truncated importance sampling (Ionides 2008, doi:10.1198/106186008X320456).
    """
    return (old_logprobs - rollout_logprobs).exp().clamp(max=cap)


def clipped_fractions(
    ratio: Float[Tensor, " S"], advantages: Float[Tensor, " S"], limits: AlgorithmConfig
) -> tuple[Bool[Tensor, " S"], Bool[Tensor, " S"]]:
    """Tokens whose gradient the lower and the upper bound set to zero."""
    low = (ratio < 1 - limits.clip_low) & (advantages < 0)
    high = (ratio > 1 + limits.clip_high) & (advantages > 0)
    return low, high
