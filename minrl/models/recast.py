"""Linear layers that cast their weights again in the backward pass.

Under autocast a product keeps the cast of its weight for the backward pass: a copy of the whole model in two bytes. A
sharded model has no room for it. These keep the weight itself, whose storage is freed and gathered again.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minrl.models.modules import Float32Linear


def recast_linears(model: nn.Module) -> None:
    """Let every plain linear layer under autocast keep its weight in place of the weight's cast."""
    for module in model.modules():
        if type(module) in (nn.Linear, Float32Linear):
            module.__class__ = RecastLinear


class RecastLinear(Float32Linear):
    """`nn.Linear` with the same products, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        if not torch.is_autocast_enabled(x.device.type) or self.weight.itemsize < 4:  # which needs no cast
            return super().forward(x)
        return _Recast.apply(x, self.weight, self.bias, torch.get_autocast_dtype(x.device.type))


class _Recast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, dtype):  # noqa: ANN001, ANN205 - autograd's own signature
        x = x.to(dtype)
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = grad @ weight.to(grad.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = rows.T @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, rows.sum(0) if ctx.has_bias else None, None
