"""Attention inside the segments of a stream by torch's own attention on padded rows: for any device.

H attention heads, K key-value heads, T tokens of the stream, C head dimension, N suffixes of at most Ls tokens, Lp
tokens of the longest prompt, R rows.

Prompts attend to themselves; a suffix attends to its prompt and to itself, all suffixes padded to the longest.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.batch import Stream


class PaddedAttention:
    """A stream laid out as padded rows, planned once and used by every layer.

    `padded` says which token each slot holds, `slot_of` where each token went.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        device = stream.input_ids.device
        prefix = torch.arange(stream.prefix_index.shape[1], device=device)
        suffix = torch.arange(stream.suffix_index.shape[1], device=device)
        self.padded = torch.cat([stream.prefix_index.flatten(), stream.suffix_index.flatten()])
        in_prefix, in_suffix = prefix < stream.prefix_lengths[:, None], suffix < stream.suffix_lengths[:, None]
        valid = torch.cat([in_prefix.flatten(), in_suffix.flatten()])
        num_tokens, slots = len(stream.input_ids), torch.arange(len(valid), device=device)
        token_of = torch.where(valid, self.padded, num_tokens)  # padding goes behind the tokens, and is cut off
        self.slot_of = slots.new_empty(num_tokens + 1).scatter_(0, token_of, slots)[:num_tokens]
        lengths = stream.prefix_lengths[stream.prefix_of]  # (N,)
        sees_prefix = (prefix < lengths[:, None])[:, None, :].expand(-1, len(suffix), -1)
        sees_suffix = (suffix[None, :] <= suffix[:, None]).expand(len(lengths), -1, -1)
        self.mask = torch.cat([sees_prefix, sees_suffix], dim=-1)[:, None]  # (N, 1, Ls, Lp + Ls)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(1, H, T, C) and (1, K, T, C) twice -> (1, T, H, C)."""
        heads, kv_heads = query.shape[1], key.shape[1]
        tokens = torch.cat([query[0], key[0], value[0]]).transpose(0, 1)  # (T, H + 2K, C)
        slots = _Rearranged.apply(tokens, self.padded, self.slot_of)
        num_prefix = self.stream.prefix_index.numel()
        prefix = slots[:num_prefix].unflatten(0, self.stream.prefix_index.shape)
        suffix = slots[num_prefix:].unflatten(0, self.stream.suffix_index.shape)
        shared = prefix[:, :, heads:].index_select(0, self.stream.prefix_of)  # (N, Lp, 2K, C)
        suffix_kv = torch.cat([shared, suffix[:, :, heads:]], dim=1)
        outputs = (
            self._attend(prefix[:, :, :heads], prefix[:, :, heads:], kv_heads, scale, None, window),
            self._attend(suffix[:, :, :heads], suffix_kv, kv_heads, scale, self.mask, window),
        )
        rows = torch.cat([output.flatten(0, 1) for output in outputs])
        return _Rearranged.apply(rows, self.slot_of, self.padded)[None]

    def _attend(
        self, query: Tensor, kv: Tensor, kv_heads: int, scale: float, mask: Tensor | None, window: int | None
    ) -> Tensor:
        """(R, Lq, H, C), (R, Lk, 2K, C) -> (R, Lq, H, C); causal where no mask is given."""
        if window is not None:
            mask = self._windowed(mask, query.shape[1], window)
        key, value = kv.transpose(1, 2).split(kv_heads, dim=1)
        repeats = query.shape[2] // kv_heads
        if repeats > 1:  # torch's kernels that take a mask take as many key heads as query heads only
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        output = F.scaled_dot_product_attention(
            query.transpose(1, 2), key, value, attn_mask=mask, is_causal=mask is None, scale=scale
        )
        return output.transpose(1, 2)

    def _windowed(self, mask: Tensor | None, queries: int, window: int) -> Tensor:
        """The mask (causal where None) without what lies `window` or more positions back."""
        stream, device = self.stream, self.stream.input_ids.device
        if mask is None:
            ones = torch.ones(queries, queries, dtype=torch.bool, device=device)
            return ones.tril() & ones.triu(1 - window)
        prefix = torch.arange(stream.prefix_index.shape[1], device=device)
        suffix = torch.arange(stream.suffix_index.shape[1], device=device)
        own = stream.prefix_lengths[stream.prefix_of][:, None] + suffix  # (N, Ls)
        keys = torch.cat([prefix.expand(len(own), -1), own], dim=-1)  # (N, Lp + Ls)
        return mask & (own[:, None, :, None] - keys[:, None, None, :] < window)


class _Rearranged(torch.autograd.Function):
    """`x[index]` whose gradient is a gather too; `inverse` is the output row of each input row.

    Output rows that repeat an input row as padding are masked in the attention: their gradient is zero and is left out.
    The backward pass of a plain index accumulates row by row, several times slower on a CPU.
    """

    @staticmethod
    def forward(ctx, x, index, inverse):  # noqa: ANN001, ANN205 - autograd's own signature
        ctx.save_for_backward(inverse)
        ctx.index, ctx.padding = index, len(index) > len(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):  # noqa: ANN001, ANN205 - autograd's own signature
        (inverse,) = ctx.saved_tensors
        if ctx.padding or len(ctx.index) == len(inverse):
            return grad.index_select(0, inverse), None, None
        padded = grad.new_zeros(len(inverse), *grad.shape[1:])
        return padded.index_copy_(0, ctx.index, grad), None, None
