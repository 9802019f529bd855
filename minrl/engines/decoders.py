"""Decoding token by token with a key-value cache, on the policy's own weights.

P prompts, N rows, Q positions at a time, D hidden size, H query heads, K key-value heads, R = H / K, C head dimension,
L slots of the cache, F inner size of the feed-forward.

A decoder prefills each prompt once, copies it to rows, then takes a token at a time; the hidden states that it returns
are final ones. `LlamaDecoder` computes Llama, Mistral, Qwen2 and Qwen3 itself; any other model is decoded by
transformers' forward pass, with its cache or without any. All rows write to the same slot of the cache: prompts are
aligned at their end, and the padding before shorter ones is masked.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.dataflow import CausalModel
from minrl.models.cpu import few_rows_product, in_compute_dtype, in_float32, prepacked
from minrl.models.lora import merged_weight
from minrl.models.modules import held_bytes
from minrl.models.scoring import method_of
from minrl.models.shape import context_length
from minrl.models.structure import decoder_of

OWN = frozenset(["llama", "mistral", "qwen2", "qwen3"])
"""The `model_type` of the models that `LlamaDecoder` takes, SmolLM and SmolLM2 among them."""

LARGEST_COPY = 2**33
"""Bytes in float32 of frozen weights in bfloat16 up to which `LlamaDecoder` makes its copy of them. A larger model is
decoded by its own layers, which cast a weight for each product.
"""


def make_decoder(model: CausalModel) -> "Decoder":
    """The decoder of the model's method: where that allows it and the model is one that it takes, our own."""
    decoding = method_of(model).decoding
    if decoding == "recomputed":
        return RecomputingDecoder(model)
    return LlamaDecoder(model) if decoding == "own" and has_own_decoder(model) else CachedDecoder(model)


def has_own_decoder(model: CausalModel) -> bool:
    """Whether `LlamaDecoder` takes this model: one without sliding windows."""
    config = decoder_of(model).config
    if config.model_type == "mistral":
        slides = config.sliding_window is not None
    else:
        slides = bool(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    return config.model_type in OWN and not slides and held_bytes(model) <= LARGEST_COPY


class LlamaDecoder:
    """The decoder of a Llama-like model with a static cache, in the precision of the products.

    Query, key and value products are one product, and so are the feed-forward's gate and up. Their weights are merged
    with their adapters, concatenated and cast when the decoder is made, once for each batch of completions.
    """

    def __init__(self, model: CausalModel) -> None:
        self.decoder = decoder_of(model)
        config = self.decoder.config
        self.weight = merged_weight(self.decoder.embed_tokens)
        self.layers = [_Layer(layer, config) for layer in self.decoder.layers]
        self.norm = _Norm(self.decoder.norm.weight, self.decoder.norm.variance_epsilon)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.decoder.layers[0].self_attn.head_dim
        self.repeats = self.heads // self.kv_heads
        self.last_position = context_length(model) - 1
        self.cache: list[Tensor] = []  # for each layer (2, N, K, L, C): keys, then values
        self.cos = self.sin = torch.empty(0)  # (L, 1, C) by position
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
        self.cache = []  # release an earlier one before allocating
        self.cache = [torch.empty(shape, dtype=layer.qkv.dtype, device=device) for layer in self.layers]
        self._rotate_by_position(longest + slots)
        self.length, self.slots = 0, longest + slots
        index = torch.arange(longest, device=device)
        itself = torch.eye(longest, dtype=torch.bool, device=device)  # a padded query must see something
        mask = (index <= index[:, None]) & real[:, None, :] | itself
        return self._forward(ids, positions, mask[:, None, None])[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache, in this order; a row may occur several times. Empty slots are not copied."""
        for index, cache in enumerate(self.cache):  # layer by layer: no second cache beside the first
            self.cache[index] = self._selected(cache, rows)
        self.padding = self.padding[rows]
        self.most_padding = int(self.padding.max())  # read here, not for every token

    def _selected(self, cache: Tensor, rows: Tensor) -> Tensor:
        selected = cache.new_empty(2, len(rows), *cache.shape[2:])
        written = (..., slice(self.length), slice(None))
        torch.index_select(cache[written], 1, rows, out=selected[written])
        return selected

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token (N,) to every row -> (N, D)."""
        assert self.length < self.slots, "the cache has no slot for another token"
        positions: Tensor | slice = slice(self.length, self.length + 1)  # of all rows, where none is padded
        mask = None
        if self.most_padding:
            positions = (self.length - self.padding)[:, None]
            slots = torch.arange(self.length + 1, device=self.padding.device)
            mask = (slots >= self.padding[:, None])[:, None, None, None]  # (N, 1, 1, 1, L)
        return self._forward(tokens[:, None], positions, mask)[:, 0]

    def _forward(self, ids: Tensor, positions: Tensor | slice, mask: Tensor | None) -> Tensor:
        """(N, Q) ids at positions (N, Q), or a slice of Q -> (N, Q, D); the cache grows by Q. Products are in their
        weights' precision, all else in float32; autocast would cast again and again.
        """
        device = self.weight.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._forward(ids, positions, mask)
        hidden = in_float32(F.embedding(ids, self.weight))
        rotary = self.cos[positions], self.sin[positions]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            query = self._write(layer, layer.norm(hidden), rotary, cache)
            attended = self._attend(layer, query, cache, mask)
            hidden = hidden + few_rows_product(attended, layer.out, layer.out_bias)
            hidden = hidden + layer.feed_forward(layer.mlp_norm(hidden))
        self.length += ids.shape[1]
        return self.norm(hidden)

    def _write(self, layer: "_Layer", x: Tensor, rotary: tuple[Tensor, Tensor], cache: Tensor) -> Tensor:
        """Write the keys and values of (N, Q, D) into the cache -> the query (N, Q, H, C)."""
        rows, queries, _ = x.shape
        made = in_float32(few_rows_product(x, layer.qkv, layer.qkv_bias))
        heads = made.view(rows, queries, -1, self.head_dim)
        rotated = heads[:, :, : self.heads + self.kv_heads]  # queries and keys are normed and rotated alike
        cos, sin = rotary
        normed = rotated if layer.query_key_norm is None else layer.query_key_norm(rotated)
        # arXiv:2104.09864, equation 34, with pairs (i, i + C / 2), as in the weights of transformers; beside the values
        torch.addcmul(normed * cos, normed.roll(self.head_dim // 2, -1), sin, out=rotated)
        written = heads[:, :, self.heads :].unflatten(2, (2, -1)).permute(2, 0, 3, 1, 4)  # (2, N, K, Q, C)
        cache[:, :, :, self.length : self.length + queries].copy_(written)
        return heads[:, :, : self.heads]

    def _attend(self, layer: "_Layer", query: Tensor, cache: Tensor, mask: Tensor | None) -> Tensor:
        """(N, Q, H, C) -> (N, Q, H * C), over the slots that are taken."""
        rows, queries = query.shape[:2]
        keys, values = cache[:, :, :, : self.length + queries]
        if queries == 1:  # the same with fewer operations
            query = query.view(rows, self.kv_heads, self.repeats, self.head_dim)
        else:
            query = query.unflatten(2, (self.kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        if mask is not None:
            mask = mask.expand(-1, -1, self.repeats, -1, -1).flatten(2, 3)  # (N, 1, R * Q, L)
        if queries == 1 and query.device.type == "cpu":  # where the flash kernel calls a product for each head
            attended = attend_by_products(query, keys, values, mask, layer.scale)
        else:
            attended = F.scaled_dot_product_attention(query.to(keys.dtype), keys, values, mask, scale=layer.scale)
        if queries == 1:
            return attended.reshape(rows, 1, -1)
        attended = attended.unflatten(2, (self.repeats, queries))  # (N, K, R, Q, C)
        return attended.permute(0, 3, 1, 2, 4).reshape(rows, queries, -1)

    def _rotate_by_position(self, positions: int) -> None:
        """Make the tables of cosines and sines; the sines of the lower half are negative. A row that has ended may stay
        in the batch, but not beyond the context, where RoPE may change for all.
        """
        index = torch.arange(positions, device=self.weight.device).clamp(max=self.last_position)
        cos, sin = self.decoder.rotary_emb(in_float32(self.weight.new_empty(1)), index[None])
        below, above = sin[0].chunk(2, dim=-1)
        self.cos, self.sin = cos[0][:, None], torch.cat([-below, above], dim=-1)[:, None]


def attend_by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`scaled_dot_product_attention` of (N, K, Q, C) and (N, K, L, C) twice, in three operations. Products on a CPU are
    in float32, which is as fast.
    """
    query, keys, values = map(in_float32, (query, keys, values))
    rows, heads, _, _ = query.shape
    query = query if scale == 1 else query * scale
    scores = torch.bmm(query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    if mask is not None:
        scores = scores.unflatten(0, (rows, heads)).masked_fill(~mask, -torch.inf).flatten(0, 1)
    return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).unflatten(0, (rows, heads))


class _Layer:
    """The weights of one layer, in the order of their products. Those with the same input are concatenated."""

    def __init__(self, layer: CausalModel, config: Any) -> None:  # noqa: ANN401 - a config of transformers'
        attention, mlp = layer.self_attn, layer.mlp
        self.norm = _norm_of(layer.input_layernorm)
        self.mlp_norm = _norm_of(layer.post_attention_layernorm)
        qkv, self.qkv_bias = _side_by_side(attention.q_proj, attention.k_proj, attention.v_proj)
        out, self.out_bias = _side_by_side(attention.o_proj)
        into, self.into_bias = _side_by_side(mlp.gate_proj, mlp.up_proj)
        down, self.down_bias = _side_by_side(mlp.down_proj)
        self.qkv, self.out, self.into, self.down = map(prepacked, (qkv, out, into, down))
        self.activation = mlp.act_fn
        self.scale: float = attention.scaling
        self.query_key_norm: _Norm | None = None
        if hasattr(attention, "q_norm"):  # of all query and key heads (H + K, C), with the scale of scores
            counts = (config.num_attention_heads, config.num_key_value_heads)
            weights = in_float32(attention.q_norm.weight) * self.scale, attention.k_norm.weight
            joined = torch.cat([weight.expand(count, -1) for weight, count in zip(weights, counts, strict=True)])
            self.query_key_norm, self.scale = _Norm(joined, attention.q_norm.variance_epsilon), 1.0

    def feed_forward(self, x: Tensor) -> Tensor:
        """down(activation(gate) * up) of (N, Q, D)."""
        gate, up = few_rows_product(x, self.into, self.into_bias).chunk(2, dim=-1)
        return few_rows_product(self.activation(gate).mul_(up), self.down, self.down_bias)


class _Norm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467, equation 4), in half as many
    operations as torch's.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = torch.full((), eps, dtype=torch.float64, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_() * self.weight


def _norm_of(module: CausalModel) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _side_by_side(*linears: CausalModel) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers with the same input, concatenated, in the precision of their product."""
    weights, biases = [merged_weight(linear) for linear in linears], [linear.bias for linear in linears]
    weight = in_compute_dtype(weights[0] if len(weights) == 1 else torch.cat(weights))
    return weight, None if biases[0] is None else in_compute_dtype(torch.cat(biases))


class CachedDecoder:
    """transformers' forward pass and cache, which grows by itself."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder = decoder_of(model)
        self.last_position = context_length(model) - 1
        self.taken = set(inspect.signature(self.decoder.forward).parameters)
        self.cache_name = "cache_params" if "cache_params" in self.taken else "past_key_values"
        self.cache: Any = None
        self.mask, self.padded = torch.empty(0), False

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt."""
        ids, real = left_padded(prompts, next(self.decoder.parameters()).device)
        self.mask, self.padded = real.long(), not bool(real.all())
        self.cache = None
        return self._forward(ids)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache."""
        self.cache.reorder_cache(rows)
        self.mask = self.mask[rows]
        self.padded = not bool(self.mask.all())

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None])

    def _forward(self, ids: Tensor) -> Tensor:
        inputs: dict[str, Any] = {self.cache_name: self.cache}
        if self.padded:
            inputs["attention_mask"] = self.mask
        if "position_ids" in self.taken:
            # A row that has ended may stay in the batch, but not beyond the context, where RoPE may change for all.
            inputs["position_ids"] = (self.mask.cumsum(-1) - 1).clamp(0, self.last_position)[:, -ids.shape[1] :]
        output = self.decoder(input_ids=ids, use_cache=True, **inputs)
        self.cache = output[self.cache_name]
        return output.last_hidden_state[:, -1]


class RecomputingDecoder:
    """No cache: every token computes its whole sequence again, for models whose cache cannot be used for a batch."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder, self.longest = decoder_of(model), context_length(model)
        self.ids = self.lengths = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt."""
        device = next(self.decoder.parameters()).device
        lengths = [len(prompt) for prompt in prompts]
        rows = [[*prompt, *[0] * (max(lengths) + slots - len(prompt))] for prompt in prompts]
        self.ids, self.lengths = torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
        return self._forward()

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.ids, self.lengths = self.ids[rows], self.lengths[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.ids = self.ids.scatter(1, self.lengths[:, None], tokens[:, None])
        self.lengths = (self.lengths + 1).clamp(max=self.longest)  # a row that has ended may stay in the batch
        return self._forward()

    def _forward(self) -> Tensor:
        rows = torch.arange(len(self.ids), device=self.ids.device)
        hidden = self.decoder(input_ids=self.ids[:, : int(self.lengths.max())], use_cache=False).last_hidden_state
        return hidden[rows, self.lengths - 1]


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The prompts as rows (P, L) with 0 before shorter ones, and which positions are real."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor(list(map(len, prompts)), device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]


Decoder = LlamaDecoder | CachedDecoder | RecomputingDecoder
