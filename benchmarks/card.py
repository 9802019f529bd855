"""A GPU that is not there: real code runs on tensors that have a device and a shape, and no numbers.

Inside `Card`, tensors on `cuda:0` are torch's fake tensors; tensors in main memory are real. What would wait for the
card, be copied to or from it, or be multiplied on it is recorded with the line of minrl/ that asked for it. Two tensors
on different devices in one operation raise, as they do on a GPU.

What kernels do inside is not seen. A value that is read from the GPU is that which was copied to it, otherwise 0.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import PartialState
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import minrl
from minrl.models.distributed import Processes
from tests.parsed import sized

PACKAGE = Path(minrl.__file__).parent

DEVICE = torch.device("cuda:0")

aten = torch.ops.aten

READS = (aten._local_scalar_dense.default, aten.equal.default)
"""What gives the host a number, for which it waits."""

UNKNOWN_SIZES = ("nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "unique_dim")
"""What makes a tensor of a size that only the GPU knows: the host waits for it too."""

COPIED_SCALARS = (aten.where.self, aten.index_put.default, aten.index_put_.default)
"""What copies a number in main memory to the GPU, where other operations hand it to their kernel."""

CAST = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "linalg_vecdot", "scaled_dot_product_attention")
"""What autocast computes in bfloat16, of what is used here."""

_make_subclass = torch.Tensor._make_subclass


@dataclass
class Record:
    """What a GPU would have done: the lines that asked for it."""

    waits: list[str] = field(default_factory=list)
    """The host waits until the GPU has done all before: a number is read, or memory that is not pinned is copied."""
    copies: list[str] = field(default_factory=list)
    """Copies between main memory and the GPU for which the host does not wait."""
    products: set[tuple[str, str]] = field(default_factory=set)
    """Products and attention: operation and precision."""


class Card(TorchDispatchMode):
    """Inside, `cuda:0` is a GPU without numbers."""

    processes: Processes

    def __init__(self) -> None:
        super().__init__()
        self.fake, self.record = FakeTensorMode(allow_non_fake_inputs=True), Record()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_card = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        target = torch.device(kwargs.get("device") or "cpu")
        if target.type == "meta":  # what torch below Python takes for the GPU
            target = kwargs["device"] = DEVICE
        if not on_card and target.type != "cuda":
            return func(*args, **kwargs)
        if func in READS:
            self.record.waits.append(_line())
            return False if func is aten.equal.default else known(on_card[0]).flatten()[0].item()
        if func.overloadpacket.__name__ in UNKNOWN_SIZES or _by_mask(func, args):
            raise RuntimeError(f"{func} on the GPU: the host waits for a size, at {_line()}")
        if func is aten._to_copy.default and "device" in kwargs:
            return self._moved(func, args[0], target, kwargs)
        if func is aten.copy_.default and args[0].device.type != args[1].device.type:
            return self._written(func, args)
        self._same_device(func, on_card, [tensor for tensor in tensors if not isinstance(tensor, FakeTensor)])
        with self.fake:
            result = func(*args, **kwargs)
        self._multiplied(func, args)
        return result

    def taken(self) -> Record:
        """What was recorded since the last time."""
        record, self.record = self.record, Record()
        return record

    def _moved(self, func: Any, source: Tensor, target: torch.device, kwargs: dict[str, Any]) -> Tensor:
        """A copy to the device: from the GPU real numbers, to it the memory of what they were."""
        if isinstance(source, FakeTensor):
            if target.type == "cpu":
                self._copied(waits=not kwargs.get("non_blocking"))
                return known(source).to(kwargs.get("dtype") or source.dtype)
            with self.fake:
                return func(source, **kwargs)
        self._copied(waits=not (kwargs.get("non_blocking") and is_pinned(source)))
        with self.fake:
            result = func(source, **kwargs)
        result.minrl_known = source.detach().clone().to(result.dtype)
        return result

    def _written(self, func: Any, args: Sequence[Any]) -> Tensor:
        into, source = args[:2]
        asynchronous = len(args) > 2 and args[2]
        if isinstance(into, FakeTensor):
            self._copied(waits=not (asynchronous and is_pinned(source)))
            with self.fake:
                return func(*args)
        self._copied(waits=not asynchronous)
        return into

    def _copied(self, waits: bool) -> None:
        (self.record.waits if waits else self.record.copies).append(_line())

    def _same_device(self, func: Any, on_card: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Numbers may be anywhere; tensors in main memory have no part in what the GPU does."""
        if on_card and any(tensor.ndim for tensor in others):
            raise RuntimeError(f"{func} of tensors on the GPU and in main memory, at {_line()}")
        if others and func in COPIED_SCALARS:
            self._copied(waits=True)

    def _multiplied(self, func: Any, args: Sequence[Any]) -> None:
        name = func.overloadpacket.__name__
        if func.overloadpacket in flop_registry or "varlen_attn" in name or name == "_grouped_mm":
            dtype = next(leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            self.record.products.add((func.overloadpacket.__name__, str(dtype).removeprefix("torch.")))


def known(tensor: Tensor) -> Tensor:
    """The numbers that were copied to the GPU, or zeros."""
    there = getattr(tensor, "minrl_known", None)
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if there is None else there


def pinned(tensor: Tensor) -> Tensor:
    """A copy that counts as pinned memory."""
    copy = tensor.clone()
    copy.minrl_pinned = True
    return copy


def is_pinned(tensor: Tensor) -> bool:
    """Whether the tensor counts as pinned memory."""
    return getattr(tensor, "minrl_pinned", False)


@contextmanager
def card() -> Iterator[Card]:
    """A GPU of 80 GB of the Hopper generation, and the process that computes on it."""
    free, made = 80 * 10**9, Card()
    with ExitStack() as stack:
        for module, name, value in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "is_bf16_supported", lambda *_: True),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "mem_get_info", lambda *_: (free, free)),
            (torch.cuda, "memory_reserved", lambda *_: 0),
            (torch.cuda, "memory_allocated", lambda *_: 0),
            (torch.Tensor, "pin_memory", pinned),
            (torch.Tensor, "_make_subclass", _as_meta),
            (FakeTensor, "tolist", lambda tensor: tensor.cpu().tolist()),
        ):
            stack.enter_context(patch.object(module, name, value))
        # What accelerate knows of this process, for all its users.
        stack.enter_context(patch.dict(PartialState._shared_state, clear=True))
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` fills main memory and then copies, as it does
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        stack.enter_context(_autocast())
        made.processes = _processes()
        yield stack.enter_context(made)


def _processes() -> Processes:
    """One process that computes in bfloat16 on the GPU, as `Processes` does where there is one."""
    processes = Processes(sized(device="cpu", dtype="bfloat16", threads=1))
    processes.device = DEVICE
    return processes


def _as_meta(*args: Any, dispatch_device: bool = False, **kwargs: Any) -> Tensor:
    """A fake tensor that is on the GPU for Python, and on `meta` for torch below it, whose CPU build can neither guard
    a GPU's streams nor run a backward pass on it.
    """
    return _make_subclass(*args, **kwargs)


@contextmanager
def _autocast() -> Iterator[None]:
    """What autocast does to products on a GPU. torch's own looks for a GPU below Python, where there is none."""
    library = torch.library.Library("aten", "IMPL", "AutocastCUDA")
    with warnings.catch_warnings(action="ignore"):  # that they take the place of torch's
        for name in CAST:
            library.impl(name, partial(_cast, getattr(aten, name).default), allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _cast(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The operation of factors in autocast's precision, without autocast inside."""
    dtype = torch.get_autocast_dtype("cuda")
    args = [a.to(dtype) if isinstance(a, Tensor) and a.dtype == torch.float32 else a for a in args]
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
        return operation(*args, **kwargs)


def _by_mask(func: Any, args: Sequence[Any]) -> bool:
    """Whether a tensor is indexed by a mask, the number of whose ones the host must know."""
    if func.overloadpacket.__name__ not in ("index", "index_put", "index_put_"):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _line() -> str:
    """The innermost line of minrl/ that is being computed; of a backward pass the line that began it."""
    frame = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE):
            return f"{file.relative_to(PACKAGE.parent)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
