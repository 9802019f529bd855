"""The curves of a run: numbers of a step by tag, and TensorBoard's page of charts.

A new curve of the step's rollouts goes here, as an entry of `rollout_metrics`. Others are made where their numbers are:
`curves` in `policy_loss` (minrl/losses.py; tensors with an entry per token, reduced by their mean, or by the suffix of
the tag), `Advantages.metrics` (minrl/algorithms.py), the end of `update_policy` (minrl/update.py). A loop may add its
own with `session.add({"my/tag": value})` before `session.step`. No tag is declared: each becomes a column of
metrics.jsonl, a chart of TensorBoard and one of W&B.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from minrl.dataflow import Reward, Rollout
from minrl.engines import PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED
from minrl.evaluate.statistics import part_means
from minrl.rollout import Rollouts

LAG = "rollout/lag"
"""With --overlap: how many updates the weights that sampled are behind those that are trained."""

CHARTS = {
    "Held-out score, reward, length, gap": {
        "held-out pass@1": [r"^eval/.*/pass@1$"],
        "reward": ["^reward/mean$"],
        "length over the limit; truncated": ["^rollout/limit_frac$", "^rollout/truncated_frac$"],
        "gap and KL, nats": ["^engine/logprob_gap_mean$", "^engine/kl$", "^policy/ref_kl$"],
    },
    "Groups": {
        "solved rollouts": ["^reward/solved_frac$"],
        "solved groups": ["^reward/solve_.*_group_frac$"],
        "parts of the reward; roles; turns": ["^reward/(part|role|turn)/.*$"],
        "each task": ["^task/.*/reward/mean$"],
    },
    "Policy": {
        "entropy, nats": ["^policy/entropy$", "^rollout/entropy$"],
        "gradient norm": ["^policy/grad_norm$"],
        "clipped tokens": ["^policy/clip_(low|high)_frac$"],
        "movement and advantage": ["^update/a.*$"],
    },
    "Cost": {
        "seconds": ["^time/.*$", "^overlap/.*$"],
        "tokens per second": ["^speed/.*$"],
        "memory, GiB": ["^memory/.*$"],
    },
}
"""The tab CUSTOM SCALARS: row, chart, patterns of its tags. In TIME SERIES every tag has a chart of its own."""


OF_A_TASK = ("reward/part/", "reward/role/", "reward/turn/")
"""Curves whose names may mean another thing in another task."""

SHOWN_TURNS = 8
"""Turns of an episode that have a curve of what they earn."""


def step_metrics(sampled: Rollouts, limits: Mapping[str, int]) -> dict[str, float]:
    """Scalars by tag of what a step sampled. `limits` are the tokens that one turn of each task may have. Of several
    tasks, `task/NAME/...` are those of each, and it alone has those of `OF_A_TASK`.
    """
    metrics = rollout_metrics(sampled.rollouts, limits, len(sampled.outcomes) - len(sampled.rollouts))
    if "" in limits:
        return metrics
    metrics = {tag: value for tag, value in metrics.items() if not tag.startswith(OF_A_TASK)}
    for task in limits:
        own = [one for one in sampled.rollouts if one.task == task]
        num_lost = sum(one.task == task for one in sampled.outcomes) - len(own)
        found = rollout_metrics(own, limits, num_lost) if own else {}
        metrics |= {f"task/{task}/{tag}": value for tag, value in found.items()}
    return metrics


def rollout_metrics(rollouts: Sequence[Rollout], limits: Mapping[str, int], num_lost: int = 0) -> dict[str, float]:
    """Scalars by tag. Rewards are means over scorable rollouts; the episodes of `num_lost` completions failed before
    their first turn.
    """
    scored = [one for one in rollouts if one.reward is not None]
    lengths = np.array([one.num_sampled for one in rollouts])
    limit = sum(len(one.turns) * limits[one.task] for one in rollouts)
    return {
        "reward/unscorable_frac": 1 - len(scored) / (len(rollouts) + num_lost),
        "rollout/completion_tokens_mean": float(lengths.mean()),
        "rollout/completion_tokens_max": float(lengths.max()),
        "rollout/limit_frac": float(lengths.sum() / max(1, limit)),
        "rollout/truncated_frac": float(np.mean([one.truncated for one in rollouts])),
        "rollout/entropy": float(-sum(sum(one.rollout_logprobs) for one in rollouts) / max(1, lengths.sum())),
        "rollout/prompt_tokens_mean": float(np.mean([one.prompt_length for one in rollouts])),
        **(_scored_metrics(scored) if scored else {}),  # else a mean of 0 would look like wrong completions
    }


def _scored_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    rewards = _rewards(rollouts)
    values, solved = np.array([one.value for one in rewards]), np.array([one.solved for one in rewards])
    lengths, groups = np.array([one.num_sampled for one in rollouts]), np.array([one.group for one in rollouts])
    rates = np.array([solved[groups == group].mean() for group in dict.fromkeys(groups.tolist())])
    metrics = {
        "reward/mean": values.mean(),
        "reward/std": values.std(),
        "reward/solved_frac": solved.mean(),
        "reward/solve_none_group_frac": (rates == 0).mean(),
        "reward/solve_some_group_frac": ((rates > 0) & (rates < 1)).mean(),
        "reward/solve_all_group_frac": (rates == 1).mean(),
        **{f"reward/part/{part}": mean for part, mean in part_means(rewards).items()},
    }
    most = max(len(one.turn_rewards) for one in rollouts)  # 0 if none was rewarded
    for turn in range(min(most, SHOWN_TURNS)):
        earned = [(one.turn_rewards or [0.0] * most)[turn] for one in rollouts if len(one.turns) > turn]
        metrics[f"reward/turn/{turn + 1}"] = np.mean(earned)
    if solved.any():
        metrics["rollout/completion_tokens_solved_mean"] = lengths[solved].mean()
    if not solved.all():
        metrics["rollout/completion_tokens_unsolved_mean"] = lengths[~solved].mean()
    roles = sorted({one.role for one in rollouts})
    for role in roles if len(roles) > 1 else ():
        own = _rewards([one for one in rollouts if one.role == role])
        metrics[f"reward/role/{role}"] = np.mean([one.value for one in own])
        metrics.update({f"reward/role/{role}/{part}": mean for part, mean in part_means(own).items()})
    return {tag: float(value) for tag, value in metrics.items()}


def _rewards(rollouts: Sequence[Rollout]) -> list[Reward]:
    return [one.reward for one in rollouts if one.reward is not None]


def over_processes(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The measurements of all processes as one: the sum of tokens, the maximum of memory and gaps.

    >>> over_processes([{"prompt_tokens": 30.0, "prompt_tokens_computed": 3.0, "memory/peak_gib": 1.0},
    ...                 {"prompt_tokens": 10.0, "prompt_tokens_computed": 7.0, "memory/peak_gib": 2.0}])
    {'memory/peak_gib': 2.0, 'engine/prompt_reuse_frac': 0.75}
    """
    tags = dict.fromkeys(tag for share in shares for tag in share)
    values = {tag: [share[tag] for share in shares if tag in share] for tag in tags}
    asked, computed = (sum(values.pop(tag, [])) for tag in (PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED))
    metrics = {tag: max(measured) for tag, measured in values.items()}
    return metrics | ({"engine/prompt_reuse_frac": 1 - computed / asked} if asked else {})


def speeds(metrics: Mapping[str, float], sampled_tokens: int) -> dict[str, float]:
    """Tokens per second of the step, its rollouts and its update, by tag."""
    tokens = {"": ("step", sampled_tokens)}
    if LAG not in metrics:  # else they were sampled in another step, beside its update
        tokens["rollout_"] = ("rollout", sampled_tokens)
    tokens["update_"] = ("update", int(metrics.get("update/computed_tokens", 0)))
    return {
        f"speed/{name}tokens_per_s": count / metrics[f"time/{phase}_s"]
        for name, (phase, count) in tokens.items()
        if count and metrics.get(f"time/{phase}_s")
    }
