"""Attention inside the segments of a stream, on a CPU without a mask, a copy of a prompt or much padding.

T tokens of the stream, H attention heads, K key-value heads, C head dimension, R rows of a part, Lq and Lk its
queries and keys for each row.

What a token sees is cut into parts that are plain rectangles or triangles: a prompt sees itself, a suffix itself,
and all suffixes of a prompt together see the prompt. Rows of a part have about the same length. The suffixes' two
parts are joined by their softmax's normalizers, forward and backward, as flash attention joins blocks of keys
(arXiv:2205.14135, section 3.1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minrl.batch import Stream
from minrl.padded_attention import PaddedAttention
from minrl.types import CausalModel, UserError

ATTENTION = "minrl_packed"

SHORTEST = 0.75
"""A part's shortest row, as a share of its longest."""

WORTH_SLOTS = 256
"""Padding that is not worth a part of its own, in slots."""


@dataclass(frozen=True)
class Part:
    """Rows of queries and of the keys that they see. Beyond a row's own length stands token 0.

    `tokens` are the stream's tokens among the queries that see anything, `slots` where they stand in the flattened
    rows; the same for keys. `own`: runs see themselves, causally; otherwise suffixes see their prompt. `mask` (R, 1,
    Lq or 1, Lk) is 0 or minus infinity; None where padding is behind every real query.
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


Attention = Callable[[Tensor, Tensor, Tensor, float, int | None], Tensor]
"""Query (1, H, T, C), key and value (1, K, T, C), scale, window (None: no limit) -> (1, T, H, C)."""


def plan_attention(stream: Stream) -> Attention:
    """The attention inside the stream's segments that every layer uses, by the best kernel for where it is."""
    return JoinedAttention(stream) if stream.input_ids.device.type == "cpu" else PaddedAttention(stream)


class JoinedAttention:
    """The parts of a stream, planned once and used by every layer."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        prompts = _runs(stream.prefix_index, stream.prefix_lengths)
        suffixes = _runs(stream.suffix_index, stream.suffix_lengths)
        followers: list[list[int]] = [[] for _ in prompts]
        for suffix, prompt in zip(suffixes, stream.prefix_of.tolist(), strict=True):
            followers[prompt] += suffix
        self._parts: dict[int | None, list[Part]] = {}
        self._inside = [*_alike(prompts), *_alike(suffixes)]
        self._across = [
            ([followers[row] for row in rows], [prompts[row] for row in rows])
            for rows in _alike_indices(list(map(len, followers)))
        ]

    def parts(self, window: int | None) -> list[Part]:
        """The parts, where a token sees only the last `window` positions (None: all)."""
        if window not in self._parts:
            inside = [self._part(rows, rows, True, window) for rows in self._inside]
            across = [self._part(queries, keys, False, window) for queries, keys in self._across]
            self._parts[window] = inside + across
        return self._parts[window]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        flat = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
        return _Joined.apply(*flat, self.parts(window), scale)[None]

    def _part(self, queries: list[list[int]], keys: list[list[int]], own: bool, window: int | None) -> Part:
        device, positions = self.stream.input_ids.device, self.stream.positions
        query_rows, query_real = _padded(queries, device)
        key_rows, key_real = (query_rows, query_real) if keys is queries else _padded(keys, device)
        mask, answered, causal = None, query_real, own
        if window is not None:
            ahead = positions[query_rows][:, :, None] - positions[key_rows][:, None, :]  # (R, Lq, Lk)
            sees = (ahead < window) & (ahead >= 0) & key_real[:, None, :]
            mask, causal = sees[:, None], False
            answered = query_real & sees.any(-1)  # a suffix's late tokens may see nothing of the prompt
        elif not causal and not bool(key_real.all()):
            mask = key_real[:, None, None, :]
        if mask is not None:
            mask = torch.zeros(mask.shape, device=device).masked_fill_(~mask, -torch.inf)
        slots, key_slots = answered.flatten().nonzero()[:, 0], key_real.flatten().nonzero()[:, 0]
        tokens, key_tokens = query_rows.flatten()[slots], key_rows.flatten()[key_slots]
        return Part(query_rows, tokens, slots, key_rows, key_tokens, key_slots, own, causal, mask)


class _Joined(torch.autograd.Function):
    """softmax(q k^T scale) v over all that a token sees, from what it is over each part.

    With l_i the normalizers (log-sum-exp) and o_i the outputs of a token's parts, l = log sum exp(l_i) and
    o = sum exp(l_i - l) o_i. The gradient of a part needs only the joined o and l.
    """

    @staticmethod
    def forward(ctx, query, key, value, parts, scale):  # noqa: ANN001, ANN205 - autograd's own signature
        output = torch.empty_like(query)
        normalizer = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
        for part in parts:
            rows, row_normalizer = _forward(_rows(query, key, value, part), part, scale)
            new, new_normalizer = rows[part.slots], row_normalizer[part.slots]  # (n, H, C), (n, H)
            if not part.own:
                before, so_far = normalizer[part.tokens], output[part.tokens]
                joined = torch.logaddexp(before, new_normalizer)
                share = (new_normalizer - joined).exp()[..., None]
                new = torch.lerp(so_far, new, share.to(new.dtype))  # the other share is 1 - this one
                new_normalizer = joined
            output[part.tokens], normalizer[part.tokens] = new, new_normalizer
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.parts, ctx.scale = parts, scale
        return output

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        query, key, value, output, normalizer = ctx.saved_tensors
        grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for part in ctx.parts:
            inputs = _rows(query, key, value, part)
            # Padding has no gradient, and with this normalizer no probability either: it teaches the keys nothing.
            known = [_filled(grad, part), _filled(output, part), _filled(normalizer, part, padding=torch.inf)]
            for total, new, (tokens, slots) in zip(
                grads,
                _backward(inputs, known, part, ctx.scale, key.shape[1]),
                ((part.tokens, part.slots), (part.key_tokens, part.key_slots), (part.key_tokens, part.key_slots)),
                strict=True,
            ):
                total[tokens] += new[slots]
        return *grads, None, None


def packed_attention(
    module: CausalModel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers' models call for each layer (its attention interface)."""
    attend = kwargs["stream"]
    assert isinstance(attend, JoinedAttention | PaddedAttention), "packed attention needs the stream it attends in"
    if getattr(module, "attn_logit_softcapping", None) or kwargs.get("softcap"):
        raise UserError("this model cannot be trained: it caps its attention logits, which packing does not support")
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    return attend(query, key, value, scale, sliding_window), None


def _rows(query: Tensor, key: Tensor, value: Tensor, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """A part's (R, H, Lq, C) and (R, H, Lk, C) twice: keys and values repeated for the heads that share them."""
    repeats = query.shape[1] // key.shape[1]
    queries, keys, values = query[part.queries], key[part.keys], value[part.keys]
    if repeats > 1:
        keys, values = keys.repeat_interleave(repeats, dim=2), values.repeat_interleave(repeats, dim=2)
    return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


def _filled(values: Tensor, part: Part, padding: float = 0.0) -> Tensor:
    """(T, H, ...) at the part's queries -> (R, H, Lq, ...), `padding` in the slots of padding."""
    rows = values.new_full((part.queries.numel(), *values.shape[1:]), padding)
    rows[part.slots] = values[part.tokens]
    return rows.view(*part.queries.shape, *values.shape[1:]).transpose(1, 2)


def _forward(inputs: tuple[Tensor, Tensor, Tensor], part: Part, scale: float) -> tuple[Tensor, Tensor]:
    """(R Lq, H, C) and the normalizers (R Lq, H)."""
    mask = None if part.mask is None else part.mask.to(inputs[0].dtype)
    output, normalizer = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *inputs, is_causal=part.causal, attn_mask=mask, scale=scale
    )
    return output.transpose(1, 2).flatten(0, 1), normalizer.transpose(1, 2).flatten(0, 1)


def _backward(
    inputs: tuple[Tensor, Tensor, Tensor], known: list[Tensor], part: Part, scale: float, kv_heads: int
) -> tuple[Tensor, ...]:
    """The gradients (R Lq, H, C), (R Lk, K, C) twice, from those of the joined output."""
    grad, output, normalizer = known
    mask = None if part.mask is None else part.mask.to(inputs[0].dtype)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, *inputs, output, normalizer, 0.0, part.causal, attn_mask=mask, scale=scale
    )
    kv_shape = (len(part.keys), kv_heads, -1, *inputs[1].shape[2:])  # (R, K, H / K, Lk, C)
    of_query, of_key, of_value = grads[0], grads[1].view(kv_shape).sum(2), grads[2].view(kv_shape).sum(2)
    return tuple(tensor.transpose(1, 2).flatten(0, 1) for tensor in (of_query, of_key, of_value))


def _runs(index: Tensor, lengths: Tensor) -> list[list[int]]:
    """The tokens of each row, without its padding."""
    return [row[:length] for row, length in zip(index.tolist(), lengths.tolist(), strict=True)]


def _alike(runs: Sequence[list[int]]) -> list[list[list[int]]]:
    """The rows in lists of about the same length."""
    return [[runs[row] for row in rows] for rows in _alike_indices(list(map(len, runs)))]


def _alike_indices(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of the rows in lists of about the same length; empty rows are left out."""
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    lists: list[list[int]] = []
    for place, row in enumerate(order):
        shorter = lists and lengths[row] < SHORTEST * lengths[lists[-1][0]]
        if not lists or (shorter and _padding(lengths, lists[-1], order[place:]) > WORTH_SLOTS):
            lists.append([])
        lists[-1].append(row)
    return lists


def _padding(lengths: Sequence[int], rows: Sequence[int], more: Sequence[int]) -> int:
    """Slots of padding where the rest joins the rows."""
    return sum(lengths[rows[0]] - lengths[row] for row in more)


def _padded(rows: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows (R, L) with 0 behind the shorter ones, and which slots are real."""
    longest = max(map(len, rows))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return padded, torch.arange(longest, device=device) < lengths[:, None]
