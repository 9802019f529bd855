"""What a training rollout is paid for its length: the part `length` of its reward.

n is the number of tokens that the policy sampled in all of its turns, without what a tool or another player said. c is
the highest reward. What is paid is never positive:

    --length-penalty w    -w c σ((n - mean) / std)      a solved rollout, mean and std over the solved ones of its group
                          0                             any other
    --length-target N     -w c |n - N| / max(n, N)      any; w is --length-target-weight

The penalty is that of arXiv:2502.04463, with the population's std; where that is 0 the fraction is 0. It leaves
unsolved rollouts alone: paying short ones more would teach to give up. The target is that of LCPO-Exact,
arXiv:2503.04697, equation 1, which takes a constant times |n - N|. Departures: the distance is a share of the longer
of the two, so that w means the same at every length; one target holds for the whole run, and no prompt names it. Since
w is below 1, a solution, of reward c, stays above what is paid nothing.

Neither changes whether a rollout counts as solved, nor the rewards of an evaluation.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from statistics import fmean, pstdev

from minrl.config import TrainerConfig
from minrl.dataflow import Reward, Rollout, UserError

PART = "length"

TARGET_WEIGHT = 0.5
"""Share of the highest reward that is lost far from length_target; half of it at half or twice the target."""


def with_length(rollouts: Sequence[Rollout], config: TrainerConfig) -> list[Rollout]:
    """The rollouts, of whole groups, with the part in each reward if the config asks for one. An unscorable one has
    none. Raises `UserError` if the task has a part of that name.
    """
    if config.length_penalty:
        lost = [config.length_penalty * share for share in penalties(rollouts)]
    elif config.length_target:
        lost = [TARGET_WEIGHT * distance(one.num_sampled, config.length_target) for one in rollouts]
    else:
        return list(rollouts)
    return [
        replace(one, reward=one.reward and _less(one.reward, share)) for one, share in zip(rollouts, lost, strict=True)
    ]


def penalties(rollouts: Sequence[Rollout]) -> list[float]:
    """σ((n - mean) / std) of each solved rollout, in (0, 1), and 0 of each other."""
    solved = [one.reward is not None and one.reward.solved for one in rollouts]
    lengths: dict[int, list[int]] = {}
    for one in compress(rollouts, solved):
        lengths.setdefault(one.group, []).append(one.num_sampled)
    centres = {group: (fmean(own), pstdev(own) or 1.0) for group, own in lengths.items()}
    return [
        _sigmoid((one.num_sampled - centres[one.group][0]) / centres[one.group][1]) if is_solved else 0.0
        for one, is_solved in zip(rollouts, solved, strict=True)
    ]


def distance(length: int, target: int) -> float:
    """How far a length is from the target, as a share of the longer of the two.

    >>> distance(32, 64), distance(64, 64), distance(256, 64)
    (0.5, 0.0, 0.75)
    """
    return abs(length - target) / max(length, target)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _less(reward: Reward, share: float) -> Reward:
    """The reward less a share of the highest one, where that is 0 of 1. It counts as solved if it did."""
    if PART in reward.parts:
        raise UserError(
            f"the task's reward has a part {PART!r} of its own, and so has a run with length_penalty or length_target: "
            "give the task's another name"
        )
    lost = share * (abs(reward.maximum) or 1.0)
    return replace(reward, value=reward.value - lost, parts={**reward.parts, PART: 0.0 - lost}, full=reward.solved)
