"""The text part of a model: what is trained. In a multimodal model the vision tower, the projector and the like are
frozen, and stay in the checkpoint as they were.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from minrl.dataflow import CausalModel

FOREIGN = re.compile(r"vision|visual|image|audio|speech|cross_?att")
"""Modules inside a multimodal model's decoder, by name, that a text does not pass through."""

CROSS = "CrossAttention"
"""What the classes of layers are called that attend to images alone."""


def decoder_of(model: CausalModel) -> CausalModel:
    """The layers that turn tokens into final hidden states.

    `get_decoder` of some models, such as Llama 4, is a causal model with a head, which does not name its own decoder;
    that of ModernBERT is the head.
    """
    decoder = model.get_decoder()
    if decoder is model.get_output_embeddings():
        return model.base_model
    while decoder.get_output_embeddings() is not None:
        inner = decoder.get_decoder()
        own = (child for child in decoder.children() if hasattr(child, "get_decoder"))
        decoder = inner if inner is not decoder else next(own)
    return decoder


def head_of(model: CausalModel) -> nn.Module | None:
    """The output head: the model's own, or that of the causal model inside."""
    head = model.get_output_embeddings()
    return head if head is not None or model.get_decoder() is model else head_of(model.get_decoder())


def layers_of(decoder: CausalModel) -> Sequence[nn.Module]:
    """The longest list of modules of the decoder, or of the modules in it; empty if there is none."""
    outer: list[nn.Module] = [decoder]
    while outer:
        inner = [child for module in outer for child in module.children()]
        lists = [list(child) for child in inner if isinstance(child, nn.ModuleList)]
        if lists:
            return max(lists, key=len)
        outer = inner
    return []


def train_text(model: CausalModel) -> None:
    """Let the text part alone have gradients: everything, where the model knows nothing but text."""
    model.requires_grad_(True)
    for _, module in foreign_modules(model):
        for weight in module.parameters(recurse=False):
            weight.requires_grad_(False)


def foreign_modules(model: CausalModel) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a multimodal model that are no part of its text part, by path."""
    if not is_multimodal(model):
        return
    decoder, head = decoder_of(model), head_of(model)
    inside = {
        module
        for path, owner in decoder.named_modules()
        if FOREIGN.search(path.rpartition(".")[2]) or CROSS in type(owner).__name__
        for module in owner.modules()
    }
    text = {*decoder.modules(), *(head.modules() if head else ())} - inside
    yield from ((path, module) for path, module in model.named_modules() if module not in text)


def is_multimodal(model: CausalModel) -> bool:
    """Whether the model takes more than text."""
    return model.config.get_text_config(decoder=True) is not model.config or hasattr(model.config, "vision_config")


def frozen_precision(config: Any) -> torch.dtype:  # noqa: ANN401 - of transformers
    """The precision of the frozen weights in a checkpoint: that of a config beside the text part's, else of all."""
    return next((other.dtype for other in _other_configs(config) if other.dtype), config.dtype) or torch.float32


def keep_precision(model: CausalModel, dtype: torch.dtype) -> None:
    """Give the frozen weights this precision again, where nothing is lost, and note it in their configs."""
    for weight in model.parameters():
        if not weight.requires_grad and torch.equal((kept := weight.data.to(dtype)).to(weight.dtype), weight.data):
            weight.data = kept
    for config in _other_configs(model.config):
        config.dtype = dtype


def _other_configs(config: Any) -> list[Any]:  # noqa: ANN401 - of transformers
    """The configs inside of what is not text."""
    inside = (getattr(config, name, None) for name in config.sub_configs)
    return [one for one in inside if one is not None and one is not config.get_text_config(decoder=True)]
