"""Decoding token by token with a key-value cache, on the policy's own weights.

P prompts, N rows, D hidden size, K key-value heads, R query heads per key-value head, C head dimension, L slots of
the cache.

`LlamaDecoder` computes Llama-, Qwen2- and Qwen3-shaped models itself; any other model is decoded by transformers
(cached_decoder.py). All rows write to the same slot of the cache: prompts are aligned at their end, and the padding
before shorter ones is masked. A decoder prefills each prompt once, copies it to rows, then takes a token at a time; the
hidden states that it returns are final ones.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.engines.cached_decoder import CachedDecoder, RecomputingDecoder, left_padded
from minrl.kernels.cpu import computed, few_rows_product
from minrl.kernels.frozen import held_bytes, in_float32
from minrl.model.lora import merged_weight
from minrl.model.method import method_of
from minrl.types import CausalModel

LARGEST_COPY = 2**33
"""Bytes in float32 of frozen weights in bfloat16 up to which `LlamaDecoder` makes its copy of them. A larger model is
decoded by its own layers, which cast a weight for each product.
"""

LLAMA_SHAPED = ("llama", "qwen2", "qwen3")


def make_decoder(model: CausalModel) -> "Decoder":
    """The decoder of the model's method: where that allows it and the shape is one that it takes, our own."""
    decoding = method_of(model).decoding
    if decoding == "recomputed":
        return RecomputingDecoder(model)
    return LlamaDecoder(model) if decoding == "own" and has_own_decoder(model) else CachedDecoder(model)


def has_own_decoder(model: CausalModel) -> bool:
    """Whether `LlamaDecoder` takes a model of this shape."""
    config = model.config
    if config.model_type not in LLAMA_SHAPED:
        return False
    plain_rope = (config.rope_parameters or {}).get("rope_type", "default") in ("default", "llama3", "linear")
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    return plain_rope and not sliding and held_bytes(model) <= LARGEST_COPY


class LlamaDecoder:
    """The decoder of a Llama-, Qwen2- or Qwen3-shaped model with a static cache, in the precision of the products.

    Query, key and value products are one product, and so are the MLP's gate and up. Their weights are merged with
    their adapters, concatenated and cast when the decoder is made, once for each batch of completions.
    """

    def __init__(self, model: CausalModel) -> None:
        decoder, config = model.get_decoder(), model.config
        self.decoder = decoder
        self.weight = merged_weight(decoder.embed_tokens)
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        self.eps = config.rms_norm_eps
        self.eps_tensor = torch.tensor(self.eps, dtype=torch.float64, device=self.weight.device)
        self.activation = decoder.layers[0].mlp.act_fn
        self.layers = [_Layer(layer) for layer in decoder.layers]
        self.heads = config.num_attention_heads
        self.cache: list[Tensor] = []  # (2, N, K, L, C) for each layer: keys, then values
        self.rotary = torch.empty(0), torch.empty(0)  # (L, C) each: by position
        self.padding = torch.empty(0, dtype=torch.long)
        self.length = 0

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt; the cache has room for `slots` more tokens."""
        device = self.weight.device
        ids, real = left_padded(prompts, device)
        longest = ids.shape[1]
        self.padding = (~real).sum(1)
        positions = (torch.arange(longest, device=device) - self.padding[:, None]).clamp(min=0)
        shape = (2, len(prompts), self.kv_heads, longest + slots, self.head_dim)
        self.cache = []  # release an earlier one before allocating
        self.cache = [torch.empty(shape, dtype=self.layers[0].qkv.dtype, device=device) for _ in self.layers]
        self.rotary = self._rotary_table(longest + slots)
        self.length = 0
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        itself = torch.eye(longest, dtype=torch.bool, device=device)  # a padded query must see something
        return self._forward(ids, positions, (causal & real[:, None, :] | itself)[:, None, None])[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache, in this order; a row may occur several times."""
        for index, cache in enumerate(self.cache):  # layer by layer: no second cache beside the first
            self.cache[index] = self._selected(cache, rows)
        self.padding = self.padding[rows]

    def _selected(self, cache: Tensor, rows: Tensor) -> Tensor:
        """These rows; empty slots are not copied."""
        selected = cache.new_empty(2, len(rows), *cache.shape[2:])
        written = (..., slice(self.length), slice(None))
        torch.index_select(cache[written], 1, rows, out=selected[written])
        return selected

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token (N,) to every row -> (N, D)."""
        positions = self.length - self.padding
        mask = None
        if bool((self.padding > 0).any()):
            slots = torch.arange(self.length + 1, device=tokens.device)
            mask = (slots >= self.padding[:, None])[:, None, None, None]
        return self._forward(tokens[:, None], positions[:, None], mask)[:, 0]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """(N, Q) ids at positions -> (N, Q, D); the cache grows by Q."""
        hidden = in_float32(F.embedding(ids, self.weight))
        rotary = tuple(table[positions][:, :, None].to(hidden.dtype) for table in self.rotary)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            normed = self._normed(hidden, layer.input_norm)
            attended = self._attend(layer, normed, rotary, cache, mask)
            hidden = hidden + few_rows_product(attended, layer.out, layer.out_bias)
            normed = self._normed(hidden, layer.mlp_norm)
            gate, up = few_rows_product(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + few_rows_product(self.activation(gate) * up, layer.down, layer.down_bias)
        self.length += ids.shape[1]
        return self._normed(hidden, self.decoder.norm.weight)

    def _attend(
        self, layer: "_Layer", x: Tensor, rotary: tuple[Tensor, ...], cache: Tensor, mask: Tensor | None
    ) -> Tensor:
        """(N, Q, D) -> (N, Q, heads * C); the new keys and values are written into the cache."""
        rows, queries, _ = x.shape
        end = self.length + queries
        heads = few_rows_product(x, layer.qkv, layer.qkv_bias).view(rows, queries, -1, self.head_dim)
        rotated = heads[:, :, : self.heads + self.kv_heads]  # queries and keys are normed and rotated alike
        if layer.query_key_norm is not None:
            rotated = self._normed(rotated, layer.query_key_norm)
        rotated = _rotate(rotated, *rotary)
        new = cache[:, :, :, self.length : end]
        new[0] = rotated[:, :, self.heads :].transpose(1, 2)
        new[1] = heads[:, :, self.heads + self.kv_heads :].transpose(1, 2)
        keys, values = cache[:, :, :, :end]
        query = rotated[:, :, : self.heads].to(cache.dtype).unflatten(2, (self.kv_heads, -1))
        query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
        if mask is not None:
            mask = mask.expand(-1, -1, self.repeats, -1, -1).flatten(2, 3)  # (N, 1, R * Q, L)
        attend = _by_products if queries == 1 and _products_pay(query) else F.scaled_dot_product_attention
        attended = attend(query, keys, values, mask)  # (N, K, R * Q, C)
        attended = attended.unflatten(2, (self.repeats, queries))
        return attended.permute(0, 3, 1, 2, 4).reshape(rows, queries, -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467, equation 4). In full precision
        it takes half as many operations as torch's.
        """
        if x.dtype not in (torch.float32, torch.float64):
            return F.rms_norm(x, x.shape[-1:], None, self.eps) * weight
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps_tensor, length, length, value=1 / x.shape[-1]).rsqrt_() * weight

    def _rotary_table(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (L, C) of each position, the sines of the lower half negative: see `_rotate`."""
        index = torch.arange(positions, device=self.weight.device)[None]
        cos, sin = self.decoder.rotary_emb(self.decoder.norm.weight.new_empty(1), index)
        low, high = sin[0].chunk(2, dim=-1)
        return cos[0], torch.cat([-low, high], dim=-1)


class _Layer:
    """The weights of one layer. Those that multiply the same input are concatenated."""

    def __init__(self, layer: CausalModel) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.input_norm = layer.input_layernorm.weight
        self.qkv, self.qkv_bias = _side_by_side(*qkv)
        self.query_key_norm = None
        if hasattr(attention, "q_norm"):  # of every query head, then of every key head: (H + K, C)
            counts = [linear.out_features // attention.head_dim for linear in qkv[:2]]
            norms = attention.q_norm.weight, attention.k_norm.weight
            self.query_key_norm = torch.cat([w.expand(n, -1) for w, n in zip(norms, counts, strict=True)])
        self.out, self.out_bias = _side_by_side(attention.o_proj)
        self.mlp_norm = layer.post_attention_layernorm.weight
        self.gate_up, self.gate_up_bias = _side_by_side(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = _side_by_side(mlp.down_proj)


def _side_by_side(*linears: CausalModel) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers with the same input, concatenated, in the precision of their product."""
    weight = _joined([merged_weight(linear) for linear in linears])
    has_bias = linears[0].bias is not None
    return computed(weight), computed(_joined([linear.bias for linear in linears])) if has_bias else None


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _products_pay(query: Tensor) -> bool:
    """Whether a few queries attend faster by plain products: torch's flash kernel calls a product for every row and
    head, and calls from several threads wait for each other (LOG.md). In full precision only: the scores between the
    products would be rounded.
    """
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


def _by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`scaled_dot_product_attention` of (N, K, Q, C) and (N, K, L, C) twice, in three operations."""
    rows, heads, _, width = query.shape
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # (N * K, L, C), views of the cache
    scores = torch.bmm(query.flatten(0, 1) * width**-0.5, keys.transpose(1, 2))
    if mask is not None:
        scores = scores.unflatten(0, (rows, heads)).masked_fill(~mask, -torch.inf).flatten(0, 1)
    return torch.bmm(scores.softmax(-1), values).unflatten(0, (rows, heads))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (arXiv:2104.09864, equation 34). Departure: pairs are (i, i + C / 2), as in the
    weights of transformers, not neighbours. `sin` carries the sign.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


Decoder = LlamaDecoder | CachedDecoder | RecomputingDecoder
