"""Log-probabilities and entropies from hidden states, without all the logits at once.

S scored tokens, V vocabulary, D hidden size. With the temperature T, a head's logits are (W h + b) scale / T, or
cap tanh((W h + b) scale / cap) / T where it has a cap.

The output head is the widest product of a model, and its result the largest tensor of a step. `chunked_logprobs`
computes the scored positions in chunks that fit a cache. Few probabilities are kept for the backward pass; many are
computed again, so that no more than a chunk's logits ever exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minrl.dataflow import CausalModel
from minrl.models.cpu import (
    add_weight_gradient,
    few_rows_product,
    in_compute_dtype,
    in_float32,
    prepacked,
    product,
    wide_product,
)
from minrl.models.lora import merged_weight
from minrl.models.structure import head_of

CHUNK_LOGITS = {"cpu": 2**21, "cuda": 2**27}
"""Logits of one chunk by device: 8 MiB in float32, which a CPU's caches hold, and 512 MiB: in the backward pass each
chunk's product is added to the gradient of the whole head, which a GPU writes to its memory each time.
"""

CHUNK_ROWS = 128
"""Fewest rows of one chunk: with fewer the product would wait for the head's weights."""

BLOCK_ROWS, BLOCK_LOGITS = 512, 2**23
"""Rows of the backward pass's products that several chunks make up, and most logits of them, 32 MiB in float32: each
product is added to the gradient of the whole head, which of a wide one costs as much as 100 rows. On a CPU it makes a
difference for vocabularies of about 5,000 to 41,000 tokens; for larger ones, and on CUDA, a block is a chunk.
"""

KEPT_LOGITS = 2**26
"""Most probabilities that are kept for the backward pass: 256 MiB in float32."""

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of the cap c in logits c tanh(x / c): of Gemma and nanochat, RecurrentGemma, xLSTM."""

FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Names of a factor of the logits: of Cohere, Falcon-H1, Muse."""

DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
"""Names of a divisor of the logits: of Granite and MiniCPM3, Inkling."""


@dataclass(frozen=True)
class Head:
    """An output head: its weight (V, D), bias (V,), the factor of its logits, and their cap (0: none)."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float = 0.0

    def cast(self) -> "Head":
        """The head in the precision of products, for `logits` only, which is called many times."""
        bias = None if self.bias is None else in_compute_dtype(self.bias)
        return Head(prepacked(in_compute_dtype(self.weight)), bias, self.scale, self.cap)

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, D) -> (N, V) in float32 or better, without a gradient, for a few rows, by a head that is `cast`."""
        if hidden.device.type == "cpu":
            return self.shaped(few_rows_product(hidden, self.weight, self.bias))
        return self.shaped(wide_product(hidden.to(self.weight.dtype), self.weight, self.bias))

    def shaped(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """Scale and cap the product of weight and hidden states, and divide by the temperature."""
        logits = in_float32(logits)
        if self.cap:
            return logits.mul(self.scale / self.cap).tanh_().mul_(self.cap / temperature)
        divisor = temperature / self.scale
        return logits if divisor == 1 else logits.div_(divisor)


def output_head(model: CausalModel) -> Head:
    """The head with its bias, scale and cap. Loading verifies them."""
    layer, config = head_of(model), model.config.get_text_config(decoder=True)
    scale = 1.0
    for name in FACTORS:
        scale *= getattr(config, name, None) or 1.0
    for name in DIVISORS:
        scale /= getattr(config, name, None) or 1.0
    cap = next((getattr(config, name) for name in CAPS if getattr(config, name, None)), 0.0)
    return Head(merged_weight(layer), getattr(layer, "bias", None), scale, cap)


def chunked_logprobs(
    hidden: Float[Tensor, "S D"], head: Head, labels: Int[Tensor, " S"], temperature: float
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """`log_softmax(logits / temperature)` at the labels, and its entropy, without all the logits at once.

    Products are in the input's precision, or autocast's, forward and backward; sums in float32 or better.
    """
    device = hidden.device.type
    hidden = hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden
    kept = torch.is_grad_enabled() and not head.cap and len(hidden) * len(head.weight) <= KEPT_LOGITS
    with torch.autocast(device, enabled=False):
        return _ChunkedLogprobs.apply(hidden, head.weight, head.bias, head, labels, temperature, kept)


class _ChunkedLogprobs(torch.autograd.Function):
    """With z the logits at the temperature, x = W h + b, p = softmax(z), H the entropy and g, e the gradients of
    log-probability and entropy:

    dz = g (onehot(label) - p) - e p (log p + H),   dx = dz scale / T (1 - tanh^2 where there is a cap),
    dhidden = dx W,   dW = dx^T hidden,   db = sum of dx.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, head, labels, temperature, kept):  # noqa: ANN001, ANN205 - autograd's own
        ctx.set_materialize_grads(False)  # the gradient of an entropy that is only measured is None
        logprobs, entropy, log_normalizer, probabilities = [], [], [], []
        multiplied = Head(weight.to(hidden.dtype), _cast(bias, hidden), head.scale, head.cap)
        for rows in _slices(0, len(hidden), _chunk_rows(hidden, weight)):
            z = _logits(hidden[rows], multiplied, temperature)
            logp = z.log_softmax(-1)
            chosen = logp.gather(1, labels[rows, None])[:, 0]
            p = logp.exp()
            logprobs.append(chosen)
            entropy.append(-torch.linalg.vecdot(p, logp))
            log_normalizer.append(z.gather(1, labels[rows, None])[:, 0] - chosen)
            probabilities.append(p if kept else None)
        outputs = torch.cat(logprobs), torch.cat(entropy)
        ctx.save_for_backward(hidden, weight, bias, labels, torch.cat(log_normalizer), outputs[1])
        ctx.form, ctx.temperature, ctx.probabilities = (head.scale, head.cap), temperature, probabilities
        return outputs

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropy):  # noqa: ANN001, ANN205 - autograd's own signature
        hidden, weight, bias, labels, logsumexp, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=logsumexp.dtype) if ctx.needs_input_grad[2] else None
        scale, cap = ctx.form
        multiplied = Head(weight.to(hidden.dtype), _cast(bias, hidden), scale, cap)
        kept, size = iter(ctx.probabilities), _block_rows(hidden, weight)
        of_block = hidden.new_empty(min(size, len(hidden)), len(weight))
        for block in _slices(0, len(hidden), size):
            dx = of_block[: block.stop - block.start]
            for rows in _slices(block.start, block.stop, _chunk_rows(hidden, weight)):
                p, slope = next(kept), None
                if p is None:
                    z = _logits(hidden[rows], multiplied, ctx.temperature)
                    slope = 1 - (z * (ctx.temperature / cap)).square_() if cap else None
                    p = z.sub_(logsumexp[rows, None]).exp_()
                into = dx[rows.start - block.start : rows.stop - block.start]
                g = torch.zeros_like(logsumexp[rows]) if grad_logprobs is None else grad_logprobs[rows]
                dz = torch.mul(p, -g[:, None], out=into if into.dtype == p.dtype else None)
                if grad_entropy is not None:
                    dz -= grad_entropy[rows, None] * (torch.xlogy(p, p) + p * entropy[rows, None])
                dz.scatter_add_(1, labels[rows, None], g[:, None])
                dz = dz if ctx.temperature == scale else dz.div_(ctx.temperature / scale)
                dz = dz if slope is None else dz.mul_(slope)
                if dz.dtype != into.dtype:
                    into.copy_(dz)
            if grad_hidden is not None:
                grad_hidden[block] = product(dx, multiplied.weight.T)
            if grad_weight is not None:
                add_weight_gradient(grad_weight, dx, hidden[block])
            if grad_bias is not None:
                grad_bias += dx.sum(0, dtype=grad_bias.dtype)
        grads = (None if grad is None else grad.to(of.dtype) for grad, of in ((grad_weight, weight), (grad_bias, bias)))
        return grad_hidden, *grads, None, None, None, None


def _chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """Scored rows of a chunk."""
    return max(CHUNK_ROWS, CHUNK_LOGITS[hidden.device.type] // len(weight))


def _block_rows(hidden: Tensor, weight: Tensor) -> int:
    """Scored rows of the chunks that one product takes in the backward pass."""
    chunk = _chunk_rows(hidden, weight)
    return chunk * max(1, min(BLOCK_ROWS, BLOCK_LOGITS // len(weight)) // chunk)


def _slices(start: int, stop: int, rows: int) -> Iterator[slice]:
    """Slices of so many rows; the last may have fewer."""
    return (slice(first, min(stop, first + rows)) for first in range(start, stop, rows))


def _logits(hidden: Tensor, head: Head, temperature: float) -> Tensor:
    """Logits of a chunk at the temperature, in float32 or better."""
    return head.shaped(wide_product(hidden, head.weight, head.bias), temperature)


def _cast(bias: Tensor | None, hidden: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(hidden.dtype)
