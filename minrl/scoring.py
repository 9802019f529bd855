"""Log-probabilities of sampled tokens under a model: the packed forward pass and the chunked output head.

T tokens of the stream, S scored tokens, V vocabulary, D hidden size, H attention heads, K key-value heads, C head
dimension.

The logits of a whole stream never exist: `chunked_logprobs` goes over the scored positions in chunks, forward and
backward. The stream's attention is one function that transformers' models call in place of their own.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from minrl.batch import Stream, pack
from minrl.lora import merged_weight
from minrl.types import CausalModel, Rollout, UserError

CHUNK_LOGITS = 2**24
"""Logits that exist at once: 64 MiB in float32."""

ATTENTION = "minrl_packed"

LARGEST_GAP = 0.01
"""Nats by which a model's own log-probability may differ from `score`'s by rounding alone."""


def score(model: CausalModel, stream: Stream, temperature: float) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy it was drawn with (nats)."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inputs = {
        "input_ids": stream.input_ids[None],
        "position_ids": stream.positions[None],
        "use_cache": False,
    }
    if supports_packing(model):
        with _packed_attention(decoder):
            hidden = decoder(**inputs, stream=StreamAttention(stream)).last_hidden_state[0]
    else:
        assert len(stream.prefix_of) == 1, "a model without the attention interface is scored one rollout at a time"
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
    rollouts = [_sampled(ids[:3], ids[3:7]), _sampled(ids[:3], [*ids[:1], *ids[7:]])]
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


def _sampled(prompt: list[int], completion: list[int]) -> Rollout:
    ids, zeros = prompt + completion, [0.0] * len(prompt + completion)
    mask = [False] * len(prompt) + [True] * len(completion)
    return Rollout(ids, mask, zeros, [(len(prompt), len(ids))], len(prompt), "", 0, 0, "", 0, 0)


class StreamAttention:
    """Attention inside the segments of a stream, planned once and used by every layer.

    Prompts attend to themselves; a suffix attends to its prompt and to itself. The stream is laid out as padded rows
    for the attention alone: `padded` says which token each slot holds, `slot_of` where each token went.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        device = stream.input_ids.device
        prefix = torch.arange(stream.prefix_index.shape[1], device=device)
        suffix = torch.arange(stream.suffix_index.shape[1], device=device)
        self.padded = torch.cat([stream.prefix_index.flatten(), stream.suffix_index.flatten()])
        valid = torch.cat(
            [
                (prefix < stream.prefix_lengths[:, None]).flatten(),
                (suffix < stream.suffix_lengths[:, None]).flatten(),
            ]
        )
        self.slot_of = torch.empty_like(stream.input_ids)
        self.slot_of[self.padded[valid]] = valid.nonzero()[:, 0]
        lengths = stream.prefix_lengths[stream.prefix_of]  # (N,)
        sees_prefix = (prefix < lengths[:, None])[:, None, :].expand(-1, len(suffix), -1)
        sees_suffix = (suffix[None, :] <= suffix[:, None]).expand(len(lengths), -1, -1)
        self.mask = torch.cat([sees_prefix, sees_suffix], dim=-1)[:, None]  # (N, 1, Ls, Lp + Ls)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        heads, kv_heads = query.shape[1], key.shape[1]
        tokens = torch.cat([query[0], key[0], value[0]]).transpose(0, 1)  # (T, H + 2K, C)
        slots = _Rearranged.apply(tokens, self.padded, self.slot_of)
        shape = (*slots.shape[1:],)
        num_prefix = self.stream.prefix_index.numel()
        prefix = slots[:num_prefix].view(*self.stream.prefix_index.shape, *shape)
        suffix = slots[num_prefix:].view(*self.stream.suffix_index.shape, *shape)
        shared = prefix[:, :, heads:].index_select(0, self.stream.prefix_of)  # (N, Lp, 2K, C)
        suffix_kv = torch.cat([shared, suffix[:, :, heads:]], dim=1)
        outputs = (
            self._attend(prefix[:, :, :heads], prefix[:, :, heads:], kv_heads, scale, None, window),
            self._attend(suffix[:, :, :heads], suffix_kv, kv_heads, scale, self.mask, window),
        )
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return _Rearranged.apply(rows, self.slot_of, self.padded)[None]

    def _attend(
        self, query: Tensor, kv: Tensor, kv_heads: int, scale: float, mask: Tensor | None, window: int | None
    ) -> Tensor:
        """(R, Lq, H, C), (R, Lk, 2K, C) -> (R, Lq, H, C); causal where no mask is given."""
        if window is not None:
            mask = self._windowed(mask, query.shape[1], window)
        key, value = kv.transpose(1, 2).split(kv_heads, dim=1)
        output = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=query.shape[2] != kv_heads,
        )
        return output.transpose(1, 2)

    def _windowed(self, mask: Tensor | None, queries: int, window: int) -> Tensor:
        """The mask (causal where None) without what lies `window` or more positions back."""
        stream = self.stream
        device = stream.input_ids.device
        if mask is None:
            ones = torch.ones(queries, queries, dtype=torch.bool, device=device)
            return ones.tril() & ones.triu(1 - window)
        prefix = torch.arange(stream.prefix_index.shape[1], device=device)
        suffix = torch.arange(stream.suffix_index.shape[1], device=device)
        own = stream.prefix_lengths[stream.prefix_of][:, None] + suffix  # (N, Ls)
        keys = torch.cat([prefix.expand(len(own), -1), own], dim=-1)  # (N, Lp + Ls)
        return mask & (own[:, None, :, None] - keys[:, None, None, :] < window)


class _Rearranged(torch.autograd.Function):
    """`x[index]` whose gradient is a gather too: `inverse` says which output row holds each input row.

    Rows of the output that repeat an input row as padding are masked in the attention, so their gradient is zero and
    leaving it out changes nothing. A plain index's backward accumulates row by row, several times slower on a CPU.
    """

    @staticmethod
    def forward(ctx, x, index, inverse):  # noqa: ANN001, ANN205 - autograd's own signature
        ctx.save_for_backward(inverse)
        ctx.index, ctx.padding = index, len(index) > len(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        (inverse,) = ctx.saved_tensors
        if ctx.padding or len(ctx.index) == len(inverse):
            return grad.index_select(0, inverse), None, None
        padded = grad.new_zeros(len(inverse), *grad.shape[1:])
        return padded.index_copy_(0, ctx.index, grad), None, None


def packed_attention(
    module: CausalModel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers' models call for each layer (its attention interface)."""
    stream = kwargs["stream"]
    assert isinstance(stream, StreamAttention), "packed attention needs the stream it attends in"
    if getattr(module, "attn_logit_softcapping", None) or kwargs.get("softcap"):
        raise UserError("this model cannot be trained: it caps its attention logits, which packing does not support")
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    return stream(query, key, value, scale, sliding_window), None


@contextmanager
def _packed_attention(decoder: CausalModel) -> Iterator[None]:
    """The decoder's layers call `packed_attention` inside, and what they called before afterwards."""
    previous = decoder.config._attn_implementation
    decoder.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = previous


def chunked_logprobs(
    hidden: Float[Tensor, "S D"], weight: Float[Tensor, "V D"], labels: Int[Tensor, " S"], temperature: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """`log_softmax(hidden @ weight.T / temperature)` at the labels, and its entropy, without all the logits at once.

    Products are in the input's precision, sums in float32 or better.
    """
    return _ChunkedLogprobs.apply(hidden, weight, labels, temperature)


class _ChunkedLogprobs(torch.autograd.Function):
    """With z the scaled logits, p = softmax(z), h the entropy and g, e the gradients of log-probability and entropy:

    dz = g (onehot(label) - p) - e p (log p + h),   dhidden = dz W / T,   dW = dz^T hidden / T.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, temperature):  # noqa: ANN001, ANN205 - autograd's own signature
        logprobs, entropy, log_normalizer = [], [], []
        for rows in _chunks(hidden, weight):
            z = _logits(hidden[rows], weight, temperature)
            logsumexp = z.logsumexp(-1)
            logprobs.append(z.gather(1, labels[rows, None])[:, 0] - logsumexp)
            p = (z - logsumexp[:, None]).exp()
            entropy.append(logsumexp - (p * z).sum(-1))
            log_normalizer.append(logsumexp)
        outputs = torch.cat(logprobs), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, labels, torch.cat(log_normalizer), outputs[1])
        ctx.temperature = temperature
        return outputs

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):  # noqa: ANN001, ANN205 - autograd's own signature
        hidden, weight, labels, logsumexp, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype) if trained else None
        for rows in _chunks(hidden, weight):
            logp = _logits(hidden[rows], weight, ctx.temperature) - logsumexp[rows, None]
            p = logp.exp()
            dz = -grad_logprobs[rows, None] * p - grad_entropy[rows, None] * p * (logp + entropy[rows, None])
            dz.scatter_add_(1, labels[rows, None], grad_logprobs[rows, None])
            dz = (dz / ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = dz @ weight.to(hidden.dtype)
            if trained:
                grad_weight += dz.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype) if trained else None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the scored rows such that one chunk's logits stay under CHUNK_LOGITS."""
    rows = max(1, CHUNK_LOGITS // weight.shape[0])
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits of a chunk at the temperature, in float32 or better."""
    logits = hidden @ weight.to(hidden.dtype).T
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
