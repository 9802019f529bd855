"""Parts of a layer, without a gradient, on weights that were read once: norms, short convolutions, feed-forwards.

N rows, Q positions of a row, D hidden size, F inner size, E experts, k experts of a token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.models.cpu import few_rows_product


class Norm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv:1910.07467, equation 4), or with the mean taken
    off first and a bias (arXiv:1607.06450, equation 4). The former takes half as many operations as torch's.
    """

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool, device: torch.device
    ) -> None:
        self.weight, self.bias, self.eps, self.centred = weight, bias, eps, centred
        self.eps_tensor = torch.full((), eps, dtype=torch.float64, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed rows."""
        if self.centred:
            x = F.layer_norm(x, x.shape[-1:], None, None, self.eps)
        else:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            x = x * torch.addcmul(self.eps_tensor, length, length, value=1 / x.shape[-1]).rsqrt_()
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


@dataclass(frozen=True)
class ShortConvolution:
    """out(c * convolution(b * x)), where b, c and x are one product of the input. Each channel of b * x is convolved by
    itself over a token and the k - 1 before it.
    """

    into: Tensor
    into_bias: Tensor | None
    kernel: Tensor  # (k, D)
    kernel_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None

    def start(self, rows: int) -> Tensor:
        """What comes before a sequence (N, k - 1, D): nothing."""
        return self.into.new_zeros(rows, *self.kernel[1:].shape)

    def __call__(self, x: Tensor, before: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """(N, Q, D) after what came before -> (N, Q, D), and what comes before the next token. Tokens that are not
        `real` (N, Q) are padding.
        """
        b, c, inner = few_rows_product(x, self.into, self.into_bias).chunk(3, dim=-1)
        inner = b * inner if real is None else (b * inner).masked_fill(~real[:, :, None], 0.0)
        seen = torch.cat([before, inner], dim=1)
        parts = [seen[:, index : index + x.shape[1]] * weights for index, weights in enumerate(self.kernel)]
        convolved = torch.stack(parts).sum(0)
        convolved = convolved if self.kernel_bias is None else convolved + self.kernel_bias
        return few_rows_product(c * convolved, self.out, self.out_bias), seen[:, x.shape[1] :]


@dataclass(frozen=True)
class FeedForward:
    """down(activation(gate) * up), or down(activation(up)). Gate and up are one product."""

    into: Tensor
    into_bias: Tensor | None
    gated: bool
    activation: Callable[[Tensor], Tensor]
    down: Tensor
    down_bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(N, Q, D) -> (N, Q, D)."""
        inner = few_rows_product(x, self.into, self.into_bias)
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self.activation(gate).mul_(up)
        else:
            inner = self.activation(inner)
        return few_rows_product(inner, self.down, self.down_bias)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts (arXiv:2101.03961): each token is computed by those k whose router gives it most.

    The router computes in float32, since a rounding error can change which experts are chosen, and so do the experts,
    whose products autocast leaves alone in transformers too.
    """

    router: Tensor  # (E, D)
    router_bias: Tensor | None
    count: int
    """Experts of a token: k."""
    normalised: bool
    """Whether their weights sum to 1."""
    gate_up: Tensor  # (E, D, 2 F), perhaps a view
    gate_up_bias: Tensor | None  # (E, 2 F)
    gate: Callable[[Tensor], Tensor]
    """(T, 2 F) -> (T, F)."""
    down: Tensor  # (E, F, D), perhaps a view
    down_bias: Tensor | None  # (E, D)
    shared: FeedForward | None
    """An expert of every token, weighted by the sigmoid of its own gate (1, D)."""
    shared_gate: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(N, Q, D) -> (N, Q, D)."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self._route(tokens)
        expert, order = chosen.flatten().sort()
        ends = torch.bincount(expert, minlength=len(self.router)).cumsum(0, dtype=torch.int32)
        grouped = tokens[order // self.count].to(self.gate_up.dtype)
        inner = F.grouped_mm(grouped, self.gate_up, offs=ends)
        inner = self.gate(inner if self.gate_up_bias is None else inner + self.gate_up_bias[expert])
        computed = F.grouped_mm(inner, self.down, offs=ends)
        parts = torch.empty_like(computed)
        parts[order] = computed if self.down_bias is None else computed + self.down_bias[expert]
        made = (parts.unflatten(0, (-1, self.count)) * weights[:, :, None]).sum(1).view(x.shape)
        if self.shared is None or self.shared_gate is None:
            return made
        return made + few_rows_product(x, self.shared_gate).sigmoid() * self.shared(x)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers (N * Q, k) of each token's experts."""
        with torch.autocast(tokens.device.type, enabled=False):
            shares = F.linear(tokens.float(), self.router.float(), self.router_bias).softmax(-1)
        weights, chosen = shares.topk(self.count)
        return (weights / weights.sum(-1, keepdim=True) if self.normalised else weights), chosen


def takes_grouped_products(weight: Tensor) -> bool:
    """Whether torch multiplies groups of rows by a weight (E, F, D) in float32: it wants rows of whole 16 bytes."""
    aligned = all(width % 4 == 0 for width in weight.shape[1:])
    old = weight.device.type == "cuda" and torch.cuda.get_device_capability(weight.device) < (8, 0)
    return aligned and weight.dtype != torch.float64 and not old
