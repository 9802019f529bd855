"""Decoding token by token with transformers' own forward pass, for any causal model: with its cache, or without any.

P prompts, N rows, D hidden size. With the cache, prompts are aligned at their end, and the padding before shorter ones
is masked.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.models.context import context_length
from minrl.models.text import decoder_of
from minrl.types import CausalModel


class CachedDecoder:
    """transformers' forward pass and cache, which grows by itself."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder = decoder_of(model)
        self.last_position = context_length(model) - 1
        self.taken = set(inspect.signature(self.decoder.forward).parameters)
        self.cache_name = "cache_params" if "cache_params" in self.taken else "past_key_values"
        self.cache: Any = None
        self.mask, self.padded = torch.empty(0), False

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt."""
        ids, real = left_padded(prompts, next(self.decoder.parameters()).device)
        self.mask, self.padded = real.long(), not bool(real.all())
        self.cache = None
        return self._forward(ids)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache."""
        self.cache.reorder_cache(rows)
        self.mask = self.mask[rows]
        self.padded = not bool(self.mask.all())

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None])

    def _forward(self, ids: Tensor) -> Tensor:
        inputs: dict[str, Any] = {self.cache_name: self.cache}
        if self.padded:
            inputs["attention_mask"] = self.mask
        if "position_ids" in self.taken:
            # A row that has ended may stay in the batch, but not beyond the context, where RoPE may change for all.
            inputs["position_ids"] = (self.mask.cumsum(-1) - 1).clamp(0, self.last_position)[:, -ids.shape[1] :]
        output = self.decoder(input_ids=ids, use_cache=True, **inputs)
        self.cache = output[self.cache_name]
        return output.last_hidden_state[:, -1]


class RecomputingDecoder:
    """No cache: every token computes its whole sequence again, for models whose cache cannot be used for a batch."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder, self.longest = decoder_of(model), context_length(model)
        self.ids = self.lengths = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt."""
        device = next(self.decoder.parameters()).device
        lengths = [len(prompt) for prompt in prompts]
        rows = [[*prompt, *[0] * (max(lengths) + slots - len(prompt))] for prompt in prompts]
        self.ids, self.lengths = torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
        return self._forward()

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.ids, self.lengths = self.ids[rows], self.lengths[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.ids = self.ids.scatter(1, self.lengths[:, None], tokens[:, None])
        self.lengths = (self.lengths + 1).clamp(max=self.longest)  # a row that has ended may stay in the batch
        return self._forward()

    def _forward(self) -> Tensor:
        rows = torch.arange(len(self.ids), device=self.ids.device)
        hidden = self.decoder(input_ids=self.ids[:, : int(self.lengths.max())], use_cache=False).last_hidden_state
        return hidden[rows, self.lengths - 1]


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The prompts as rows (P, L) with 0 before shorter ones, and which positions are real."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor(list(map(len, prompts)), device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]
