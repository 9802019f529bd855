"""How much better was each rollout than its peers?

N rollouts. `rewards` are flat, `groups` say which rollouts were sampled for the same example and role. A rollout that
could not be scored (`scorable` False) leaves every baseline and has advantage 0.

Every function here is pure: rewards in, advantages out, in float64, by the whole group at once.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STD_EPSILON = 1e-4
"""Added to the standard deviation that divides: TRL's value (verl's is 1e-6); the papers name no value."""

BASELINE_DECAY = 0.95
"""Share of a moving-average baseline that one step keeps: that of SPIRAL's published code."""

Baselines = Mapping[str, float]
"""The moving average of the reward of each role."""

Advantage = Callable[
    [Float[Tensor, " N"], Bool[Tensor, " N"], Int[Tensor, " N"], Sequence[str], Baselines],
    tuple[Float[Tensor, " N"], Baselines],
]
"""(rewards, scorable, groups, roles, baselines) -> (advantages, baselines)"""


def normalize_rewards_per_group(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """Group z-score: (r - mean) / (std + 1e-4), GRPO, arXiv:2402.03300, section 4.1.2 (in its text, without a number).

    The standard deviation is unbiased (divides by n - 1); the paper does not say which. Departures: the epsilon 1e-4,
    which it does not have; a group without spread, or of one, gets 0, where it would divide 0 by 0.
    """
    centred = _centred(rewards, scorable, groups)
    counts = _group_sums(scorable.to(rewards.dtype), groups)
    variance = _group_sums(centred**2, groups) / (counts - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_EPSILON)[groups], baselines


def mean_only(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """r - mean: Dr. GRPO, arXiv:2503.20783, section 3.2, which leaves the standard deviation out.

    Dividing by it weighs questions that are nearly always or nearly never solved above the rest (its section 3.1).
    """
    return _centred(rewards, scorable, groups), baselines


def leave_one_out(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """r_i - mean of the group's others: RLOO, arXiv:2402.14740, section 2.3 (its estimator has no number).

    Computed as n / (n - 1) (r_i - mean), which is the same. A group of one has no others and gets 0. Departure: the
    paper takes the KL penalty off the reward (its equation 3); here it is a term of the loss, where wanted.
    """
    counts = _group_sums(scorable.to(rewards.dtype), groups)
    return _centred(rewards, scorable, groups) * (counts / (counts - 1).clamp(min=1))[groups], baselines


def relative_to_mean(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """(r - mean) / mean: MaxRL, arXiv:2602.02710, section 4, Algorithm 1.

    Rewards are meant to be 0 and 1, as the paper's are. For a question solved with probability p the expected gradient
    is that of -sum (1 - p)^k / k over k = 1 to n - 1, which tends to log p: hard questions, whose mean is small, weigh
    more. (Order n, the paper's theorem, needs its baseline in groups that nobody solved too; Algorithm 1 drops it.)
    A group whose mean is not above 0 gets 0, since the weight would be infinite or turned around.
    """
    counts = _group_sums(scorable.to(rewards.dtype), groups)
    mean = _group_sums(torch.where(scorable, rewards, 0.0), groups) / counts  # NaN where nobody could be scored
    weight = torch.where(mean > 0, 1 / mean, 0.0)
    return _centred(rewards, scorable, groups) * weight[groups], baselines


def group_policy_gradient(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """alpha (r - mean) / F_norm with F_norm = 1 and alpha = B / (B - M): GPG, arXiv:2504.02546, section 2.2, equation 7
    of its ICLR 2026 version.

    B is the number of groups in the step, M the number of those without spread, which teach nothing: the rest is
    scaled up by what they would have diluted. Departure: the paper also samples on while 1 / alpha is below a
    threshold; the setting nearest to that is `refill_rounds`.
    """
    centred = _centred(rewards, scorable, groups)
    present = _group_sums(scorable.to(rewards.dtype), groups) > 0
    signal = spread(rewards, scorable, groups)
    return centred * (present.sum() / signal.sum().clamp(min=1)), baselines


def normalize_rewards_over_batch(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """(r - mean) / (std + 1e-4) over the whole step: REINFORCE++, arXiv:2501.03262v9, section 3.1, equation 5.

    The standard deviation is unbiased. It is not the variant "w/ Baseline" (section 3.2, equations 6 and 7), which
    subtracts the group's mean first. Departures: a KL penalty, where wanted, is a term of the loss, not of the
    advantage (equation 4); statistics are over rollouts, not over tokens as in verl, so that long completions do not
    count more.
    """
    everyone = torch.zeros_like(groups)
    return normalize_rewards_per_group(rewards, scorable, everyone, roles, baselines)


def no_baseline(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """r itself: REINFORCE, Williams 1992 (doi:10.1007/BF00992696), with the baseline b = 0."""
    return torch.where(scorable, rewards, 0.0), baselines


def moving_average_baseline(
    rewards: Float[Tensor, " N"],
    scorable: Bool[Tensor, " N"],
    groups: Int[Tensor, " N"],
    roles: Sequence[str],
    baselines: Baselines,
) -> tuple[Float[Tensor, " N"], Baselines]:
    """r - b with b a moving average of the role's reward, read before this step's rewards enter it.

    REINFORCE with a baseline (Williams 1992, doi:10.1007/BF00992696); one for each role is the role-conditioned
    advantage of SPIRAL, arXiv:2506.24119, section 3, Algorithm 1: A = r - b, then b <- 0.95 b + 0.05 r, in the order
    and with the decay of its published code (the paper prints the update first). Departures: b moves once a step by
    the mean of the step, not once a rollout, so that it does not depend on their order; and b is one for each role,
    not for each game and role, since a run trains on one task. It starts from 0, as theirs.
    """
    advantages, updated = torch.zeros_like(rewards), dict(baselines)
    for role in sorted(set(roles)):
        of_role = torch.tensor([name == role for name in roles]) & scorable
        if not of_role.any():
            continue
        mean = float(rewards[of_role].mean())
        baseline = baselines.get(role, 0.0)
        advantages[of_role] = rewards[of_role] - baseline
        updated[role] = BASELINE_DECAY * baseline + (1 - BASELINE_DECAY) * mean
    return advantages, updated


def overlong_penalty(lengths: Int[Tensor, " N"], max_tokens: int, buffer: int) -> Float[Tensor, " N"]:
    """0 up to max_tokens - buffer, from there falling linearly to -1 at max_tokens: DAPO's soft overlong punishment,
    arXiv:2503.14476, section 3.4, equation 13. No length is above max_tokens here. 0 where buffer is 0.
    """
    return -(lengths.double() - (max_tokens - buffer)).clamp(min=0) / max(1, buffer) * (buffer > 0)


def spread(
    rewards: Float[Tensor, " N"], scorable: Bool[Tensor, " N"], groups: Int[Tensor, " N"]
) -> Bool[Tensor, " groups"]:
    """Whether each group's rewards differ: exactly max > min among those that could be scored."""
    num_groups = int(groups.max()) + 1
    scored = torch.where(scorable, rewards, torch.nan)
    high, low = (
        torch.full((num_groups,), fill, dtype=rewards.dtype).scatter_reduce(0, groups, scored.nan_to_num(fill), how)
        for fill, how in ((-torch.inf, "amax"), (torch.inf, "amin"))
    )
    return high > low


def _centred(
    rewards: Float[Tensor, " N"], scorable: Bool[Tensor, " N"], groups: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """r minus its group's mean; exactly 0 in a group without spread, whose mean may be rounded."""
    scored = torch.where(scorable, rewards, 0.0)
    mean = _group_sums(scored, groups) / _group_sums(scorable.to(rewards.dtype), groups)
    return torch.where(scorable & spread(rewards, scorable, groups)[groups], scored - mean[groups], 0.0)


def _group_sums(values: Float[Tensor, " N"], groups: Int[Tensor, " N"]) -> Float[Tensor, " groups"]:
    return torch.zeros(int(groups.max()) + 1, dtype=values.dtype).index_add(0, groups, values)
