"""Activations: how many bytes a forward pass keeps, and recomputing them in the backward pass (arXiv:1604.06174,
section 4: one segment for each layer).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minrl.types import CausalModel, UserError

LARGEST_SHARE = 0.7
"""The share of free memory that activations may take; gradients and the head's logits need the rest."""


def kept_bytes(run: Callable[[], object]) -> int:
    """Bytes of the tensors that the call saves for a backward pass; shared memory counts once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        alone = tensor.detach()  # the tensor itself would keep its own graph for ever
        kept[tensor.untyped_storage().data_ptr()] = alone
        return alone

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def growth(kept: Callable[[int], int], short: int) -> tuple[float, float]:
    """Bytes per token and per pair of tokens, from what is kept for `short`, twice and four times as many tokens."""
    sizes = [kept(length) for length in (short, 2 * short, 4 * short)]
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    quadratic = (second - 2 * first) / (6 * short**2)
    return first / short - 3 * short * quadratic, quadratic


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


@contextmanager
def recomputed(decoder: CausalModel, meanwhile: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Inside, each layer keeps its input only and is computed again in the backward pass, in the context `meanwhile`.

    A policy has no dropout: both computations are bit for bit the same.
    """
    layers = list(dict.fromkeys(layers_of(decoder)))  # a layer that occurs twice once
    if not layers:
        raise UserError(f"{type(decoder).__name__} has no list of layers: choose --activation-checkpointing never")
    again = partial(
        checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: (nullcontext(), meanwhile())
    )
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(again, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
