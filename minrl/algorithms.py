"""An algorithm is a row of independent choices. The loop never asks for an algorithm's name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import accumulate
from math import inf, isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minrl.advantages import (
    Baselines,
    Groups,
    group_policy_gradient,
    leave_one_out,
    mean_only,
    moved_baselines,
    moving_average_baseline,
    no_baseline,
    no_reward,
    normalize_each_part,
    normalize_rewards_over_batch,
    normalize_rewards_per_group,
    overlong_penalty,
    relative_to_mean,
)
from minrl.config import OptionsByTask, TrainerConfig
from minrl.dataflow import Reward, Rollout, TrainState, UserError, require
from minrl.losses import (
    Algorithm,
    Limits,
    clipped_surrogate,
    clipped_weight,
    constant_length,
    divergence_mask,
    dual_clipped_surrogate,
    gamma_weight,
    policy_gradient,
    sequence_mean,
    sequence_sum,
    soft_gate,
    token_mean,
)
from minrl.tracking.timers import timed
from minrl.utils.files import imported_file
from minrl.utils.settings import meant
from minrl.utils.task_names import weights_of

CLIP = Limits(clip_low=0.2, clip_high=0.2)

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
    # arXiv:2602.05261; bounds of its section 5.1.
    "luspo": Algorithm(
        normalize_rewards_per_group, clipped_surrogate, sequence_sum, Limits(2e-3, 2.5e-3), ratio_level="geometric"
    ),
    # arXiv:2602.10693, with TRL's constants and its mean over tokens.
    "vespo": Algorithm(normalize_rewards_per_group, gamma_weight, token_mean, ratio_level="sequence", to_engine=True),
    # arXiv:2602.04879, equations 11 to 13; bounds, advantage and aggregation of its published script.
    "dppo": Algorithm(mean_only, divergence_mask, constant_length, Limits(0.15, 0.15), to_engine=True),
    # arXiv:2601.05242, with the loss of GRPO. Its parts of the reward are --reward-parts.
    "gdpo": Algorithm(normalize_each_part, clipped_surrogate, sequence_mean, CLIP),
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
    "gpg": Algorithm(group_policy_gradient, policy_gradient, token_mean),
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


@dataclass(frozen=True)
class Advantages:
    """The advantages (N,) of a step's rollouts, or those of the turns of each (N, K), and curves by tag."""

    values: Float[Tensor, "N ..."]
    metrics: dict[str, float]


@timed("compare")
def compute_advantages(
    rollouts: Sequence[Rollout], algorithm: Algorithm, config: TrainerConfig, state: TrainState
) -> Advantages:
    """The advantages of the step's rollouts, or with `turn_credit` of their turns (0 where a rollout has no such turn):
    those of each task as if it were alone. The moving averages in the state move.
    """
    _require_parts(rollouts, config, state)
    by_turn = config.turn_credit == "turn"
    compared = turns_of(rollouts) if by_turn else rollouts
    values, spread = torch.zeros(len(compared), dtype=torch.float64), []
    for task in dict.fromkeys(one.task for one in compared):
        own = [index for index, one in enumerate(compared) if one.task == task]
        limit = compared[own[0]].max_tokens or config.max_tokens
        groups = make_groups([compared[i] for i in own], state.baselines, limit, config)
        found = algorithm.advantage(groups)
        _require_advantages(found, [compared[i] for i in own], config.algorithm, "turns" if by_turn else "rollouts")
        values[own] = found
        spread.append(groups.spread)
        if algorithm.advantage is moving_average_baseline:
            state.baselines = dict(moved_baselines(groups))
    equal = 1 - float(torch.cat(spread).double().mean())
    if by_turn:
        values = pad_sequence(values.split([len(one.turns) for one in rollouts]), batch_first=True)
    baselines = {f"baseline/{role}": value for role, value in state.baselines.items()}
    return Advantages(values, {"reward/zero_spread_group_frac": equal, **baselines})


def turns_of(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Each turn of each rollout as a rollout of its own, whose reward is the return of turn k,

        R_k = sum of r_j over the turns j >= k,

    with r_j the reward of turn j, and in the last turn also that which the episode returned. Its group are the k-th
    turns of its rollout's group, and a moving average is of the role and the turn.

    The return is that of the step advantage of GiGPO, arXiv:2505.10978, with γ = 1. Departures: GiGPO compares actions
    in equal states, not at the same turn, and adds the episode's advantage. MT-GRPO, arXiv:2505.11821, first compares
    the reward of a turn and that of the episode by themselves, and then adds them.
    """
    most, found = max(len(one.turns) for one in rollouts), list[Rollout]()
    for one in rollouts:
        earlier = [*accumulate(one.turn_rewards or [0.0] * len(one.turns), initial=0.0)]
        for turn in range(len(one.turns)):
            rest = None if one.reward is None else one.reward.value - earlier[turn]
            reward = None if rest is None else Reward(rest, maximum=rest)
            role = f"{one.role}/turn/{turn + 1}" if turn else one.role
            group = one.group * most + turn
            found.append(replace(one, reward=reward, role=role, group=group, turns=one.turns[turn:]))
    return found


def _require_parts(rollouts: Sequence[Rollout], config: TrainerConfig, state: TrainState) -> None:
    """Refuse names in `reward_parts` that no reward of the first step has. Later a part may be missing: it is 0."""
    rewards = [one.reward for one in rollouts if one.reward is not None]
    found = sorted({part for reward in rewards for part in reward.parts})
    for name in weights_of(config.reward_parts, "reward_parts") if rewards and state.step <= 1 else ():
        known = f"the parts of the rewards are {', '.join(found) or 'none'}{meant(name, found)}"
        require(name in found, f"no reward has a part {name!r}, which reward_parts names: {known}")


def _require_advantages(found: Tensor, rollouts: Sequence[Rollout], name: str, what: str) -> None:
    """Refuse what is not a number for each rollout or turn, as where the epsilon of a standard deviation is missing."""
    shape = tuple(getattr(found, "shape", ()))
    each = f"the advantage of {name} must return a number for each of {len(rollouts)} {what}, shape"
    require(shape == (len(rollouts),), f"{each} ({len(rollouts)},), got {shape}")
    for one in (rollout for rollout, value in zip(rollouts, found.tolist(), strict=True) if not isfinite(value)):
        peers = [f"{peer.reward.value:g}" for peer in rollouts if peer.group == one.group and peer.reward is not None]
        wrong = f"the advantage of {name} is not finite for example {one.example_id!r:.80}"
        raise UserError(f"{wrong}, whose group has the rewards {', '.join(peers[:16]) or 'none'}")


def make_groups(rollouts: Sequence[Rollout], baselines: Baselines, max_tokens: int, settings: TrainerConfig) -> Groups:
    """The rewards of one task's rollouts, after the overlong penalty."""
    rewards = torch.tensor([0.0 if r.reward is None else r.reward.value for r in rollouts], dtype=torch.float64)
    longest = torch.tensor([max((end - start for start, end in r.turns), default=0) for r in rollouts])
    paid = [{} if r.reward is None else r.reward.parts for r in rollouts]
    named = weights_of(settings.reward_parts, "reward_parts").items()
    parts = [(float(w), torch.tensor([of.get(name, 0.0) for of in paid], dtype=torch.float64)) for name, w in named]
    return Groups(
        rewards=rewards + overlong_penalty(longest, max_tokens, settings.overlong_buffer),
        scorable=torch.tensor([r.reward is not None for r in rollouts]),
        group_of=torch.unique(torch.tensor([r.group for r in rollouts]), return_inverse=True)[1],
        roles=[r.player for r in rollouts],
        baselines=baselines,
        parts=parts,
    )


def choose_algorithm(config: TrainerConfig, options: OptionsByTask | None = None) -> Algorithm:
    """The row that the config names, with the config's limits and its own options among those of the tasks. Raises
    `UserError` if the two contradict.
    """
    name = config.algorithm
    algorithm = ALGORITHMS.get(name) or row_in_file(name)
    if algorithm.group_relative and config.group_size < 2:
        raise UserError(
            f"{name} compares the completions of a group: group_size must be at least 2, "
            f"got {config.group_size}; or choose --algorithm reinforce"
        )
    if not algorithm.has_ratio and config.passes_per_step > 1:
        raise UserError(
            f"{name} has no ratio to the policy that sampled, so a second pass would train on what another policy "
            f"sampled: passes_per_step must be 1, got {config.passes_per_step}; or choose --algorithm grpo"
        )
    if algorithm.ratio_level != "token" and config.importance_level == "token":
        raise UserError(
            f"{name} weighs whole sequences, importance_level must not be token: choose geometric, sequence or auto"
        )
    by_turn = config.turn_credit == "turn"
    priced = config.overlong_buffer or config.length_penalty or config.length_target or by_turn
    if algorithm.advantage is no_reward and (not config.has_teacher or priced):
        raise UserError(
            f"{name} learns from a teacher and not from rewards: name one with --teacher-id, or show the policy itself "
            "more with --teacher-prompt, and leave out overlong_buffer, length_penalty, length_target and turn_credit"
        )
    named = weights_of(config.reward_parts, "reward_parts")
    lost = config.overlong_buffer or ((config.length_penalty or config.length_target) and "length" not in named)
    if (algorithm.advantage is normalize_each_part) != bool(named) or (named and lost):
        raise UserError(
            "gdpo compares parts of the reward, and no other algorithm reads reward_parts: give both, such as "
            "--reward-parts answer,format:0.5, without overlong_buffer, and with length among them for a length penalty"
        )
    unread = {"importance_floor": config.importance_floor, "importance_level": config.importance_level != "auto"}
    for setting in (one for one, given in unread.items() if given and algorithm.to_engine):
        raise UserError(f"{name} has no importance weight, its ratio is to the engine: leave out {setting}")
    if algorithm.ratio_level != "token" and (config.has_teacher or by_turn):
        smaller = "a teacher tokens" if config.has_teacher else "--turn-credit turn turns"
        raise UserError(f"{name} weighs whole sequences, and {smaller}: choose another algorithm, such as grpo")
    require(not (named and by_turn), f"{name} compares parts of an episode's reward: leave out turn_credit")
    if not algorithm.group_relative and config.refill_rounds:
        raise UserError(f"{name} learns from groups whose rewards are all equal: leave out refill_rounds")
    require_lengths(config, config.max_tokens)
    algorithm = replace(algorithm, limits=_limits(name, algorithm.limits, config))
    if algorithm.options is None:
        return algorithm
    own = (options or {}).get(name.rpartition(":")[2]) or algorithm.options()
    parts = {part: getattr(algorithm, part) for part in ("advantage", "surrogate", "aggregation")}
    taking = {part: one for part, one in parts.items() if "options" in signature(one).parameters}
    given: dict[str, Any] = {part: partial(one, options=own) for part, one in taking.items()}
    return replace(algorithm, **given)


def require_lengths(config: TrainerConfig, limit: int) -> None:
    """Refuse lengths that no completion of at most `limit` tokens has."""
    buffer, target = config.overlong_buffer, config.length_target
    require(buffer < limit, f"overlong_buffer ({buffer}) must be below max_tokens ({limit})")
    require(target <= limit, f"length_target ({target}) must be at most max_tokens ({limit})")


def row_in_file(name: str) -> Algorithm:
    """The `Algorithm` that `path/to/file.py:row` names."""
    path, _, row = name.rpartition(":")
    if not path.endswith(".py"):
        rows = f"choose one of {', '.join(ALGORITHMS)}, or a row of a file: path/to/file.py:row"
        raise UserError(f"no algorithm {name!r}: {rows}{meant(name, ALGORITHMS)}")
    module = imported_file(path, f"--algorithm {name}")
    found = {key: value for key, value in vars(module).items() if isinstance(value, Algorithm)}
    known = f"its Algorithms are {', '.join(found)}" if found else "it has no minrl.losses.Algorithm"
    require(row in found, f"--algorithm {name}: {path} has no Algorithm {row!r}: {known}")
    return found[row]


def _limits(name: str, limits: Limits, settings: TrainerConfig) -> Limits:
    """The row's limits, overridden by the config. Raises `UserError` for a limit that the row does not use."""
    bounds = [field for field in vars(limits) if field.startswith("clip_")]
    chosen = {field: getattr(settings, field) for field in bounds if getattr(settings, field)}
    for field, value in chosen.items():
        if getattr(limits, field) == inf:
            raise UserError(f"{name} has no {field} and would not read it, got {value}: leave it out")
    return replace(limits, **chosen)
