"""How the layers of each type of model are read: what their modules show, and what only transformers' code says.

H query heads, K key-value heads, C head dimension, D hidden size.

Rotary pairs of any layout are brought to (i, i + C / 2) by reordering the rows of the query and key weights, which
leaves all scores as they are. Dimensions that are not rotated are pairs with the angle 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.engines.layer_parts import Experts, FeedForward, Norm, ShortConvolution, takes_grouped_products
from minrl.kernels.cpu import computed
from minrl.kernels.frozen import in_float32
from minrl.model.lora import merged_parameter, merged_weight, without_adapters
from minrl.types import CausalModel

BEFORE = ("input_layernorm", "", "post_attention_layernorm", "")
AFTER = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM4 = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the modules of a type of model do not show of how its layers compute."""

    norms: tuple[str, str, str, str] = BEFORE
    """The norms before and after the attention, and before and after the feed-forward; "" is none."""
    centred: bool = False
    """Norms take the mean off."""
    one_more: bool = False
    """Norms multiply by 1 + weight."""
    last_norm: str = "norm"
    """The norm after all layers."""
    norms_embeddings: bool = False
    """The last norm is also the first."""
    windows: Literal["", "all", "typed"] = ""
    """`config.sliding_window` holds for no layer, for all, or for those of the type `sliding_attention`."""
    rotates: Callable[[Any], bool] = lambda attention: True
    """Whether a layer with this attention rotates its queries and keys."""
    neighbours: bool = False
    """Rotary pairs are neighbours, (2 i, 2 i + 1)."""
    backwards: bool = False
    """Rotation is by minus the angle."""
    rotates_first: bool = False
    """Queries and keys are normed after the rotation."""
    parallel: bool = False
    """The feed-forward has the attention's input, not its output."""
    capped: bool = False
    """Scores of the attention are capped, where the config says so."""
    scaled_by_position: bool = False
    """Queries are multiplied by 1 + beta log(1 + floor(position / original context))."""
    refuses: Callable[[Any], bool] = lambda config: False
    """Whether a config asks for what is not computed here."""


def _bidirectional(config: Any) -> bool:  # noqa: ANN401 - a config of any type of model
    return bool(getattr(config, "use_bidirectional_attention", False))


def _clips(config: Any) -> bool:  # noqa: ANN401 - a config of any type of model
    return config.clip_qkv is not None


PLAIN, TYPED, WINDOWED = Shape(), Shape(windows="typed"), Shape(windows="all")
SHAPES = {
    **dict.fromkeys(("llama", "granite", "seed_oss", "arcee"), PLAIN),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "ministral"), TYPED),
    **dict.fromkeys(("mistral", "mixtral", "qwen3_moe", "phi3"), WINDOWED),
    "ministral3": Shape(windows="all", scaled_by_position=True),
    "starcoder2": Shape(windows="all", centred=True),
    "smollm3": Shape(windows="typed", rotates=lambda attention: bool(attention.use_rope)),
    "olmo": Shape(centred=True, refuses=_clips),
    "olmoe": Shape(refuses=_clips),
    "olmo2": Shape(norms=AFTER),
    "flex_olmo": Shape(norms=AFTER),
    "olmo3": Shape(norms=AFTER, windows="typed"),
    "exaone4": Shape(norms=AFTER, windows="typed", rotates=lambda a: a.sliding_window is None or a.is_sliding),
    "gemma": Shape(one_more=True, refuses=_bidirectional),
    "gemma2": Shape(one_more=True, norms=AROUND, windows="typed", capped=True, refuses=_bidirectional),
    "gemma3_text": Shape(one_more=True, norms=AROUND, windows="typed", refuses=_bidirectional),
    "glm": Shape(neighbours=True),
    "glm4": Shape(neighbours=True, norms=GLM4),
    "helium": Shape(neighbours=True),
    "ernie4_5": Shape(neighbours=True),
    "cohere": Shape(neighbours=True, centred=True, parallel=True),
    "cohere2": Shape(
        neighbours=True, centred=True, parallel=True, windows="typed", rotates=lambda a: a.sliding_window is not None
    ),
    "lfm2": Shape(norms=("operator_norm", "", "ffn_norm", ""), last_norm="embedding_norm"),
    "hunyuan_v1_dense": Shape(rotates_first=True),
    "nanochat": Shape(norms_embeddings=True, backwards=True, rotates_first=True),
}
"""By `model_type`. A model whose type is not here is left to transformers."""

INTO = (("gate_proj", "up_proj"), ("gate_up_proj",), ("w1", "w3"), ("up_proj",), ("c_fc",), ("fc1",))
"""Names of the projections into a feed-forward, the gate's first."""

GATED = INTO[:3]
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
    """The weights of one layer. Those that multiply the same input are concatenated."""

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
        self.scale: float = attention.scaling
        self.cap: float | None = attention.attn_logit_softcapping if shape.capped else None
        order = None if self.rotary is None else _order(decoder, self.rotary, attention.head_dim, shape)
        self.qkv, self.qkv_bias = _projections(attention, config, order)
        self.query_key_norms = _query_key_norms(attention, config, shape, order)
        self.out, self.out_bias = side_by_side(_named(attention, "o_proj", "out_proj"))


def _named(module: Any, *names: str) -> Any:  # noqa: ANN401 - each type has its own class
    """The first attribute that the module has of these."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def read_norm(norm: Any, shape: Shape, device: torch.device) -> Callable[[Tensor], Tensor]:  # noqa: ANN401
    """What the module computes; the identity for none."""
    if norm is None:
        return lambda x: x
    weight = getattr(norm, "weight", None)
    return _norm(norm, None if weight is None else _scales(weight, shape), shape, device)


def _norm(norm: Any, weight: Tensor | None, shape: Shape, device: torch.device) -> Norm:  # noqa: ANN401
    eps = next((getattr(norm, name) for name in ("variance_epsilon", "eps") if hasattr(norm, name)), 1e-5)  # OLMo's
    return Norm(weight, getattr(norm, "bias", None), eps, shape.centred, device)


def _scales(weight: Tensor, shape: Shape) -> Tensor:
    return weight.float() + 1 if shape.one_more else weight


def rotary_kinds(decoder: CausalModel) -> list[str]:
    """The types of layers that have rotary embeddings of their own; none where all have the same."""
    kinds = decoder.rotary_emb.rope_type
    return list(kinds) if isinstance(kinds, dict) else []


def rotary_table(decoder: CausalModel, kind: str, index: Tensor, shape: Shape, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (L, C) at the positions (L,); the sines of the lower half are negative."""
    tables = zip(_angles(decoder, kind, index), (1.0, 0.0), strict=True)
    cos, sin = (_halved(table, head_dim, unrotated) for table, unrotated in tables)
    sin = -sin if shape.backwards else sin
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _angles(decoder: CausalModel, kind: str, index: Tensor) -> list[Tensor]:
    """transformers' cosines and sines of the rotated dimensions, at the positions (L,)."""
    like = in_float32(decoder.embed_tokens.weight.new_empty(1))
    return [table[0] for table in decoder.rotary_emb(like, index[None], *([kind] if kind else []))]


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
    rotated = _angles(decoder, kind, first)[0].shape[-1]
    if rotated == head_dim and not shape.neighbours:
        return None
    dimensions = torch.arange(head_dim, device=decoder.device)
    pairs = dimensions[:rotated].view(-1, 2).T if shape.neighbours else dimensions[:rotated].view(2, -1)
    return torch.cat([pairs, dimensions[rotated:].view(2, -1)], dim=1).flatten()


def _projections(attention: Any, config: Any, order: Tensor | None) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
    """Weight and bias of queries, keys and values, heads one after another."""
    names = ("qkv_proj",) if hasattr(attention, "qkv_proj") else ("q_proj", "k_proj", "v_proj")
    weight, bias = side_by_side(*(getattr(attention, name) for name in names))
    if order is None:
        return weight, bias
    heads = config.num_attention_heads + config.num_key_value_heads
    rows = torch.arange(len(weight), device=weight.device).unflatten(0, (-1, len(order)))
    rows[:heads] = rows[:heads][:, order]
    return weight[rows.flatten()], None if bias is None else bias[rows.flatten()]


def _query_key_norms(attention: Any, config: Any, shape: Shape, order: Tensor | None) -> tuple[Norm, ...]:  # noqa: ANN401
    """None, one for all query and key heads (H + K, C), or one for the whole query and one for the whole key."""
    names = next((names for names in QUERY_KEY_NORMS if hasattr(attention, names[0])), None)
    if names is None:
        return ()
    norms = [getattr(attention, name) for name in names]
    counts, device = (config.num_attention_heads, config.num_key_value_heads), attention.q_proj.weight.device
    if not hasattr(norms[0], "weight"):
        return (_norm(norms[0], None, shape, device),)
    weights = [_scales(norm.weight, shape).view(-1, attention.head_dim) for norm in norms]
    weights = weights if order is None else [weight[:, order] for weight in weights]
    whole = norms[0].weight.shape[-1] != attention.head_dim
    if whole:
        return tuple(_norm(norm, weight.flatten(), shape, device) for norm, weight in zip(norms, weights, strict=True))
    joined = torch.cat([w.expand(n, -1) for w, n in zip(weights, counts, strict=True)])
    return (_norm(norms[0], joined, shape, device),)


def _feed_forward(mlp: Any) -> FeedForward:  # noqa: ANN401 - each type has its own class
    names = next(names for names in INTO if all(hasattr(mlp, name) for name in names))
    activation = (
        _named(mlp, "act_fn", "activation_fn", "act") if names != ("w1", "w3") else F.silu
    )  # LFM2's has no name
    into, out = side_by_side(*(getattr(mlp, name) for name in names)), side_by_side(_named(mlp, *OUT))
    return FeedForward(*into, names in GATED, activation, *out)


def _convolution(conv: Any) -> ShortConvolution:  # noqa: ANN401 - each type has its own class
    kernel, bias = conv.conv.weight[:, 0].T, conv.conv.bias  # (D, 1, k)
    return ShortConvolution(*side_by_side(conv.in_proj), kernel, bias, *side_by_side(conv.out_proj))


def _experts(mlp: Any) -> Experts:  # noqa: ANN401 - each type has its own class
    router, shared = without_adapters(mlp.gate), hasattr(mlp, "shared_expert")
    return Experts(
        router=merged_parameter(mlp.gate, "weight"),
        count=router.top_k,
        normalised=getattr(router, "norm_topk_prob", True),
        gate_up=in_float32(merged_parameter(mlp.experts, "gate_up_proj")).transpose(1, 2),
        down=in_float32(merged_parameter(mlp.experts, "down_proj")).transpose(1, 2),
        activation=without_adapters(mlp.experts).act_fn,
        shared=_feed_forward(mlp.shared_expert) if shared else None,
        shared_gate=computed(merged_weight(mlp.shared_expert_gate)) if shared else None,
    )


def side_by_side(*linears: CausalModel) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers with the same input, concatenated, in the precision of their product."""
    weight = _joined([merged_weight(linear) for linear in linears])
    has_bias = linears[0].bias is not None
    return computed(weight), computed(_joined([linear.bias for linear in linears])) if has_bias else None


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
