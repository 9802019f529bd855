"""A step's rollouts as JSON objects with everything that the page shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from minrl.policy import Policy
from minrl.report.rollouts.token_texts import token_texts
from minrl.types import Rollout
from minrl.update import Update


def training_lines(
    policy: Policy, rollouts: Sequence[Rollout], advantages: Tensor, updated: Update
) -> list[dict[str, Any]]:
    """The step's N training rollouts with their advantages (N,) and what the update computed of them."""
    lines, sizes = readable(policy, rollouts, "train"), [rollout.num_sampled for rollout in rollouts]
    computed = {"logprobs": updated.logprobs, "importance_weights": updated.importance_weights}
    for name, values in computed.items():
        if values is not None:
            rounded = values.double().round(decimals=6).cpu().split(sizes)
            for line, of_rollout in zip(lines, rounded, strict=True):
                line[name] = None if of_rollout.isnan().any() else of_rollout.tolist()
    for line, advantage in zip(lines, advantages.tolist(), strict=True):
        line["advantage"] = advantage
    return lines


def add_moved(lines: Sequence[dict[str, Any]], moved: Tensor | None) -> None:
    """Add how far the update moved each sampled token of the lines in order, in nats; None where that is not known."""
    if moved is None:
        return
    parts = moved.double().round(decimals=6).split([sum(line["loss_mask"]) for line in lines])
    for line, values in zip(lines, parts, strict=True):
        line["moved"] = None if values.isnan().any() else values.tolist()


def readable(policy: Policy, rollouts: Sequence[Rollout], purpose: str) -> list[dict[str, Any]]:
    """Rollouts with the text of each token, and which tokens are special, as objects for JSON."""
    texts, special = token_texts(policy.tokenizer, [one.ids for one in rollouts]), set(policy.tokenizer.all_special_ids)
    lines = []
    for rollout, tokens in zip(rollouts, texts, strict=True):
        prompt = "".join(tokens[: rollout.prompt_length])
        marked = [index for index, token in enumerate(rollout.ids) if token in special]
        lines.append({**rollout_line(rollout, purpose, prompt, None, None), "tokens": tokens, "special": marked})
    return lines


def rollout_line(
    rollout: Rollout, purpose: str, prompt: str, advantage: float | None, logprobs: Sequence[float] | None
) -> dict[str, Any]:
    """One rollout as a JSON object. `logprobs` are the policy's, for sampled tokens; None if not computed."""
    reward = rollout.reward
    return {
        **{name: value for name, value in vars(rollout).items() if value or name != "task"},
        "loss_mask": list(map(int, rollout.loss_mask)),
        "rollout_logprobs": np.round(rollout.rollout_logprobs, 6).tolist(),
        "episode": [vars(turn) for turn in rollout.episode],
        "purpose": purpose,
        "prompt": prompt,
        "reward": None if reward is None else reward.value,
        "solved": None if reward is None else reward.solved,
        "parts": {} if reward is None else dict(reward.parts),
        "advantage": advantage,
        "logprobs": None if logprobs is None else list(logprobs),
    }
