"""A step's rollouts as JSON objects with everything that the rollouts page shows, and the text of each token.

A token's text depends on its neighbours: a tokenizer of words puts a space between two, and one of bytes may need
several tokens for one character. The texts joined are the text of the sequence.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from minrl.dataflow import Rollout
from minrl.policy import Policy
from minrl.update import Update

BROKEN = "\ufffd"
"""The replacement for bytes that are no whole character."""


def training_lines(
    policy: Policy, rollouts: Sequence[Rollout], advantages: Tensor, updated: Update
) -> list[dict[str, Any]]:
    """The step's N training rollouts with their advantages (N,) and what the update computed of them."""
    lines, sizes = readable(policy, rollouts, "train"), [rollout.num_sampled for rollout in rollouts]
    for name, values in (("logprobs", updated.logprobs), ("importance_weights", updated.importance_weights)):
        if values is not None:
            _add(lines, name, values.cpu().split(sizes))
    for line, advantage in zip(lines, advantages.tolist(), strict=True):
        line["advantage"] = advantage
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


def token_texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[list[str]]:  # noqa: ANN401 - transformers'
    """The text of each token. Of tokens that form a character together the first has it, the others ''.

    Each distinct pair of neighbours is decoded once, all of them in one call.
    """
    alone = _decoded(tokenizer, {(token,) for sequence in sequences for token in sequence})
    both = _decoded(tokenizer, {pair for sequence in sequences for pair in pairwise(sequence)})
    added = {
        (first, token): text[len(alone[first,]) :] if text.startswith(alone[first,]) else alone[token,]
        for (first, token), text in both.items()
    }
    broken = {token for (token,), text in alone.items() if BROKEN in text}
    found = []
    for sequence in sequences:
        texts = [alone[token,] for token in sequence[:1]] + [added[pair] for pair in pairwise(sequence)]
        start = 0
        while start < len(sequence) and not broken.isdisjoint(sequence):
            end = start
            while end < len(sequence) and sequence[end] in broken:
                end += 1
            if end > start:  # the characters of these tokens together stand at the first of them
                first = max(0, start - 1)  # decoded with its neighbour, for the space between them
                text = tokenizer.decode(list(sequence[first:end]), clean_up_tokenization_spaces=False)
                before = alone[sequence[first],] if start else ""
                texts[start:end] = [text[len(before) :], *[""] * (end - start - 1)]
            start = end + 1
        found.append(texts)
    return found


def _decoded(tokenizer: Any, sequences: Collection[tuple[int, ...]]) -> dict[tuple[int, ...], str]:  # noqa: ANN401
    if not sequences:  # which `batch_decode` takes for one empty text
        return {}
    texts = tokenizer.batch_decode([list(sequence) for sequence in sequences], clean_up_tokenization_spaces=False)
    return dict(zip(sequences, texts, strict=True))
