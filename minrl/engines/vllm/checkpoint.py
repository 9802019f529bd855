"""The policy's tensors as a checkpoint on disk has them, which is what vLLM's loaders read.

In memory transformers has some weights under other names and in other shapes: the experts of a layer are one tensor,
projections are joined. Of a multimodal model vLLM is given the text part, as the model of text alone that it is.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from minrl.models.sharding import master_weights, state_of
from minrl.models.text import decoder_of, head_of
from minrl.types import CausalModel


class Checkpoint:
    """What vLLM is given of a model: `shape`, a model whose config and class it runs, and tensors under its names."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.shape = _text_model(model)
        self._renamed = {} if self.shape is model else _text_paths(model, self.shape)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, tied ones once, and the persistent buffers, which are part of the model too."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        buffers = {name: tensor for name, tensor in state_of(self.model).items() if name not in parameters}
        return self.of_text(master_weights(self.model) | buffers)

    def of_text(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the tensors that vLLM is given."""
        return {name: weight for name, weight in weights.items() if self._name(name)}

    def as_saved(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors by the names and in the shapes of a checkpoint, one layer at a time: some of them are copies."""
        from transformers.core_model_loading import revert_weight_conversion  # what save_pretrained calls

        for _, names in groupby(weights, _layer):
            group = {self._name(name): weights[name].detach() for name in names}
            yield from revert_weight_conversion(self.shape, group).items()

    def _name(self, name: str) -> str:
        """The name in the model of text alone; empty where it has no such tensor."""
        for path, other in self._renamed.items():
            if name.startswith(f"{path}."):
                return other + name.removeprefix(path)
        return "" if self._renamed else name


def _text_model(model: CausalModel) -> CausalModel:
    """The model; for a multimodal one that of text alone, without storage, where transformers has one."""
    from transformers import AutoModelForCausalLM

    config: Any = model.config.get_text_config(decoder=True)
    if config is model.config or type(config) not in AutoModelForCausalLM._model_mapping:
        return model
    config = copy.deepcopy(config)
    head = head_of(model)
    config.tie_word_embeddings = head is not None and head.weight is model.get_input_embeddings().weight
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _text_paths(model: CausalModel, other: CausalModel) -> dict[str, str]:
    """The paths of the decoder and of the head in a multimodal model, and those in the model of text alone."""
    return {
        _path(model, decoder_of(model)): _path(other, decoder_of(other)),
        _path(model, head_of(model)): _path(other, head_of(other)),
    }


def _path(model: CausalModel, module: nn.Module | None) -> str:
    return next(path for path, found in model.named_modules() if found is module)


def _layer(name: str) -> str:
    """The layer of a tensor, by the first number in its name."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else ""
