"""How a model can be computed: each method against plain transformers, before anything is trained.

Plain transformers is its own forward pass of one sequence at a time, with eager attention and all logits. A method that
differs from it is not used; a model that no method computes right is refused.
"""

from dataclasses import dataclass, replace

import torch

from minrl.engines.decoder import has_own_decoder
from minrl.engines.slices import footprint
from minrl.models.method import Decoding, Method, set_method
from minrl.models.text import decoder_of
from minrl.run.probe import LOGPROB_GAP, Computed, Probe, narrowed, set_attention
from minrl.types import CausalModel, UserError
from minrl.utils.text import first_line

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""What says nothing of a method: another one may need less memory, but is slower for ever."""


@dataclass(frozen=True)
class Verified:
    """The method that was chosen, and why faster ones were not: their differences from plain transformers."""

    method: Method
    why_not_packed: str = ""
    why_not_cached: str = ""


def verify(model: CausalModel) -> Verified:
    """Give the model the fastest method that computes it right. Raises `UserError` if there is none."""
    try:
        footprint(model, itemsize=4)
    except Exception as error:  # of sizes that the config lacks
        raise refused(model, f"its config does not tell its shape ({first_line(error)})") from error
    with narrowed(model):
        try:
            probe = Probe(model)
            expected = _expected(model, probe)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # a forward pass raises whatever its code leads it to
            raise refused(model, f"transformers' own forward pass fails: {first_line(error)}") from error
        if not bool(expected.logprobs.isfinite().all()):
            raise refused(model, "its log-probabilities are not finite")
        if not expected.gradients:  # Reformer's backward pass is its own
            raise refused(model, "autograd finds no gradient of its layers")
        if not probe.is_causal():
            raise refused(model, "the log-probability of a token depends on the tokens behind it")
        packed, why_not_packed = _choose_scoring(model, probe, expected)
        decoding, why_not_cached = _choose_decoding(model, probe, expected)
    method = Method(packed, decoding)
    set_method(model, method)
    return Verified(method, why_not_packed, why_not_cached)


def _expected(model: CausalModel, probe: "Probe") -> Computed:
    """What plain transformers computes. Its grouped product of experts does not take every width: then one by one."""
    config = decoder_of(model).config
    try:
        return probe.plain()
    except OUT_OF_MEMORY:
        raise
    except Exception:
        if getattr(config, "_experts_implementation", None) in (None, "eager"):
            raise
        config._experts_implementation = "eager"
        return probe.plain()


def _choose_scoring(model: CausalModel, probe: "Probe", expected: Computed) -> tuple[bool, str]:
    """Whether rollouts are packed, and else why not. The attention implementation stays the one that is right."""
    own = decoder_of(model).config._attn_implementation
    tried: dict[tuple[bool, str], str] = {}
    for packed, attention in ((True, own), (False, own), (False, "eager")):
        if (packed and not model._supports_attention_backend) or (packed, attention) in tried:
            continue
        set_attention(model, attention)
        set_method(model, Method(packed))
        try:
            tried[packed, attention] = probe.scored().gap(expected)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # see `verify`
            tried[packed, attention] = first_line(error)
        if not tried[packed, attention]:
            why = tried.get((True, own), "it does not use transformers' attention interface")
            return packed, "" if packed else why
    why, gap = tried[False, own], probe.head_gap()
    if gap > LOGPROB_GAP:
        raise refused(model, f"its logits are not its last hidden states through a linear head ({gap:.2g} nats)")
    raise refused(model, f"a forward pass of several rows is not that of each row alone ({why})")


def _choose_decoding(model: CausalModel, probe: "Probe", expected: Computed) -> tuple[Decoding, str]:
    """The decoder that is right, and why a faster one is not."""
    why = ""
    decodings: tuple[Decoding, ...] = ("own", "cached", "aligned", "recomputed")
    for decoding in decodings[not has_own_decoder(model) :]:
        try:
            gap = Computed(probe.decoded(decoding), {}).gap(replace(expected, gradients={}))
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # see `verify`
            gap = first_line(error)
        if not gap:
            return decoding, why
        why = why or gap
    raise refused(model, f"token by token it does not say what it says in one pass ({gap})")


def refused(model: CausalModel, why: str) -> UserError:
    """The refusal of a model that cannot be computed right."""
    return UserError(f"{type(model).__name__} cannot be trained: {why}; choose another model")
