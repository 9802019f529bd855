"""An algorithm is a row of independent choices. The loop never asks for an algorithm's name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minrl.advantages import (
    Advantage,
    Baselines,
    Groups,
    group_policy_gradient,
    leave_one_out,
    mean_only,
    moved_baselines,
    moving_average_baseline,
    no_baseline,
    no_reward,
    normalize_rewards_over_batch,
    normalize_rewards_per_group,
    overlong_penalty,
    relative_to_mean,
)
from minrl.config import AlgorithmConfig, TrainerConfig
from minrl.losses import (
    Aggregation,
    Limits,
    Surrogate,
    clipped_surrogate,
    clipped_weight,
    constant_length,
    dual_clipped_surrogate,
    policy_gradient,
    sequence_mean,
    soft_gate,
    token_mean,
)
from minrl.types import Rollout, UserError
from minrl.utils.settings import meant
from minrl.utils.task_names import TaskTerms
from minrl.utils.timers import timed

NO_LIMITS = Limits()
CLIP = Limits(clip_low=0.2, clip_high=0.2)


@dataclass(frozen=True)
class Algorithm:
    """Advantage, surrogate, aggregation of tokens, and the level and limits of the ratio.

    `ratio_level` is a key of `minrl.losses.LEVELS`. `group_relative`: a rollout is compared with its group only, so a
    group of one teaches nothing. `makes_up_for_equal_groups`: the advantages already compensate for groups without
    spread. `overlong` is (longest completion, buffer) of the overlong penalty; buffer 0 turns it off. `terms` are those
    of several tasks.
    """

    advantage: Advantage
    surrogate: Surrogate
    aggregation: Aggregation
    limits: Limits = NO_LIMITS
    ratio_level: str = "token"
    group_relative: bool = True
    makes_up_for_equal_groups: bool = False
    overlong: tuple[int, int] = (0, 0)
    terms: Mapping[str, TaskTerms] | None = None

    @property
    def has_ratio(self) -> bool:
        """Whether the surrogate depends on the ratio to the policy that sampled."""
        return self.surrogate is not policy_gradient

    @timed("compare")
    def advantages(self, rollouts: Sequence[Rollout], baselines: Baselines) -> "Advantages":
        """The advantages of the step's rollouts: those of each task as if it were alone, times its scale."""
        values, spread = torch.zeros(len(rollouts), dtype=torch.float64), []
        for task in dict.fromkeys(one.task for one in rollouts):
            own = [index for index, one in enumerate(rollouts) if one.task == task]
            groups = self._groups([rollouts[index] for index in own], baselines)
            values[own] = self.advantage(groups) * (self.terms[task].reward_scale if self.terms else 1.0)
            spread.append(groups.spread)
            baselines = moved_baselines(groups) if self.advantage is moving_average_baseline else baselines
        return Advantages(values, dict(baselines), 1 - float(torch.cat(spread).double().mean()))

    def _groups(self, rollouts: Sequence[Rollout], baselines: Baselines) -> Groups:
        """The rewards of one task's rollouts."""
        limit = self.terms[rollouts[0].task].max_tokens if self.terms else self.overlong[0]
        rewards = torch.tensor([0.0 if r.reward is None else r.reward.value for r in rollouts], dtype=torch.float64)
        longest = torch.tensor([max((end - start for start, end in r.turns), default=0) for r in rollouts])
        return Groups(
            rewards=rewards + overlong_penalty(longest, limit, self.overlong[1]),
            scorable=torch.tensor([r.reward is not None for r in rollouts]),
            group_of=torch.unique(torch.tensor([r.group for r in rollouts]), return_inverse=True)[1],
            roles=[r.player for r in rollouts],
            baselines=baselines,
        )


@dataclass(frozen=True)
class Advantages:
    """Advantages (N,), the baselines for the next step, and the share of groups without spread."""

    values: Tensor
    baselines: dict[str, float]
    zero_spread_group_frac: float


ALGORITHMS: dict[str, Algorithm] = {
    # arXiv:2402.03300, equation 3. Its KL term to a reference is --kl-coef; its bound is not published, 0.2 is PPO's.
    "grpo": Algorithm(normalize_rewards_per_group, clipped_surrogate, sequence_mean, CLIP),
    # arXiv:2503.20783, section 3.2.
    "dr_grpo": Algorithm(mean_only, clipped_surrogate, constant_length, CLIP),
    # arXiv:2503.14476, bounds of its section 4.1. Its dynamic sampling and overlong penalty are settings of their own.
    "dapo": Algorithm(normalize_rewards_per_group, clipped_surrogate, token_mean, Limits(0.2, 0.28)),
    # arXiv:2507.18071; bounds of its section 5.1.
    "gspo": Algorithm(
        normalize_rewards_per_group, clipped_surrogate, sequence_mean, Limits(3e-4, 4e-4), ratio_level="geometric"
    ),
    # arXiv:2506.13585. Its upper bound is not published; 5 is that of arXiv:2510.13786. Its dynamic sampling and length
    # penalty, which are DAPO's, are settings of their own.
    "cispo": Algorithm(
        normalize_rewards_per_group, clipped_weight, token_mean, Limits(clip_high=4.0, either_sign=True)
    ),
    # arXiv:2511.20347, equation 5.
    "sapo": Algorithm(normalize_rewards_per_group, soft_gate, sequence_mean),
    # arXiv:1912.09729, with a group's baseline in place of a value network, and c = 3 as in verl.
    "dual_clip": Algorithm(normalize_rewards_per_group, dual_clipped_surrogate, sequence_mean, Limits(0.2, 0.2, 3.0)),
    # arXiv:2402.14740, section 2.3, divided by the constant L.
    "rloo": Algorithm(leave_one_out, policy_gradient, constant_length),
    # arXiv:2602.02710, Algorithm 1, divided by the step's tokens in place of its completions.
    "maxrl": Algorithm(relative_to_mean, policy_gradient, token_mean),
    # arXiv:2504.02546, equations 5 and 7 of its ICLR 2026 version, without its threshold for sampling on.
    "gpg": Algorithm(group_policy_gradient, policy_gradient, token_mean, makes_up_for_equal_groups=True),
    # arXiv:2501.03262v9, section 3.1. Departure: the mean over all tokens, where its equation 1 takes that of each
    # completion first.
    "reinforce_pp": Algorithm(normalize_rewards_over_batch, clipped_surrogate, token_mean, CLIP, group_relative=False),
    # Williams 1992, with a moving-average baseline, divided by the step's tokens.
    "reinforce": Algorithm(moving_average_baseline, policy_gradient, token_mean, group_relative=False),
    "reinforce_no_baseline": Algorithm(no_baseline, policy_gradient, token_mean, group_relative=False),
    # arXiv:2506.24119, equation 3: a baseline for each role, and completions that are not divided by their length.
    "spiral": Algorithm(moving_average_baseline, policy_gradient, constant_length, group_relative=False),
    # On-policy distillation, arXiv:2306.13649, with the reverse KL, taken at the sampled tokens.
    "distill": Algorithm(no_reward, clipped_surrogate, token_mean, CLIP, group_relative=False),
}


def choose_algorithm(config: TrainerConfig) -> Algorithm:
    """The row that the config names, with the config's limits. Raises `UserError` if the two contradict."""
    settings = config.algorithm
    name = settings.algorithm
    if name not in ALGORITHMS:
        raise UserError(f"no algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}{meant(name, ALGORITHMS)}")
    algorithm = ALGORITHMS[name]
    if algorithm.group_relative and config.rollout.group_size < 2:
        raise UserError(
            f"{name} compares the completions of a group: group_size must be at least 2, "
            f"got {config.rollout.group_size}; or choose --algorithm reinforce"
        )
    if not algorithm.has_ratio and settings.passes_per_step > 1:
        raise UserError(
            f"{name} has no ratio to the policy that sampled, so a second pass would train on what another policy "
            f"sampled: passes_per_step must be 1, got {settings.passes_per_step}; or choose --algorithm grpo"
        )
    if algorithm.ratio_level != "token" and settings.importance_level == "token":
        raise UserError(
            f"{name} weighs whole sequences, importance_level must not be token: choose geometric, sequence or auto"
        )
    if algorithm.advantage is no_reward and (not settings.has_teacher or settings.prices_length):
        raise UserError(
            f"{name} learns from a teacher and not from rewards: name one with --teacher-id, or show the policy itself "
            "more with --teacher-prompt, and leave out overlong penalize, length_penalty and length_target"
        )
    if algorithm.ratio_level != "token" and settings.has_teacher:
        raise UserError(f"{name} weighs whole sequences, and a teacher tokens: choose another algorithm, such as grpo")
    if not algorithm.group_relative and (settings.drop_equal_groups or config.sampling.refill_rounds):
        raise UserError(
            f"{name} learns from groups whose rewards are all equal: leave out drop_equal_groups and refill_rounds"
        )
    if algorithm.makes_up_for_equal_groups and settings.drop_equal_groups:
        raise UserError(
            f"{name} makes up for groups whose rewards are all equal by itself, by B / (B - M), and drop_equal_groups "
            "would do it again: leave out drop_equal_groups"
        )
    terms, shortest = config.rollout.terms, config.rollout.shortest
    settings.require_lengths(shortest)
    return replace(
        algorithm,
        limits=_limits(name, algorithm.limits, settings),
        overlong=(shortest, settings.overlong_buffer) if settings.overlong_buffer else (0, 0),
        terms=terms if len(terms) > 1 else None,
    )


def _limits(name: str, limits: Limits, settings: AlgorithmConfig) -> Limits:
    """The row's limits, overridden by the config. Raises `UserError` for a limit that the row does not use."""
    bounds = [field for field in vars(limits) if field.startswith("clip_")]
    chosen = {field: getattr(settings, field) for field in bounds if getattr(settings, field)}
    for field, value in chosen.items():
        if not getattr(limits, field):
            raise UserError(f"{name} has no {field} and would not read it, got {value}: leave it out")
    return replace(limits, **chosen)
