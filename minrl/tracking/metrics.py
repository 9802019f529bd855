"""Numbers of a step's rollouts by tag, their distributions, and a few samples as text."""

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import itemgetter
from textwrap import TextWrapper
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from minrl.engines import PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED
from minrl.rollout import Rollouts
from minrl.types import Reward, Rollout, part_means
from minrl.utils.task_names import TaskTerms
from minrl.utils.text import printable

SHOWN_CHARACTERS = 2000
"""Longer prompts and completions are shortened among the samples."""

_WRAPPER = TextWrapper(100, expand_tabs=False, replace_whitespace=False, drop_whitespace=False)
"""TensorBoard does not wrap a block of text. It shows this many characters in a window of 1280 points."""


def step_metrics(sampled: Rollouts, terms: Mapping[str, TaskTerms]) -> dict[str, float]:
    """Scalars by tag of what a step sampled. Of several tasks, `task/NAME/...` are those of each, and it alone has
    parts of the reward and roles, whose names may mean another thing in another task.
    """
    by_task = {}
    for task, (max_tokens, _) in terms.items():
        rollouts = [one for one in sampled.rollouts if one.task == task]
        if rollouts:
            num_lost = sum(one.task == task for one in sampled.outcomes) - len(rollouts)
            by_task[task] = rollout_metrics(rollouts, max_tokens, num_lost)
    if "" in by_task:
        return by_task[""]
    limit = sum(len(one.turns) * terms[one.task].max_tokens for one in sampled.rollouts)
    shared = rollout_metrics(sampled.rollouts, 1, len(sampled.outcomes) - len(sampled.rollouts))
    shared["rollout/limit_frac"] = sum(one.num_sampled for one in sampled.rollouts) / max(1, limit)
    return {
        **{tag: value for tag, value in shared.items() if not tag.startswith(("reward/part/", "reward/role/"))},
        **{f"task/{task}/{tag}": value for task, metrics in by_task.items() for tag, value in metrics.items()},
    }


def rollout_metrics(rollouts: Sequence[Rollout], max_tokens: int, num_lost: int = 0) -> dict[str, float]:
    """Scalars by tag. Rewards are means over scorable rollouts; `max_tokens` is the limit of one turn; the episodes of
    `num_lost` completions failed before their first turn.
    """
    scored = [one for one in rollouts if one.reward is not None]
    lengths = np.array([one.num_sampled for one in rollouts])
    turns = sum(len(one.turns) for one in rollouts)
    return {
        "reward/unscorable_frac": 1 - len(scored) / (len(rollouts) + num_lost),
        "rollout/completion_tokens_mean": float(lengths.mean()),
        "rollout/completion_tokens_max": float(lengths.max()),
        "rollout/limit_frac": float(lengths.sum() / max(1, turns * max_tokens)),
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
    tokens = {"": ("step", sampled_tokens), "rollout_": ("rollout", sampled_tokens)}
    tokens["update_"] = ("update", int(metrics.get("update/computed_tokens", 0)))
    return {
        f"speed/{name}tokens_per_s": count / metrics[f"time/{phase}_s"]
        for name, (phase, count) in tokens.items()
        if count and metrics.get(f"time/{phase}_s")
    }


def distributions(rollouts: Sequence[Rollout], logprobs: Float[Tensor, " S"]) -> dict[str, np.ndarray]:
    """Rewards and lengths of the rollouts, and the raw importance weight exp(policy - engine) of their S sampled
    tokens, those left out that the policy did not score (NaN).
    """
    sampled = [logprob for r in rollouts for logprob in compress(r.rollout_logprobs, r.loss_mask)]
    gap = logprobs.double().cpu().numpy() - np.array(sampled, dtype=np.float64)
    return {
        "reward/value": np.array([reward.value for reward in _rewards(rollouts)], dtype=np.float64),
        "rollout/completion_tokens": np.array([r.num_sampled for r in rollouts], dtype=np.float64),
        "engine/importance_weight": np.exp(gap[~np.isnan(gap)]),
    }


def samples(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Samples of a step's rollouts: the highest and lowest reward, the longest, the first truncated."""
    scored = [line for line in lines if line["reward"] is not None]
    chosen = [best(scored, key=itemgetter("reward")) for best in (max, min)] if scored else []
    chosen += [max(lines, key=lambda line: sum(line["loss_mask"]))] if lines else []
    chosen += [line for line in lines if line["finish_reason"] == "length"][:1]
    return list({id(line): line for line in chosen}.values())


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """The rollouts as Markdown. Their texts are indented blocks, in which nothing is markup, with long lines broken."""
    shown = []
    for line in lines:
        reward = "unscorable" if line["reward"] is None else f"reward {line['reward']:g}"
        advantage = "" if line["advantage"] is None else f"advantage {line['advantage']:+.2f}"
        parts = ", ".join(f"{name} {value:g}" for name, value in line["parts"].items())
        tokens = f"{sum(line['loss_mask'])} tokens"
        title = " · ".join(filter(None, [reward, advantage, parts, tokens, line["finish_reason"], line["role"]]))
        text = printable(f"{_shortened(line['prompt'])}\n--------\n{_shortened(line['text'])}")
        rows = (row for whole in text.split("\n") for row in _WRAPPER.wrap(whole) or [""])
        shown.append(f"**{title}**\n\n" + "\n".join("    " + row for row in rows))
    return "\n\n".join(shown)


def _shortened(text: str) -> str:
    """The text; of a long one the beginning, the number of omitted characters, and the end."""
    half = SHOWN_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]}\n... {left_out} characters ...\n{text[-half:]}"
