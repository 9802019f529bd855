"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

S scored tokens. The model calls our attention function in place of its own (minrl/kernels/attention.py), and the logits
of a whole stream never exist (minrl/kernels/head.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from minrl.batch import Stream
from minrl.kernels.activations import recomputed
from minrl.kernels.attention import ATTENTION, plan_attention
from minrl.kernels.head import chunked_logprobs
from minrl.model.lora import merged_weight
from minrl.types import CausalModel, Rollout

LARGEST_GAP = 0.01
"""Largest difference in nats between two computations of a log-probability that rounding explains."""


def score(
    model: CausalModel, stream: Stream, temperature: float, recompute: bool = False
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy of its distribution (nats).

    `recompute`: activation checkpointing, with each layer's input kept.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inputs: dict[str, Any] = {
        "input_ids": stream.input_ids[None],
        "position_ids": stream.positions[None],
        "use_cache": False,
    }
    attention = partial(_packed_attention, decoder) if supports_packing(model) else nullcontext
    if supports_packing(model):
        inputs["stream"] = plan_attention(stream)
    else:
        assert len(stream.prefix_of) == 1, "a model without the attention interface is scored one rollout at a time"
    with attention(), recomputed(decoder, attention) if recompute else nullcontext():
        hidden = decoder(**inputs).last_hidden_state[0]
    return chunked_logprobs(hidden[stream.scored], merged_weight(head), stream.labels, temperature)


def supports_packing(model: CausalModel) -> bool:
    """Whether the model uses the attention interface, so that streams can be packed."""
    return bool(model._supports_attention_backend)


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
