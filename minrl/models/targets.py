"""Which layers of a model have adapters: the settings by which peft finds them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from minrl.config import LoraConfig
from minrl.models.frozen import READ_DIRECTLY, compute_weights, is_plain_linear
from minrl.models.text import foreign_modules
from minrl.types import CausalModel, UserError


def find_targets(model: CausalModel, wanted: str, refused: Callable[[str], bool]) -> dict[str, Any]:
    """peft's settings for the layers that `lora_target_modules` names; routers and experts are parameters to peft. A
    name without a match is refused. Of all linear layers those with a name that peft refuses are left out, and those
    that a text does not pass through.
    """
    foreign = {path for path, _ in foreign_modules(model)}
    own = [(path, module) for path, module in model.named_modules() if path not in foreign]
    layers = [path for path, module in own if _adaptable(path.rpartition(".")[2], module)]
    if wanted == LoraConfig.lora_target_modules:
        linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        left_out = [path for path in linear if path not in layers or refused(path.rpartition(".")[2])]
        return {"target_modules": wanted, "exclude_modules": left_out or None}
    weights = {name: w for name, w in model.named_parameters() if name.rpartition(".")[0] not in {*layers, *foreign}}
    parameters = {name.removesuffix(".weight"): name for name, w in weights.items() if _is_matrix(name, w)}
    names = LoraConfig(lora_rank=1, lora_target_modules=wanted).target_names
    patterns = {name: rf"(.*\.)?{re.escape(name)}" for name in names} or {wanted: wanted}
    every = [*layers, *parameters]
    matched = {name: [path for path in every if re.fullmatch(p, path)] for name, p in patterns.items()}
    for name, found in matched.items():
        if not found:
            there = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in every))
            raise UserError(f"lora_target_modules: {name!r} matches no layer with a weight matrix: there are {there}")
    chosen = [path for found in matched.values() for path in found]
    refuse_tied(model, chosen)
    if names and set(chosen) <= set(layers):
        return {"target_modules": names, "exclude_modules": sorted(foreign - {""}) or None}
    return {
        "target_modules": [path for path in chosen if path not in parameters],
        "target_parameters": [parameters[path] for path in chosen if path in parameters],
    }


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """peft's refusal of a layer as a user's mistake. It may find more than it adapts: by names that end in a number."""
    try:
        yield
    except ValueError as error:
        why = " ".join(str(error).split()).partition("( (")[0][:100]  # without the layers of the module
        raise UserError(f"peft cannot adapt this model ({why}): name other layers by --lora-target-modules") from error


def refuse_tied(model: CausalModel, chosen: list[str]) -> None:
    """Refuse adapters on tied weights: they would untie them, and engines and checkpoints keep a single one."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    tied = ends[0].weight is ends[1].weight
    names = {name for name, module in model.named_modules() if module in ends}
    if tied and names & set(chosen):
        raise UserError(
            f"lora_target_modules: {', '.join(sorted(names))} share one weight in this model and cannot have "
            "adapters: leave them out"
        )


def _adaptable(name: str, module: nn.Module) -> bool:
    """Whether peft adapts the layer, so that its adapter has an effect. GPT-2's own linear layer is a Conv1D."""
    linear = isinstance(module, nn.Linear) and is_plain_linear(type(module)) and name not in READ_DIRECTLY
    return linear or isinstance(module, nn.Embedding) or type(module).__name__ == "Conv1D"


def _is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight outside of the layers that peft knows is that of experts or of a router."""
    router = weight.ndim == 2 and name.endswith((".gate.weight", ".router.weight"))
    return router or (weight.ndim == 3 and "conv" not in name)


@cache
def parameter_wrapper(wrapper: Any, merged_weight: Callable[[Any], Tensor]) -> type:  # noqa: ANN401 - of peft
    """peft's wrapper of weights that are no layer's own (experts, routers). peft computes with a merged copy, kept for
    the backward pass; here it is made again.
    """

    class ParamWrapper(wrapper):
        @contextmanager
        def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
            weights = compute_weights(self.get_base_layer())
            weights[self.parameter_name] = partial(merged_weight, self)
            try:
                yield
            finally:
                del weights[self.parameter_name]

        def __reduce__(self) -> tuple[Any, ...]:  # pickle finds no class made here
            return _empty_wrapper, (wrapper, merged_weight), self.__dict__

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of nn.Module
            try:
                return super().__getattr__(name)
            except AttributeError:  # transformers looks up weights by their plain paths as it saves
                return getattr(super().__getattr__("base_layer"), name)

    return ParamWrapper


def _empty_wrapper(wrapper: Any, merged_weight: Callable[[Any], Tensor]) -> Any:  # noqa: ANN401
    cls: Any = parameter_wrapper(wrapper, merged_weight)
    return cls.__new__(cls)
