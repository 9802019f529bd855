"""Sizes of a causal model that its config tells."""

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


def cached_numbers(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers in the keys and values that all layers keep of a token. Recurrent states are not counted."""
    config = config.get_text_config(decoder=True)
    layers = config.per_layer_config if config.is_heterogeneous else [config] * config.num_hidden_layers
    return sum(map(_keys_and_values, layers))


def _keys_and_values(layer: Any) -> int:  # noqa: ANN401 - of transformers
    heads = getattr(layer, "num_attention_heads", None) or 1
    width = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return 2 * (getattr(layer, "num_key_value_heads", None) or heads) * width


def context_length(model: CausalModel) -> int:
    """Longest sequence of the model in tokens, prompt and completion together.

    With LongRoPE it is the original context: a longer sequence changes the frequencies of all its tokens
    (arXiv:2402.13753), and so the log-probabilities of earlier ones. Dynamic RoPE does the same beyond
    `max_position_embeddings`, which is the limit anyway.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    originals = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    known = next((size for name in CONTEXTS if (size := getattr(config, name, None)) and size > 0), UNLIMITED)
    return min([known, *originals])
