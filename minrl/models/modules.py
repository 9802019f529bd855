"""Modules of a float32 model on a CPU that compute the same faster. Weights and their names are unchanged."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minrl.models.cpu import float32_on_cpu, onednn_available, product, summed_product
from minrl.models.mixed import empty, mixed

PREFIX = "Float32"
"""Of the names of classes made here."""

LARGEST_CHANGE = 1e-5
"""How far a norm may be from its module's own on a probe; of a gated layer, for each token and its largest number."""

REACHES = (4.0, 64.0, -64.0)
"""The largest gate of a probe's tokens: where activations differ, and beyond limits."""


def speed_up(model: nn.Module) -> None:
    """Let linear layers use `product`, where it is faster than torch's, RMS norms `_RMSNorm` and gated layers
    `_GatedLayer`.
    """
    for module in model.modules():
        if type(module) is nn.Linear and onednn_available():
            module.__class__ = Float32Linear
    for module in model.modules():
        faster = None if isinstance(module, Float32Module) else _faster(module)
        if faster is not None:
            module.__class__ = mixed(faster, type(module), PREFIX)  # type: ignore[arg-type]  # a class is hashable


def _faster(module: nn.Module) -> "type[Float32Module] | None":
    """The other way to compute a norm or a gated layer; None where nothing here computes the same."""
    if type(module).__name__.endswith("RMSNorm"):
        return Float32Norm if _is_plain(module) else None
    return Float32Gated if _is_gated(module) else None


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


class Float32Module(nn.Module):
    """A model's module with another way to compute, and with the module's own for what that cannot take."""

    def __reduce__(self) -> tuple[object, ...]:
        """What pickle keeps: its class has no name to be found by."""
        return empty, (*type(self).__bases__, PREFIX), self.__dict__


class Float32Norm(Float32Module):
    """An RMS norm (arXiv:1910.07467) that keeps its input and a number for each row, instead of two inputs."""

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


class Float32Gated(Float32Module):
    """A gated layer (SwiGLU, arXiv:2002.05202) that keeps two tensors of its width for the backward pass, not four."""

    def forward(self, x: Tensor) -> Tensor:
        """`down(silu(gate(x)) * up(x))`."""
        weights = _gated_weights(self)
        if weights is None or not all(float32_on_cpu(x, weight) for weight in weights):
            return super().forward(x)
        return _GatedLayer.apply(x.reshape(-1, x.shape[-1]), *weights).view(x.shape)


def _gated_weights(module: nn.Module) -> list[Tensor] | None:
    """Of gate, up and down; None where one is not a plain linear layer without a bias, as under adapters, or has hooks,
    which run where it is called.
    """
    weights: list[Tensor] = []
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = getattr(module, name, None)
        if not isinstance(layer, Float32Linear) or layer.bias is not None or _has_hooks(layer):
            return None
        weights.append(layer.weight)
    return weights


def _has_hooks(layer: nn.Module) -> bool:
    forward = layer._forward_hooks or layer._forward_pre_hooks
    return bool(forward or layer._backward_hooks or layer._backward_pre_hooks)


@torch.no_grad()
def _is_gated(module: nn.Module) -> bool:
    """Whether a module computes what `_GatedLayer` does: others have another activation, limits or scales. Weights of
    any size make the same gates of the probe; where they make zeros, nothing can be said.
    """
    weights = _gated_weights(module)
    if weights is None or not float32_on_cpu(weights[0], weights[2]):
        return False
    probe = torch.sin(torch.arange(1.0, 1 + weights[0].shape[1]))[None]
    nearest = min(product(probe, weight).abs().max() for weight in weights[:2])
    probe = probe * torch.tensor(REACHES)[:, None] / nearest
    try:
        own = module(probe[None])[0]
        made = _GatedLayer.apply(probe, *weights)
    except (TypeError, RuntimeError):  # it takes more, or gives more
        return False
    largest = made.abs().amax(dim=1, keepdim=True)
    return own.shape == probe.shape and bool(((own - made).abs() < LARGEST_CHANGE * largest).all())


class _GatedLayer(torch.autograd.Function):
    """Its activation is computed again in the backward pass: one pass over it costs less than to keep it."""

    @staticmethod
    def forward(ctx, x, gate, up, down):  # noqa: ANN001, ANN205 - autograd's own signature
        gated, upward = product(x, gate), product(x, up)
        ctx.save_for_backward(x, gate, up, down, gated, upward)
        return product(F.silu(gated).mul_(upward), down)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        x, gate, up, down, gated, upward = ctx.saved_tensors
        of_x, of_gate, of_up, of_down = ctx.needs_input_grad
        opened = F.silu(gated)
        grad_down = summed_product(grad, opened * upward) if of_down else None
        grad_inner = product(grad, down.T)
        grad_upward = opened.mul_(grad_inner)
        grad_gated = torch.ops.aten.silu_backward(grad_inner.mul_(upward), gated)
        grad_x = product(grad_gated, gate.T).add_(product(grad_upward, up.T)) if of_x else None
        grad_gate = summed_product(grad_gated, x) if of_gate else None
        return grad_x, grad_gate, summed_product(grad_upward, x) if of_up else None, grad_down
