"""One token at a time with a key-value cache, on the policy's own weights.

P prompts, N rows, D hidden size, K key-value heads, R query heads per key-value head, C head dimension, L slots of
the cache.

`LlamaDecoder` is written out for Llama-, Qwen2- and Qwen3-shaped models; `TransformersDecoder` lets transformers do
any other. All rows write to the same slot of the cache: prompts are aligned at their end, and what lies before a
shorter one is masked.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.cpu import product
from minrl.lora import merged_weight
from minrl.types import CausalModel

LLAMA_SHAPED = ("llama", "qwen2", "qwen3")


@runtime_checkable
class Decoder(Protocol):
    """Prefills prompts once, copies them to rows, then goes token by token. All hidden states are final ones."""

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt; the cache has room for `slots` more tokens."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache, in this order; a row may be taken several times."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token (N,) to every row -> (N, D)."""


def make_decoder(model: CausalModel) -> Decoder:
    """The fastest decoder for the model's shape."""
    config = model.config
    plain_rope = (config.rope_parameters or {}).get("rope_type", "default") in ("default", "llama3", "linear")
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    if config.model_type in LLAMA_SHAPED and plain_rope and not sliding:
        return LlamaDecoder(model)
    return TransformersDecoder(model)


class LlamaDecoder:
    """The decoder of a Llama-, Qwen2- or Qwen3-shaped model with a static cache.

    Query, key and value products are one product, and so are the MLP's gate and up: their weights are merged with
    their adapters and laid side by side when the decoder is made, which is once per batch of completions.
    """

    def __init__(self, model: CausalModel) -> None:
        decoder, config = model.get_decoder(), model.config
        self.decoder = decoder
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        self.eps = config.rms_norm_eps
        self.activation = decoder.layers[0].mlp.act_fn
        self.layers = [_Layer(layer) for layer in decoder.layers]
        self.weight = merged_weight(decoder.embed_tokens)
        self.cache: list[tuple[Tensor, Tensor]] = []
        self.padding = torch.empty(0, dtype=torch.long)
        self.length = 0

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt."""
        device, longest = self.weight.device, max(map(len, prompts))
        self.padding = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        positions = (torch.arange(longest, device=device) - self.padding[:, None]).clamp(min=0)
        shape = (len(prompts), self.kv_heads, longest + slots, self.head_dim)
        dtype = self.layers[0].qkv.dtype
        self.cache = [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in self.layers
        ]
        self.length = 0
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        real = torch.arange(longest, device=device) >= self.padding[:, None]
        itself = torch.eye(longest, dtype=torch.bool, device=device)  # a padded query must see something
        return self._forward(ids, positions, (causal & real[:, None, :] | itself)[:, None, None])[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache."""
        self.cache = [(keys[rows], values[rows]) for keys, values in self.cache]
        self.padding = self.padding[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        positions = self.length - self.padding
        mask = None
        if bool((self.padding > 0).any()):
            slots = torch.arange(self.length + 1, device=tokens.device)
            mask = (slots >= self.padding[:, None])[:, None, None, None]
        return self._forward(tokens[:, None], positions[:, None], mask)[:, 0]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """(N, Q) ids at positions -> (N, Q, D); the cache grows by Q."""
        hidden = F.embedding(ids, self.weight)
        cos, sin = self.decoder.rotary_emb(hidden, positions)
        rotary = cos[:, :, None], sin[:, :, None]
        end = self.length + ids.shape[1]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.input_norm, self.eps)
            hidden = hidden + product(self._attend(layer, normed, rotary, cache, mask, end), layer.out, layer.out_bias)
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, self.eps)
            gate, up = product(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + product(self.activation(gate) * up, layer.down, layer.down_bias)
        self.length = end
        return F.rms_norm(hidden, hidden.shape[-1:], self.decoder.norm.weight, self.eps)

    def _attend(
        self,
        layer: "_Layer",
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
        mask: Tensor | None,
        end: int,
    ) -> Tensor:
        """(N, Q, D) -> (N, Q, heads * C), with the new keys and values written into the cache."""
        rows, queries, _ = x.shape
        heads = product(x, layer.qkv, layer.qkv_bias).view(rows, queries, -1, self.head_dim)
        query, key, value = heads.split([self.kv_heads * self.repeats, self.kv_heads, self.kv_heads], dim=2)
        if layer.query_norm is not None:
            query = F.rms_norm(query, query.shape[-1:], layer.query_norm, self.eps)
            key = F.rms_norm(key, key.shape[-1:], layer.key_norm, self.eps)
        query, key = _rotate(query, *rotary), _rotate(key, *rotary)
        keys, values = (slots[:, :, :end] for slots in cache)
        keys[:, :, self.length :] = key.transpose(1, 2)
        values[:, :, self.length :] = value.transpose(1, 2)
        grouped = query.view(rows, queries, self.kv_heads, self.repeats, self.head_dim).permute(0, 2, 3, 1, 4)
        weights = grouped.flatten(2, 3) @ keys.transpose(-1, -2) / math.sqrt(self.head_dim)  # (N, K, R * Q, L)
        weights = weights.view(rows, self.kv_heads, self.repeats, queries, end)
        if mask is not None:
            weights = weights.masked_fill(~mask, -torch.inf)
        attended = weights.softmax(-1).flatten(2, 3) @ values  # (N, K, R * Q, C)
        attended = attended.view(rows, self.kv_heads, self.repeats, queries, self.head_dim)
        return attended.permute(0, 3, 1, 2, 4).reshape(rows, queries, -1)


class _Layer:
    """The weights of one layer, those that multiply the same input side by side."""

    def __init__(self, layer: CausalModel) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.input_norm = layer.input_layernorm.weight
        self.qkv, self.qkv_bias = _side_by_side(*qkv)
        self.query_norm = attention.q_norm.weight if hasattr(attention, "q_norm") else None
        self.key_norm = attention.k_norm.weight if hasattr(attention, "k_norm") else None
        self.out, self.out_bias = merged_weight(attention.o_proj), attention.o_proj.bias
        self.mlp_norm = layer.post_attention_layernorm.weight
        self.gate_up, self.gate_up_bias = _side_by_side(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = merged_weight(mlp.down_proj), mlp.down_proj.bias


def _side_by_side(*linears: CausalModel) -> tuple[Tensor, Tensor | None]:
    weight = torch.cat([merged_weight(linear) for linear in linears])
    has_bias = linears[0].bias is not None
    return weight, torch.cat([linear.bias for linear in linears]) if has_bias else None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (arXiv:2104.09864, equation 34). Departure: pairs are (i, i + C / 2), as transformers'
    weights have it, not neighbours."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class TransformersDecoder:
    """Any causal model, by transformers' own forward pass and cache."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder = model.get_decoder()
        self.cache: Any = None
        self.mask = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt; transformers' cache grows by itself."""
        device, longest = next(self.decoder.parameters()).device, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
        self.cache = None
        return self._forward(ids)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache."""
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None])

    def _forward(self, ids: Tensor) -> Tensor:
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.decoder(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        return output.last_hidden_state[:, -1]
