"""How many bytes training holds on each card: an estimate from the shape of the model, before anything is computed.

A process has a card of its own. `--sharding full` divides weights, gradients, moments, reference and teacher by the
processes, `hybrid` by those of a node; `none` repeats them in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from minrl.models.shape import shape_of

MOMENT_BYTES = {"adamw": 8, "adamw8bit": 2}
"""Bytes of both moments of a weight, in memory and in a checkpoint."""

BUCKET = 2**26
"""Bytes of gradients that processes with whole copies send at a time: large enough for the bandwidth of a link, small
enough to overlap. A larger weight is sent alone.
"""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Numbers of weights of a model."""

    total: int
    trained: int
    held: int = 0
    """Frozen, and in two bytes each."""
    layer: int = 0
    """Of the largest layer, which sharding gathers as a whole."""
    outer: int = 0
    """Outside the layers, as embedding and head: sharding gathers them together, for the whole pass."""

    @property
    def stored(self) -> int:
        """Bytes in the training process."""
        return 4 * self.total - 2 * self.held

    @property
    def base(self) -> int:
        """Without adapters, which an engine of its own memory gets merged."""
        return self.total if self.trained == self.total else self.total - self.trained

    def part(self, bytes_of_all: int, count: int) -> int:
        """The share of so many weights in the bytes of all."""
        return bytes_of_all * count // self.total


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the bytes on a card depend on beside the model."""

    processes: int = 1
    nodes: int = 1
    sharding: str = "none"
    optimizer: str = "adamw"
    bfloat16: bool = False
    """The precision of products."""
    tokens: int = 8192
    """Of a micro-batch."""
    recompute: bool = True
    """Whether layers keep their input alone for the backward pass (`--activation-checkpointing`)."""
    reference: bool = False
    """Whether there is a frozen copy for a KL term."""
    teacher: Weights | None = None
    """Of a teacher other than the policy itself."""
    engine: str = "torch"
    tensor_parallel: int = 1
    own_decoder: bool = True
    """Whether the embedded engine puts matrices side by side."""
    cache: int = 0
    """Bytes of the keys and values of an engine in the training process, while it samples."""

    @property
    def shards(self) -> int:
        """Parts that the weights are divided into."""
        return {"none": 1, "full": self.processes, "hybrid": self.processes // self.nodes}[self.sharding]

    @property
    def itemsize(self) -> int:
        """Bytes of a number in products, and of a weight in vLLM."""
        return 2 if self.bfloat16 else 4


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that a process holds, by what holds them."""

    weights: int
    """In float32; frozen ones of a bfloat16 checkpoint in two bytes each."""
    gradients: int
    moments: int
    reference: int = 0
    teacher: int = 0
    teacher_pass: int = 0
    """Casts of the teacher and what of it is gathered, while it is scored before the first gradient."""
    casts: int
    """Copies for its products: of float32 weights in bfloat16, or of the largest weight that is held in two bytes."""
    activations: int
    gathered: int = 0
    """Under sharding: whole, what is outside the layers, and a layer."""
    buffers: int = 0
    """Of communication: the layer that is gathered next, and whole gradients before they are summed; a bucket of them
    without sharding."""
    engine: int = 0
    """vLLM's own weights."""
    copies: int = 0
    """Of the embedded engine while it samples: matrices side by side, with their adapters; under sharding all weights,
    whole."""
    cache: int = 0
    """Keys and values while an engine in this process samples."""

    @property
    def update(self) -> int:
        """While the policy is trained, without the copies and the cache of the engine."""
        elsewhere = self.teacher_pass + self.copies + self.cache
        return sum(getattr(self, field.name) for field in fields(self)) - elsewhere

    @property
    def loaded(self) -> int:
        """Before the first step."""
        return self.weights + self.reference + self.teacher + self.engine

    @property
    def held(self) -> int:
        """At any time."""
        return self.loaded + self.moments

    @property
    def sampling(self) -> int:
        """While an engine in this process samples, without gradients and activations."""
        casts = 0 if self.engine else self.casts
        return self.held + casts + self.copies + self.cache

    @property
    def total(self) -> int:
        """At the peak."""
        return max(self.update, self.sampling, self.held + self.teacher_pass)


def needed(weights: Weights, config: Any, setup: Setup) -> Need:  # noqa: ANN401 - of transformers
    """What a process holds at least, of a model with this text config."""
    shards, layer, outer = setup.shards, weights.layer, weights.outer
    sharded, whole = shards > 1, weights.total
    products = 2 * (weights.total - weights.held)
    if not setup.bfloat16:
        casts = 4 * config.vocab_size * config.hidden_size * bool(weights.held)
    else:
        casts = weights.part(products, layer + outer) if sharded else products
    gradient = weights.part(4 * weights.trained, layer), weights.part(4 * weights.trained, outer)
    next_layer = weights.part(weights.stored, layer)
    largest = min(outer, config.vocab_size * config.hidden_size)
    bucket = max(min(BUCKET, 4 * weights.trained), weights.part(4 * weights.trained, largest))
    buffers = bucket if setup.processes > 1 else 0
    if sharded:  # of a layer: gathered, its gradients, and these side by side; at the end those of the rest
        buffers = gradient[1] + max(next_layer + 2 * gradient[0], gradient[1])
    embedded, vllm = setup.engine == "torch", setup.engine == "vllm"
    copies = decoder_copies(config, weights.base < whole, setup.itemsize) if embedded and setup.own_decoder else 0
    return Need(
        weights=_divided(weights.stored, shards),
        gradients=_divided(4 * weights.trained, shards),
        moments=_divided(MOMENT_BYTES[setup.optimizer] * weights.trained, shards),
        reference=setup.reference * _divided(4 * weights.base, shards),
        teacher=_divided(setup.teacher.stored, shards) if setup.teacher else 0,
        teacher_pass=_passed(setup.teacher, setup) if setup.teacher else 0,
        casts=casts,
        activations=(least_activations if setup.recompute else all_activations)(config, setup.tokens, setup.itemsize),
        gathered=sharded * weights.part(weights.stored, layer + outer),
        buffers=buffers,
        engine=vllm * _divided(setup.itemsize * weights.base, setup.tensor_parallel),
        copies=copies + (embedded and sharded) * weights.stored,
        cache=(embedded or vllm) * setup.cache,
    )


def _passed(weights: Weights, setup: Setup) -> int:
    """What a forward pass of a frozen model holds beside its weights: casts, and under sharding what is gathered."""
    every, part = 2 * setup.bfloat16 * weights.total, weights.layer + weights.outer
    return weights.part(every + weights.stored, part) if setup.shards > 1 else every


def _divided(count: int, parts: int) -> int:
    return -(-count // parts)


def weights_of(model: nn.Module, layers: Sequence[nn.Module]) -> Weights:
    """The numbers of weights of a model in memory; those of sharded weights are of the whole."""
    every = list(model.parameters())
    inside = [sum(weight.numel() for weight in layer.parameters()) for layer in dict.fromkeys(layers)]
    total = sum(weight.numel() for weight in every)
    return Weights(
        total=total,
        trained=sum(weight.numel() for weight in every if weight.requires_grad),
        held=sum(weight.numel() for weight in every if weight.itemsize < 4),
        layer=max(inside, default=0),
        outer=total - sum(inside),
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
    """
    shape = shape_of(config)
    return 4 * tokens * shape.hidden * shape.layers + 2 * _kept_by_a_layer(config, tokens, itemsize)


def all_activations(config: Any, tokens: int, itemsize: int) -> int:  # noqa: ANN401 - of transformers
    """Bytes where nothing is computed again: what all layers keep. A layer's gradients take the place of what they
    free.
    """
    return shape_of(config).layers * _kept_by_a_layer(config, tokens, itemsize)


def _kept_by_a_layer(config: Any, tokens: int, itemsize: int) -> int:  # noqa: ANN401 - of transformers
    """A Qwen3-shaped layer keeps 40 bytes for each dimension of its input, 16 for those of a key, and in its
    feed-forward part four values for each dimension, in the precision of products (measured in both precisions, within
    6 %).
    """
    shape = shape_of(config)
    return tokens * (40 * shape.hidden + 16 * shape.keys + 4 * itemsize * shape.inner)
