"""The KL divergence from the policy to a reference, estimated at the S sampled tokens, in nats."""

import torch
from jaxtyping import Float
from torch import Tensor


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
