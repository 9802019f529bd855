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
from torch import Tensor, nn

from minrl.batch import Stream

CHUNK_LOGITS = 2**24
"""Logits that exist at once: 64 MiB in float32."""

ATTENTION = "minrl_packed"


def score(
    model: nn.Module, stream: Stream, temperature: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """Log-probability of each scored label at the temperature, and the entropy it was drawn with (nats)."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    with _packed_attention(decoder):
        hidden = decoder(
            input_ids=stream.input_ids[None],
            position_ids=stream.positions[None],
            use_cache=False,
            stream=StreamAttention(stream),
        ).last_hidden_state[0]
    return chunked_logprobs(hidden[stream.scored], head.weight, stream.labels, temperature)


def supports_packing(model: nn.Module) -> bool:
    """Whether the model calls the attention interface, so that prompts can be shared and padding left out."""
    return bool(getattr(model, "_supports_attention_backend", False))


class StreamAttention:
    """Attention inside the segments of a stream, planned once and used by every layer.

    Prompts attend to themselves; a suffix attends to its prompt and to itself.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        device = stream.input_ids.device
        prefix = torch.arange(stream.prefix_index.shape[1], device=device)
        suffix = torch.arange(stream.suffix_index.shape[1], device=device)
        self.prefix_valid = prefix < stream.prefix_lengths[:, None]  # (P, Lp)
        self.suffix_valid = suffix < stream.suffix_lengths[:, None]  # (N, Ls)
        lengths = stream.prefix_lengths[stream.prefix_of]  # (N,)
        sees_prefix = (prefix < lengths[:, None])[:, None, :].expand(-1, len(suffix), -1)
        sees_suffix = (suffix[None, :] <= suffix[:, None]).expand(len(lengths), -1, -1)
        self.mask = torch.cat([sees_prefix, sees_suffix], dim=-1)[:, None]  # (N, 1, Ls, Lp + Ls)
        self.prefix_targets = stream.prefix_index[self.prefix_valid]
        self.suffix_targets = stream.suffix_index[self.suffix_valid]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        stream = self.stream
        queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, heads, C)
        prefix_keys, prefix_values = keys[stream.prefix_index], values[stream.prefix_index]  # (P, Lp, K, C)
        prefix = self._attend(queries[stream.prefix_index], prefix_keys, prefix_values, scale, None, window)
        suffix_keys, suffix_values = (
            torch.cat([shared[stream.prefix_of], own[stream.suffix_index]], dim=1)  # (N, Lp + Ls, K, C)
            for shared, own in ((prefix_keys, keys), (prefix_values, values))
        )
        suffix = self._attend(
            queries[stream.suffix_index], suffix_keys, suffix_values, scale, self.mask, window
        )
        output = torch.empty_like(queries)
        output = output.index_copy(0, self.prefix_targets, prefix[self.prefix_valid])
        return output.index_copy(0, self.suffix_targets, suffix[self.suffix_valid])[None]

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, window: int | None
    ) -> Tensor:
        """(R, Lq, H, C), (R, Lk, K, C) twice -> (R, Lq, H, C); causal where no mask is given."""
        if window is not None:
            mask = self._windowed(mask, query.shape[1], window)
        output = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=query.shape[2] != key.shape[2],
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


def packed_attention(
    module: nn.Module,
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
        raise ValueError("this model caps its attention logits, which packed training does not support")
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    return stream(query, key, value, scale, sliding_window), None


@contextmanager
def _packed_attention(decoder: nn.Module) -> Iterator[None]:
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
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype)
        for rows in _chunks(hidden, weight):
            logp = _logits(hidden[rows], weight, ctx.temperature) - logsumexp[rows, None]
            p = logp.exp()
            dz = -grad_logprobs[rows, None] * p - grad_entropy[rows, None] * p * (logp + entropy[rows, None])
            dz.scatter_add_(1, labels[rows, None], grad_logprobs[rows, None])
            dz = (dz / ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = dz @ weight.to(hidden.dtype)
            grad_weight += dz.T @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the scored rows such that one chunk's logits stay under CHUNK_LOGITS."""
    rows = max(1, CHUNK_LOGITS // weight.shape[0])
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits of a chunk at the temperature, in float32 or better."""
    logits = hidden @ weight.to(hidden.dtype).T
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
