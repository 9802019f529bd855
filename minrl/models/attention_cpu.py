"""Attention inside the segments of a stream by plain kernels, in rows: what a CPU takes, and a GPU in float32.

T tokens of the stream, H attention heads, K key-value heads, C head dimension, R rows of a part with Lq queries and Lk
keys each, n tokens of a part.

A prompt sees itself; a suffix sees its prompt, which is repeated before each suffix, and itself. torch's flash kernel
for CPUs calls a product for every row and head, which for a hundred keys is most of its time: short rows are plain
products and a softmax, in float32 or better, since scores between them would be rounded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minrl.batch import Stream
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


@dataclass(frozen=True, eq=False)
class ShortRows:
    """Rows of queries (R, Lq) and of all keys that they see (R, Lk), padded with the stream's first token: its position
    is that of a row's first key, which it therefore sees.

    `tokens` are the stream's tokens among the queries, `slots` their places in the flattened rows. `mask`
    (R or 1, 1, Lq, Lk) is 0 or minus infinity. `places` are kept by number of heads.
    """

    queries: Tensor
    tokens: Tensor
    slots: Tensor
    keys: Tensor
    mask: Tensor
    places: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor | None]:
        """The stream's (T, H, C) and (T, K, C) twice -> outputs (n, H, C) of `tokens`, and no normalizer."""
        _, _, shares = self._shares(query, key, scale)
        return self._of_tokens(torch.bmm(shares, self._of_keys(value)), query).to(query.dtype), None

    def backward(self, inputs: tuple[Tensor, ...], known: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
        """Gradients (n, H, C) at `tokens`, and (T, K, C) twice. `inputs` are the stream's query, key and value; `known`
        are the gradient of the output and that output (T, H, C), and the normalizers (T, H).
        """
        query, key, value = inputs
        scaled, keys, shares = self._shares(query, key, scale)
        grad = self._of_queries(known[0])
        if len(self.slots) < self.queries.numel():  # padding has no gradient
            real = grad.new_zeros(self.queries.numel()).index_fill_(0, self.slots, 1.0)
            grad.mul_(real.view(len(self.queries), 1, -1, 1))
        grad = grad.view_as(scaled)
        of_shares = torch.bmm(grad, self._of_keys(value).transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
        of_query = self._of_tokens(torch.bmm(of_scores, keys).mul_(scale), query)
        of_key, of_value = torch.bmm(of_scores.transpose(1, 2), scaled), torch.bmm(shares.transpose(1, 2), grad)
        return of_query, self._summed(of_key, key), self._summed(of_value, value)

    def _shares(self, query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries (R K, H / K Lq, C), keys (R K, Lk, C), and the softmax of their product. Heads that share
        keys are rows of one product.
        """
        keys = self._of_keys(key)
        scaled = self._of_queries(query).mul_(scale).view(len(keys), -1, query.shape[-1])
        scores = torch.bmm(scaled, keys.transpose(1, 2))
        scores.view(len(self.queries), query.shape[1], *self.mask.shape[2:]).add_(self.mask.to(scores.dtype))
        return scaled, keys, scores.softmax(-1)

    def _of_queries(self, values: Tensor) -> Tensor:
        """(T, H, C) -> (R, H, Lq, C)."""
        (rows, length), (_, heads, width) = self.queries.shape, values.shape
        return in_float32(_taken(values, self._places(heads)[0])).view(rows, heads, length, width)

    def _of_keys(self, values: Tensor) -> Tensor:
        """(T, K, C) -> (R K, Lk, C)."""
        taken = in_float32(_taken(values, self._places(values.shape[1])[1]))
        return taken.view(-1, self.keys.shape[1], values.shape[-1])

    def _of_tokens(self, rows: Tensor, like: Tensor) -> Tensor:
        """(R K, H / K Lq, C) -> (n, H, C) at `tokens`."""
        return _taken(rows, self._places(like.shape[1])[2]).view(-1, *like.shape[1:])

    def _summed(self, rows: Tensor, like: Tensor) -> Tensor:
        """(R K, Lk, C) -> (T, K, C): the sum over the rows that a token is a key of."""
        total = rows.new_zeros(like.shape[0] * like.shape[1], like.shape[2])
        return total.index_add_(0, self._places(like.shape[1])[1], rows.flatten(0, 1)).view(like.shape)

    def _places(self, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where all heads' queries and keys are in the stream's vectors, and where those of `tokens` are in the rows'.
        Each vector is one of a token and head; all layers have the same.
        """
        if heads not in self.places:
            head, length = torch.arange(heads, device=self.queries.device), self.queries.shape[1]
            queries, keys = ((index[:, None] * heads + head[:, None]).flatten() for index in (self.queries, self.keys))
            row, column = self.slots[:, None] // length, self.slots[:, None] % length
            self.places[heads] = queries, keys, ((row * heads + head) * length + column).flatten()
        return self.places[heads]


class LongRows(ShortRows):
    """Rows that torch's flash kernel for CPUs attends. Of prompts without a window the mask is empty: it is causal."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor | None]:
        """Outputs (n, H, C) and normalizers (n, H), the log-sum-exp of the scores, of `tokens`."""
        output, normalizer = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *self._rows(query, key, value), **self._masked(query), scale=scale
        )
        return tuple(rows.transpose(1, 2).flatten(0, 1)[self.slots] for rows in (output, normalizer))

    def backward(self, inputs: tuple[Tensor, ...], known: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
        """As of short rows."""
        grad, output, normalizer = known
        of_query, *of_others = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            self._filled(grad),
            *self._rows(*inputs),
            # Padding has no gradient, and with this normalizer no probability: it adds nothing to the keys' gradients.
            self._filled(output),
            self._filled(normalizer, padding=torch.inf),
            dropout_p=0.0,
            **{"is_causal": False, **self._masked(grad)},
            scale=scale,
        )
        (rows, length), (heads, width) = self.keys.shape, inputs[1].shape[1:]
        shared = (rows, heads, -1, length, width)
        summed = (in_float32(one).view(shared).sum(2).flatten(0, 1) for one in of_others)
        of_key, of_value = (self._summed(one, inputs[1]) for one in summed)
        return of_query.transpose(1, 2).flatten(0, 1)[self.slots], of_key, of_value

    def _rows(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """(R, H, Lq, C) and (R, H, Lk, C) twice: keys and values repeated for the heads that share them."""
        repeats = query.shape[1] // key.shape[1]
        keys, values = (tensor[self.keys].repeat_interleave(repeats, dim=2) for tensor in (key, value))
        return tuple(tensor.transpose(1, 2) for tensor in (query[self.queries], keys, values))

    def _filled(self, values: Tensor, padding: float = 0.0) -> Tensor:
        """(T, H, ...) at the queries -> (R, H, Lq, ...), with `padding` in the empty slots."""
        rows = values.new_full((self.queries.numel(), *values.shape[1:]), padding)
        rows[self.slots] = values[self.tokens]
        return rows.view(*self.queries.shape, *values.shape[1:]).transpose(1, 2)

    def _masked(self, like: Tensor) -> dict[str, Any]:
        return {"attn_mask": self.mask.to(like.dtype)} if self.mask.numel() else {"is_causal": True}


Kind = type[ShortRows]


def attend_in_rows(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[ShortRows], scale: float) -> Tensor:
    """The stream's (T, H, C) and (T, K, C) twice -> (T, H, C): softmax(q k^T scale) v over all keys a token sees."""
    return _Attention.apply(query, key, value, parts, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, parts, scale):  # noqa: ANN001, ANN205 - autograd's own signature
        output = torch.zeros_like(query)
        normalizer = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
        for part in parts:
            output[part.tokens], of_part = part.forward(query, key, value, scale)
            if of_part is not None:
                normalizer[part.tokens] = of_part
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.parts, ctx.scale = parts, scale
        return output

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        query, key, value, output, normalizer = ctx.saved_tensors
        grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        with torch.autocast(query.device.type, enabled=False):
            for part in ctx.parts:
                new = part.backward((query, key, value), (grad, output, normalizer), ctx.scale)
                grads[0][part.tokens] += new[0]
                grads[1].add_(new[1])
                grads[2].add_(new[2])
        return *grads, None, None


def plan_rows(stream: Stream, window: int | None, longest: float) -> list[ShortRows]:
    """The parts of a stream in which a token sees only the last `window` positions (None: all). Rows of up to `longest`
    keys are short ones.
    """
    here, device = stream.host or stream, stream.input_ids.device
    prompts, suffixes, _ = here.runs()
    keys = [len(run) + len(prompts[of]) for run, of in zip(suffixes, here.prefix_of.tolist(), strict=True)]
    parts: list[ShortRows] = []
    for make, runs, counts in ((prompt_rows, prompts, list(map(len, prompts))), (suffix_rows, suffixes, keys)):
        for kind in (ShortRows, LongRows):
            chosen = [row for row, count in enumerate(counts) if (count > longest) == (kind is LongRows)]
            for rows in _alike([len(runs[row]) for row in chosen]):
                parts += make(here, [chosen[row] for row in rows], window, kind)
    tensors = ((type(part), part.queries, part.tokens, part.slots, part.keys, part.mask) for part in parts)
    return [kind(*(one.to(device) for one in part)) for kind, *part in tensors]  # type: ignore[arg-type]


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


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Vectors of (..., C)."""
    return values.reshape(-1, values.shape[-1]).index_select(0, places)


def prompt_rows(stream: Stream, prompts: Sequence[int], window: int | None, kind: Kind) -> list[ShortRows]:
    """Parts in which these prompts see themselves."""
    index, real = _real(stream.prefix_index, stream.prefix_lengths, prompts)
    return _parts(stream, (index, real), (index, real), window, kind)


def suffix_rows(stream: Stream, suffixes: Sequence[int], window: int | None, kind: Kind) -> list[ShortRows]:
    """Parts in which these suffixes see their prompts and themselves."""
    queries, real = _real(stream.suffix_index, stream.suffix_lengths, suffixes)
    prompts, of_prompts = _real(stream.prefix_index, stream.prefix_lengths, stream.prefix_of[list(suffixes)])
    keys = torch.cat([prompts, queries], 1), torch.cat([of_prompts, real], 1)
    return _parts(stream, (queries, real), keys, window, kind)


def _real(index: Tensor, lengths: Tensor, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """The rows (R, L) as long as the longest of them, and which slots are real."""
    rows = torch.as_tensor(rows)
    slots = torch.arange(int(lengths[rows].max()))
    return index[rows][:, : len(slots)], slots < lengths[rows][:, None]


def _parts(
    stream: Stream, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], window: int | None, kind: Kind
) -> list[ShortRows]:
    """Rows in parts of at most `MOST_KEYS` keys, and of short rows `LARGEST` scores."""
    most = MOST_KEYS if kind is LongRows else min(LARGEST // queries[0].shape[1], MOST_KEYS)
    split = (tensor.split(max(1, most // keys[0].shape[1])) for tensor in (*queries, *keys))
    return [_part(kind, stream.positions, window, *rows) for rows in zip(*split, strict=True)]


def _part(
    kind: Kind,
    positions: Tensor,
    window: int | None,
    queries: Tensor,
    query_real: Tensor,
    keys: Tensor,
    key_real: Tensor,
) -> ShortRows:
    slots = query_real.flatten().nonzero()[:, 0]
    rows = queries, queries.flatten()[slots], slots, keys
    if kind is LongRows and window is None and queries.shape == keys.shape:  # prompts, without padding in front
        return LongRows(*rows, torch.empty(0))
    sees = visible(positions, queries, keys, key_real, window)
    sees = sees[:1] if bool((sees == sees[:1]).all()) else sees
    return kind(*rows, additive(sees[:, None]))


def visible(positions: Tensor, queries: Tensor, keys: Tensor, key_real: Tensor, window: int | None) -> Tensor:
    """Which keys (R, Lk) each query (R, Lq) sees (R, Lq, Lk): real ones of its position or before, in the window."""
    ahead = positions[queries][:, :, None] - positions[keys][:, None]
    sees = (ahead >= 0) & key_real[:, None]
    return sees if window is None else sees & (ahead < window)


def additive(sees: Tensor) -> Tensor:
    """What is added to scores: 0, or minus infinity where nothing is seen."""
    return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, -torch.inf)
