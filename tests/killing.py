"""Runs that end where a test says, as a process does that is killed there."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


class Killed(BaseException):
    """Stands for a process that ends here."""


@contextmanager
def killed_at(module: ModuleType, moment: str, call: int) -> Iterator[None]:
    """What is run inside ends when it calls that function of the module for the `call`-th time, and comes to it."""
    usual, calls = getattr(module, moment), []

    def stopping(*args, **kwargs):
        calls.append(moment)
        if len(calls) == call:
            raise Killed
        return usual(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, moment, stopping)
        yield
