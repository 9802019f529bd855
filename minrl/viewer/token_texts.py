"""What each token of a sequence adds to its text.

A token's text depends on its neighbours: a tokenizer of words puts a space between two, and one of bytes may need
several tokens for one character. Texts are such that, joined, they are the text of the sequence.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

BROKEN = "\ufffd"
"""What a tokenizer decodes bytes to that are no whole character."""


def token_texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[list[str]]:  # noqa: ANN401 - transformers'
    """The text of each token. Of tokens that make up a character together the first has it, the others ''.

    Each pair of neighbours is decoded once, all of them in one call: a step's rollouts repeat themselves.
    """
    ids = {token for sequence in sequences for token in sequence}
    pairs = {pair for sequence in sequences for pair in pairwise(sequence)}
    alone = _decoded(tokenizer, [(token,) for token in ids])
    both = _decoded(tokenizer, list(pairs))
    return [_texts_of(tokenizer, sequence, alone, both) for sequence in sequences]


def _texts_of(
    tokenizer: Any,  # noqa: ANN401 - transformers'
    sequence: Sequence[int],
    alone: dict[tuple[int, ...], str],
    both: dict[tuple[int, ...], str],
) -> list[str]:
    texts = [alone[(token,)] for token in sequence[:1]]
    for previous, token in pairwise(sequence):
        before, text = alone[(previous,)], both[(previous, token)]
        texts.append(text[len(before) :] if text.startswith(before) else alone[(token,)])
    start = 0
    while start < len(sequence):
        end = start
        while end < len(sequence) and BROKEN in alone[(sequence[end],)]:
            end += 1
        if end > start:
            first = max(0, start - 1)  # with its neighbour, for the space between them
            text = tokenizer.decode(list(sequence[first:end]), clean_up_tokenization_spaces=False)
            before = alone[(sequence[first],)] if start else ""
            texts[start:end] = [text[len(before) :], *[""] * (end - start - 1)]
        start = end + 1
    return texts


def _decoded(tokenizer: Any, sequences: list[tuple[int, ...]]) -> dict[tuple[int, ...], str]:  # noqa: ANN401
    if not sequences:  # which `batch_decode` takes for one empty text
        return {}
    texts = tokenizer.batch_decode([list(sequence) for sequence in sequences], clean_up_tokenization_spaces=False)
    return dict(zip(sequences, texts, strict=True))
