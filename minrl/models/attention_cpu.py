"""Attention inside the segments of a stream by plain kernels, in rows: what a CPU takes, and a GPU in float32.

T tokens of the stream, H attention heads, K key-value heads, C head dimension, R rows of a part with Lq queries and Lk
keys each, n tokens of a part.

A prompt sees itself; a suffix sees its prompt, which is repeated before each suffix, and itself. torch's flash kernel
for CPUs calls a product for every row and head, which for a hundred keys is most of its time: short rows are plain
products and a softmax, in float32 or better, since scores between them would be rounded.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.batch import Segment, Stream
from minrl.models.cpu import in_float32

LONGEST = 224
"""Most keys of a short row. With more the flash kernel is about as fast."""

LARGEST = 2**18
"""Most scores of a part of short rows for each head: 1 MiB in float32, which a processor's cache holds."""

MOST_KEYS = 2**14
"""Most keys of a part's rows together, which are copies."""

SHORTEST = 0.75
"""A part's shortest row, as a share of its longest."""

WORTH_SLOTS = 256
"""Padding that is not worth a part of its own, in slots."""


class Rows(NamedTuple):
    """Rows of queries (R, Lq) and of all keys that they see (R, Lk), padded with the stream's first token.

    `mask` (R or 1, 1, Lq, Lk) is 0 or minus infinity, and empty where rows are causal and no more. `slots` (n,) are the
    places of the queries that are no padding, and `tokens` (n,) what they are in the stream.
    """

    short: bool
    queries: Tensor
    keys: Tensor
    mask: Tensor
    slots: Tensor
    tokens: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The stream's (T, H, C) and (T, K, C) twice -> outputs (n, H, C) of `tokens`."""
        heads, groups, width = query.shape[1], key.shape[1], query.shape[2]
        query = self._rows(query, self.queries)  # (R, H, Lq, C)
        key, value = self._rows(key, self.keys), self._rows(value, self.keys)  # (R, K, Lk, C)
        if self.short:  # heads that share keys are rows of one product
            count = len(key) * groups
            scores = torch.bmm((query * scale).reshape(count, -1, width), key.flatten(0, 1).transpose(1, 2))
            scores = scores.view(len(key), heads, *self.mask.shape[2:]) + self.mask.to(scores.dtype)
            shares = scores.softmax(-1).view(count, -1, key.shape[2])
            output = torch.bmm(shares, value.flatten(0, 1)).view(len(key), heads, -1, width)
        else:
            mask = self.mask.to(query.dtype) if self.mask.numel() else None
            settings: dict[str, Any] = {"is_causal": mask is None, "scale": scale, "enable_gqa": True}
            output = F.scaled_dot_product_attention(query, key, value, mask, **settings)
        return output.transpose(1, 2).flatten(0, 1).index_select(0, self.slots)

    def _rows(self, values: Tensor, places: Tensor) -> Tensor:
        """(T, H, C) at the places (R, L) -> (R, H, L, C). Gradients of repeated tokens are summed in float32."""
        taken = in_float32(values).index_select(0, places.flatten())
        taken = taken if self.short else taken.to(values.dtype)
        return taken.unflatten(0, places.shape).transpose(1, 2)


def attend_in_rows(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Rows], scale: float) -> Tensor:
    """The stream's (T, H, C) and (T, K, C) twice -> (T, H, C): softmax(q k^T scale) v over all keys a token sees."""
    outputs = torch.cat([part.attend(query, key, value, scale).to(query.dtype) for part in parts])
    return torch.zeros_like(query).index_copy(0, torch.cat([part.tokens for part in parts]), outputs)


def plan_rows(stream: Stream, window: int | None, longest: float) -> list[Rows]:
    """The parts of a stream in which a token sees only the last `window` positions (None: all). Rows of up to `longest`
    keys are short ones.
    """
    kinds: dict[tuple[bool, bool], list[Segment]] = {}
    for one in stream.segments:
        if one.length:
            short = one.length + one.prompt_length <= longest
            kinds.setdefault((one.prompt_length > 0, short), []).append(one)
    parts: list[Rows] = []
    for (_, short), segments in kinds.items():
        for rows in _alike(segments):
            keys = rows[0].length + max(row.prompt_length for row in rows)
            most = min(LARGEST // rows[0].length, MOST_KEYS) if short else MOST_KEYS
            count = max(1, most // keys)
            parts += [_part(rows[n : n + count], short, window, stream) for n in range(0, len(rows), count)]
    return parts


def _alike(segments: Sequence[Segment]) -> list[list[Segment]]:
    """The segments in lists of about the same length, the longest first."""
    order = sorted(segments, key=lambda one: -one.length)
    lists: list[list[Segment]] = []
    for place, one in enumerate(order):
        longest = lists[-1][0].length if lists else math.inf
        shorter = one.length < SHORTEST * longest
        if shorter and sum(longest - other.length for other in order[place:]) > WORTH_SLOTS:
            lists.append([])
        lists[-1].append(one)
    return lists


def _part(segments: Sequence[Segment], short: bool, window: int | None, stream: Stream) -> Rows:
    """Rows of these segments, as long as the longest. What fills a row up is at position 0, and sees its first key."""
    start, length, prompt_start, prompt_length = torch.tensor(segments).T[..., None]  # each (R, 1)
    own, before = torch.arange(int(length.max())), torch.arange(int(prompt_length.max()))
    real, known = own < length, before < prompt_length
    queries, prompts = (start + own).where(real, 0), (prompt_start + before).where(known, 0)
    at = (prompt_length + own).where(real, 0)
    ahead = at[:, :, None] - torch.cat([before.expand_as(known), prompt_length + own], 1)[:, None]
    sees = (ahead >= 0) & torch.cat([known, real], 1)[:, None]
    sees = sees if window is None else sees & (ahead < window)
    sees = sees[:1] if bool((sees == sees[:1]).all()) else sees
    mask = torch.zeros(sees.shape).masked_fill_(~sees, -torch.inf)[:, None]
    mask = torch.empty(0) if not short and window is None and not len(before) else mask
    slots = real.flatten().nonzero()[:, 0]
    tensors = queries, torch.cat([prompts, queries], 1), mask, slots, queries.flatten()[slots]
    return Rows(short, *(tensor.to(stream.input_ids.device) for tensor in tensors))
