"""Attention of one query a row by matrix products, where rows that share a prompt read its keys and values once.

P prompts, G most rows of a prompt, N rows, K key-value heads, Q queries of each, C head dimension, L keys.

A token of each of N rows is too little for a flash kernel on a CPU: it calls a product for each head. The products read
the whole cache for few operations, so that their time is that of reading it.
"""

import torch
from torch import Tensor

from minrl.models.cpu import in_float32

WORTH_SHARING = 2**20
"""Numbers of a layer's cache that rows must have in common to be kept once: 4 MiB in float32. With fewer the
operations that put scores together cost more than is saved.
"""


class SharedPrompts:
    """The keys and values of prompts in each layer, and which rows have which prompt."""

    def __init__(self, layers: list[Tensor | None], prompt_of: Tensor) -> None:
        """Caches (2, P, K, L, C) by layer, None where it has none, and each row's prompt (N,)."""
        self.layers, self.prompt_of = layers, prompt_of
        self.prompts, self.length = next((layer.shape[1], layer.shape[3]) for layer in layers if layer is not None)
        self.select(torch.arange(len(prompt_of)))

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order. Prompts without a row are released."""
        self.prompt_of = self.prompt_of[rows]
        counts = torch.bincount(self.prompt_of, minlength=self.prompts)
        if not counts.all():
            present = counts.nonzero()[:, 0]
            self.layers = [None if layer is None else layer[:, present] for layer in self.layers]
            self.prompt_of = ((counts > 0).cumsum(0) - 1)[self.prompt_of]
            self.prompts, counts = len(present), counts[present]
        self._group(counts)

    def _group(self, counts: Tensor) -> None:
        """Find each row's place among P x G, where the rows of a prompt are neighbours, and the row of each place."""
        self.most = int(counts.max())
        order, index = self.prompt_of.argsort(stable=True), torch.arange(len(self.prompt_of))
        of_order = self.prompt_of[order]
        self.places = torch.empty_like(order)
        self.places[order] = of_order * self.most + index - (counts.cumsum(0) - counts)[of_order]
        self.rows = torch.zeros(self.prompts * self.most, dtype=torch.long)  # an empty place computes row 0 again
        self.rows[self.places] = index
        self.in_order = torch.equal(self.rows, index)

    def scores(self, layer: int, query: Tensor, start: int) -> Tensor:
        """The queries (N, K, Q, C) with their prompts' keys from `start` on -> (N, K, Q, L - start)."""
        keys = self._cache(layer, 0, start)
        return self._ungrouped(torch.bmm(self._grouped(query), keys.transpose(1, 2)), query)

    def mixed(self, layer: int, shares: Tensor, start: int) -> Tensor:
        """The sum of the prompts' values from `start` on with shares (N, K, Q, L - start) -> (N, K, Q, C)."""
        return self._ungrouped(torch.bmm(self._grouped(shares), self._cache(layer, 1, start)), shares)

    def _cache(self, layer: int, part: int, start: int) -> Tensor:
        """Keys (part 0) or values (1) as (P * K, L - start, C)."""
        cache = self.layers[layer]
        assert cache is not None, f"layer {layer} has no attention"
        return cache[part, :, :, start:].flatten(0, 1)

    def _grouped(self, x: Tensor) -> Tensor:
        """(N, K, Q, D) -> (P * K, G * Q, D)."""
        x = x if self.in_order else x[self.rows]
        return x.unflatten(0, (self.prompts, self.most)).transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _ungrouped(self, x: Tensor, like: Tensor) -> Tensor:
        """(P * K, G * Q, D) -> (N, K, Q, D), as many heads and queries as of the other tensor."""
        x = x.view(self.prompts, like.shape[1], self.most, like.shape[2], -1).transpose(1, 2).flatten(0, 1)
        return x if self.in_order else x[self.places]


Shared = tuple[SharedPrompts, int, int]
"""Prompts, the number of the layer, and the first slot that is seen."""


def attend_by_products(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
    shared: Shared | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` of (N, K, Q, C) and (N, K, L, C) twice, in three operations. A score s becomes
    cap tanh(s / cap). A sink (K, Q) is the score of a key without a value. `shared` keys and values come before the
    others, and the mask is of both. Products on a CPU are in float32, which is as fast.
    """
    if query.device.type == "cpu":
        query, keys, values = map(in_float32, (query, keys, values))
    rows, heads, _, _ = query.shape
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # (N * K, L, C), views of the cache
    query = (query if scale == 1 else query * scale).to(keys.dtype)
    scores = in_float32(torch.bmm(query.flatten(0, 1), keys.transpose(1, 2)))
    if shared is not None:
        prompts, layer, start = shared
        scores = torch.cat([prompts.scores(layer, query, start).flatten(0, 1), scores], dim=-1)
    if cap is not None:
        scores = (scores / cap).tanh() * cap
    if mask is not None:
        scores = scores.unflatten(0, (rows, heads)).masked_fill(~mask, -torch.inf).flatten(0, 1)
    if sinks is None:
        shares = scores.softmax(-1)
    else:
        sink = sinks.to(scores.dtype).repeat(rows, 1)[:, :, None]  # (N * K, Q, 1)
        shares = torch.cat([scores, sink], dim=-1).softmax(-1)[:, :, :-1]
    if shared is None:
        return torch.bmm(shares.to(values.dtype), values).unflatten(0, (rows, heads))
    of_prompts = shares.shape[-1] - keys.shape[1]
    mixed = torch.bmm(shares[:, :, of_prompts:].to(values.dtype), values).unflatten(0, (rows, heads))
    return mixed + prompts.mixed(layer, shares[:, :, :of_prompts].unflatten(0, (rows, heads)), start)
