"""What a forward pass keeps for its backward pass, and computing it again instead of keeping it (arXiv:1604.06174,
section 4: one segment for each layer).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minrl.types import CausalModel, UserError

LARGEST_SHARE = 0.7
"""Of the free memory that activations may take: gradients on their way and the head's logits need some too."""


def kept_bytes(run: Callable[[], object]) -> int:
    """Bytes of all tensors that the call keeps for a backward pass, those that share memory counted once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()  # its graph keeps them alive: no two have the same address
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total


@contextmanager
def recomputed(decoder: CausalModel, meanwhile: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Inside, each layer keeps its input only and is computed again in the backward pass, in the context `meanwhile`.

    There is no dropout in a policy: the second time is bit for bit the first.
    """
    lists = [module for module in decoder.children() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise UserError(f"{type(decoder).__name__} has no list of layers: choose --activation-checkpointing never")
    layers = max(lists, key=len)
    again = partial(
        checkpoint,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), meanwhile()),
    )
    for layer in layers:
        layer.forward = partial(again, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
