"""AdamW with moments in 8 bits, a part of a weight at a time.

On a CPU bitsandbytes brings both moments of a weight to float32, with copies: 20 bytes for each of its numbers, for a
moment. For an embedding of 152,000 tokens that is more than the moments of the whole model.
"""

import logging
from typing import Any

import torch

from minrl.models.mixed import mixed

BLOCK = 256
"""Numbers of a moment that are quantized together."""

PART = BLOCK * 2**14
"""Numbers of a weight that are updated at once: 80 MiB for a moment."""


def adamw_8bit(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:  # noqa: ANN401 - bitsandbytes'
    """bitsandbytes' AdamW with moments in 8 bits, with the same results, bit for bit: a part has whole blocks."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # it misses a kernel for 4-bit products
    from bitsandbytes.optim import AdamW8bit

    return mixed(InParts, AdamW8bit, "InParts")(groups, **settings)


class InParts:
    """An optimizer of bitsandbytes that updates a weight on a CPU a part at a time."""

    state: dict[torch.Tensor, dict[str, Any]]

    @torch.no_grad()
    def update_step(self, group: dict, p: torch.Tensor, gindex: int, pindex: int) -> None:
        """Update one weight in place, and its moments."""
        from bitsandbytes.functional import optimizer_update_8bit_blockwise

        state = self.state[p]
        moments = state["state1"], state["state2"]
        in_a_row = all(tensor.is_contiguous() for tensor in (p, *moments))
        if p.grad is None or p.device.type != "cpu" or moments[0].dtype != torch.uint8 or not in_a_row:
            super().update_step(group, p, gindex, pindex)  # type: ignore[misc]
            return
        state["step"] += 1
        config = self.get_config(gindex, pindex, group)  # type: ignore[attr-defined]
        beta1, beta2 = config["betas"]
        whole = [tensor.view(-1) for tensor in (p.grad.contiguous(), p.data, *moments)]
        for start in range(0, p.numel(), PART):
            blocks = slice(start // BLOCK, (start + PART) // BLOCK)
            grad, weight, first, second = (tensor[start : start + PART] for tensor in whole)
            optimizer_update_8bit_blockwise(
                "adam",
                grad,
                weight,
                first,
                second,
                beta1,
                beta2,
                beta3=0.0,
                alpha=0.0,
                eps=config["eps"],
                step=state["step"],
                lr=config["lr"],
                qmap1=state["qmap1"],
                qmap2=state["qmap2"],
                absmax1=state["absmax1"][blocks],
                absmax2=state["absmax2"][blocks],
                weight_decay=config["weight_decay"],
            )
