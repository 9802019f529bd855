"""A stream as padded rows: each rollout by itself behind its own copy of the prompt, padded at its end.

T tokens of the stream, N rollouts, L the longest of them. A causal model computes nothing else at a token for what
follows it, so that the padding needs no mask, neither in attention nor in recurrent states.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minrl.batch import Stream, to_device
from minrl.types import Rollout


def padded_rows(stream: Stream) -> tuple[Tensor, Tensor]:
    """Token ids (N, L), and the place (T,) of each of the stream's tokens in the flattened rows.

    A prompt's tokens are taken from the first of its rollouts.
    """
    device, stream = stream.input_ids.device, stream.host or stream
    prompt_lengths = stream.prefix_lengths[stream.prefix_of][:, None]  # (N, 1)
    lengths = prompt_lengths + stream.suffix_lengths[:, None]
    columns = torch.arange(int(lengths.max())).expand(len(lengths), -1)  # (N, L)
    last_prompt, last_suffix = stream.prefix_index.shape[1] - 1, stream.suffix_index.shape[1] - 1
    of_prompt = stream.prefix_index[stream.prefix_of].gather(1, columns.clamp(max=last_prompt))
    of_suffix = stream.suffix_index.gather(1, (columns - prompt_lengths).clamp(0, last_suffix))
    tokens = torch.where(columns < prompt_lengths, of_prompt, of_suffix)
    real = columns < lengths
    places = torch.arange(columns.numel()).view_as(columns)
    first = torch.full_like(stream.input_ids, columns.numel())
    rows, places = to_device(
        [stream.input_ids[tokens], first.scatter_reduce(0, tokens[real], places[real], "amin")], device
    )
    return rows, places


def row_tokens(stream: Stream) -> int:
    """Tokens of the padded rows, padding included."""
    stream = stream.host or stream
    lengths = stream.prefix_lengths[stream.prefix_of] + stream.suffix_lengths
    return len(lengths) * int(lengths.max())


def row_batches(rollouts: Sequence[Rollout], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """The indices in lists of rows of about the same length: at most `max_tokens` with padding, or a single row."""
    batches: list[list[int]] = []
    for index in sorted(indices, key=lambda index: -len(rollouts[index].ids)):
        if not batches or (len(batches[-1]) + 1) * len(rollouts[batches[-1][0]].ids) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
