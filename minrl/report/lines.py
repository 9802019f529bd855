"""A step's rollouts as JSON objects with everything that the rollouts page shows, and the text of each token.

A token's text depends on its neighbours: a tokenizer of words puts a space between two, and one of bytes may need
several tokens for one character.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers.decoders import DecodeStream
from torch import Tensor

from minrl.dataflow import Rollout
from minrl.policy import Policy
from minrl.update import Update


def training_lines(
    policy: Policy, rollouts: Sequence[Rollout], advantages: Tensor, updated: Update
) -> list[dict[str, Any]]:
    """The step's N training rollouts with their advantages (N,), or a list of those of the turns of each (N, K), and
    what the update computed of them.
    """
    lines, sizes = readable(policy, rollouts, "train"), [rollout.num_sampled for rollout in rollouts]
    for name, values in (("logprobs", updated.logprobs), ("importance_weights", updated.importance_weights)):
        if values is not None:
            _add(lines, name, values.cpu().split(sizes))
    for line, advantage in zip(lines, advantages.tolist(), strict=True):
        line["advantage"] = advantage[: len(line["turns"])] if isinstance(advantage, list) else advantage
    return lines


def add_moved(lines: Sequence[dict[str, Any]], moved: Tensor | None) -> None:
    """Add how far the update moved each sampled token of the lines in order, in nats; None where that is not known."""
    if moved is not None:
        _add(lines, "moved", moved.split([sum(line["loss_mask"]) for line in lines]))


def _add(lines: Sequence[dict[str, Any]], name: str, values: Sequence[Tensor]) -> None:
    for line, of_rollout in zip(lines, values, strict=True):
        line[name] = None if of_rollout.isnan().any() else of_rollout.double().round(decimals=6).tolist()


def readable(policy: Policy, rollouts: Sequence[Rollout], purpose: str) -> list[dict[str, Any]]:
    """Rollouts with the text of each token, and which tokens are special, as objects for JSON."""
    texts, special = token_texts(policy.tokenizer, [one.ids for one in rollouts]), set(policy.tokenizer.all_special_ids)
    return [
        rollout_line(rollout, purpose, tokens, [index for index, token in enumerate(rollout.ids) if token in special])
        for rollout, tokens in zip(rollouts, texts, strict=True)
    ]


def rollout_line(rollout: Rollout, purpose: str, tokens: Sequence[str], special: Sequence[int]) -> dict[str, Any]:
    """One rollout as a JSON object; what the update knows of it is added later."""
    reward = rollout.reward
    return {
        **{name: value for name, value in vars(rollout).items() if value or name not in ("task", "turn_rewards")},
        "num_sampled": rollout.num_sampled,
        "loss_mask": list(map(int, rollout.loss_mask)),
        "rollout_logprobs": np.round(rollout.rollout_logprobs, 6).tolist(),
        "episode": [vars(turn) for turn in rollout.episode],
        "purpose": purpose,
        "prompt": "".join(tokens[: rollout.prompt_length]),
        "reward": None if reward is None else reward.value,
        "solved": None if reward is None else reward.solved,
        "parts": {} if reward is None else dict(reward.parts),
        "advantage": None,
        "logprobs": None,
        "tokens": tokens,
        "special": special,
    }


def token_texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[list[str]]:  # noqa: ANN401 - transformers'
    """The text of each token; joined, they are the text of the sequence. A character of several tokens stands at its
    last one, what stays incomplete at the last of all.
    """
    found, fast = [], getattr(tokenizer, "backend_tokenizer", None)
    for ids in sequences:
        stream = DecodeStream(skip_special_tokens=False)
        texts = [(stream.step(fast, one) or "") if fast else tokenizer.decode([one]) for one in ids]
        if ids:
            whole = tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
            texts[-1] += whole.removeprefix("".join(texts)) if fast else ""
        found.append(texts)
    return found
