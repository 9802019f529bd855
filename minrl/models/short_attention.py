"""The parts of a stream's attention on a CPU whose rows are short: plain products and a softmax.

torch's flash kernel calls a product for every row and head, which for a hundred keys is most of its time. A prompt is
repeated here before each of its suffixes, so that nothing has to be joined; longer rows share it
(rectangle_attention.py).

R rows of a part, Lq and Lk its queries and keys for each row; the other letters are those of
minrl/models/attention.py. Products are in float32 or better: scores between them would be rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from minrl.batch import Stream
from minrl.models.cpu import in_float32

LONGEST = 224
"""Most keys of a row. With more the flash kernel is about as fast, and a prompt is worth sharing."""

WORTH_REPEATING = 4
"""Times that a prompt may be as long as its suffixes on average. A longer one is worth sharing."""

LARGEST = 2**18
"""Most scores of a part for each head: 1 MiB in float32, which a processor's cache holds."""

MOST_KEYS = 2**14
"""Most keys of a part's rows together, which are copies."""


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
            head, length = torch.arange(heads), self.queries.shape[1]
            queries, keys = ((index[:, None] * heads + head[:, None]).flatten() for index in (self.queries, self.keys))
            row, column = self.slots[:, None] // length, self.slots[:, None] % length
            self.places[heads] = queries, keys, ((row * heads + head) * length + column).flatten()
        return self.places[heads]


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Vectors of (..., C)."""
    return values.reshape(-1, values.shape[-1]).index_select(0, places)


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
