"""Attention inside the segments of a stream, without a copy of a prompt or much padding, on a CPU or a CUDA card.

T tokens of the stream, H attention heads, K key-value heads, C head dimension, n tokens of a part, m of its keys.

Attention is computed in parts that a plain kernel takes: a prompt sees itself, a suffix sees itself, and all suffixes
of a prompt together see the prompt. The parts of a token are joined by their softmax normalizers, forward and
backward, as flash attention joins blocks of keys (arXiv:2205.14135, section 3.1).
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property

import torch
from torch import Tensor

from minrl.batch import Stream
from minrl.models import rectangle_attention, varlen_attention
from minrl.models.cpu import computed
from minrl.models.padded_attention import PaddedAttention
from minrl.models.rectangle_attention import Rectangle
from minrl.models.short_attention import ShortRows
from minrl.models.varlen_attention import Runs
from minrl.types import CausalModel, UserError

ATTENTION = "minrl_packed"


Part = Rectangle | ShortRows | Runs
"""Queries (`tokens`), the keys that they see (`key_tokens`), and the kernel that attends. Where runs see themselves
(`own`), the part comes before their other parts.
"""

Attention = Callable[[Tensor, Tensor, Tensor, float, int | None], Tensor]
"""Query (1, H, T, C), key and value (1, K, T, C), scale, window (None: no limit) -> (1, T, H, C)."""


def plan_attention(stream: Stream) -> Attention:
    """The attention inside the stream's segments that every layer uses, by the best kernel for its device."""
    if stream.input_ids.device.type == "cpu":
        return JoinedAttention(lambda window: rectangle_attention.plan(stream, window))
    return CardAttention(stream)


class JoinedAttention:
    """The parts of a stream, planned once for each window and used by every layer."""

    def __init__(self, plan: Callable[[int | None], Sequence[Part]]) -> None:
        self._parts = cache(plan)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        flat = (tensor[0].transpose(0, 1).to(dtype).contiguous() for tensor in (query, key, value))
        with torch.autocast(query.device.type, enabled=False):
            return _Joined.apply(*flat, self._parts(window), scale)[None]


class CardAttention:
    """On a CUDA card: flash attention of runs of different lengths where it is supported, padded rows elsewhere."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._runs = JoinedAttention(lambda window: varlen_attention.plan(stream))
        self._longest = int((stream.host or stream).positions.max()) + 1

    @cached_property
    def _rows(self) -> PaddedAttention:
        return PaddedAttention(self._stream)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        query, key, value = computed(query), computed(key), computed(value)
        window = None if window is not None and window >= self._longest else window  # which then hides nothing
        attend = self._runs if varlen_attention.takes(query, window) else self._rows
        return attend(query, key, value, scale, window)


class _Joined(torch.autograd.Function):
    """softmax(q k^T scale) v over all keys that a token sees, joined from that over each part.

    With l_i the normalizers (log-sum-exp) and o_i the outputs of a token's parts, l = log sum exp(l_i) and
    o = sum exp(l_i - l) o_i. The gradient of a part needs only the joined o and l.
    """

    @staticmethod
    def forward(ctx, query, key, value, parts, scale):  # noqa: ANN001, ANN205 - autograd's own signature
        output = torch.zeros_like(query)  # tokens of no part see nothing
        normalizer = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
        for part in parts:
            new, new_normalizer = part.forward(query, key, value, scale)
            if not part.own:
                before, so_far = normalizer[part.tokens], output[part.tokens]
                joined = torch.logaddexp(before, new_normalizer)
                share = (new_normalizer - joined).exp()[..., None]
                new = torch.lerp(so_far, new, share.to(new.dtype))  # the other share is 1 - this one
                new_normalizer = joined
            output[part.tokens] = new
            if new_normalizer is not None:
                normalizer[part.tokens] = new_normalizer
        ctx.save_for_backward(query, key, value, output, normalizer)
        ctx.parts, ctx.scale = parts, scale
        return output

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        query, key, value, output, normalizer = ctx.saved_tensors
        grads = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        with torch.autocast(query.device.type, enabled=False):
            for part in ctx.parts:
                new = part.backward((query, key, value), (grad, output, normalizer), ctx.scale)
                grads[0][part.tokens] += new[0]
                grads[1][part.key_tokens] += new[1]
                grads[2][part.key_tokens] += new[2]
        return *grads, None, None


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
    assert isinstance(attend, JoinedAttention | CardAttention), "packed attention needs the stream it attends in"
    if getattr(module, "attn_logit_softcapping", None) or kwargs.get("softcap"):
        raise UserError("it caps its attention logits, which packed attention does not")
    scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
    return attend(query, key, value, scale, sliding_window), None
