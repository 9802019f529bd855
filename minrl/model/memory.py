"""How much memory training takes: an estimate from the shape of the model, before anything is computed."""

from dataclasses import astuple, dataclass
from typing import Any

from minrl.model.shape import shape_of

MOMENT_BYTES = {"adamw": 8, "adamw8bit": 2}
"""Bytes of both moments of a weight, in memory and in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that an update of the policy holds at its peak, by what holds them."""

    weights: int
    """In float32."""
    gradients: int
    moments: int
    casts: int
    """Copies of the weights in bfloat16, for its products."""
    activations: int

    @property
    def total(self) -> int:
        """All of them together."""
        return sum(astuple(self))


def needed(weights: int, trained: int, optimizer: str, config: Any, tokens: int, bfloat16: bool) -> Need:  # noqa: ANN401 - of transformers
    """What an update needs at least, with so many tokens in a forward pass, of a model with this text config."""
    return Need(
        weights=4 * weights,
        gradients=4 * trained,
        moments=MOMENT_BYTES[optimizer] * trained,
        casts=2 * weights if bfloat16 else 0,
        activations=least_activations(config, tokens, 2 if bfloat16 else 4),
    )


def least_activations(config: Any, tokens: int, itemsize: int) -> int:  # noqa: ANN401 - of transformers
    """Bytes where each layer keeps its input alone and is computed again: these inputs in float32, and what one layer
    keeps for its backward pass with as many gradients.

    A Qwen3-shaped layer keeps 40 bytes for each dimension of its input, 16 for those of a key, and in its feed-forward
    part four values for each dimension, in the precision of products (measured in both precisions, within 6 %).
    """
    shape = shape_of(config)
    layer = 40 * shape.hidden + 16 * shape.keys + 4 * itemsize * shape.inner
    return tokens * (4 * shape.hidden * shape.layers + 2 * layer)
