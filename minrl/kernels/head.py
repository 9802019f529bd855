"""Log-probabilities and entropies from hidden states, without all the logits at once.

S scored tokens, V vocabulary, D hidden size.

The output head is the widest product of a model, and its result the largest tensor of a step. `chunked_logprobs`
computes the scored positions in chunks that fit a cache. Few probabilities are kept for the backward pass; many are
computed again, so that no more than a chunk's logits ever exist.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minrl.kernels.cpu import computed, product

CHUNK_LOGITS = {"cpu": 2**21, "cuda": 2**25}
"""Logits of one chunk by device: 8 MiB in float32, which a CPU's caches hold, and 128 MiB."""

CHUNK_ROWS = 128
"""Fewest rows of one chunk: with fewer the product would wait for the head's weights."""

KEPT_LOGITS = 2**26
"""Most probabilities that are kept for the backward pass: 256 MiB in float32."""


def chunked_logprobs(
    hidden: Float[Tensor, "S D"], weight: Float[Tensor, "V D"], labels: Int[Tensor, " S"], temperature: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """`log_softmax(hidden @ weight.T / temperature)` at the labels, and its entropy, without all the logits at once.

    Products are in the input's precision, or autocast's, forward and backward; sums in float32 or better.
    """
    hidden = computed(hidden)
    kept = torch.is_grad_enabled() and len(hidden) * len(weight) <= KEPT_LOGITS
    with torch.autocast(hidden.device.type, enabled=False):
        return _ChunkedLogprobs.apply(hidden, weight, labels, temperature, kept)


class _ChunkedLogprobs(torch.autograd.Function):
    """With z the scaled logits, p = softmax(z), h the entropy and g, e the gradients of log-probability and entropy:

    dz = g (onehot(label) - p) - e p (log p + h),   dhidden = dz W / T,   dW = dz^T hidden / T.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, temperature, kept):  # noqa: ANN001, ANN205 - autograd's own signature
        ctx.set_materialize_grads(False)  # the gradient of an entropy that is only measured is None
        logprobs, entropy, log_normalizer, probabilities = [], [], [], []
        multiplied = weight.to(hidden.dtype)
        for rows in _chunks(hidden, weight):
            z = _logits(hidden[rows], multiplied, temperature)
            logp = z.log_softmax(-1)
            chosen = logp.gather(1, labels[rows, None])[:, 0]
            p = logp.exp()
            logprobs.append(chosen)
            entropy.append(-torch.linalg.vecdot(p, logp))
            log_normalizer.append(z.gather(1, labels[rows, None])[:, 0] - chosen)
            probabilities.append(p if kept else None)
        outputs = torch.cat(logprobs), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, labels, torch.cat(log_normalizer), outputs[1])
        ctx.temperature, ctx.probabilities = temperature, probabilities
        return outputs

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):  # noqa: ANN001, ANN205 - autograd's own signature
        hidden, weight, labels, logsumexp, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype) if ctx.needs_input_grad[1] else None
        multiplied = weight.to(hidden.dtype)
        for rows, kept in zip(_chunks(hidden, weight), ctx.probabilities, strict=True):
            p = kept
            if p is None:
                p = _logits(hidden[rows], multiplied, ctx.temperature).sub_(logsumexp[rows, None]).exp_()
            g = torch.zeros_like(logsumexp[rows]) if grad_logprobs is None else grad_logprobs[rows]
            dz = p * -g[:, None]
            if grad_entropy is not None:
                dz -= grad_entropy[rows, None] * (torch.xlogy(p, p) + p * entropy[rows, None])
            dz.scatter_add_(1, labels[rows, None], g[:, None])
            dz = dz.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = product(dz, multiplied.T)
            if grad_weight is not None:
                _add_product(grad_weight, dz, hidden[rows])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the scored rows, one for each chunk."""
    rows = max(1, CHUNK_ROWS, CHUNK_LOGITS[hidden.device.type] // weight.shape[0])
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits of a chunk at the temperature, in float32 or better."""
    logits = product(hidden, weight)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left.T @ right`, without a copy of the product where the precisions are the same."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    else:
        total += left.T @ right
