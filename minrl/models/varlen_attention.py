"""The parts of a stream's attention on a CUDA card: runs of any lengths, by flash attention's kernel for them.

The letters are those of minrl/models/attention.py. Nothing is padded; cumulative lengths say where a run begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from minrl.batch import Run, Stream, to_device

LARGEST_HEAD = 256
"""Dimensions of a head that the kernel takes."""


@dataclass(frozen=True)
class Runs:
    """Runs of queries and of the keys that they see: `starts` (runs + 1) are their cumulative lengths (int32)."""

    tokens: Tensor | slice
    starts: Tensor
    longest: int
    key_tokens: Tensor | slice
    key_starts: Tensor
    key_longest: int
    own: bool

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The stream's (T, H, C) and (T, K, C) twice -> outputs (n, H, C) and normalizers (n, H) of `tokens`."""
        output, normalizer = torch.ops.aten._flash_attention_forward(
            *self._taken(query, key, value), *self._lengths(), 0.0, self.own, False, scale=scale
        )[:2]
        return output, normalizer.T  # the kernel's is (H, n)

    def backward(self, inputs: tuple[Tensor, ...], known: tuple[Tensor, ...], scale: float) -> tuple[Tensor, ...]:
        """Gradients (n, H, C) at `tokens`, and (m, K, C) twice at `key_tokens`. `inputs` are the stream's query, key
        and value; `known` are the gradient of the joined output and that output (T, H, C), and the joined normalizer.
        """
        grad, output, normalizer = (tensor[self.tokens].contiguous() for tensor in known)
        without_dropout = torch.zeros(2, dtype=torch.uint64, device=grad.device), grad.new_empty(0)
        return torch.ops.aten._flash_attention_backward(
            grad,
            *self._taken(*inputs),
            output,
            normalizer.T.contiguous(),
            *self._lengths(),
            0.0,
            self.own,
            *without_dropout,
            scale=scale,
        )

    def _taken(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query[self.tokens], key[self.key_tokens], value[self.key_tokens]

    def _lengths(self) -> tuple[Tensor, Tensor, int, int]:
        return self.starts, self.key_starts, self.longest, self.key_longest


def takes(query: Tensor, window: int | None) -> bool:
    """Whether the kernel supports this: half precision, its head sizes, a card from Ampere on, and no window, since
    the suffixes of a prompt see it together, from different distances.
    """
    return (
        window is None
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_HEAD
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def plan(stream: Stream) -> list[Runs]:
    """Two parts: prompts and suffixes see themselves, and all suffixes of a prompt see the prompt."""
    prompts, suffixes, followers = (stream.host or stream).runs()
    runs = sorted((run for run in (*prompts, *suffixes) if run), key=lambda run: run[0])  # together all tokens
    seeing = [row for row, tokens in enumerate(followers) if tokens]
    queries, keys = [followers[row] for row in seeing], [prompts[row] for row in seeing]
    flat = [torch.tensor([*chain.from_iterable(part)], dtype=torch.long) for part in (queries, keys)]
    planned = to_device([*map(_starts, (runs, queries, keys)), *flat], stream.input_ids.device)
    starts, query_starts, key_starts, query_tokens, key_tokens = planned
    longest, query_longest, key_longest = (max(map(len, part), default=0) for part in (runs, queries, keys))
    parts = [Runs(slice(None), starts, longest, slice(None), starts, longest, own=True)]
    if seeing:
        parts.append(Runs(query_tokens, query_starts, query_longest, key_tokens, key_starts, key_longest, own=False))
    return parts


def _starts(runs: Sequence[Run]) -> Tensor:
    """The cumulative lengths from 0 on."""
    return torch.tensor([0, *accumulate(map(len, runs))], dtype=torch.int32)
