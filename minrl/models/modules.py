"""Modules of a model that compute the same in another way: faster on a CPU, with frozen weights in two bytes each, or
routers in float32. Weights and their names are unchanged.
"""

import re
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minrl.models.cpu import float32_on_cpu, in_float32, onednn_available, product, summed_product

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Classes of transformers that compute what `_RMSNorm` does."""

READ_DIRECTLY = ("dt_proj", "classifier")
"""Names of linear layers whose weight the model reads without calling them: Mamba's time step, LongCat's router."""

PROBED, LARGEST_CHANGE = 8, 1e-4
"""Tokens of the probe that compares held weights with those in float32, and how many nats rounding may change."""

ROUTER = re.compile(r"Router$|Gating$|MoE\w*Gate$", re.IGNORECASE)
"""What the classes of routers are called."""

LINEAR_ROUTERS = ("gate", "router")
"""What a plain linear layer is called that is one: it has an output for each expert."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The numbers of experts in configs."""


class Mixin(nn.Module):
    """Methods that come before those of a module's own class."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle keeps: the class has no name to be found by."""
        return _empty, type(self).__bases__, self.__dict__


def mix_in(methods: type[Mixin], module: nn.Module) -> None:
    """Let the module have these methods before its own."""
    module.__class__ = _mixed(methods, type(module))  # type: ignore[arg-type]  # classes are hashable


@cache
def _mixed(methods: Any, of: Any) -> Any:  # noqa: ANN401 - classes of modules
    return type(of.__name__, (methods, of), {})


def _empty(methods: Any, of: Any) -> nn.Module:  # noqa: ANN401
    cls = _mixed(methods, of)
    return cls.__new__(cls)


def speed_up(model: nn.Module) -> None:
    """Let linear layers use `product`, where it is faster than torch's, and RMS norms `_RMSNorm`."""
    for module in model.modules():
        if type(module) is nn.Linear and onednn_available():
            module.__class__ = Float32Linear
        if type(module).__name__ in NORMS and not isinstance(module, Mixin):
            mix_in(Float32Norm, module)


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
        grad_weight = summed_product(grad, x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias


class Float32Norm(Mixin):
    """An RMS norm (arXiv:1910.07467) that keeps its input and a number for each row, instead of two inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """`x / rms(x) * weight`."""
        weight = self.weight
        if isinstance(weight, Tensor) and float32_on_cpu(x, weight):
            return _RMSNorm.apply(x, weight, self.variance_epsilon)
        return super().forward(x)


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
def hold_frozen(model: nn.Module) -> None:
    """Hold the frozen weights of linear layers, embeddings and experts in bfloat16 where they are bfloat16 numbers. All
    stay in float32 where the model would compute something else with the former:
    some round their hidden states to the precision of a weight.
    """
    classes = {module: _held_class(type(module), path.rpartition(".")[2]) for path, module in model.named_modules()}
    weights = {module: list(module.parameters(recurse=False)) for module in classes}
    alone = {weight for module, held in classes.items() if held is None for weight in weights[module]}
    own = {weight for module, held in classes.items() if held is not None for weight in weights[module]} - alone
    before, short = probe(model), []
    for weight in own:  # a tied one once
        if weight.ndim >= 2 and not weight.requires_grad and weight.dtype == torch.float32:
            rounded = weight.detach().bfloat16()
            if torch.equal(rounded.float(), weight):
                weight.data = rounded
                short.append(weight)
    for module, held in classes.items():
        if held is not None and any(weight.dtype == torch.bfloat16 for weight in weights[module]):
            if not issubclass(held, Mixin):
                module.__class__ = held
            elif not isinstance(module, held):
                mix_in(held, module)
    if short and not torch.allclose(probe(model), before, atol=LARGEST_CHANGE, rtol=0):
        for weight in short:
            weight.data = weight.data.float()


def held_bytes(model: nn.Module) -> int:
    """Bytes that the held weights would take in float32."""
    return sum(4 * weight.numel() for weight in model.parameters() if weight.itemsize < 4)


@torch.no_grad()
def probe(model: nn.Module) -> Tensor:
    """Log-probabilities of a few tokens."""
    ids = torch.arange(1, 1 + PROBED, device=next(model.parameters()).device)[None]
    return model(input_ids=ids, use_cache=False).logits.log_softmax(-1)


class _Computing(Mixin):
    """A module whose held weights exist in float32 only while it computes; for the backward pass it computes again."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any module
        """The module's own."""
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        held = {name: weight for name, weight in self._parameters.items() if weight is not None}
        parameters: dict[str, Any] = self._parameters
        parameters.update({name: in_float32(weight) for name, weight in held.items()})
        try:
            return super().forward(*args, **kwargs)
        finally:
            parameters.update(held)


class _HeldEmbedding(Mixin):
    """An embedding of which only the rows that are looked up are cast. There is no gradient, and so no padding row."""

    def forward(self, ids: Tensor) -> Tensor:
        """The module's own forward pass, with the rows of these ids as its whole table."""
        parameters: dict[str, Any] = self._parameters
        held, padding = parameters["weight"], self.padding_idx  # type: ignore[has-type]
        parameters["weight"], self.padding_idx = in_float32(held[ids.flatten()]), None  # type: ignore[assignment]
        try:
            return super().forward(torch.arange(ids.numel(), device=ids.device).view_as(ids))
        finally:
            parameters["weight"], self.padding_idx = held, padding


def is_plain_linear(of: type) -> bool:
    """Whether a class of linear layers computes what `nn.Linear` does: routers give more, and some add groups."""
    return of in (nn.Linear, Float32Linear) or of.__name__ == "FalconLinear"


def _held_class(of: type, name: str) -> type[nn.Module] | None:
    """The class or mixin that computes with held weights; None where the model reads them in a way of its own."""
    if issubclass(of, nn.Linear):
        return Float32Linear if is_plain_linear(of) and name not in READ_DIRECTLY else None
    if of is nn.Embedding or "ScaledWordEmbedding" in of.__name__:
        return _HeldEmbedding
    return _Computing if "Experts" in of.__name__ or of.__name__ == "Conv1D" else None


def exact_routers(model: nn.Module, config: Any) -> list[str]:  # noqa: ANN401 - of transformers
    """Let all routers of a model with this text config compute in float32, backward too. Returns their paths.

    Two scores that differ by less than bfloat16 resolves change places with any rounding, and the token gets another
    expert: a jump, not an error in proportion. What a router costs is little.
    """
    counts = {getattr(config, name, None) for name in EXPERTS}
    routers = {path: module for path, module in model.named_modules() if _is_router(path, module, counts)}
    for module in routers.values():
        mix_in(ExactRouter, module)
    return list(routers)


def _is_router(path: str, module: nn.Module, counts: set[int | None]) -> bool:
    if ROUTER.search(type(module).__name__):
        return True
    called = path.rpartition(".")[2] in LINEAR_ROUTERS
    return called and isinstance(module, nn.Linear) and module.out_features in counts - {1, None}


class ExactRouter(Mixin):
    """A router without autocast inside."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any router
        """The module's own, of inputs in at least float32."""
        device = next(self.parameters()).device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return super().forward(*map(_promoted, args), **{name: _promoted(v) for name, v in kwargs.items()})


def _promoted(value: Any) -> Any:  # noqa: ANN401 - of any router
    """A floating-point tensor in at least float32; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return in_float32(value)
