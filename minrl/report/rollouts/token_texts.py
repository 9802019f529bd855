"""The text that each token adds to its sequence.

A token's text depends on its neighbours: a tokenizer of words puts a space between two, and one of bytes may need
several tokens for one character. The texts joined are the text of the sequence.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

BROKEN = "\ufffd"
"""The replacement for bytes that are no whole character."""


def token_texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[list[str]]:  # noqa: ANN401 - transformers'
    """The text of each token. Of tokens that form a character together the first has it, the others ''.

    Each distinct pair of neighbours is decoded once, all of them in one call.
    """
    alone = _decoded(tokenizer, {(token,) for sequence in sequences for token in sequence})
    both = _decoded(tokenizer, {pair for sequence in sequences for pair in pairwise(sequence)})
    added = {
        (first, token): text[len(alone[first,]) :] if text.startswith(alone[first,]) else alone[token,]
        for (first, token), text in both.items()
    }
    broken = {token for (token,), text in alone.items() if BROKEN in text}
    shown = []
    for sequence in sequences:
        texts = [alone[token,] for token in sequence[:1]] + [added[pair] for pair in pairwise(sequence)]
        if not broken.isdisjoint(sequence):
            _mend(texts, tokenizer, sequence, alone, broken)
        shown.append(texts)
    return shown


def _mend(
    texts: list[str],
    tokenizer: Any,  # noqa: ANN401 - transformers'
    sequence: Sequence[int],
    alone: dict[tuple[int, ...], str],
    broken: set[int],
) -> None:
    """Give each character of several tokens to the first of them."""
    start = 0
    while start < len(sequence):
        end = start
        while end < len(sequence) and sequence[end] in broken:
            end += 1
        if end > start:
            first = max(0, start - 1)  # with its neighbour, for the space between them
            text = tokenizer.decode(list(sequence[first:end]), clean_up_tokenization_spaces=False)
            before = alone[sequence[first],] if start else ""
            texts[start:end] = [text[len(before) :], *[""] * (end - start - 1)]
        start = end + 1


def _decoded(tokenizer: Any, sequences: Collection[tuple[int, ...]]) -> dict[tuple[int, ...], str]:  # noqa: ANN401
    if not sequences:  # which `batch_decode` takes for one empty text
        return {}
    texts = tokenizer.batch_decode([list(sequence) for sequence in sequences], clean_up_tokenization_spaces=False)
    return dict(zip(sequences, texts, strict=True))
