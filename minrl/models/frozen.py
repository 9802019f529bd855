"""Frozen weights that stay in the checkpoint's precision, two bytes each, while products are those of float32.

A weight that is not trained needs no float32 master. It is cast for each product and the cast is forgotten, in the
backward pass too, so that one layer at a time is in float32. Under autocast products take the weights as they are.
Weights are held so only where nothing is lost: each of them is a bfloat16 number, or was loaded in fewer than 32 bits.
"""

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minrl.models.cpu import in_float32
from minrl.models.mixed import empty, mixed
from minrl.models.modules import Float32Linear

READ_DIRECTLY = ("dt_proj", "classifier")
"""Names of linear layers whose weight the model reads without calling them: Mamba's time step, LongCat's router."""

PREFIX = "Held"
"""Of the names of classes made here."""

PROBED, LARGEST_CHANGE = 8, 1e-4
"""Tokens of the probe that compares held weights with those in float32, and how many nats rounding may change."""


@torch.no_grad()
def hold_frozen(model: nn.Module, besides: Container[nn.Module] = ()) -> None:
    """Hold the frozen weights of linear layers, embeddings and experts in bfloat16 where they are bfloat16 numbers,
    besides those of some modules. All stay in float32 where the model would compute something else with the former:
    some round their hidden states to the precision of a weight.
    """
    classes = {
        module: None if module in besides else _held_class(type(module), path.rpartition(".")[2])
        for path, module in model.named_modules()
    }
    weights = {module: list(module.parameters(recurse=False)) for module in classes}
    alone = {weight for module, held in classes.items() if held is None for weight in weights[module]}
    own = {weight for module, held in classes.items() if held is not None for weight in weights[module]} - alone
    before, short = probe(model), []
    for weight in own:  # a tied one once
        if weight.ndim >= 2 and not weight.requires_grad and weight.dtype == torch.float32:
            rounded = weight.detach().bfloat16()
            if torch.equal(rounded.float(), weight):
                weight.data = rounded
                short.append(weight)
    for module, held in classes.items():
        if held is not None and any(weight.dtype == torch.bfloat16 for weight in weights[module]):
            module.__class__ = held
    if short and not torch.allclose(probe(model), before, atol=LARGEST_CHANGE, rtol=0):
        for weight in short:
            weight.data = weight.data.float()


def held_bytes(model: nn.Module) -> int:
    """Bytes that the held weights would take in float32."""
    return sum(4 * weight.numel() for weight in model.parameters() if weight.itemsize < 4)


@torch.no_grad()
def probe(model: nn.Module) -> Tensor:
    """Log-probabilities of a few tokens."""
    ids = torch.arange(1, 1 + PROBED, device=next(model.parameters()).device)[None]
    return model(input_ids=ids, use_cache=False).logits.log_softmax(-1)


def compute_weights(module: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """Let a module compute its weights anew in each forward pass: those in the dictionary by its functions, which the
    caller may change at any time.
    """
    if not isinstance(module, _Computing):
        module.__class__ = mixed(_Computing, type(module), PREFIX)  # type: ignore[arg-type]  # a class is hashable
    return module.__dict__.setdefault("weights_from", {})


class _Computing(nn.Module):
    """A module whose weights exist in float32 only while it computes; for the backward pass it computes again."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle keeps: its class has no name to be found by."""
        return empty, (*type(self).__bases__, PREFIX), self.__dict__

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any module
        """The module's own."""
        sources = dict(self.__dict__.get("weights_from", {}))  # as they are now: the backward pass comes later
        if not torch.is_grad_enabled():
            return self._forward(sources, *args, **kwargs)
        return checkpoint(self._forward, sources, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def _forward(self, sources: dict[str, Callable[[], Tensor]], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        held = {name: weight for name, weight in self._parameters.items() if weight is not None}
        parameters: dict[str, Any] = self._parameters
        parameters.update({name: sources[name]() if name in sources else in_float32(held[name]) for name in held})
        try:
            return super().forward(*args, **kwargs)
        finally:
            parameters.update(held)


class _HeldEmbedding(nn.Embedding):
    """An embedding of which only the rows that are looked up are cast. There is no gradient, and so no padding row."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As of `_Computing`."""
        return empty, (*type(self).__bases__, PREFIX), self.__dict__

    def forward(self, ids: Tensor) -> Tensor:
        """The module's own forward pass, with the rows of these ids as its whole table."""
        parameters: dict[str, Any] = self._parameters
        held, padding = parameters["weight"], self.padding_idx
        parameters["weight"], self.padding_idx = in_float32(held[ids.flatten()]), None
        try:
            return super().forward(torch.arange(ids.numel(), device=ids.device).view_as(ids))
        finally:
            parameters["weight"], self.padding_idx = held, padding


def is_plain_linear(of: type) -> bool:
    """Whether a class of linear layers computes what `nn.Linear` does: routers give more, and some add groups."""
    return of in (nn.Linear, Float32Linear) or of.__name__ == "FalconLinear"


def _held_class(of: Any, name: str) -> Any:  # noqa: ANN401 - a class of modules
    """The class that computes with held weights; None where the model reads them in a way of its own."""
    if issubclass(of, nn.Linear):
        return Float32Linear if is_plain_linear(of) and name not in READ_DIRECTLY else None
    if issubclass(of, _Computing):
        return of
    if of is nn.Embedding or "ScaledWordEmbedding" in of.__name__:
        return mixed(_HeldEmbedding, of, PREFIX)
    return mixed(_Computing, of, PREFIX) if "Experts" in of.__name__ or of.__name__ == "Conv1D" else None
