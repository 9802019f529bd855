"""How the layers of a model of a known shape are read from its modules.

H query heads, K key-value heads, C head dimension, D hidden size.

Rotary pairs of any layout are brought to (i, i + C / 2) by reordering the rows of the query and key weights, which
leaves all scores as they are. Dimensions that are not rotated are pairs with the angle 0.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.engines.layer_parts import Experts, FeedForward, Norm, ShortConvolution, takes_grouped_products
from minrl.engines.shapes import SHAPES, Part, Shape
from minrl.models.cpu import computed, in_float32, ordered
from minrl.models.lora import merged_parameter, merged_weight, without_adapters
from minrl.types import CausalModel

INTO = (("gate_proj", "up_proj"), ("gate_up_proj",), ("w1", "w3"), ("up_proj",), ("c_fc",), ("fc1",))
"""Names of the projections into a feed-forward, the gate's first."""

GATED = INTO[:3]
ACTIVATIONS = ("act_fn", "activation_fn", "act")
OUT = ("down_proj", "w2", "c_proj", "fc2")

QUERY_KEY_NORMS = (("q_norm", "k_norm"), ("query_layernorm", "key_layernorm"), ("q_layernorm", "k_layernorm"))


def shape_of(decoder: CausalModel) -> Shape | None:
    """The shape of a model's decoder; None if it is not computed here."""
    config = decoder.config
    shape = SHAPES.get(config.model_type)
    if shape is None or shape.refuses(config):
        return None
    if shape.windows == "typed" and set(config.layer_types) - {"full_attention", "sliding_attention"}:
        return None
    experts = [getattr(getattr(layer, "mlp", None), "experts", None) for layer in decoder.layers]
    taken = [takes_grouped_products(without_adapters(each).gate_up_proj) for each in experts if each is not None]
    return shape if all(taken) else None


class Layer:
    """The weights of one layer, in the order of their products. Those with the same input are concatenated."""

    def __init__(self, decoder: CausalModel, index: int, shape: Shape) -> None:
        layer, config = decoder.layers[index], decoder.config
        self.before, self.after, self.before_mlp, self.after_mlp = (
            read_norm(getattr(layer, name, None), shape, decoder.device) for name in shape.norms
        )
        self.residual = float(getattr(layer, "residual_multiplier", 1.0))
        mlp = _named(layer, "mlp", "feed_forward")
        self.feed_forward = _experts(mlp) if hasattr(mlp, "experts") else _feed_forward(mlp)
        self.convolution = _convolution(layer.conv) if hasattr(layer, "conv") else None
        self.window: int | None = None
        if self.convolution is not None:
            return
        attention = layer.self_attn
        kind = config.layer_types[index] if getattr(config, "layer_types", None) else ""
        slides = shape.windows == "all" or (shape.windows == "typed" and kind == "sliding_attention")
        self.window = (config.sliding_window or None) if slides else None
        self.rotary = (kind if rotary_kinds(decoder) else "") if shape.rotates(attention) else None
        self.sinks: Tensor | None = getattr(attention, "sinks", None)
        self.cap: float | None = attention.attn_logit_softcapping if shape.capped else None
        order = None if self.rotary is None else _order(decoder, self.rotary, attention.head_dim, shape)
        qkv, self.qkv_bias = _projections(attention, config, order)
        self.query_key_norms, self.scale = _query_key_norms(attention, config, shape, order)
        self.qkv, (self.out, self.out_bias) = ordered(qkv), _projection(_named(attention, "o_proj", "out_proj"))


def _named(module: Part, *names: str) -> Part:
    """The first attribute that the module has of these."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def read_norm(norm: Part, shape: Shape, device: torch.device) -> Callable[[Tensor], Tensor]:
    """What the module computes; the identity for none."""
    if norm is None:
        return lambda x: x
    weight = getattr(norm, "weight", None)
    return _norm(norm, None if weight is None else _scales(weight, shape), shape, device)


def _norm(norm: Part, weight: Tensor | None, shape: Shape, device: torch.device) -> Norm:
    eps = next((getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), 1e-5)  # OLMo's
    return Norm(weight, getattr(norm, "bias", None), eps, shape.centred, device)


def _scales(weight: Tensor, shape: Shape) -> Tensor:
    return weight.float() + 1 if shape.one_more else weight


def embedding_scale(decoder: CausalModel) -> Tensor | float | None:
    """What embeddings are multiplied by; None for nothing."""
    embedding = getattr(decoder.embed_tokens, "base_layer", decoder.embed_tokens)
    if hasattr(embedding, "embed_scale"):
        return in_float32(embedding.embed_scale)
    return getattr(decoder, "embedding_multiplier", None)


def rotary_kinds(decoder: CausalModel) -> list[str]:
    """The types of layers that have rotary embeddings of their own; none where all have the same."""
    kinds = decoder.rotary_emb.rope_type
    return list(kinds) if isinstance(kinds, dict) else []


def rotary_table(decoder: CausalModel, kind: str, index: Tensor, shape: Shape, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (L, C) at the positions (L,); the sines of the lower half are negative."""
    tables = zip(_angles(decoder, kind, index, shape), (1.0, 0.0), strict=True)
    cos, sin = (_halved(table, head_dim, unrotated) for table, unrotated in tables)
    sin = -sin if shape.backwards else sin
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _angles(decoder: CausalModel, kind: str, index: Tensor, shape: Shape) -> list[Tensor]:
    """transformers' cosines and sines of the rotated dimensions, at the positions (L,)."""
    like = in_float32(decoder.embed_tokens.weight.new_empty(1))
    tables = decoder.rotary_emb(like, index[None], *([kind] if kind else []))
    return [table[0].repeat(1, 2) if shape.one_angle else table[0] for table in tables]


def _halved(table: Tensor, head_dim: int, fill: float) -> Tensor:
    """A number for each pair (L, C / 2) of a table that has each twice, in a row or one half after the other; pairs
    that are not rotated have `fill`.
    """
    in_a_row = torch.equal(table[:, ::2], table[:, 1::2])
    half = table[:, ::2] if in_a_row else table.chunk(2, dim=-1)[0]
    return F.pad(half, (0, head_dim // 2 - half.shape[1]), value=fill)


def _order(decoder: CausalModel, kind: str, head_dim: int, shape: Shape) -> Tensor | None:
    """The order of a head's dimensions in which rotary pairs are (i, i + C / 2); None if they are so already."""
    first = torch.zeros(1, dtype=torch.long, device=decoder.device)
    rotated = _angles(decoder, kind, first, shape)[0].shape[-1]
    if rotated == head_dim and not shape.neighbours:
        return None
    dimensions = torch.arange(head_dim, device=decoder.device)
    pairs = dimensions[:rotated].view(-1, 2).T if shape.neighbours else dimensions[:rotated].view(2, -1)
    return torch.cat([pairs, dimensions[rotated:].view(2, -1)], dim=1).flatten()


def _projections(attention: Part, config: Part, order: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of queries, keys and values, heads one after another."""
    names = ("qkv_proj",) if hasattr(attention, "qkv_proj") else ("q_proj", "k_proj", "v_proj")
    weight, bias = side_by_side(*(getattr(attention, name) for name in names))
    if order is None:
        return weight, bias
    heads = config.num_attention_heads + config.num_key_value_heads
    rows = torch.arange(len(weight), device=weight.device).unflatten(0, (-1, len(order)))
    rows[:heads] = rows[:heads][:, order]
    return weight[rows.flatten()], None if bias is None else bias[rows.flatten()]


def _query_key_norms(
    attention: Part, config: Part, shape: Shape, order: Tensor | None
) -> tuple[tuple[Norm, ...], float]:
    """None, one for all query and key heads (H + K, C), or one for the whole query and one for the whole key; and the
    scale of scores, which is 1 where it is in the query's norm.
    """
    scale: float = attention.scaling
    names = next((names for names in QUERY_KEY_NORMS if hasattr(attention, names[0])), None)
    if names is None:
        return (), scale
    norms = [getattr(attention, name) for name in names]
    counts, device = (config.num_attention_heads, config.num_key_value_heads), attention.q_proj.weight.device
    if not hasattr(norms[0], "weight"):
        return (_norm(norms[0], None, shape, device),), scale
    weights = [_scales(norm.weight, shape).view(-1, attention.head_dim) for norm in norms]
    weights = weights if order is None else [weight[:, order] for weight in weights]
    if getattr(norms[0], "bias", None) is None:
        weights[0], scale = in_float32(weights[0]) * scale, 1.0
    whole = norms[0].weight.shape[-1] != attention.head_dim
    if whole:
        both = zip(norms, weights, strict=True)
        return tuple(_norm(norm, weight.flatten(), shape, device) for norm, weight in both), scale
    joined = torch.cat([w.expand(n, -1) for w, n in zip(weights, counts, strict=True)])
    return (_norm(norms[0], joined, shape, device),), scale


def _feed_forward(mlp: Part) -> FeedForward:
    names = next(names for names in INTO if all(hasattr(mlp, name) for name in names))
    activation = next((getattr(mlp, name) for name in ACTIVATIONS if hasattr(mlp, name)), F.silu)  # LFM2's has no name
    into, into_bias = side_by_side(*(getattr(mlp, name) for name in names))
    return FeedForward(ordered(into), into_bias, names in GATED, activation, *_projection(_named(mlp, *OUT)))


def _convolution(conv: Part) -> ShortConvolution:
    kernel, bias = conv.conv.weight[:, 0].T, conv.conv.bias  # (D, 1, k)
    return ShortConvolution(*side_by_side(conv.in_proj), kernel, bias, *side_by_side(conv.out_proj))


def _experts(mlp: Part) -> Experts:
    experts, gate = without_adapters(mlp.experts), _named(mlp, "gate", "router")
    router, shared = without_adapters(gate), hasattr(mlp, "shared_expert")
    weights = [in_float32(merged_parameter(mlp.experts, name)) for name in ("gate_up_proj", "down_proj")]
    gate_up, down = weights if experts.is_transposed else [weight.transpose(1, 2) for weight in weights]
    return Experts(
        router=merged_parameter(gate, "weight"),
        router_bias=getattr(router, "bias", None),
        count=router.top_k,
        normalised=getattr(router, "norm_topk_prob", True),
        gate_up=gate_up,
        gate_up_bias=getattr(experts, "gate_up_proj_bias", None),
        gate=experts._apply_gate,
        down=down,
        down_bias=getattr(experts, "down_proj_bias", None),
        shared=_feed_forward(mlp.shared_expert) if shared else None,
        shared_gate=computed(merged_weight(mlp.shared_expert_gate)) if shared else None,
    )


def side_by_side(*linears: CausalModel) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers with the same input, concatenated, in the precision of their product."""
    weight = _joined([merged_weight(linear) for linear in linears])
    has_bias = linears[0].bias is not None
    return computed(weight), computed(_joined([linear.bias for linear in linears])) if has_bias else None


def _projection(linear: CausalModel) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer whose input no other has."""
    weight, bias = side_by_side(linear)
    return ordered(weight), bias


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
