"""How a model is computed: whether rollouts are packed, and what decodes token by token.

Loading chooses the fastest method that gives the numbers of plain transformers (minrl/run/verify.py).
"""

from dataclasses import dataclass
from typing import Literal

from minrl.types import CausalModel

Decoding = Literal["own", "cached", "aligned", "recomputed"]


@dataclass(frozen=True)
class Method:
    """`packed`: rollouts are streams in which our attention function separates them, and a prompt is computed once;
    otherwise each is a padded row.

    `decoding`, for the embedded engine: its own decoder (or transformers' cache for shapes that it does not take);
    transformers' cache; that cache with prompts of one length at a time, where a model sees padding; or no cache, the
    whole sequence again for each token.
    """

    packed: bool = True
    decoding: Decoding = "own"


def method_of(model: CausalModel) -> Method:
    """How the model is computed: as verified at loading, or as its class promises."""
    return getattr(model, "minrl_method", None) or Method(packed=bool(model._supports_attention_backend))


def set_method(model: CausalModel, method: Method) -> None:
    """From now on the model is computed by this method."""
    model.minrl_method = method
