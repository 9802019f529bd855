"""Decoding token by token with transformers' own forward pass and cache, for any causal model.

P prompts, N rows, D hidden size. Prompts are aligned at their end, and the padding before shorter ones is masked.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minrl.model.context import context_length
from minrl.types import CausalModel


class TransformersDecoder:
    """Any causal model, by transformers' own forward pass and cache."""

    def __init__(self, model: CausalModel) -> None:
        self.decoder = model.get_decoder()
        self.last_position = context_length(model) - 1
        self.cache: Any = None
        self.mask = torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: int) -> Tensor:
        """(P, D) at the last token of each prompt; transformers' cache grows by itself."""
        ids, real = left_padded(prompts, next(self.decoder.parameters()).device)
        self.mask = real.long()
        self.cache = None
        return self._forward(ids)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the cache."""
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None])

    def _forward(self, ids: Tensor) -> Tensor:
        # A row that has ended may stay in the batch, but not beyond the context, where RoPE may change for all.
        positions = (self.mask.cumsum(-1) - 1).clamp(0, self.last_position)[:, -ids.shape[1] :]
        output = self.decoder(
            input_ids=ids, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        self.cache = output.past_key_values
        return output.last_hidden_state[:, -1]


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The prompts as rows (P, L) with 0 before shorter ones, and which positions are real."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor(list(map(len, prompts)), device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]
