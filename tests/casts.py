"""Counts what is cast from float32 to bfloat16."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):
    """Inside, `shapes` counts the matrices that were cast, by their shape."""

    def __init__(self):
        super().__init__()
        self.shapes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.shapes[tuple(args[0].shape)] += args[0].dtype == torch.float32
        return func(*args, **kwargs)
