"""Attention inside the segments of a stream, on a CPU or a CUDA GPU.

T tokens of the stream, H attention heads, K key-value heads, C head dimension.

A prompt attends to itself, a suffix to its prompt and to itself. On a GPU one call of flash attention takes sequences
of different lengths: the prompt's keys are gathered in front of those of each suffix. A CPU computes rows that a plain
kernel takes (minrl/models/attention_cpu.py), and so does a GPU in float32.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property, partial
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from minrl.batch import Stream, to_device
from minrl.dataflow import CausalModel, UserError
from minrl.models.attention_cpu import LONGEST, Rows, attend_in_rows, plan_rows
from minrl.models.cpu import in_compute_dtype, in_float32

ATTENTION = "minrl_packed"
"""The name of `packed_attention` among transformers' attention functions."""

LARGEST_HEAD = 256
"""Dimensions of a head that flash attention takes."""


GROUPED = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""That several heads share keys. torch 2.11 takes them without a word."""


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
            inputs = in_compute_dtype(query), in_compute_dtype(key), in_compute_dtype(value)
        dtype = torch.promote_types(torch.promote_types(inputs[0].dtype, inputs[1].dtype), inputs[2].dtype)
        query, key, value = (tensor[0].transpose(0, 1).to(dtype).contiguous() for tensor in inputs)
        with torch.autocast(device, enabled=False):
            attend = self._flash if takes_flash(query) else self._in_rows
            return attend(query, key, value, scale, window)[None]

    def _plan(self, longest: int, window: int | None) -> Sequence[Rows]:
        on_cpu = self._stream.input_ids.device.type == "cpu"
        return plan_rows(self._stream, window, longest if on_cpu else math.inf)

    def _in_rows(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        return attend_in_rows(query, key, value, self._rows(window), scale)

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Flash attention (arXiv:2307.08691). A prompt's keys have a gradient of each suffix, summed in float32."""
        places, starts, key_starts, longest, key_longest = self._sequences
        keys, values = (in_float32(tensor).index_select(0, places).to(tensor.dtype) for tensor in (key, value))
        back = -1 if window is None or window >= key_longest else window - 1  # how far a token sees
        settings: dict[str, Any] = {"scale": scale, "window_size": (back, 0), **GROUPED}
        return varlen_attn(query, keys, values, starts, key_starts, longest, key_longest, **settings)  # type: ignore[return-value]

    @cached_property
    def _sequences(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """The tokens whose keys are gathered, the cumulative lengths of queries and keys (int32), and the longest of
        each. The queries are the stream as it is.
        """
        segments = [one for one in self._stream.segments if one.length]
        lengths = [one.length for one in segments]
        key_lengths = [one.prompt_length + one.length for one in segments]
        places = torch.cat([one.keys() for one in segments])
        cumulative = [torch.tensor([0, *accumulate(one)], dtype=torch.int32) for one in (lengths, key_lengths)]
        places, starts, key_starts = to_device([places, *cumulative], self._stream.input_ids.device)
        return places, starts, key_starts, max(lengths), max(key_lengths)


def takes_flash(query: Tensor) -> bool:
    """Whether flash attention takes queries (T, H, C): half precision, its head sizes, and a GPU from Ampere on."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_HEAD
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


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
