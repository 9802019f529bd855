"""Attention inside the segments of a stream by plain kernels, in parts: what a CPU takes, and short rows on any device.

T tokens of the stream, H attention heads, K key-value heads, C head dimension, n tokens of a part, m of its keys, R
rows of a part, Lq and Lk its queries and keys for each row.

A prompt sees itself, a suffix sees itself, and all suffixes of a prompt together see the prompt, by torch's flash
kernel for CPUs. The parts of a token are joined by their softmax normalizers, forward and backward, as flash attention
joins blocks of keys (arXiv:2205.14135, section 3.1). That kernel calls a product for every row and head, which for a
hundred keys is most of its time: short rows are plain products and a softmax, with the prompt repeated before each of
its suffixes, so that nothing has to be joined. Their products are in float32 or better: scores between them would be
rounded.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from minrl.batch import Run, Stream
from minrl.models.cpu import in_float32

LONGEST = 224
"""Most keys of a row. With more the flash kernel is about as fast, and a prompt is worth sharing."""

WORTH_REPEATING = 4
"""Times that a prompt may be as long as its suffixes on average. A longer one is worth sharing."""

LARGEST = 2**18
"""Most scores of a part for each head: 1 MiB in float32, which a processor's cache holds."""

MOST_KEYS = 2**14
"""Most keys of a part's rows together, which are copies."""

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
    key_tokens: ClassVar[slice] = slice(None)
    own: ClassVar[bool] = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, None]:
        """The stream's (T, H, C) and (T, K, C) twice -> outputs (n, H, C) of `tokens`. There is nothing to join, and
        no normalizer.
        """
        _, _, shares = self._shares(query, key, scale)
        return self._of_tokens(torch.bmm(shares, self._of_keys(value)), query).to(query.dtype), None

    def backward(self, inputs: tuple[Tensor, ...], known: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
        """Gradients (n, H, C) at `tokens`, and (T, K, C) twice. `inputs` are the stream's query, key and value; of
        `known` the first is the gradient of the output (T, H, C).
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


Part = Rectangle | ShortRows
"""Queries (`tokens`), the keys that they see (`key_tokens`), and the kernel that attends. Where rows see themselves
(`own`), the part comes before their other parts.
"""


def attend_in_parts(query: Tensor, key: Tensor, value: Tensor, parts: Sequence[Part], scale: float) -> Tensor:
    """The stream's (T, H, C) and (T, K, C) twice -> (T, H, C), attended by all parts of the stream."""
    return _Joined.apply(query, key, value, parts, scale)


class _Joined(torch.autograd.Function):
    """softmax(q k^T scale) v over all keys that a token sees, joined from that over each part.

    With l_i the normalizers (log-sum-exp) and o_i the outputs of a token's parts, l = log sum exp(l_i) and
    o = sum exp(l_i - l) o_i. The gradient of a part needs only the joined o and l.
    """

    @staticmethod
    def forward(ctx, query, key, value, parts, scale):  # noqa: ANN001, ANN205 - autograd's own signature
        output = torch.zeros_like(query)  # tokens of no part see nothing
        normalizer = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
        for part in parts:
            new, new_normalizer = part.forward(query, key, value, scale)
            if not part.own:
                before, so_far = normalizer[part.tokens], output[part.tokens]
                joined = torch.logaddexp(before, new_normalizer)
                share = (new_normalizer - joined).exp()[..., None]
                new = torch.lerp(so_far, new, share.to(new.dtype))  # the other share is 1 - this one
                new_normalizer = joined
            output[part.tokens] = new
            if new_normalizer is not None:
                normalizer[part.tokens] = new_normalizer
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
                grads[1][part.key_tokens] += new[1]
                grads[2][part.key_tokens] += new[2]
        return *grads, None, None


def plan_parts(stream: Stream, window: int | None, longest: int) -> list[Part]:
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
    parts: list[Part] = []
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


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Vectors of (..., C)."""
    return values.reshape(-1, values.shape[-1]).index_select(0, places)


def plan_rows(stream: Stream, window: int | None) -> list[ShortRows]:
    """All prompts and suffixes as short rows, whatever their length: for any device."""
    here, device = stream.host or stream, stream.input_ids.device
    prompts, suffixes, _ = here.runs()
    parts: list[ShortRows] = []
    for make, runs in ((prompt_rows, prompts), (suffix_rows, suffixes)):
        for rows in _alike(list(map(len, runs))):
            parts += make(here, rows, window)
    tensors = ((part.queries, part.tokens, part.slots, part.keys, part.mask) for part in parts)
    return [ShortRows(*(tensor.to(device) for tensor in part)) for part in tensors]  # type: ignore[arg-type]


def prompt_rows(stream: Stream, prompts: Sequence[int], window: int | None) -> list[ShortRows]:
    """Parts in which these prompts see themselves."""
    index, real = _real(stream.prefix_index, stream.prefix_lengths, prompts)
    return _parts(stream, (index, real), (index, real), window)


def suffix_rows(stream: Stream, suffixes: Sequence[int], window: int | None) -> list[ShortRows]:
    """Parts in which these suffixes see their prompts and themselves."""
    queries, real = _real(stream.suffix_index, stream.suffix_lengths, suffixes)
    prompts, of_prompts = _real(stream.prefix_index, stream.prefix_lengths, stream.prefix_of[list(suffixes)])
    return _parts(stream, (queries, real), (torch.cat([prompts, queries], 1), torch.cat([of_prompts, real], 1)), window)


def _real(index: Tensor, lengths: Tensor, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """The rows (R, L) as long as the longest of them, and which slots are real."""
    rows = torch.as_tensor(rows)
    slots = torch.arange(int(lengths[rows].max()))
    return index[rows][:, : len(slots)], slots < lengths[rows][:, None]


def _parts(
    stream: Stream, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], window: int | None
) -> list[ShortRows]:
    """Rows in parts of at most `LARGEST` scores and `MOST_KEYS` keys."""
    most = max(1, min(LARGEST // queries[0].shape[1], MOST_KEYS) // keys[0].shape[1])
    split = (tensor.split(most) for tensor in (*queries, *keys))
    return [_part(stream.positions, window, *rows) for rows in zip(*split, strict=True)]


def _part(
    positions: Tensor, window: int | None, queries: Tensor, query_real: Tensor, keys: Tensor, key_real: Tensor
) -> ShortRows:
    sees = visible(positions, queries, keys, key_real, window)
    sees = sees[:1] if bool((sees == sees[:1]).all()) else sees
    slots = query_real.flatten().nonzero()[:, 0]
    return ShortRows(queries, queries.flatten()[slots], slots, keys, additive(sees[:, None]))


def visible(positions: Tensor, queries: Tensor, keys: Tensor, key_real: Tensor, window: int | None) -> Tensor:
    """Which keys (R, Lk) each query (R, Lq) sees (R, Lq, Lk): real ones of its position or before, in the window."""
    ahead = positions[queries][:, :, None] - positions[keys][:, None]
    sees = (ahead >= 0) & key_real[:, None]
    return sees if window is None else sees & (ahead < window)


def additive(sees: Tensor) -> Tensor:
    """What is added to scores: 0, or minus infinity where nothing is seen."""
    return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, -torch.inf)
