"""Runs that end where a test says, as a process does that is killed there, and runs that are told to end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for a process that ends here."""


@contextmanager
def before(module: ModuleType | type, moment: str, call: int, act: Callable[[], Any]) -> Iterator[None]:
    """What is run inside acts before it calls that function of the module for the `call`-th time, and comes to it."""
    usual, calls = getattr(module, moment), []

    def acting(*args, **kwargs):
        calls.append(moment)
        if len(calls) == call:
            act()
        return usual(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, moment, acting)
        yield
    assert len(calls) >= call, f"{moment} was called {len(calls)} times only"


def _kill() -> None:
    raise Killed


@contextmanager
def killed_at(module: ModuleType, moment: str, call: int) -> Iterator[None]:
    """What is run inside ends when it calls that function of the module for the `call`-th time, and comes to it."""
    with before(module, moment, call, _kill), pytest.raises(Killed):
        yield


@contextmanager
def signalled_at(module: ModuleType, moment: str, call: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """What is run inside gets a signal when it calls that function of the module for the `call`-th time."""
    with before(module, moment, call, lambda: signal.raise_signal(number)):
        yield
