"""The shape of a model as its config tells it, whatever the type of the model."""

from typing import Any


def key_width(config: Any) -> int:  # noqa: ANN401 - of transformers
    """Numbers in the keys of a token, in the layer that has the most; 0 without attention."""
    return max(map(_keys, getattr(config, "per_layer_config", None) or [config]))


def _keys(config: Any) -> int:  # noqa: ANN401 - of transformers
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return kv_heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
