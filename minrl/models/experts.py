"""Experts of mixtures in the precision of products, which autocast leaves in that of their weights.

transformers computes all experts of a layer by one grouped product (its experts interface). A GPU has a kernel for
factors in bfloat16; with factors in float32 torch multiplies for one expert after another and waits in between.
"""

from typing import Any

from torch import Tensor, nn

from minrl.dataflow import CausalModel
from minrl.models.cpu import in_compute_dtype

EXPERTS = "minrl_experts"
"""The name of `cast_experts` among transformers' functions for experts."""


class _Cast:
    """A layer's experts with weights in the precision of products. The gradient of a weight is in its own."""

    def __init__(self, experts: Any) -> None:  # noqa: ANN401 - of any mixture
        self._experts = experts

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any module
        value = getattr(self._experts, name)
        return in_compute_dtype(value) if isinstance(value, nn.Parameter) else value


def cast_experts(experts: nn.Module, *inputs: Tensor) -> Tensor:
    """transformers' grouped product: what its models call for the experts of a layer."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    cast: Any = _Cast(experts)
    return grouped_mm_experts_forward(cast, *inputs)


def casts_experts(module: nn.Module) -> bool:
    """Whether a module computes by `cast_experts`, and so may hold its weights in bfloat16."""
    config: Any = getattr(module, "config", None)
    return "Experts" in type(module).__name__ and getattr(config, "_experts_implementation", "") == EXPERTS


def use_cast_experts(model: CausalModel) -> None:
    """Let the experts of a model compute by `cast_experts` where transformers has a grouped product for them."""
    if model.config._experts_implementation == "grouped_mm":
        model.set_experts_implementation(EXPERTS)
