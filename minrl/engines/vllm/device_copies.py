"""Copies the policy's weights into the engine's parameters on the device.

vLLM's `load_weights` knows where each tensor goes. It is recorded once, and every later sync repeats its copies. No
buffer is allocated and nothing goes over the host.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minrl.models.lora import MergedWeights
from minrl.types import CausalModel

AsSaved = Callable[[Mapping[str, Tensor]], Iterable[tuple[str, Tensor]]]
"""Gives weights the names and shapes that the model's loader reads."""

_COPY = torch.ops.aten.copy_.default


def detached(weights: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """The weights under their own names."""
    return ((name, weight.detach()) for name, weight in weights.items())


class _Recorder(TorchDispatchMode):
    """Records every copy into a tensor, and the names of all other operations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func is _COPY:
            self.pairs.append((args[0], args[1]))
        elif func._schema.is_mutable and "fill_" not in func._schema.name:
            self.others.add(func._schema.name)
        return func(*args, **(kwargs or {}))


class StableWeights:
    """Weights at the same addresses in every sync. Those with adapters are merged into buffers that are made once, in
    the engine's precision; all others are the policy's own.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights as they are now."""
        stable = {}
        for name, weight in weights.items():
            if isinstance(weights, MergedWeights) and name in weights.adapted:
                if name not in self._buffers:
                    self._buffers[name] = torch.empty_like(weight, dtype=self._dtype)
                self._buffers[name].copy_(weight)
            stable[name] = self._buffers.get(name, weight)
        return stable


class DeviceCopies:
    """Loads `weights` into the engine's model when it is made, and again, as they are then, at each `run`."""

    def __init__(self, model: CausalModel, weights: Mapping[str, Tensor], as_saved: AsSaved = detached) -> None:
        self.model = model
        self.weights = dict(weights)
        self._as_saved = as_saved
        with _Recorder() as recorder:
            self._load()
        self.targets = [target for target, _ in recorder.pairs]
        self.sources = [source for _, source in recorder.pairs]
        self.direct = not recorder.others and self._complete()
        if not self.direct:
            self.targets, self.sources = [], []  # some may be copies, which would stay

    def fits(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether these are the tensors that the copies start from."""
        storages = {name: weight.data_ptr() for name, weight in self.weights.items()}
        return {name: weight.data_ptr() for name, weight in weights.items()} == storages

    def run(self) -> None:
        """Copy. Where loading was more than copies of whole tensors, load as vLLM does."""
        if self.direct:
            torch._foreach_copy_(self.targets, self.sources)
        else:
            self._load()

    def _load(self) -> None:
        self.model.load_weights(self._as_saved(self.weights))

    def _complete(self) -> bool:
        """Whether every element of every weight was copied straight from where the optimizer keeps it."""
        copied: Counter[int] = Counter()
        for source in self.sources:
            copied[source.untyped_storage().data_ptr()] += source.numel()
        kept = {weight.untyped_storage().data_ptr(): weight.numel() for weight in self.weights.values()}
        return copied.keys() == kept.keys() and all(copied[storage] >= size for storage, size in kept.items())
