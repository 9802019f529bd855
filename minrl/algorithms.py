"""An algorithm is a row of independent choices. The loop never asks for an algorithm's name."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minrl.advantages import (
    Advantage,
    Baselines,
    group_policy_gradient,
    moving_average_baseline,
    normalize_rewards_per_group,
    spread,
)
from minrl.config import TrainerConfig
from minrl.losses import Aggregation, Surrogate, clipped_surrogate, policy_gradient, sequence_mean, token_mean
from minrl.types import Rollout, UserError


@dataclass(frozen=True)
class Algorithm:
    """What is compared, what is minimised, how tokens are averaged.

    `group_relative` says that a rollout is compared with its group only, so that a group of one teaches nothing.
    """

    advantage: Advantage
    surrogate: Surrogate
    aggregation: Aggregation
    group_relative: bool = True

    def compare(self, rollouts: Sequence[Rollout], baselines: Baselines) -> "Comparison":
        """The advantage of each rollout among all rollouts of the step."""
        rewards = [0.0 if r.reward is None else r.reward.value for r in rollouts]
        scorable = torch.tensor([r.reward is not None for r in rollouts])
        groups = torch.unique(torch.tensor([r.group for r in rollouts]), return_inverse=True)[1]
        values = torch.tensor(rewards, dtype=torch.float64)
        advantages, baselines = self.advantage(values, scorable, groups, [r.role for r in rollouts], baselines)
        signal = spread(values, scorable, groups)
        return Comparison(advantages, dict(baselines), 1 - float(signal.double().mean()))


@dataclass(frozen=True)
class Comparison:
    """Advantages (N,), the baselines for the next step, and the share of groups whose rewards are all equal."""

    advantages: Tensor
    baselines: dict[str, float]
    zero_spread_group_frac: float


ALGORITHMS: dict[str, Algorithm] = {
    # arXiv:2402.03300. Its KL term to a reference is off.
    "grpo": Algorithm(normalize_rewards_per_group, clipped_surrogate, sequence_mean),
    # Williams 1992, with a moving-average baseline.
    "reinforce": Algorithm(moving_average_baseline, policy_gradient, token_mean, group_relative=False),
    # arXiv:2504.02546.
    "gpg": Algorithm(group_policy_gradient, policy_gradient, token_mean),
}


def choose_algorithm(config: TrainerConfig) -> Algorithm:
    """The row the config names; refused where the config contradicts it."""
    name = config.algorithm.algorithm
    if name not in ALGORITHMS:
        raise UserError(f"no algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if algorithm.group_relative and config.rollout.group_size < 2:
        raise UserError(
            f"{name} compares the completions of a group: group_size must be at least 2, "
            f"got {config.rollout.group_size}; or choose --algorithm reinforce"
        )
    return algorithm
