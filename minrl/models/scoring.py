"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

S scored tokens. The model calls our attention function in place of its own (minrl/models/attention.py), unless it can
only be computed in padded rows (minrl/models/padded_rows.py). The logits of a whole stream never exist
(minrl/models/logprobs.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from minrl.batch import Stream
from minrl.models.activations import recomputed
from minrl.models.attention import ATTENTION, plan_attention
from minrl.models.cpu import few_sizes
from minrl.models.head import output_head
from minrl.models.logprobs import chunked_logprobs
from minrl.models.method import method_of
from minrl.models.padded_rows import padded_rows
from minrl.models.sharding import in_one_pass
from minrl.models.text import decoder_of
from minrl.types import CausalModel, Rollout

TOKEN_SIZES = 16
"""Numbers of tokens of a pass on a CPU from a power of two to the next. Others are rounded up, by two percent on
average: products are compiled for each number, which took 14 % of an update of a model of 1M weights.
"""

LARGEST_GAP = 0.01
"""Largest difference in nats between two computations of a log-probability that rounding explains."""


def score(
    model: CausalModel, stream: Stream, temperature: float, recompute: bool = False
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy of its distribution (nats).

    `recompute`: activation checkpointing, with each layer's input kept.
    """
    return in_one_pass(model, _score, stream, temperature, recompute)


def _score(model: CausalModel, stream: Stream, temperature: float, recompute: bool) -> tuple[Tensor, Tensor]:
    decoder, packed = decoder_of(model), method_of(model).packed
    attention = partial(_packed_attention, decoder) if packed else nullcontext
    if packed:
        ids, positions = (_filled_up(values)[None] for values in (stream.input_ids, stream.positions))
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
        inputs["stream"], places = plan_attention(stream), None
    else:
        rows, places = padded_rows(stream)
        inputs = {"input_ids": rows}
    with attention(), recomputed(decoder, attention) if recompute else nullcontext():
        hidden = decoder(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
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
    return few_sizes(count, TOKEN_SIZES) if device.type == "cpu" and count else count


def sampled_rollout(prompt: list[int], completion: list[int]) -> Rollout:
    """A rollout of these tokens, for scoring."""
    ids, zeros = prompt + completion, [0.0] * len(prompt + completion)
    mask = [False] * len(prompt) + [True] * len(completion)
    return Rollout(ids, mask, zeros, [(len(prompt), len(ids))], len(prompt), "", 0, 0, "", 0, 0)


@contextmanager
def _packed_attention(decoder: CausalModel) -> Iterator[None]:
    """Inside, the decoder's layers use `packed_attention`."""
    previous = decoder.config._attn_implementation
    decoder.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = previous
