"""The parts of a stream's attention on a CPU: rectangles and triangles of rows of about the same length.

R rows of a part, Lq and Lk its queries and keys for each row; the other letters are those of
minrl/models/attention.py.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minrl.batch import Run, Stream
from minrl.models.short_attention import (
    LONGEST,
    WORTH_REPEATING,
    ShortRows,
    additive,
    prompt_rows,
    suffix_rows,
    visible,
)

SHORTEST = 0.75
"""A part's shortest row, as a share of its longest."""

WORTH_SLOTS = 256
"""Padding that is not worth a part of its own, in slots."""


@dataclass(frozen=True)
class Rectangle:
    """Rows of queries and of the keys that they see, padded with token 0.

    `tokens` are the stream's tokens among the queries that see anything, `slots` their places in the flattened rows;
    the same for keys. `own`: runs see themselves, causally; otherwise every query sees every key of its row. `mask`
    (R, 1, Lq or 1, Lk) is 0 or minus infinity; None where padding is behind every real query.
    """

    queries: Tensor
    tokens: Tensor
    slots: Tensor
    keys: Tensor
    key_tokens: Tensor
    key_slots: Tensor
    own: bool
    causal: bool
    mask: Tensor | None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The stream's (T, H, C) and (T, K, C) twice -> outputs (n, H, C) and normalizers (n, H) of `tokens`."""
        output, normalizer = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *self._rows(query, key, value), is_causal=self.causal, attn_mask=self._mask(query), scale=scale
        )
        return tuple(rows.transpose(1, 2).flatten(0, 1)[self.slots] for rows in (output, normalizer))

    def backward(self, inputs: tuple[Tensor, ...], known: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
        """Gradients (n, H, C) at `tokens`, and (m, K, C) twice at `key_tokens`. `inputs` are the stream's query, key
        and value; `known` are the gradient of the joined output and that output (T, H, C), and the joined normalizer.
        """
        grad, output, normalizer = known
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            self._filled(grad),
            *self._rows(*inputs),
            # Padding has no gradient, and with this normalizer no probability: it adds nothing to the keys' gradients.
            self._filled(output),
            self._filled(normalizer, padding=torch.inf),
            0.0,
            self.causal,
            attn_mask=self._mask(grad),
            scale=scale,
        )
        kv_shape = (len(self.keys), inputs[1].shape[1], -1, *grads[1].shape[2:])  # (R, K, H / K, Lk, C)
        of_query, of_key, of_value = grads[0], grads[1].view(kv_shape).sum(2), grads[2].view(kv_shape).sum(2)
        places = ((of_query, self.slots), (of_key, self.key_slots), (of_value, self.key_slots))
        return tuple(rows.transpose(1, 2).flatten(0, 1)[slots] for rows, slots in places)

    def _rows(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(R, H, Lq, C) and (R, H, Lk, C) twice: keys and values repeated for the heads that share them."""
        repeats = query.shape[1] // key.shape[1]
        queries, keys, values = query[self.queries], key[self.keys], value[self.keys]
        if repeats > 1:
            keys, values = keys.repeat_interleave(repeats, dim=2), values.repeat_interleave(repeats, dim=2)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def _filled(self, values: Tensor, padding: float = 0.0) -> Tensor:
        """(T, H, ...) at the queries -> (R, H, Lq, ...), with `padding` in the empty slots."""
        rows = values.new_full((self.queries.numel(), *values.shape[1:]), padding)
        rows[self.slots] = values[self.tokens]
        return rows.view(*self.queries.shape, *values.shape[1:]).transpose(1, 2)

    def _mask(self, like: Tensor) -> Tensor | None:
        return None if self.mask is None else self.mask.to(like.dtype)


def plan(stream: Stream, window: int | None, longest: int = LONGEST) -> list[Rectangle | ShortRows]:
    """The parts of a stream in which a token sees only the last `window` positions (None: all). Rows of up to `longest`
    keys are short ones, where their prompt is worth repeating.
    """
    prompts, suffixes, followers = stream.runs()
    behind = stream.prefix_of.tolist()
    repeats = Counter(behind)
    worth = [repeats[row] * len(run) <= WORTH_REPEATING * len(followers[row]) for row, run in enumerate(prompts)]
    are_short = [
        worth[prompt] and len(prompts[prompt]) + len(suffix) <= longest
        for suffix, prompt in zip(suffixes, behind, strict=True)
    ]
    short_prompts = [row for row, prompt in enumerate(prompts) if len(prompt) <= longest]
    short_suffixes = [row for row, is_short in enumerate(are_short) if is_short]
    parts: list[Rectangle | ShortRows] = []
    for make, runs, short in ((prompt_rows, prompts, short_prompts), (suffix_rows, suffixes, short_suffixes)):
        for rows in _alike([len(runs[row]) for row in short]):
            parts += make(stream, [short[row] for row in rows], window)
    long_prompts = [prompt for prompt in prompts if len(prompt) > longest]
    long_suffixes = [suffix for suffix, is_short in zip(suffixes, are_short, strict=True) if not is_short]
    sharing: list[Run] = [[] for _ in prompts]
    for suffix, prompt, is_short in zip(suffixes, behind, are_short, strict=True):
        sharing[prompt] += [] if is_short else suffix
    for queries, keys in ((long_prompts, long_prompts), (long_suffixes, long_suffixes), (sharing, prompts)):
        for rows in _alike(list(map(len, queries))):
            taken = [queries[row] for row in rows]
            seen = taken if keys is queries else [keys[row] for row in rows]
            parts.append(_rectangle(stream, taken, seen, window))
    return [part for part in parts if len(part.slots)]


def _rectangle(stream: Stream, queries: list[Run], keys: list[Run], window: int | None) -> Rectangle:
    """One part: runs see themselves where both lists are the same object, otherwise all keys of their row."""
    device, own = stream.input_ids.device, keys is queries
    query_rows, query_real = _padded(queries, device)
    key_rows, key_real = (query_rows, query_real) if own else _padded(keys, device)
    mask, answered, causal = None, query_real, own
    if window is not None:
        sees = visible(stream.positions, query_rows, key_rows, key_real, window)
        mask, causal = sees[:, None], False
        answered = query_real & sees.any(-1)  # a suffix's late tokens may see nothing of the prompt
    elif not causal and not bool(key_real.all()):
        mask = key_real[:, None, None, :]
    if mask is not None:
        mask = additive(mask)
    slots, key_slots = answered.flatten().nonzero()[:, 0], key_real.flatten().nonzero()[:, 0]
    tokens, key_tokens = query_rows.flatten()[slots], key_rows.flatten()[key_slots]
    return Rectangle(query_rows, tokens, slots, key_rows, key_tokens, key_slots, own, causal, mask)


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of rows in lists of about the same length; empty rows are left out."""
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    lists: list[list[int]] = []
    for place, row in enumerate(order):
        longest = lengths[lists[-1][0]] if lists else math.inf
        shorter = lengths[row] < SHORTEST * longest
        if shorter and sum(longest - lengths[other] for other in order[place:]) > WORTH_SLOTS:
            lists.append([])
        lists[-1].append(row)
    return lists


def _padded(rows: Sequence[Run], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows (R, L) with 0 behind shorter ones, and which slots are real."""
    longest = max(map(len, rows))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return padded, torch.arange(longest, device=device) < lengths[:, None]
