"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

S scored tokens, T tokens of the stream, N rollouts, L tokens of the longest.

The model calls our attention function in place of its own (minrl/models/attention.py), unless it can only be computed
in padded rows. The logits of a whole stream never exist (minrl/models/logprobs.py). Activations that do not fit are
computed again in the backward pass (arXiv:1604.06174, section 4: one segment for each layer).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from minrl.batch import Stream, to_device
from minrl.dataflow import CausalModel, Rollout, UserError
from minrl.models.attention import ATTENTION, StreamAttention
from minrl.models.compiled import COMPILED, compiled_layers, handle_of, is_compiled
from minrl.models.cpu import bucketed
from minrl.models.logprobs import chunked_logprobs, output_head
from minrl.models.sharding import in_one_pass
from minrl.models.structure import decoder_of, layers_of

Decoding = Literal["own", "cached", "recomputed"]

TOKEN_SIZES = 16
"""Numbers of tokens of a pass on a CPU from a power of two to the next. Others are rounded up, by two percent on
average: products are compiled for each number, which took 14 % of an update of a model of 1M weights.
"""

LARGEST_GAP = 0.01
"""Largest difference in nats between two computations of a log-probability that rounding explains."""

LARGEST_SHARE = 0.7
"""The share of free memory that activations may take; gradients and the head's logits need the rest."""


@dataclass(frozen=True)
class Method:
    """How a model is computed: the fastest way that gives the numbers of plain transformers (minrl/models/check.py).

    `packed`: rollouts are streams in which our attention function separates them, and a prompt is computed once;
    otherwise each is a padded row.

    `decoding`, for the embedded engine: its own decoder (or transformers' cache for shapes that it does not take);
    transformers' cache; or no cache, the whole sequence again for each token.
    """

    packed: bool = True
    decoding: Decoding = "own"


def method_of(model: CausalModel) -> Method:
    """How the model is computed: as verified at loading, or as its class promises."""
    return getattr(model, "minrl_method", None) or Method(packed=bool(model._supports_attention_backend))


def set_method(model: CausalModel, method: Method) -> None:
    """From now on the model is computed by this method."""
    model.minrl_method = method


def score(
    model: CausalModel, stream: Stream, temperature: float, recompute: bool = False
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy of its distribution (nats).

    `recompute`: activation checkpointing, with each layer's input kept.
    """
    return in_one_pass(model, _score, stream, temperature, recompute)


def _score(model: CausalModel, stream: Stream, temperature: float, recompute: bool) -> tuple[Tensor, Tensor]:
    decoder, packed = decoder_of(model), method_of(model).packed
    fast = packed and is_compiled(decoder)
    attention = partial(_packed_attention, decoder, COMPILED if fast else ATTENTION) if packed else nullcontext
    if packed:
        ids, positions = (_filled_up(values)[None] for values in (stream.input_ids, stream.positions))
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
        planned, places = StreamAttention(stream), None
        inputs["stream"] = handle_of(planned) if fast else planned
    else:
        rows, places = padded_rows(stream)
        inputs = {"input_ids": rows}
    layers = compiled_layers(decoder) if fast else nullcontext()
    with attention(), layers, recomputed(decoder, attention) if recompute else nullcontext():
        hidden = decoder(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
    if fast and hidden.grad_fn is not None:
        hidden.grad_fn.metadata[COMPILED] = planned  # the backward pass needs it too
    scored, labels = _filled_up(stream.scored), _filled_up(stream.labels)
    hidden = hidden[scored if places is None else places[scored]]
    logprobs, entropy = chunked_logprobs(hidden, output_head(model), labels, temperature)
    return logprobs[: len(stream.labels)], entropy[: len(stream.labels)]


def _filled_up(values: Tensor) -> Tensor:
    """The values, and behind them the first one up to `filled_size`: what is computed for those is not used."""
    missing = filled_size(len(values), values.device) - len(values)
    return F.pad(values, (0, missing), value=int(values[0])) if missing else values


def filled_size(count: int, device: torch.device) -> int:
    """Tokens that a packed pass computes for so many: on a CPU one of few sizes."""
    return bucketed(count, TOKEN_SIZES) if device.type == "cpu" and count else count


def sampled_rollout(prompt: list[int], completion: list[int]) -> Rollout:
    """A rollout of these tokens, for scoring."""
    ids, zeros = prompt + completion, [0.0] * len(prompt + completion)
    mask = [False] * len(prompt) + [True] * len(completion)
    return Rollout(ids, mask, zeros, [(len(prompt), len(ids))], len(prompt), "", 0, 0, "", 0, 0)


@contextmanager
def _packed_attention(decoder: CausalModel, name: str) -> Iterator[None]:
    """Inside, the decoder's layers use `packed_attention`, by the name that it has for them."""
    previous = decoder.config._attn_implementation
    decoder.config._attn_implementation = name
    try:
        yield
    finally:
        decoder.config._attn_implementation = previous


def padded_rows(stream: Stream) -> tuple[Tensor, Tensor]:
    """The stream as rows of one rollout each, behind its own copy of the prompt, padded at the end. The padding needs
    no mask: a causal model computes nothing else at a token for what follows it.

    Token ids (N, L), and the place (T,) of each of the stream's tokens in the flattened rows. A prompt's tokens are
    taken from the first of its rollouts.
    """
    rows = [one for one in stream.segments if one.prompt_length]
    width = max(one.prompt_length + one.length for one in rows)
    tokens, places = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(stream.input_ids),), -1)
    for row, one in enumerate(rows):
        index = one.keys()
        tokens[row, : len(index)] = index
        places[index] = torch.where(places[index] < 0, row * width + torch.arange(len(index)), places[index])
    tokens, places = to_device([tokens, places], stream.input_ids.device)
    return stream.input_ids[tokens], places


def row_tokens(stream: Stream) -> int:
    """Tokens of the padded rows, padding included."""
    lengths = [one.prompt_length + one.length for one in stream.segments if one.prompt_length]
    return len(lengths) * max(lengths)


def row_batches(rollouts: Sequence[Rollout], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The indices in lists of rows of about the same length: at most `max_tokens` with padding, or a single row."""
    batches: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -len(rollouts[index].ids)):
        if not batches or (len(batches[-1]) + 1) * len(rollouts[batches[-1][0]].ids) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def kept_bytes(run: Callable[[], object]) -> int:
    """Bytes of the tensors that the call saves for a backward pass; shared memory counts once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        alone = tensor.detach()  # the tensor itself would keep its own graph for ever
        kept[tensor.untyped_storage().data_ptr()] = alone
        return alone

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@contextmanager
def recomputed(decoder: CausalModel, meanwhile: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Inside, each layer keeps its input only and is computed again in the backward pass, in the context `meanwhile`.

    A policy has no dropout: both computations are bit for bit the same.
    """
    layers = list(dict.fromkeys(layers_of(decoder)))  # a layer that occurs twice once
    if not layers:
        raise UserError(f"{type(decoder).__name__} has no list of layers: choose --activation-checkpointing never")
    again = partial(
        checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), meanwhile())
    )
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(again, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
