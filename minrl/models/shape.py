"""The sizes of a model's text part, by whatever names its config gives them."""

from dataclasses import dataclass
from math import prod
from typing import Any

from minrl.dataflow import CausalModel

CONTEXTS = (
    "max_position_embeddings",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
)

UNLIMITED = 2**20
"""The context of a model that counts no positions, such as Mamba."""

WITHOUT_KEYS = ("linear_attention", "conv", "recurrent", "moe", "mlp")
"""Types of layers that keep no keys and values of each token."""

RECURRENT = ("linear_attention", "recurrent", "hybrid", "hybrid_sliding")

STATES = (
    ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    ("linear_num_heads", "linear_head_dim", "linear_head_dim"),
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    ("n_mamba_heads", "mamba_headdim", "mamba_d_state"),
)
"""Factors of the size of a recurrent layer's state."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a text part, in numbers."""

    context: int
    vocabulary: int
    hidden: int
    inner: int
    """Of the feed-forward part that a token passes through."""
    layers: int
    keys: int
    """Of a token's keys in one layer: the largest."""
    queries: int
    """Of a token's queries in one layer: the largest."""
    cached: int
    """Of what all layers keep of a token: keys and values, or what a layer at a time makes them from."""
    state: int
    """Of a row's recurrent states in all layers."""


def keeps_states(config: Any) -> bool:  # noqa: ANN401 - of transformers
    """Whether a layer keeps a state of a row, as recurrent layers and convolutions do, and not keys of each token."""
    return any(kind in (*RECURRENT, "conv") for kind in _types(config.get_text_config(decoder=True)))


def shape_of(config: Any) -> Shape:  # noqa: ANN401 - of transformers
    """The sizes of the text part of a model with this config. What layers have each of their own may differ."""
    config = config.get_text_config(decoder=True)
    layers = layer_configs(config)
    types = _types(config)
    keeping = [layer for layer, kind in zip(layers, types, strict=False) if kind not in WITHOUT_KEYS]
    hidden = _size(config, "hidden_size")
    once = list({id(layer): layer for layer in layers}.values())  # most models have the same in every place
    cached = {id(layer): _cached(layer) for layer in once}
    return Shape(
        context=_size(config, *CONTEXTS, default=UNLIMITED),
        vocabulary=_size(config, "vocab_size"),
        hidden=hidden,
        inner=max(map(_inner, once)),
        layers=len(layers),
        keys=max(_keys_and_values(layer)[0] for layer in once),
        queries=max(map(_queries, once)),
        cached=sum(cached[id(layer)] for layer in keeping) + max(map(_expanded, keeping), default=0),
        state=sum(_state(layer) for layer, kind in zip(layers, types, strict=False) if kind in RECURRENT),
    )


def layer_configs(config: Any) -> list[Any]:  # noqa: ANN401 - of transformers
    """The config of each layer, which may have sizes of its own."""
    same = not config.is_heterogeneous
    return [config] * _size(config, "num_hidden_layers") if same else list(config.per_layer_config)


def _types(config: Any) -> list[str]:  # noqa: ANN401 - of transformers
    """The type of each layer."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    layers = layer_configs(config)
    return types or ["attention" if _size(layers[0], "num_attention_heads") else "linear_attention"] * len(layers)


def _inner(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Sizes of a dense feed-forward part, or of the experts that a token is sent to, together."""
    dense = _size(config, "intermediate_size", default=4 * _size(config, "hidden_size"))
    return max(dense, _size(config, "num_experts_per_tok") * _size(config, "moe_intermediate_size", default=dense))


def _keys_and_values(config: Any) -> tuple[int, int]:  # noqa: ANN401 - of transformers
    """Numbers of a token's keys and of its values in a layer."""
    hidden = _size(config, "hidden_size")
    heads = _size(config, "num_attention_heads", default=1)
    groups = _size(config, "num_key_value_heads", default=heads)
    width = max(_size(config, "head_dim", default=-(-hidden // heads)), _size(config, "global_head_dim"))
    if _size(config, "kv_lora_rank"):
        width = _size(config, "qk_nope_head_dim") + _size(config, "qk_rope_head_dim")
        return heads * width, heads * _size(config, "v_head_dim")
    return groups * width, groups * max(width, _size(config, "v_head_dim"))


def _queries(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers of a token's queries in a layer."""
    keys, _ = _keys_and_values(config)
    heads = _size(config, "num_attention_heads", default=1)
    return (
        keys
        * heads
        // (_size(config, "num_key_value_heads", default=heads) if not _size(config, "kv_lora_rank") else heads)
    )


def _cached(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers that a layer keeps of a token: DeepSeek's attention keeps a projection (arXiv:2405.04434, 2.1)."""
    latent = _size(config, "kv_lora_rank")
    return latent + _size(config, "qk_rope_head_dim") if latent else sum(_keys_and_values(config))


def _expanded(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers of the keys and values that such a layer makes from it while it computes."""
    return sum(_keys_and_values(config)) if _size(config, "kv_lora_rank") else 0


def _state(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers in the state of a recurrent layer; about twice the hidden size for each number of a state, where its
    config does not say.
    """
    known = [prod(_size(config, name) for name in names) for names in STATES]
    per_channel = _size(config, "state_size", "mamba_d_state", "head_dim", default=1)
    return max(known) or 2 * _size(config, "hidden_size") * per_channel


def _size(config: Any, *names: str, default: int = 0) -> int:  # noqa: ANN401 - of transformers
    """The first of these that the config has; of a list, which has one for each layer, the largest."""
    for name in names:
        value = getattr(config, name, None)
        if value and value != -1:
            return max(value) if isinstance(value, list | tuple) else int(value)
    return default


def context_length(model: CausalModel) -> int:
    """Tokens that the model takes, prompt and completion together, of which the log-probabilities do not depend on how
    they are computed.

    With LongRoPE it is the original context: a longer sequence changes the frequencies of all its tokens
    (arXiv:2402.13753), and so the log-probabilities of earlier ones. Dynamic RoPE does the same beyond
    `max_position_embeddings`, which is the limit anyway.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    originals = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([shape_of(model.config).context, *originals])
