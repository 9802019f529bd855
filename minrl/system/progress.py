"""Progress reports from long-running work. Workers report with `activity`; a screen that listens shows it.

Nothing here depends on whether anyone listens. A report takes less than a microsecond.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Listener(Protocol):
    """Shows activities. They nest: the last to begin is the first to end."""

    def begin(self, name: str, total: int) -> None:
        """An activity of `total` parts begins (0: unknown)."""

    def advance(self, done: int) -> None:
        """`done` parts of the innermost activity are done."""

    def end(self) -> None:
        """The innermost activity ended."""


_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report every activity inside to the listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def activity(name: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """An activity of `total` parts (0: unknown). Call what it yields with the number of parts done.

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
