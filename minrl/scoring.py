"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

S scored tokens. The stream's attention (minrl/attention.py) is one function that transformers' models call in place of
their own; the logits of a whole stream never exist (minrl/head.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from minrl.activations import recomputed
from minrl.attention import ATTENTION, plan_attention
from minrl.batch import Stream, pack
from minrl.head import chunked_logprobs
from minrl.lora import merged_weight
from minrl.types import CausalModel, Rollout, UserError

LARGEST_GAP = 0.01
"""Nats by which a model's own log-probability may differ from `score`'s by rounding alone."""


def score(
    model: CausalModel, stream: Stream, temperature: float, recompute: bool = False
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy it was drawn with (nats).

    `recompute`: the backward pass computes each layer again, for which only its input is kept.
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
    """Whether the model calls the attention interface, so that prompts can be shared and padding left out."""
    return bool(getattr(model, "_supports_attention_backend", False))


@torch.no_grad()
def verify_scoring(model: CausalModel) -> None:
    """Refuse a model whose own log-probabilities are not those of `score`: one that caps or scales its logits, has a
    biased output head or attends in a way of its own. Told by two short rollouts with a common prompt.
    """
    ids = torch.linspace(1, model.get_output_embeddings().weight.shape[0] - 1, 9).long().tolist()
    rollouts = [sampled_rollout(ids[:3], ids[3:7]), sampled_rollout(ids[:3], [*ids[:1], *ids[7:]])]
    device = next(model.parameters()).device
    gap = 0.0
    for part in [[0, 1]] if supports_packing(model) else [[0], [1]]:
        scores, _ = score(model, pack(rollouts, part).to(device), temperature=1.0)
        own = []
        for rollout in (rollouts[index] for index in part):
            row = torch.tensor([rollout.ids], device=device)
            logprobs = model(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1)
            own.append(logprobs[2:-1].gather(1, row[0, 3:, None])[:, 0])
        gap = max(gap, float((torch.cat(own) - scores).abs().max()))
    if not gap <= LARGEST_GAP:
        raise UserError(
            f"{type(model).__name__} cannot be trained: its own log-probabilities differ by {gap:.3g} nats from those "
            "of plain attention and a plain output head (capped or scaled logits?); choose a Llama- or Qwen-shaped one"
        )


def sampled_rollout(prompt: list[int], completion: list[int]) -> Rollout:
    """A rollout of these tokens, to be scored."""
    ids, zeros = prompt + completion, [0.0] * len(prompt + completion)
    mask = [False] * len(prompt) + [True] * len(completion)
    return Rollout(ids, mask, zeros, [(len(prompt), len(ids))], len(prompt), "", 0, 0, "", 0, 0)


@contextmanager
def _packed_attention(decoder: CausalModel) -> Iterator[None]:
    """The decoder's layers call `packed_attention` inside, and what they called before afterwards."""
    previous = decoder.config._attn_implementation
    decoder.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = previous
