"""How much memory training takes: an estimate from the shape of the model, before anything is computed."""

from dataclasses import dataclass
from typing import Any

from minrl.model.shape import shape_of

MOMENT_BYTES = {"adamw": 8, "adamw8bit": 2}
"""Bytes of both moments of a weight, in memory and in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that training holds, by what holds them."""

    weights: int
    """In float32; frozen ones of a bfloat16 checkpoint in two bytes each."""
    gradients: int
    moments: int
    casts: int
    """Copies for its products: of float32 weights in bfloat16, or of the largest weight that is held in two bytes."""
    activations: int
    copies: int = 0
    """Of the embedded engine while it samples: matrices side by side, with their adapters."""

    @property
    def total(self) -> int:
        """At the peak: an update holds no copies of the engine, which samples without gradients and activations."""
        return self.weights + self.moments + max(self.gradients + self.casts + self.activations, self.copies)


def needed(
    weights: int,
    trained: int,
    optimizer: str,
    config: Any,  # noqa: ANN401 - of transformers
    tokens: int,
    bfloat16: bool,
    held: int = 0,
    copies: int = 0,
) -> Need:
    """What an update needs at least, with so many tokens in a forward pass, of a model with this text config. `held`
    of the weights are frozen and in two bytes; `copies` are bytes.
    """
    return Need(
        weights=4 * weights - 2 * held,
        gradients=4 * trained,
        moments=MOMENT_BYTES[optimizer] * trained,
        casts=2 * (weights - held) if bfloat16 else 4 * config.vocab_size * config.hidden_size * bool(held),
        activations=least_activations(config, tokens, 2 if bfloat16 else 4),
        copies=copies,
    )


def decoder_copies(config: Any, adapted: bool, itemsize: int) -> int:  # noqa: ANN401 - of transformers
    """Bytes of what the embedded engine's own decoder puts side by side: queries, keys and values, and gate and up;
    with adapters every matrix and the head.
    """
    shape = shape_of(config)
    first = shape.hidden * (shape.queries + 2 * shape.keys) + 2 * shape.hidden * shape.inner
    second = shape.queries * shape.hidden + shape.inner * shape.hidden
    return itemsize * (shape.layers * (first + second * adapted) + shape.vocabulary * shape.hidden * adapted)


def least_activations(config: Any, tokens: int, itemsize: int) -> int:  # noqa: ANN401 - of transformers
    """Bytes where each layer keeps its input alone and is computed again: these inputs in float32, and what one layer
    keeps for its backward pass with as many gradients.

    A Qwen3-shaped layer keeps 40 bytes for each dimension of its input, 16 for those of a key, and in its feed-forward
    part four values for each dimension, in the precision of products (measured in both precisions, within 6 %).
    """
    shape = shape_of(config)
    layer = 40 * shape.hidden + 16 * shape.keys + 4 * itemsize * shape.inner
    return tokens * (4 * shape.hidden * shape.layers + 2 * layer)
