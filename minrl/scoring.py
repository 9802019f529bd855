"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

S scored tokens. The stream's attention (minrl/kernels/attention.py) is one function that transformers' models call in place of
their own; the logits of a whole stream never exist (minrl/kernels/head.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from minrl.batch import Stream, pack
from minrl.kernels.activations import recomputed
from minrl.kernels.attention import ATTENTION, plan_attention
from minrl.kernels.head import chunked_logprobs
from minrl.model.context import context_length
from minrl.model.lora import merged_weight
from minrl.types import CausalModel, Rollout, UserError

WINDOW = 4
"""Tokens of a window of attention while scoring is verified."""

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
    return bool(model._supports_attention_backend)


@torch.no_grad()
def verify_scoring(model: CausalModel) -> None:
    """Refuse a model whose own log-probabilities are not those of `score`: one that caps or scales its logits, has a
    biased output head or attends in a way of its own. Told by two short rollouts with a common prompt, which are
    longer than the windows of attention: those are narrowed for it.
    """
    ids = torch.linspace(1, model.get_output_embeddings().weight.shape[0] - 1, 18).long()
    prompt, *completions = (part.tolist() for part in ids.split([2 * WINDOW, 6, 4]))
    rollouts = [sampled_rollout(prompt, completion) for completion in completions]
    device = next(model.parameters()).device
    gap = 0.0
    with _narrow_windows(model):
        for part in [[0, 1]] if supports_packing(model) else [[0], [1]]:
            scores, _ = score(model, pack(rollouts, part).to(device), temperature=1.0)
            own = []
            for rollout in (rollouts[index] for index in part):
                row = torch.tensor([rollout.ids], device=device)
                logprobs = model(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1)
                own.append(logprobs[len(prompt) - 1 : -1].gather(1, row[0, len(prompt) :, None])[:, 0])
            gap = max(gap, float((torch.cat(own) - scores).abs().max()))
    if not gap <= LARGEST_GAP:
        raise UserError(
            f"{type(model).__name__} cannot be trained: its own log-probabilities differ by {gap:.3g} nats from those "
            "of plain attention and a plain output head (capped or scaled logits, a window of a kind of its own?); "
            "choose a Llama- or Qwen-shaped one"
        )


def sampled_rollout(prompt: list[int], completion: list[int]) -> Rollout:
    """A rollout of these tokens, to be scored."""
    ids, zeros = prompt + completion, [0.0] * len(prompt + completion)
    mask = [False] * len(prompt) + [True] * len(completion)
    return Rollout(ids, mask, zeros, [(len(prompt), len(ids))], len(prompt), "", 0, 0, "", 0, 0)


@contextmanager
def _narrow_windows(model: CausalModel) -> Iterator[None]:
    """Windows that the model's context can outgrow are WINDOW tokens wide inside. They are named in the config, which
    a model makes its masks by, and by some layers.
    """
    holders = [
        holder
        for holder in (model.config.get_text_config(), *model.modules())
        if WINDOW < (vars(holder).get("sliding_window") or 0) < context_length(model)
    ]
    windows = [holder.sliding_window for holder in holders]
    try:
        for holder in holders:
            holder.sliding_window = WINDOW
        yield
    finally:
        for holder, window in zip(holders, windows, strict=True):
            holder.sliding_window = window


@contextmanager
def _packed_attention(decoder: CausalModel) -> Iterator[None]:
    """The decoder's layers call `packed_attention` inside, and what they called before afterwards."""
    previous = decoder.config._attn_implementation
    decoder.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = previous
