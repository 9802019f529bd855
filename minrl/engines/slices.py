"""The requests that the embedded engine samples at the same time, so that its memory is bounded.

Slices are a function of the requests, the model's shape and the configured memory, not of free memory: a resumed run
multiplies matrices of the same shapes as an uninterrupted one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from minrl.models.shape import shape_of
from minrl.types import CausalModel, Request

ACTIVATIONS = 16
"""Values that a forward pass without gradient holds at a time for each token, as a multiple of the hidden size."""

LOGITS = 4
"""Values of 4 bytes for each row and token of the vocabulary: logits, probabilities, and those of sampling."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that sampling holds beside the weights."""

    slot: int
    """Keys and values of one token."""
    prompt_token: int
    """Activations of one token of a prompt."""
    row: int
    """Logits of one row, and its recurrent states."""

    def of(self, rows: int, prompt: int, limit: int) -> int:
        """Bytes of a batch whose longest prompt and longest completion have so many tokens."""
        return rows * ((prompt + limit) * self.slot + prompt * self.prompt_token + self.row)


def footprint(model: CausalModel, itemsize: int) -> Footprint:
    """What sampling from the model holds, in a precision of `itemsize` bytes."""
    shape = shape_of(model.config)
    return Footprint(
        slot=shape.cached * itemsize,
        prompt_token=ACTIVATIONS * shape.hidden * itemsize,
        row=4 * (LOGITS * shape.vocabulary + shape.state),
    )


def slices(requests: Sequence[Request], cost: Footprint, limit: int) -> Iterator[list[Request]]:
    """The requests in order, in parts of at most `limit` bytes, or of a single request.

    Neighbours with the same prompt are separated only if they do not fit alone.
    """
    part: list[Request] = []
    prompt = completion = 0
    for group in _groups(requests, cost, limit):
        own_prompt, own_completion = len(group[0].ids), max(request.max_tokens for request in group)
        prompt, completion = max(prompt, own_prompt), max(completion, own_completion)
        if part and cost.of(len(part) + len(group), prompt, completion) > limit:
            yield part
            part, prompt, completion = [], own_prompt, own_completion
        part += group
    if part:
        yield part


def _groups(requests: Sequence[Request], cost: Footprint, limit: int) -> Iterator[list[Request]]:
    """Neighbours with the same prompt, as many at a time as fit."""
    for ids, neighbours in groupby(requests, key=lambda request: request.ids):
        group = list(neighbours)
        size = cost.of(1, len(ids), max(request.max_tokens for request in group))
        together = max(1, limit // size)
        for start in range(0, len(group), together):
            yield group[start : start + together]
