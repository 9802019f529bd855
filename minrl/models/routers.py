"""Routers of mixtures of experts, which compute in float32 whatever the precision of the other products.

A router sends each token to the experts of the highest scores. Two scores that differ by less than bfloat16 resolves
change places with any rounding, and the token gets another expert: a jump, not an error in proportion. What a router
costs is little, and nothing where products are in float32 anyway.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from minrl.models.cpu import in_float32
from minrl.models.mixed import empty, mixed

ROUTER = re.compile(r"Router$|Gating$|MoE\w*Gate$", re.IGNORECASE)
"""What the classes of routers are called."""

LINEAR_ROUTERS = ("gate", "router")
"""What a plain linear layer is called that is one: it has an output for each expert."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The numbers of experts in configs."""


def exact_routers(model: nn.Module, config: Any) -> list[str]:  # noqa: ANN401 - of transformers
    """Let all routers of a model with this text config compute in float32, backward too. Returns their paths."""
    counts = {getattr(config, name, None) for name in EXPERTS}
    routers = {path: module for path, module in model.named_modules() if _is_router(path, module, counts)}
    for module in routers.values():
        module.__class__ = mixed(_Exact, type(module), "")  # type: ignore[arg-type]  # a class is hashable
    return list(routers)


def _is_router(path: str, module: nn.Module, counts: set[int | None]) -> bool:
    if ROUTER.search(type(module).__name__):
        return True
    called = path.rpartition(".")[2] in LINEAR_ROUTERS
    return called and isinstance(module, nn.Linear) and module.out_features in counts - {1, None}


class _Exact(nn.Module):
    """A module without autocast inside."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle keeps: its class has no name to be found by."""
        return empty, (*type(self).__bases__, ""), self.__dict__

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
