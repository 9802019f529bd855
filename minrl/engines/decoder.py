"""Decoding token by token with a key-value cache, on the policy's own weights.

P prompts, N rows, Q positions at a time, D hidden size, H query heads, K key-value heads, R = H / K, C head dimension,
L slots of the cache.

`LlamaDecoder` computes models of the shapes in shapes.py itself; any other model is decoded by transformers
(cached_decoder.py). All rows write to the same slot of the cache: prompts are aligned at their end, and the padding
before shorter ones is masked. A decoder prefills each prompt once, copies it to rows or lets them share it, then takes
a token at a time; the hidden states that it returns are final ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.engines.cached_decoder import CachedDecoder, RecomputingDecoder, left_padded
from minrl.engines.layers import Layer, embedding_scale, read_norm, rotary_kinds, rotary_table, shape_of
from minrl.engines.products import WORTH_SHARING, SharedPrompts, attend_by_products
from minrl.models.context import context_length
from minrl.models.cpu import few_rows_product, in_float32
from minrl.models.frozen import held_bytes
from minrl.models.lora import merged_weight
from minrl.models.method import method_of
from minrl.models.text import decoder_of
from minrl.types import CausalModel

LARGEST_COPY = 2**33
"""Bytes in float32 of frozen weights in bfloat16 up to which `LlamaDecoder` makes its copy of them. A larger model is
decoded by its own layers, which cast a weight for each product.
"""


def make_decoder(model: CausalModel) -> "Decoder":
    """The decoder of the model's method: where that allows it and the shape is one that it takes, our own."""
    decoding = method_of(model).decoding
    if decoding == "recomputed":
        return RecomputingDecoder(model)
    return LlamaDecoder(model) if decoding == "own" and has_own_decoder(model) else CachedDecoder(model)


def has_own_decoder(model: CausalModel) -> bool:
    """Whether `LlamaDecoder` takes a model of this shape."""
    return shape_of(decoder_of(model)) is not None and held_bytes(model) <= LARGEST_COPY


Seen = dict[int | None, tuple[int, Tensor | None]]
"""The first slot that is seen, and the mask from there on, for each window of the layers."""


class LlamaDecoder:
    """The decoder of a Llama-like model of a known shape with a static cache, in the precision of the products.

    Query, key and value products are one product, and so are the feed-forward's gate and up. Their weights are merged
    with their adapters, concatenated and cast when the decoder is made, once for each batch of completions.
    """

    def __init__(self, model: CausalModel) -> None:
        decoder = decoder_of(model)
        config = decoder.config
        shape = shape_of(decoder)
        assert shape is not None, f"{config.model_type} has no shape"
        self.decoder, self.shape = decoder, shape
        self.weight = merged_weight(decoder.embed_tokens)
        self.embedding_scale = embedding_scale(decoder)
        self.layers = [Layer(decoder, index, shape) for index in range(len(decoder.layers))]
        self.norm = read_norm(getattr(decoder, shape.last_norm), shape, self.weight.device)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = next(layer.self_attn.head_dim for layer in decoder.layers if hasattr(layer, "self_attn"))
        self.repeats = self.heads // self.kv_heads
        self.last_position = context_length(model) - 1
        self.cache: list[Tensor] = []  # for each layer (2, N, K, L, C): keys, then values; or a convolution's tokens
        self.prompts: SharedPrompts | None = None  # with the first slots of all rows, which the cache is then without
        self.rotary: dict[str, tuple[Tensor, Tensor]] = {}  # by type of layer: (L, 1, C) each, by position
        self.query_scale: Tensor | None = None  # (L, 1, 1) by position
        self.padding, self.most_padding = torch.empty(0, dtype=torch.long), 0
        self.length = self.slots = 0  # of the cache: those that are taken, and all

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt; the cache has room for `slots` more tokens."""
        device = self.weight.device
        ids, real = left_padded(prompts, device)
        longest = ids.shape[1]
        self.padding = (~real).sum(1)
        self.most_padding = longest - min(map(len, prompts))
        positions = (torch.arange(longest, device=device) - self.padding[:, None]).clamp(min=0)
        shape = (2, len(prompts), self.kv_heads, longest + slots, self.head_dim)
        self.cache, self.prompts = [], None  # release an earlier one before allocating
        self.cache = [
            layer.convolution.start(len(prompts))
            if layer.convolution
            else torch.empty(shape, dtype=layer.qkv.dtype, device=device)
            for layer in self.layers
        ]
        self._by_position(longest + slots)
        self.length, self.slots = 0, longest + slots
        index = torch.arange(longest, device=device)
        itself = torch.eye(longest, dtype=torch.bool, device=device)  # a padded query must see something
        seen: Seen = {}
        for window in {layer.window for layer in self.layers}:
            near = index >= index[:, None] + 1 - (window or longest)
            causal = (index <= index[:, None]) & near
            seen[window] = 0, (causal & real[:, None, :] | itself)[:, None, None]
        return self._forward(ids, positions, seen, real)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache, in this order; a row may occur several times."""
        if self.prompts is None and self._is_worth_sharing(rows):
            self._share(rows)
        else:
            if self.prompts is not None:
                self.prompts.select(rows)
            for index, cache in enumerate(self.cache):  # layer by layer: no second cache beside the first
                self.cache[index] = self._selected(cache, rows)
        self.padding = self.padding[rows]
        self.most_padding = int(self.padding.max())  # read here, not for every token

    def _is_worth_sharing(self, rows: Tensor) -> bool:
        """Whether rows start with so many tokens of others that they are better read once for all of them, and most of
        them have about as many others.
        """
        prompts, saved = len(self.padding), len(rows) - len(self.padding)
        if rows.device.type != "cpu" or saved * 2 * self.kv_heads * self.length * self.head_dim < WORTH_SHARING:
            return False
        return 2 * prompts <= len(rows) and prompts * int(torch.bincount(rows).max()) <= 2 * len(rows)

    def _share(self, rows: Tensor) -> None:
        """Keep the cache so far once for each prompt; each of the rows has the empty slots for itself."""
        shared: list[Tensor | None] = []
        for index, cache in enumerate(self.cache):  # layer by layer, as above
            if cache.ndim == 3:  # of a convolution
                shared.append(None)
                self.cache[index] = cache[rows]
                continue
            shared.append(in_float32(cache[:, :, :, : self.length].contiguous()))
            _, _, heads, slots, width = cache.shape
            self.cache[index] = cache.new_empty(2, len(rows), heads, slots - self.length, width)
        self.prompts = SharedPrompts(shared, rows)

    def _selected(self, cache: Tensor, rows: Tensor) -> Tensor:
        """These rows; empty slots are not copied."""
        if cache.ndim == 3:  # of a convolution
            return cache[rows]
        selected = cache.new_empty(2, len(rows), *cache.shape[2:])
        written = (..., slice(self.length - self._num_shared), slice(None))
        torch.index_select(cache[written], 1, rows, out=selected[written])
        return selected

    @property
    def _num_shared(self) -> int:
        """Slots that rows share, before the cache's own."""
        return 0 if self.prompts is None else self.prompts.length

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token (N,) to every row -> (N, D)."""
        assert self.length < self.slots, "the cache has no slot for another token"
        positions: Tensor | slice = slice(self.length, self.length + 1)  # of all rows, where none is padded
        if self.most_padding:
            positions = (self.length - self.padding)[:, None]
        seen: Seen = {}
        for window in {layer.window for layer in self.layers}:  # rows end at the same slot, and so do their windows
            start = max(0, self.length + 1 - window) if window else 0
            seen[window] = start, self._real_from(start) if self.most_padding > start else None
        return self._forward(tokens[:, None], positions, seen)[:, 0]

    def _real_from(self, start: int) -> Tensor:
        """Which slots from there on are a row's own (N, 1, 1, 1, L)."""
        slots = torch.arange(start, self.length + 1, device=self.padding.device)
        return (slots >= self.padding[:, None])[:, None, None, None]

    def _forward(self, ids: Tensor, positions: Tensor | slice, seen: Seen, real: Tensor | None = None) -> Tensor:
        """(N, Q) ids at positions (N, Q), or a slice of Q -> (N, Q, D); the cache grows by Q. Ids that are not `real`
        are padding. Products are in their weights' precision, all else in float32; autocast would cast again and again.
        """
        device = self.weight.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._forward(ids, positions, seen, real)
        hidden = in_float32(F.embedding(ids, self.weight))
        if self.embedding_scale is not None:
            hidden = hidden * self.embedding_scale
        if self.shape.norms_embeddings:
            hidden = self.norm(hidden)
        now = _Now(
            {kind: tuple(table[positions] for table in tables) for kind, tables in self.rotary.items()},
            None if self.query_scale is None else self.query_scale[positions],
            seen,
            real,
        )
        for index, layer in enumerate(self.layers):
            normed = layer.before(hidden)
            hidden = torch.add(hidden, layer.after(self._mixed(index, normed, now)), alpha=layer.residual)
            fed = layer.feed_forward(normed if self.shape.parallel else layer.before_mlp(hidden))
            hidden = torch.add(hidden, layer.after_mlp(fed), alpha=layer.residual)
        self.length += ids.shape[1]
        return self.norm(hidden)

    def _mixed(self, index: int, x: Tensor, now: "_Now") -> Tensor:
        """(N, Q, D) -> (N, Q, D): what a layer's tokens take from those before them."""
        layer, cache = self.layers[index], self.cache[index]
        if layer.convolution is not None:
            mixed, self.cache[index] = layer.convolution(x, cache, now.real)
            return mixed
        query = self._write(layer, x, now.rotary.get(layer.rotary), cache)
        query = query if now.query_scale is None else query * now.query_scale
        return few_rows_product(self._attend(index, query, *now.seen[layer.window]), layer.out, layer.out_bias)

    def _write(self, layer: Layer, x: Tensor, rotary: tuple[Tensor, ...] | None, cache: Tensor) -> Tensor:
        """Write the keys and values of (N, Q, D) into the cache -> the query (N, Q, H, C)."""
        rows, queries, _ = x.shape
        made = in_float32(few_rows_product(x, layer.qkv, layer.qkv_bias))
        heads = made.view(rows, queries, -1, self.head_dim)
        turned = rotated = heads[:, :, : self.heads + self.kv_heads]  # queries and keys are normed and rotated alike
        if not self.shape.rotates_first:
            turned = self._normed(layer, turned)
        if rotary is not None:
            turned = _rotate(turned, rotary, out=None if self.shape.rotates_first else rotated)
        if self.shape.rotates_first:
            turned = self._normed(layer, turned)
        if turned is not rotated:
            rotated.copy_(turned)  # beside the values, for one copy to the cache
        slot = self.length - self._num_shared
        written = heads[:, :, self.heads :].unflatten(2, (2, -1)).permute(2, 0, 3, 1, 4)  # (2, N, K, Q, C)
        cache[:, :, :, slot : slot + queries].copy_(written)
        return rotated[:, :, : self.heads]

    def _normed(self, layer: Layer, heads: Tensor) -> Tensor:
        """Queries and keys (N, Q, H + K, C), each head by itself, or all queries and all keys of a token together."""
        if len(layer.query_key_norms) < 2:
            return layer.query_key_norms[0](heads) if layer.query_key_norms else heads
        parts = heads.split((self.heads, self.kv_heads), dim=2)
        normed = [norm(part.flatten(2)) for norm, part in zip(layer.query_key_norms, parts, strict=True)]
        return torch.cat(normed, dim=-1).unflatten(-1, (-1, self.head_dim))

    def _attend(self, index: int, query: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """(N, Q, H, C) -> (N, Q, H * C), over the slots from `start` on."""
        layer, (rows, queries), before = self.layers[index], query.shape[:2], self._num_shared
        keys, values = self.cache[index][:, :, :, max(0, start - before) : self.length + queries - before]
        if queries == 1:  # the same with fewer operations
            query = query.view(rows, self.kv_heads, self.repeats, self.head_dim)
        else:
            query = query.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        if mask is not None:
            mask = mask.expand(-1, -1, self.repeats, -1, -1).flatten(2, 3)  # (N, 1, R * Q, L)
        plain = layer.cap is None and layer.sinks is None
        if not plain or (queries == 1 and query.device.type == "cpu"):  # where the flash kernel calls a product a head
            sinks = None if layer.sinks is None else layer.sinks.view(self.kv_heads, -1).repeat_interleave(queries, 1)
            shared = (self.prompts, index, start) if self.prompts is not None and start < before else None
            attended = attend_by_products(query, keys, values, mask, layer.scale, layer.cap, sinks, shared)
        else:
            attended = F.scaled_dot_product_attention(query.to(keys.dtype), keys, values, mask, scale=layer.scale)
        if queries == 1:
            return attended.reshape(rows, 1, -1)
        attended = attended.unflatten(2, (self.repeats, queries))  # (N, K, R, Q, C)
        return attended.permute(0, 3, 1, 2, 4).reshape(rows, queries, -1)

    def _by_position(self, positions: int) -> None:
        """Tables of what depends on the position. A row that has ended may stay in the batch, but not beyond the
        context, where RoPE may change for all.
        """
        index = torch.arange(positions, device=self.weight.device).clamp(max=self.last_position)
        kinds = rotary_kinds(self.decoder) or [""]
        tables = {kind: rotary_table(self.decoder, kind, index, self.shape, self.head_dim) for kind in kinds}
        self.rotary = {kind: (cos[:, None], sin[:, None]) for kind, (cos, sin) in tables.items()}
        if self.shape.scaled_by_position:
            rope = self.decoder.config.rope_parameters
            far = (index / rope["original_max_position_embeddings"]).floor()
            scale = 1 + rope["llama_4_scaling_beta"] * torch.log1p(far)
            self.query_scale = scale[:, None, None] if bool(far.any()) else None


@dataclass(frozen=True)
class _Now:
    """What the layers of one forward pass share."""

    rotary: dict[str | None, tuple[Tensor, ...]]
    """Cosines and sines (N, Q, 1, C) or (Q, 1, C) by type of layer."""
    query_scale: Tensor | None
    """(N, Q, 1, 1) or (Q, 1, 1)."""
    seen: Seen
    real: Tensor | None
    """(N, Q)."""


def _rotate(x: Tensor, rotary: tuple[Tensor, ...], out: Tensor | None) -> Tensor:
    """Rotary position embedding (arXiv:2104.09864, equation 34). Departure: pairs are (i, i + C / 2), as in the
    weights of transformers, not neighbours. The sine of `rotary`, cosine and sine, carries the sign.
    """
    cos, sin = rotary
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=out)


Decoder = LlamaDecoder | CachedDecoder | RecomputingDecoder
