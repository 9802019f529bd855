"""Modules of a model that compute the same in another way: faster on a CPU, or with frozen weights in two bytes each.
Weights and their names are unchanged.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minrl.dataflow import CausalModel
from minrl.models.cpu import float32_on_cpu, in_float32, onednn_available, product, weight_gradient
from minrl.models.experts import casts_experts

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Classes of transformers that compute what `_RMSNorm` does."""

READ_DIRECTLY = ("dt_proj", "classifier")
"""Names of linear layers whose weight the model reads without calling them: Mamba's time step, LongCat's router."""

PROBED, LARGEST_CHANGE = 8, 1e-4
"""Tokens of the probe that compares held weights with those in float32, and how many nats rounding may change."""


def speed_up(model: nn.Module) -> None:
    """Let linear layers use `product`, where it is faster than torch's, and RMS norms `_RMSNorm`."""
    for module in model.modules():
        if type(module) is nn.Linear and onednn_available():
            module.__class__ = Float32Linear
        if type(module).__name__ in NORMS:
            module.__class__ = Float32Norm


class Float32Linear(nn.Linear):
    """`nn.Linear` whose products in float32 are oneDNN's. Its weight may be held in fewer bits (`hold_frozen`)."""

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
        grad_weight = weight_gradient(grad, x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias


class Float32Norm(nn.Module):
    """An RMS norm (arXiv:1910.07467) that keeps its input and a number for each row, instead of two inputs."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, x: Tensor) -> Tensor:
        """`x / rms(x) * weight`; elsewhere than on a CPU in float32 as transformers computes it."""
        if float32_on_cpu(x, self.weight):
            return _RMSNorm.apply(x, self.weight, self.variance_epsilon)
        hidden = in_float32(x)
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * hidden.to(x.dtype)


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


def recast_linears(model: nn.Module) -> None:
    """Let every plain linear layer under autocast keep its weight for the backward pass, in place of the weight's cast:
    that would be a copy of the whole model in two bytes, for which a sharded model has no room.
    """
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


@torch.no_grad()
def hold_frozen(model: CausalModel) -> None:
    """Hold the frozen weights of linear layers and experts in bfloat16 where they are bfloat16 numbers. All stay in
    float32 where the model would compute something else with the former: some round their hidden states to a weight's
    precision.
    """
    before, held, embedding = probe(model), [], model.get_input_embeddings().weight
    for path, module in model.named_modules():
        linear = is_plain_linear(type(module)) and path.rpartition(".")[2] not in READ_DIRECTLY
        weights = list(module.parameters(recurse=False)) if linear or casts_experts(module) else []
        weights = [weight for weight in weights if _can_be_held(weight) and weight is not embedding]
        for weight in weights:
            weight.data = weight.detach().bfloat16()
        if weights and linear:
            module.__class__ = Float32Linear
        held += weights
    if held and not torch.allclose(probe(model), before, atol=LARGEST_CHANGE, rtol=0):
        for weight in held:
            weight.data = weight.data.float()


def _can_be_held(weight: Tensor) -> bool:
    return not weight.requires_grad and weight.ndim >= 2 and torch.equal(weight.bfloat16().float(), weight)


def held_bytes(model: nn.Module) -> int:
    """Bytes that the held weights would take in float32."""
    return sum(4 * weight.numel() for weight in model.parameters() if weight.itemsize < 4)


@torch.no_grad()
def probe(model: nn.Module) -> Tensor:
    """Log-probabilities of a few tokens."""
    ids = torch.arange(1, 1 + PROBED, device=next(model.parameters()).device)[None]
    return model(input_ids=ids, use_cache=False).logits.log_softmax(-1)


def is_plain_linear(of: type) -> bool:
    """Whether a class of linear layers computes what `nn.Linear` does: routers give more, and some add groups."""
    return of in (nn.Linear, Float32Linear) or of.__name__ == "FalconLinear"
