"""Copies to a device for which the host does not wait."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors in main memory on a device. To a card they go from pinned memory, in one copy for each of their types."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    there: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        own = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[number].flatten() for number in own]).pin_memory().to(device, non_blocking=True)
        parts = flat.split([tensors[number].numel() for number in own])
        there |= {number: part.view(tensors[number].shape) for number, part in zip(own, parts, strict=True)}
    return [there[number] for number in range(len(tensors))]
