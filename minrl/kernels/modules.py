"""Modules of a float32 model on a CPU that compute the same faster. Weights and their names are unchanged."""

import torch
from torch import Tensor, nn

from minrl.kernels.cpu import float32_on_cpu, onednn_available, product, summed_product
from minrl.kernels.mixed import empty, mixed

PREFIX = "Float32"
"""Of the names of classes made here."""

LARGEST_CHANGE = 1e-5
"""How far a norm may be from its module's own on a probe."""


def speed_up(model: nn.Module) -> None:
    """Let linear layers use `product`, where it is faster than torch's, and RMS norms `_RMSNorm`."""
    for module in model.modules():
        if type(module) is nn.Linear and onednn_available():
            module.__class__ = Float32Linear
        elif type(module).__name__.endswith("RMSNorm") and not isinstance(module, Float32Norm) and _is_plain(module):
            module.__class__ = mixed(Float32Norm, type(module), PREFIX)  # type: ignore[arg-type]  # a class is hashable


class Float32Linear(nn.Linear):
    """`nn.Linear` whose products in float32 are oneDNN's. Its weight may be held in fewer bits (frozen.py)."""

    def forward(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        held = self.weight.itemsize < x.itemsize and not torch.is_autocast_enabled(x.device.type)
        if held or float32_on_cpu(x, self.weight):
            rows = x.reshape(-1, x.shape[-1])  # outside, so that the product is no view and may be changed in place
            return _Product.apply(rows, self.weight, self.bias).view(*x.shape[:-1], self.out_features)
        return super().forward(x)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):  # noqa: ANN001, ANN205 - autograd's own signature
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        x, weight = ctx.saved_tensors
        grad_bias = grad.sum(0) if ctx.has_bias else None
        grad_x = product(grad, weight.T) if ctx.needs_input_grad[0] else None
        grad_weight = summed_product(grad, x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias


class Float32Norm(nn.Module):
    """An RMS norm (arXiv:1910.07467) that keeps its input and a number for each row, instead of two inputs."""

    def __reduce__(self) -> tuple[object, ...]:
        """What pickle keeps: its class has no name to be found by."""
        return empty, (*type(self).__bases__, PREFIX), self.__dict__

    def forward(self, x: Tensor) -> Tensor:
        """`x / rms(x) * weight`."""
        weight = self.weight
        if isinstance(weight, Tensor) and float32_on_cpu(x, weight):
            return _RMSNorm.apply(x, weight, _eps(self))
        return super().forward(x)


def _eps(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


@torch.no_grad()
def _is_plain(norm: nn.Module) -> bool:
    """Whether a norm computes what `_RMSNorm` does: others add 1 to the weight, or a bias, or take more inputs, or have
    a weight that is no parameter and is not read.
    """
    weight, eps = getattr(norm, "weight", None), _eps(norm)
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or eps is None or not float32_on_cpu(weight, weight):
        return False
    probe = torch.sin(torch.arange(1.0, 1 + 2 * len(weight))).view(2, -1)  # torch's generator stays as it is
    try:
        own = norm(probe)
    except TypeError:
        return False
    return torch.allclose(own, _RMSNorm.apply(probe, weight, eps), atol=LARGEST_CHANGE, rtol=LARGEST_CHANGE)


class _RMSNorm(torch.autograd.Function):
    """With r = 1 / sqrt(mean(x^2) + eps) and D dimensions:

    y = x r w,   dx = r g w - x r^3 / D sum(g w x),   dw = sum of g x r over the rows.
    """

    @staticmethod
    def forward(ctx, x, weight, eps):  # noqa: ANN001, ANN205 - autograd's own signature
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        x, weight, scale = ctx.saved_tensors
        products = (grad * x).reshape(-1, len(weight))
        grad_weight = products.T @ scale.reshape(-1) if ctx.needs_input_grad[1] else None
        along = (products @ weight).reshape(scale.shape).mul_(scale.pow(3)).div_(-len(weight))
        grad_x = (grad * weight).mul_(scale).addcmul_(x, along) if ctx.needs_input_grad[0] else None
        return grad_x, grad_weight, None
