"""Modules of a model that compute the same in another way: faster on a CPU, with frozen weights in two bytes each, or
routers in float32. Weights and their names are unchanged.
"""

import re
from collections.abc import Callable, Container
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minrl.models.cpu import float32_on_cpu, in_float32, onednn_available, product, summed_product

NORM_CHANGE = 1e-5
"""How far a norm may be from its module's own on a probe; of a gated layer, for each token and its largest number."""

REACHES = (4.0, 64.0, -64.0)
"""The largest gate of a probe's tokens: where activations differ, and beyond limits."""

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
    """Let linear layers use `product`, where it is faster than torch's, RMS norms `_RMSNorm` and gated layers
    `_GatedLayer`.
    """
    for module in model.modules():
        if type(module) is nn.Linear and onednn_available():
            module.__class__ = Float32Linear
    for module in model.modules():
        faster = None if isinstance(module, Mixin) else _faster(module)
        if faster is not None:
            mix_in(faster, module)


def _faster(module: nn.Module) -> type[Mixin] | None:
    """The other way to compute a norm or a gated layer; None where nothing here computes the same."""
    if type(module).__name__.endswith("RMSNorm"):
        return Float32Norm if _is_plain(module) else None
    return Float32Gated if _is_gated(module) else None


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
    return torch.allclose(own, _RMSNorm.apply(probe, weight, eps), atol=NORM_CHANGE, rtol=NORM_CHANGE)


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


class Float32Gated(Mixin):
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
    return own.shape == probe.shape and bool(((own - made).abs() < NORM_CHANGE * largest).all())


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
def hold_frozen(model: nn.Module, besides: Container[nn.Module] = ()) -> None:
    """Hold the frozen weights of linear layers, embeddings and experts in bfloat16 where they are bfloat16 numbers,
    besides those of some modules. All stay in float32 where the model would compute something else with the former:
    some round their hidden states to the precision of a weight.
    """
    classes = {
        module: None if module in besides else _held_class(type(module), path.rpartition(".")[2])
        for path, module in model.named_modules()
    }
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


def compute_weights(module: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """Let a module compute its weights anew in each forward pass: those in the dictionary by its functions, which the
    caller may change at any time.
    """
    if not isinstance(module, _Computing):
        mix_in(_Computing, module)
    return module.__dict__.setdefault("weights_from", {})


class _Computing(Mixin):
    """A module whose weights exist in float32 only while it computes; for the backward pass it computes again."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any module
        """The module's own."""
        sources = dict(self.__dict__.get("weights_from", {}))  # as they are now: the backward pass comes later
        if not torch.is_grad_enabled():
            return self._forward(sources, *args, **kwargs)
        return checkpoint(self._forward, sources, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def _forward(self, sources: dict[str, Callable[[], Tensor]], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        held = {name: weight for name, weight in self._parameters.items() if weight is not None}
        parameters: dict[str, Any] = self._parameters
        parameters.update({name: sources[name]() if name in sources else in_float32(held[name]) for name in held})
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
