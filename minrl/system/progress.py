"""How far the long things are. Whoever works says so with `activity`; a screen that listens shows it.

Nothing here depends on whether somebody listens, and saying so costs less than a microsecond.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Listener(Protocol):
    """Who shows activities. They nest: the last one that began is the first to end."""

    def begin(self, name: str, total: int) -> None:
        """Something of `total` parts begins; 0: nobody knows how many."""

    def advance(self, done: int) -> None:
        """So many parts of it are done."""

    def end(self) -> None:
        """It has ended."""


_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell the listener of every activity inside."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def activity(name: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """Something long of `total` parts (0: unknown) goes on inside; call what this yields with how many are done.

    >>> with activity("counting", 3) as report:
    ...     for number in range(3):
    ...         report(number + 1)
    """
    told = list(_listeners)
    for listener in told:
        listener.begin(name, total)

    def report(done: int) -> None:
        for listener in told:
            listener.advance(done)

    try:
        yield report
    finally:
        for listener in told:
            listener.end()
