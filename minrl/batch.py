"""From ragged rollouts to flat token streams.

P prompts, N rollouts, S sampled tokens, T tokens of one stream.

A stream is a 1-D row of tokens without padding. A prompt that several rollouts share occurs in it once; each rollout's
own tokens follow as a suffix that attends to its prompt and to itself. Pairs (hidden position, label) are scored: the
prompt's last position has a label for every rollout. A rollout's last token is a label only.

Invariant: the sampled tokens of all rollouts of a step are numbered 0..S-1 in order, and every per-token quantity is a
tensor over that numbering. The result does not depend on how the rollouts are divided into streams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minrl.dataflow import Rollout
from minrl.tracking.timers import timed

Run = list[int]
"""Consecutive tokens of a stream."""


@dataclass(frozen=True)
class Stream:
    """The input of one forward pass.

    Two rollouts that share the prompt [11, 12] and continue [21, 2] and [31, 32, 2] make

    input_ids [11, 12, 21, 31, 32], positions [0, 1, 2, 2, 3], scored [1, 2, 1, 3, 4], labels [21, 2, 31, 32, 2]

    `prefix_index` (P, Lp) and `suffix_index` (N, Ls) are the positions of each prompt's and each suffix's tokens in the
    stream; entries beyond `prefix_lengths` and `suffix_lengths` are padding (0), which attention masks. `host` is the
    stream in main memory where this one is on a card: what is planned from it waits for nothing.
    """

    input_ids: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]
    prefix_index: Int[Tensor, "P Lp"]
    prefix_lengths: Int[Tensor, " P"]
    suffix_index: Int[Tensor, "N Ls"]
    suffix_lengths: Int[Tensor, " N"]
    prefix_of: Int[Tensor, " N"]
    scored: Int[Tensor, " S"]
    labels: Int[Tensor, " S"]
    token_index: Int[Tensor, " S"]
    host: "Stream | None" = None

    def runs(self) -> tuple[list[Run], list[Run], list[Run]]:
        """The tokens of each prompt, those of each suffix, and those of all suffixes of each prompt."""
        prompts, suffixes = (
            [row[:length] for row, length in zip(index.tolist(), lengths.tolist(), strict=True)]
            for index, lengths in ((self.prefix_index, self.prefix_lengths), (self.suffix_index, self.suffix_lengths))
        )
        followers: list[Run] = [[] for _ in prompts]
        for suffix, prompt in zip(suffixes, self.prefix_of.tolist(), strict=True):
            followers[prompt] += suffix
        return prompts, suffixes, followers

    def to(self, device: torch.device) -> "Stream":
        """The stream on another device, which is not waited for."""
        here, names = self.host or self, [f.name for f in fields(self) if f.name != "host"]
        there = to_device([getattr(here, name) for name in names], device)
        return Stream(**dict(zip(names, there, strict=True)), host=here)


@dataclass(frozen=True)
class Batch:
    """All N rollouts of a step, and what is known of their S sampled tokens before the update."""

    rollouts: Sequence[Rollout]
    rollout_of: Int[Tensor, " S"]
    rollout_logprobs: Float[Tensor, " S"]
    advantages: Float[Tensor, " N"]
    scorable: Bool[Tensor, " N"]

    @property
    def completion_lengths(self) -> Int[Tensor, " N"]:
        """Sampled tokens of each rollout."""
        return torch.bincount(self.rollout_of, minlength=len(self.rollouts))


@timed("compare")
def make_batch(rollouts: Sequence[Rollout], advantages: Float[Tensor, " N"]) -> Batch:
    """The batch of a step's rollouts and their advantages."""
    lengths = torch.tensor([rollout.num_sampled for rollout in rollouts], dtype=torch.long)
    logprobs = [x for r in rollouts for x, sampled in zip(r.rollout_logprobs, r.loss_mask, strict=True) if sampled]
    return Batch(
        rollouts=rollouts,
        rollout_of=torch.repeat_interleave(torch.arange(len(rollouts)), lengths),
        rollout_logprobs=torch.from_numpy(np.array(logprobs)).float(),
        advantages=advantages,
        scorable=torch.tensor([rollout.reward is not None for rollout in rollouts], dtype=torch.bool),
    )


def split_groups(rollouts: Sequence[Rollout], parts: int) -> list[list[int]]:
    """Indices of the rollouts in `parts` shares of whole groups, in order and as even as possible."""
    groups: dict[int, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        groups.setdefault(rollout.group, []).append(index)
    members = list(groups.values())
    bounds = [len(members) * part // parts for part in range(parts + 1)]
    shares = [members[low:high] for low, high in pairwise(bounds)]
    return [[index for group in share for index in group] for share in shares]


def share_of_tokens(rollouts: Sequence[Rollout], indices: Sequence[int], rank: int, count: int) -> list[int]:
    """The block of the indices that process `rank` of `count` computes. Blocks have about the same number of tokens.

    All tokens are divided into `count` equal pieces; a rollout belongs to the piece with its middle token.
    """
    lengths = [len(rollouts[index].ids) for index in indices]
    middles = [2 * end - length for end, length in zip(accumulate(lengths), lengths, strict=True)]
    return [i for i, middle in zip(indices, middles, strict=True) if middle * count // (2 * sum(lengths)) == rank]


def micro_batches(rollouts: Sequence[Rollout], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The indices in lists of at most `max_tokens` stream tokens each, with each prompt counted once per list.

    Rollouts that share a prompt stay together if they fit. A single rollout over the limit gets a list of its own.
    """
    batches: list[list[int]] = []
    used = 0
    prompts: set[tuple[int, ...]] = set()
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index in indices:
        by_prompt.setdefault(_prompt(rollouts[index]), []).append(index)
    for prompt, members in by_prompt.items():
        for index in members:
            own = len(rollouts[index].ids) - 1 - len(prompt)
            cost = own + (0 if prompt in prompts else len(prompt))
            if not batches or used + cost > max_tokens:
                batches.append([])
                used, prompts, cost = 0, set(), own + len(prompt)
            batches[-1].append(index)
            prompts.add(prompt)
            used += cost
    return batches


def pack(rollouts: Sequence[Rollout], indices: Sequence[int]) -> Stream:
    """The stream of the rollouts at `indices`. `rollouts` are all of the step: they number the sampled tokens."""
    first_token = [0, *accumulate(rollout.num_sampled for rollout in rollouts)]
    input_ids: list[int] = []
    positions: list[int] = []
    prefixes: dict[tuple[int, ...], tuple[int, int]] = {}
    suffixes: list[tuple[int, int, int]] = []
    scored: list[int] = []
    labels: list[int] = []
    token_index: list[int] = []
    for index in indices:
        rollout, prompt = rollouts[index], _prompt(rollouts[index])
        if prompt not in prefixes:
            prefixes[prompt] = (len(prefixes), len(input_ids))
            input_ids.extend(prompt)
            positions.extend(range(len(prompt)))
        number, prefix_start = prefixes[prompt]
        suffix = rollout.ids[len(prompt) : -1]
        suffixes.append((number, len(input_ids), len(suffix)))
        hidden = [prefix_start + len(prompt) - 1, *range(len(input_ids), len(input_ids) + len(suffix))]
        input_ids.extend(suffix)
        positions.extend(range(len(prompt), len(prompt) + len(suffix)))
        sampled = rollout.loss_mask[len(prompt) :]
        scored.extend(position for position, is_sampled in zip(hidden, sampled, strict=True) if is_sampled)
        labels.extend(
            label for label, is_sampled in zip(rollout.ids[len(prompt) :], sampled, strict=True) if is_sampled
        )
        token_index.extend(range(first_token[index], first_token[index] + rollout.num_sampled))
    prefix_index, prefix_lengths = _ranges([(start, len(prompt)) for prompt, (_, start) in prefixes.items()])
    suffix_index, suffix_lengths = _ranges([(start, length) for _, start, length in suffixes])
    return Stream(
        input_ids=_integers(input_ids),
        positions=_integers(positions),
        prefix_index=prefix_index,
        prefix_lengths=prefix_lengths,
        suffix_index=suffix_index,
        suffix_lengths=suffix_lengths,
        prefix_of=torch.tensor([number for number, _, _ in suffixes]),
        scored=_integers(scored),
        labels=_integers(labels),
        token_index=_integers(token_index),
    )


def _prompt(rollout: Rollout) -> tuple[int, ...]:
    assert rollout.prompt_length >= 1, "a rollout needs at least one prompt token to be scored from"
    return tuple(rollout.ids[: rollout.prompt_length])


def _integers(values: Sequence[int]) -> Int[Tensor, " n"]:
    """`torch.tensor` of many integers, which is four times slower."""
    return torch.from_numpy(np.array(values) if values else np.empty(0, dtype=np.int64))


def _ranges(spans: Sequence[tuple[int, int]]) -> tuple[Int[Tensor, "R L"], Int[Tensor, " R"]]:
    """Rows start..start+length-1, padded with 0 to the longest (at least one column)."""
    starts = torch.tensor([start for start, _ in spans])
    lengths = torch.tensor([length for _, length in spans])
    columns = torch.arange(max(1, int(lengths.max())))
    index = torch.where(columns < lengths[:, None], starts[:, None] + columns, 0)
    return index, lengths


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors in main memory on a device. The host does not wait for a GPU: they are copied from pinned memory, in one
    copy for each of their types.
    """
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    there: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        own = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[number].flatten() for number in own]).pin_memory().to(device, non_blocking=True)
        parts = flat.split([tensors[number].numel() for number in own])
        there |= {number: part.view(tensors[number].shape) for number, part in zip(own, parts, strict=True)}
    return [there[number] for number in range(len(tensors))]
