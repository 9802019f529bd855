"""The policy's tensors as a checkpoint on disk has them, which is what vLLM's loaders read.

In memory transformers has some weights under other names and in other shapes: the experts of a layer are one tensor,
projections are joined, the language model of a multimodal one has another prefix.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from torch import Tensor

from minrl.policy import master_weights
from minrl.types import CausalModel


def loadable_tensors(model: CausalModel) -> dict[str, Tensor]:
    """The weights by name, tied weights once, and the persistent buffers, which are part of the model too."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    return master_weights(model) | buffers


def as_saved(model: CausalModel, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors by the names and in the shapes of a checkpoint, one layer at a time: some of them are copies."""
    from transformers.core_model_loading import revert_weight_conversion  # what save_pretrained calls

    for _, names in groupby(weights, _layer):
        group = {name: weights[name].detach() for name in names}
        yield from revert_weight_conversion(model, group).items()


def _layer(name: str) -> str:
    """The layer of a tensor, by the first number in its name."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else ""
