"""Decoder layers compiled one by one (`--compile`): what stands between their products becomes a few kernels.

Attention is an operator that the compiler does not look into. It finds the stream by a number in a tensor, since for
another Python object the compiler would compile again. Its backward pass attends once more.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from minrl.dataflow import CausalModel
from minrl.models.attention import StreamAttention
from minrl.models.cpu import in_compute_dtype
from minrl.models.structure import decoder_of, layers_of

COMPILED = "minrl_compiled"
"""The name of `compiled_attention` among transformers' attention functions, and of a layer's compiled forward pass."""

STREAMS: WeakValueDictionary[int, StreamAttention] = WeakValueDictionary()

RECORDING = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
RECORDING |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCUDA)
RECORDING |= torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""The parts of torch that record for a backward pass. It leaves them out inside of an operator."""


def compile_layers(model: CausalModel) -> None:
    """From now on `score` uses compiled layers. They are compiled when they are first called."""
    for layer in layers_of(decoder_of(model)):
        layer.__dict__[COMPILED] = torch.compile(layer.forward, dynamic=True)


def is_compiled(decoder: CausalModel) -> bool:
    """Whether `compile_layers` was called for it."""
    return any(COMPILED in vars(layer) for layer in layers_of(decoder))


@contextmanager
def compiled_layers(decoder: CausalModel) -> Iterator[None]:
    """Inside, the layers compute by their compiled forward passes."""
    layers = layers_of(decoder)
    for layer in layers:
        layer.forward = vars(layer)[COMPILED]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def handle_of(attention: StreamAttention) -> Tensor:
    """The number by which the operator finds the attention, for as long as that is kept."""
    STREAMS[id(attention)] = attention
    return torch.tensor(id(attention))


def compiled_attention(
    _: CausalModel, query: Tensor, key: Tensor, value: Tensor, *__: Tensor, **kwargs: object
) -> object:
    """What a compiled layer calls (transformers' attention interface); autocast does not reach into an operator."""
    scale, window = kwargs.get("scaling") or 1 / math.sqrt(query.shape[-1]), kwargs.get("sliding_window")
    return ATTEND(
        in_compute_dtype(query), in_compute_dtype(key), in_compute_dtype(value), kwargs["stream"], scale, window
    ), None


def _attend(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float, window: int | None) -> Tensor:
    """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C), in the inputs' precision."""
    with torch.autocast(query.device.type, query.dtype, enabled=query.dtype in (torch.bfloat16, torch.float16)):
        return STREAMS[int(handle)](query, key, value, scale, window).to(query.dtype).contiguous()


def _attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float, window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - RECORDING), torch.enable_grad():
        query, key, value = inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        grads = torch.autograd.grad(_attend(query, key, value, handle, scale, window), inputs, grad)
    of_query, of_key, of_value = (one.contiguous() for one in grads)
    return of_query, of_key, of_value


def _saved(ctx, inputs, output) -> None:  # noqa: ANN001 - torch.library's own signature
    *tensors, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx, grad):  # noqa: ANN001, ANN202 - torch.library's own signature
    return *ATTEND_BACKWARD(grad.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.window), None, None, None


ATTEND = torch.library.custom_op("minrl::attend", _attend, mutates_args=())
ATTEND_BACKWARD = torch.library.custom_op("minrl::attend_backward", _attend_backward, mutates_args=())
ATTEND.register_fake(lambda query, _, value, *__: query.new_empty(1, *query.shape[2:0:-1], value.shape[3]))
ATTEND_BACKWARD.register_fake(lambda _, *inputs: tuple(x.new_empty(x.shape) for x in inputs[:3]))
ATTEND.register_autograd(_gradients, setup_context=_saved)
