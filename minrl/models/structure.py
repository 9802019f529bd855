"""The parts of a causal model: its decoder, the layers of that, and its output head."""

from collections.abc import Sequence

from torch import nn

from minrl.dataflow import CausalModel


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
