"""Metrics of a step's rollouts: scalars by tag, distributions, and a few samples as text."""

from collections.abc import Iterator, Mapping, Sequence
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

SHOWN_WIDTH = 100
"""Characters of a line among the samples: what TensorBoard shows beside its list of runs in a window of 1280 points."""

_WRAPPER = TextWrapper(SHOWN_WIDTH, expand_tabs=False, replace_whitespace=False, drop_whitespace=False)


def step_metrics(sampled: Rollouts, terms: Mapping[str, TaskTerms]) -> dict[str, float]:
    """Scalars by tag of what a step sampled. Of several tasks, `task/NAME/...` are those of each, and it alone has
    parts of the reward and roles, whose names may mean another thing in another task.
    """
    outcomes, by_task = sampled.outcomes, dict[str, dict[str, float]]()
    for task, (max_tokens, _) in terms.items():
        rollouts = [one for one in sampled.rollouts if one.task == task]
        if rollouts:
            num_lost = sum(one.task == task for one in outcomes) - len(rollouts)
            by_task[task] = rollout_metrics(rollouts, max_tokens, num_lost)
    if "" in by_task:
        return by_task[""]
    room = sum(len(one.turns) * terms[one.task].max_tokens for one in sampled.rollouts)
    shared = rollout_metrics(sampled.rollouts, 1, len(outcomes) - len(sampled.rollouts))
    shared["rollout/limit_frac"] = sum(one.num_sampled for one in sampled.rollouts) / max(1, room)
    return {
        **{tag: value for tag, value in shared.items() if not tag.startswith(("reward/part/", "reward/role/"))},
        **{f"task/{task}/{tag}": value for task, metrics in by_task.items() for tag, value in metrics.items()},
    }


def rollout_metrics(rollouts: Sequence[Rollout], max_tokens: int, num_lost: int = 0) -> dict[str, float]:
    """Scalars by tag. Rewards are means over scorable rollouts; `max_tokens` is the limit of one turn; the episodes of
    `num_lost` completions failed before their first turn.
    """
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    lengths = np.array([rollout.num_sampled for rollout in rollouts])
    turns = sum(len(rollout.turns) for rollout in rollouts)
    surprise = sum(-sum(rollout.rollout_logprobs) for rollout in rollouts)
    return {
        **_over_rewards(rewards),
        "reward/unscorable_frac": 1 - len(scored) / (len(rollouts) + num_lost),
        "rollout/completion_tokens_mean": float(lengths.mean()),
        "rollout/completion_tokens_max": float(lengths.max()),
        "rollout/limit_frac": float(lengths.sum() / max(1, turns * max_tokens)),
        "rollout/truncated_frac": float(np.mean([rollout.truncated for rollout in rollouts])),
        "rollout/entropy": float(surprise / max(1, lengths.sum())),
        "rollout/prompt_tokens_mean": float(np.mean([rollout.prompt_length for rollout in rollouts])),
        **_by_outcome(scored),
        **{f"reward/part/{part}": mean for part, mean in part_means(rewards).items()},
        **_by_role(scored),
    }


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


def _over_rewards(rewards: Sequence[Reward]) -> dict[str, float]:
    """Empty without rewards: a mean of 0 would look like wrong completions."""
    if not rewards:
        return {}
    values = np.array([reward.value for reward in rewards])
    solved = np.array([reward.solved for reward in rewards], dtype=float)
    return {
        "reward/mean": float(values.mean()),
        "reward/std": float(values.std()),
        "reward/solved_frac": float(solved.mean()),
    }


def _by_outcome(scored: Sequence[Rollout]) -> dict[str, float]:
    """Mean lengths of solved and unsolved completions; shares of groups with none, some or all completions solved."""
    lengths: dict[bool, list[int]] = {True: [], False: []}
    groups: dict[int, list[bool]] = {}
    for rollout in scored:
        solved = rollout.reward is not None and rollout.reward.solved
        lengths[solved].append(rollout.num_sampled)
        groups.setdefault(rollout.group, []).append(solved)
    metrics = {}
    for solved, name in ((True, "solved"), (False, "unsolved")):
        if lengths[solved]:
            metrics[f"rollout/completion_tokens_{name}_mean"] = float(np.mean(lengths[solved]))
    if groups:
        none = float(np.mean([not any(outcomes) for outcomes in groups.values()]))
        every = float(np.mean([all(outcomes) for outcomes in groups.values()]))
        metrics["reward/solve_none_group_frac"] = none
        metrics["reward/solve_some_group_frac"] = max(0.0, 1 - none - every)
        metrics["reward/solve_all_group_frac"] = every
    return metrics


def _by_role(scored: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward and parts of each role, if there are several."""
    metrics: dict[str, float] = {}
    roles = sorted({rollout.role for rollout in scored})
    for role in roles if len(roles) > 1 else ():
        of_role = [r.reward for r in scored if r.role == role and r.reward]
        metrics[f"reward/role/{role}"] = float(np.mean([reward.value for reward in of_role]))
        metrics.update({f"reward/role/{role}/{part}": mean for part, mean in part_means(of_role).items()})
    return metrics


def distributions(rollouts: Sequence[Rollout], logprobs: Float[Tensor, " S"]) -> dict[str, np.ndarray]:
    """Rewards and lengths of the rollouts, and the raw importance weight exp(policy - engine) of their S sampled
    tokens, those left out that the policy did not score (NaN).
    """
    sampled = [logprob for r in rollouts for logprob in compress(r.rollout_logprobs, r.loss_mask)]
    gap = logprobs.double().cpu().numpy() - np.array(sampled, dtype=np.float64)
    return {
        "reward/value": np.array([r.reward.value for r in rollouts if r.reward is not None], dtype=np.float64),
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
    """The rollouts as Markdown. Their texts stand in indented blocks, where nothing is markup, and long lines are
    broken: TensorBoard does not wrap such blocks.
    """
    shown = []
    for line in lines:
        reward = "unscorable" if line["reward"] is None else f"reward {line['reward']:g}"
        parts = ", ".join(f"{name} {value:g}" for name, value in line["parts"].items())
        advantage = "" if line["advantage"] is None else f"advantage {line['advantage']:+.2f}"
        tokens = f"{sum(line['loss_mask'])} tokens"
        about = filter(None, [reward, advantage, parts, tokens, line["finish_reason"], line["role"]])
        block = printable(f"{_shortened(line['prompt'])}\n--------\n{_shortened(line['text'])}")
        shown.append("**" + " · ".join(about) + "**\n\n" + "\n".join("    " + row for row in _wrapped(block)))
    return "\n\n".join(shown)


def _wrapped(text: str) -> Iterator[str]:
    """The lines of a text, broken between words where there are some. No character is lost."""
    for line in text.split("\n"):
        yield from _WRAPPER.wrap(line) or [""]


def _shortened(text: str) -> str:
    """The text; of a long one the beginning, the number of omitted characters, and the end."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
