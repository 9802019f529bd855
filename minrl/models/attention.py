"""Attention inside the segments of a stream, on a CPU or a CUDA GPU.

T tokens of the stream, H attention heads, K key-value heads, C head dimension.

A prompt attends to itself, a suffix to its prompt and to itself. On a GPU one call of flash attention takes sequences
of different lengths: the prompt's keys are gathered in front of those of each suffix. A CPU computes rows that a plain
kernel takes (minrl/models/attention_cpu.py), and so does a GPU in float32.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property, partial
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from minrl.batch import Stream, to_device
from minrl.dataflow import CausalModel, UserError
from minrl.models.attention_cpu import LONGEST, ShortRows, attend_in_rows, plan_rows
from minrl.models.cpu import computed

ATTENTION = "minrl_packed"
"""The name of `packed_attention` among transformers' attention functions."""

LARGEST_HEAD = 256
"""Dimensions of a head that flash attention takes."""


class Sequences(NamedTuple):
    """For flash attention: the tokens whose keys are gathered, the cumulative lengths of queries and keys (int32), and
    the longest of each. The queries are the stream as it is.
    """

    key_tokens: Tensor
    starts: Tensor
    key_starts: Tensor
    longest: int
    key_longest: int


class StreamAttention:
    """The attention inside a stream's segments, planned once for each window and used by every layer. On a CPU, rows of
    up to `longest` keys are short ones.
    """

    def __init__(self, stream: Stream, longest: int = LONGEST) -> None:
        self._stream = stream
        self._rows = cache(partial(self._plan, longest))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        inputs, device = (query, key, value), query.device.type
        if device == "cuda":
            inputs = computed(query), computed(key), computed(value)
        dtype = torch.promote_types(torch.promote_types(inputs[0].dtype, inputs[1].dtype), inputs[2].dtype)
        query, key, value = (tensor[0].transpose(0, 1).to(dtype).contiguous() for tensor in inputs)
        with torch.autocast(device, enabled=False):
            attend = self._flash if takes_flash(query) else self._in_rows
            return attend(query, key, value, scale, window)[None]

    def _plan(self, longest: int, window: int | None) -> Sequence[ShortRows]:
        on_cpu = self._stream.input_ids.device.type == "cpu"
        return plan_rows(self._stream, window, longest if on_cpu else math.inf)

    def _in_rows(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        return attend_in_rows(query, key, value, self._rows(window), scale)

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        sequences = self._sequences
        back = -1 if window is None or window >= sequences.key_longest else window - 1  # how far a token sees
        return _Flash.apply(query, key, value, sequences, scale, back)

    @cached_property
    def _sequences(self) -> Sequences:
        here = self._stream.host or self._stream
        prompts, suffixes, _ = here.runs()
        behind = zip(suffixes, here.prefix_of.tolist(), strict=True)
        every = [*((run, run) for run in prompts), *((run, prompts[prompt] + run) for run, prompt in behind if run)]
        queries, keys = zip(*sorted(every), strict=True)
        flat = torch.tensor([*chain.from_iterable(keys)])
        cumulative = (torch.tensor([0, *accumulate(map(len, runs))], dtype=torch.int32) for runs in (queries, keys))
        places, starts, key_starts = to_device([flat, *cumulative], self._stream.input_ids.device)
        return Sequences(places, starts, key_starts, max(map(len, queries)), max(map(len, keys)))


def takes_flash(query: Tensor) -> bool:
    """Whether flash attention takes queries (T, H, C): half precision, its head sizes, and a GPU from Ampere on."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_HEAD
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


class _Flash(torch.autograd.Function):
    """Flash attention of sequences of different lengths (arXiv:2307.08691). A prompt's keys, repeated for each suffix,
    are not kept for the backward pass.
    """

    @staticmethod
    def forward(ctx, query, key, value, sequences, scale, back):  # noqa: ANN001, ANN205 - autograd's own signature
        keys, values = (tensor.index_select(0, sequences.key_tokens) for tensor in (key, value))
        settings = {"scale": scale, "window_size_left": back, "window_size_right": 0}
        output, normalizer = torch.ops.aten._flash_attention_forward(
            query, keys, values, *sequences[1:], 0.0, back < 0, False, **settings
        )[:2]
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.sequences, ctx.settings = sequences, settings
        return output

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        query, key, value, output, normalizer = ctx.saved_tensors
        index = ctx.sequences.key_tokens
        without_dropout = torch.zeros(2, dtype=torch.uint64, device=grad.device), grad.new_empty(0)
        inputs = grad.contiguous(), query, key.index_select(0, index), value.index_select(0, index), output, normalizer
        causal = ctx.settings["window_size_left"] < 0
        of_query, of_keys, of_values = torch.ops.aten._flash_attention_backward(
            *inputs, *ctx.sequences[1:], 0.0, causal, *without_dropout, **ctx.settings
        )
        return of_query, _summed(of_keys, index, key.shape), _summed(of_values, index, key.shape), None, None, None


def _summed(grad: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of what was gathered at the index, summed in float32 or better: a prompt's keys have one of each
    suffix.
    """
    total = grad.new_zeros(shape, dtype=torch.promote_types(grad.dtype, torch.float32))
    return total.index_add_(0, index, grad.to(total.dtype)).to(grad.dtype)


def packed_attention(
    module: CausalModel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers' models call for each layer (its attention interface)."""
    attend = kwargs["stream"]
    assert isinstance(attend, StreamAttention), "packed attention needs the stream it attends in"
    if getattr(module, "attn_logit_softcapping", None) or kwargs.get("softcap"):
        raise UserError("it caps its attention logits, which packed attention does not")
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    return attend(query, key, value, scale, sliding_window), None
