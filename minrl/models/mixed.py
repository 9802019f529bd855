"""Classes of modules that are made as they are needed: what a model's module computes, in another way."""

from functools import cache
from typing import Any

from torch import nn


@cache
def mixed(first: Any, of: Any, prefix: str) -> Any:  # noqa: ANN401 - classes of modules
    """The class of `of` with the methods of `first` before its own."""
    return type(prefix + of.__name__, (first, of), {})


def empty(first: Any, of: Any, prefix: str) -> nn.Module:  # noqa: ANN401
    """A module of that class without anything in it, for pickle, which finds a class by its name only."""
    cls = mixed(first, of, prefix)
    return cls.__new__(cls)
