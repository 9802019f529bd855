"""How much better was each rollout than its peers?

N rollouts. A rollout that could not be scored enters no mean and has advantage 0. Every function is pure and computes
in float64, for all groups at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minrl.dataflow import ROUNDING, TINY

STD_EPSILON = 1e-4
"""Added to the standard deviation in a denominator: TRL's value (verl's is 1e-6). The papers give none."""

BASELINE_DECAY = 0.95
"""Decay of the moving-average baseline per step, from SPIRAL's published code."""

Baselines = Mapping[str, float]
"""The moving average of the reward of each role."""


@dataclass(frozen=True)
class Groups:
    """The rewards of a step. A group is the rollouts of one example and role; groups are numbered from 0."""

    rewards: Float[Tensor, " N"]
    scorable: Bool[Tensor, " N"]
    group_of: Int[Tensor, " N"]
    roles: Sequence[str]
    baselines: Baselines
    parts: Sequence[tuple[float, Float[Tensor, " N"]]] = ()
    """Weight and values of each part of the reward that `reward_parts` names."""

    @property
    def scored(self) -> Float[Tensor, " N"]:
        """The rewards, with 0 for unscorable rollouts."""
        return torch.where(self.scorable, self.rewards, 0.0)

    @property
    def counts(self) -> Float[Tensor, " groups"]:
        """Scorable rollouts of each group."""
        return self._sums(self.scorable.to(self.rewards.dtype))

    @property
    def mean(self) -> Float[Tensor, " groups"]:
        """Mean reward; NaN for a group without a scorable rollout."""
        return self._sums(self.scored) / self.counts

    @property
    def spread(self) -> Bool[Tensor, " groups"]:
        """Whether the scorable rewards of each group differ by more than rounding (`minrl.dataflow.same_reward`)."""
        high, low = (
            torch.full_like(self.counts, fill).scatter_reduce(
                0, self.group_of, torch.where(self.scorable, self.rewards, fill), how
            )
            for fill, how in ((-torch.inf, "amax"), (torch.inf, "amin"))
        )
        return high - low > (ROUNDING * torch.maximum(high.abs(), low.abs())).clamp(min=TINY)

    @property
    def centered(self) -> Float[Tensor, " N"]:
        """r - mean; exactly 0 in a group without spread, even if its mean is rounded."""
        useful = self.scorable & self.spread[self.group_of]
        return torch.where(useful, self.scored - self.mean[self.group_of], 0.0)

    @property
    def std(self) -> Float[Tensor, " groups"]:
        """The unbiased standard deviation (divides by n - 1)."""
        return (self._sums(self.centered**2) / (self.counts - 1).clamp(min=1)).sqrt()

    def _sums(self, values: Float[Tensor, " N"]) -> Float[Tensor, " groups"]:
        return values.new_zeros(int(self.group_of.max()) + 1).index_add(0, self.group_of, values)


Advantage = Callable[[Groups], Float[Tensor, " N"]]


def normalize_rewards_per_group(groups: Groups) -> Float[Tensor, " N"]:
    """Group z-score: (r - mean) / (std + 1e-4), GRPO, arXiv:2402.03300, section 4.1.2 (in its text, without a number).

    The standard deviation is unbiased (divides by n - 1); the paper does not say which. Departures: the epsilon; a
    group without spread, or of one, gets 0 instead of 0 / 0.
    """
    return groups.centered / (groups.std + STD_EPSILON)[groups.group_of]


def mean_only(groups: Groups) -> Float[Tensor, " N"]:
    """r - mean: Dr. GRPO, arXiv:2503.20783, section 3.2, which leaves the standard deviation out.

    Dividing by it weighs questions that are nearly always or nearly never solved above the rest (its section 3.1).
    """
    return groups.centered


def leave_one_out(groups: Groups) -> Float[Tensor, " N"]:
    """r_i - mean of the group's others: RLOO, arXiv:2402.14740, section 2.3 (its estimator has no number).

    Computed as n / (n - 1) (r_i - mean), which is the same. A group of one has no others and gets 0. Departure: the
    paper subtracts the KL penalty from the reward (its equation 3); here it is an optional term of the loss.
    """
    return groups.centered * (groups.counts / (groups.counts - 1).clamp(min=1))[groups.group_of]


def relative_to_mean(groups: Groups) -> Float[Tensor, " N"]:
    """(r - mean) / mean: MaxRL, arXiv:2602.02710, section 4, Algorithm 1.

    Rewards are meant to be 0 and 1, as the paper's are. For a question solved with probability p the expected gradient
    is that of -sum (1 - p)^k / k over k = 1 to n - 1, which tends to log p: hard questions, whose mean is small, weigh
    more. (Order n, the paper's theorem, needs its baseline in groups that nobody solved too; Algorithm 1 drops it.)
    A group whose mean is not positive gets 0: the weight would be infinite or negative.
    """
    weight = torch.where(groups.mean > 0, 1 / groups.mean, 0.0)
    return groups.centered * weight[groups.group_of]


def group_policy_gradient(groups: Groups) -> Float[Tensor, " N"]:
    """alpha (r - mean) / F_norm with F_norm = 1 and alpha = B / (B - M): GPG, arXiv:2504.02546, section 2.2, equation 7
    of its ICLR 2026 version.

    B is the number of groups in the step, M the number of groups without spread. Departure: the paper also resamples
    while 1 / alpha is below a threshold; the nearest setting is `refill_rounds`.
    """
    return groups.centered * ((groups.counts > 0).sum().double() / groups.spread.sum().clamp(min=1))


def normalize_rewards_over_batch(groups: Groups) -> Float[Tensor, " N"]:
    """(r - mean) / (std + 1e-4) over the whole step: REINFORCE++, arXiv:2501.03262v9, section 3.1, equation 5.

    The standard deviation is unbiased. It is not the variant "w/ Baseline" (section 3.2, equations 6 and 7), which
    subtracts the group's mean first. Departures: a KL penalty is an optional term of the loss, not of the advantage
    (equation 4); statistics are over rollouts, not over tokens as in verl.
    """
    return normalize_rewards_per_group(replace(groups, group_of=torch.zeros_like(groups.group_of)))


def normalize_each_part(groups: Groups) -> Float[Tensor, " N"]:
    """sum_k w_k z_k with z_k the group z-score of part k of the reward, divided by the sum's standard deviation over
    the step + 1e-4: GDPO, arXiv:2601.05242, which also subtracts the mean over the step. That is 0 by construction;
    left out, a group without spread gets exactly 0.
    """
    scores = (w * normalize_rewards_per_group(replace(groups, rewards=part)) for w, part in groups.parts)
    total = sum(scores, torch.zeros_like(groups.rewards))
    std = ((total**2).sum() / (groups.scorable.sum() - 1).clamp(min=1)).sqrt()
    return total / (std + STD_EPSILON)


def no_reward(groups: Groups) -> Float[Tensor, " N"]:
    """0: all that is learned is `teacher_preference`."""
    return torch.zeros_like(groups.rewards)


def no_baseline(groups: Groups) -> Float[Tensor, " N"]:
    """r itself: REINFORCE, Williams 1992 (doi:10.1007/BF00992696), with the baseline b = 0."""
    return groups.scored


def moving_average_baseline(groups: Groups) -> Float[Tensor, " N"]:
    """r - b with b a moving average of the role's reward, read before this step's rewards enter it.

    REINFORCE with a baseline (Williams 1992, doi:10.1007/BF00992696); one for each role is the role-conditioned
    advantage of SPIRAL, arXiv:2506.24119, section 3, Algorithm 1: A = r - b, then b <- 0.95 b + 0.05 r, in the order
    and with the decay of its published code (the paper prints the update first). Departures: b moves once a step by
    the step's mean, not once a rollout, so it does not depend on their order. It starts from 0, as theirs does, and of
    several tasks each has its own.
    """
    baselines = torch.tensor([groups.baselines.get(role, 0.0) for role in groups.roles], dtype=groups.rewards.dtype)
    return torch.where(groups.scorable, groups.rewards - baselines, 0.0)


def moved_baselines(groups: Groups) -> Baselines:
    """The moving averages after this step. A role without a reward keeps its own."""
    moved = dict(groups.baselines)
    for role in sorted(set(groups.roles)):
        of_role = torch.tensor([name == role for name in groups.roles]) & groups.scorable
        if of_role.any():
            mean = float(groups.rewards[of_role].mean())
            moved[role] = BASELINE_DECAY * moved.get(role, 0.0) + (1 - BASELINE_DECAY) * mean
    return moved


def teacher_preference(teacher: Float[Tensor, " S"], old: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
    """log π_teacher - log π_old of each sampled token: on-policy distillation, arXiv:2306.13649, section 3.

    With x ~ π the mean of (log π_teacher - log π) ∇log π is the gradient of -KL(π, π_teacher) of the next token,
    prefixes given. Departure: the paper sums over the vocabulary; this is one sample of it, right on average only under
    what x was sampled from. So both are taken at the sampling temperature.
    """
    return teacher - old


def overlong_penalty(lengths: Int[Tensor, " N"], max_tokens: int, buffer: int) -> Float[Tensor, " N"]:
    """0 up to max_tokens - buffer, then linear down to -1 at max_tokens: DAPO's soft overlong punishment,
    arXiv:2503.14476, section 3.4, equation 13. 0 if buffer is 0.
    """
    return -(lengths.double() - (max_tokens - buffer)).clamp(min=0) / max(1, buffer) * (buffer > 0)
