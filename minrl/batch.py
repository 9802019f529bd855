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
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minrl.dataflow import Rollout
from minrl.tracking.timers import timed


class Segment(NamedTuple):
    """Consecutive tokens of a stream: a prompt, or what follows one in a rollout and sees that prompt too."""

    start: int
    length: int
    prompt_start: int = 0
    prompt_length: int = 0

    def keys(self) -> Int[Tensor, " k"]:
        """All tokens that its last one sees: its prompt's and its own."""
        prompt = torch.arange(self.prompt_start, self.prompt_start + self.prompt_length)
        return torch.cat([prompt, torch.arange(self.start, self.start + self.length)])


@dataclass(frozen=True)
class Stream:
    """The input of one forward pass.

    Two rollouts that share the prompt [11, 12] and continue [21, 2] and [31, 32, 2] make

    input_ids [11, 12, 21, 31, 32], positions [0, 1, 2, 2, 3], scored [1, 2, 1, 3, 4], labels [21, 2, 31, 32, 2],
    segments (0, 2), (2, 1, 0, 2), (3, 2, 0, 2)

    The segments are in main memory whatever the device: what is planned from them waits for nothing.
    """

    segments: tuple[Segment, ...]
    input_ids: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]
    scored: Int[Tensor, " S"]
    labels: Int[Tensor, " S"]
    token_index: Int[Tensor, " S"]

    def to(self, device: torch.device) -> "Stream":
        """The stream on another device, which is not waited for."""
        names = [field.name for field in fields(self) if field.name != "segments"]
        there = to_device([getattr(self, name) for name in names], device)
        return Stream(self.segments, *there)


@dataclass(frozen=True)
class Batch:
    """All N rollouts of a step, and what is known of their S sampled tokens before the update."""

    rollouts: Sequence[Rollout]
    rollout_of: Int[Tensor, " S"]
    rollout_logprobs: Float[Tensor, " S"]
    advantages: Float[Tensor, " S"]
    scorable: Bool[Tensor, " N"]

    @property
    def completion_lengths(self) -> Int[Tensor, " N"]:
        """Sampled tokens of each rollout."""
        return torch.bincount(self.rollout_of, minlength=len(self.rollouts))

    @property
    def have_advantage(self) -> Bool[Tensor, " N"]:
        """Whether some token of each rollout has an advantage other than 0."""
        return torch.bincount(self.rollout_of[self.advantages != 0], minlength=len(self.rollouts)) > 0


@timed("compare")
def make_batch(rollouts: Sequence[Rollout], advantages: Float[Tensor, "N ..."]) -> Batch:
    """The batch of a step's rollouts and their advantages: one each, or one for each turn of K."""
    lengths = torch.tensor([rollout.num_sampled for rollout in rollouts], dtype=torch.long)
    rollout_of = torch.repeat_interleave(torch.arange(len(rollouts)), lengths)
    if advantages.dim() == 1:
        of_tokens = advantages[rollout_of]
    else:
        sizes = [end - start for rollout in rollouts for start, end in rollout.turns]
        turns = [turn for rollout in rollouts for turn in range(len(rollout.turns))]
        of_tokens = advantages[rollout_of, torch.repeat_interleave(torch.tensor(turns), torch.tensor(sizes))]
    logprobs = [x for r in rollouts for x, sampled in zip(r.rollout_logprobs, r.loss_mask, strict=True) if sampled]
    return Batch(
        rollouts=rollouts,
        rollout_of=rollout_of,
        rollout_logprobs=torch.from_numpy(np.array(logprobs)).float(),
        advantages=of_tokens,
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
    prompts: dict[tuple[int, ...], Segment] = {}
    segments: list[Segment] = []
    scored: list[int] = []
    labels: list[int] = []
    token_index: list[int] = []
    for index in indices:
        rollout, prompt = rollouts[index], _prompt(rollouts[index])
        if prompt not in prompts:
            prompts[prompt] = Segment(len(input_ids), len(prompt))
            segments.append(prompts[prompt])
            input_ids.extend(prompt)
            positions.extend(range(len(prompt)))
        start, suffix = len(input_ids), rollout.ids[len(prompt) : -1]
        segments.append(Segment(start, len(suffix), *prompts[prompt][:2]))
        hidden = [prompts[prompt].start + len(prompt) - 1, *range(start, start + len(suffix))]
        input_ids.extend(suffix)
        positions.extend(range(len(prompt), len(prompt) + len(suffix)))
        sampled = rollout.loss_mask[len(prompt) :]
        scored.extend(position for position, is_sampled in zip(hidden, sampled, strict=True) if is_sampled)
        labels.extend(
            label for label, is_sampled in zip(rollout.ids[len(prompt) :], sampled, strict=True) if is_sampled
        )
        token_index.extend(range(first_token[index], first_token[index] + rollout.num_sampled))
    return Stream(tuple(segments), *map(_integers, (input_ids, positions, scored, labels, token_index)))


def _prompt(rollout: Rollout) -> tuple[int, ...]:
    assert rollout.prompt_length >= 1, "a rollout needs at least one prompt token to be scored from"
    return tuple(rollout.ids[: rollout.prompt_length])


def _integers(values: Sequence[int]) -> Int[Tensor, " n"]:
    """`torch.tensor` of many integers, which is four times slower."""
    return torch.from_numpy(np.array(values) if values else np.empty(0, dtype=np.int64))


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors in main memory on a device. The host does not wait for a GPU: they are copied from pinned memory."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
