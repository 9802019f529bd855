"""Progress of long-running work: workers report with `activity`, and a screen shows what is active.

Nothing here depends on whether anyone looks. A report takes less than a microsecond.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class Activity:
    """Work of `total` parts (0: unknown), of which `begun` were done before it started."""

    name: str
    total: int
    started: float
    done: int = 0
    begun: int = 0
    note: str = ""
    end: float | None = None
    """When it will end, if whoever reports has said so."""


ACTIVE: list[Activity] = []
"""What is going on, the outermost first."""


@contextmanager
def activity(name: str, total: int = 0, done: int = 0) -> Iterator[Callable[..., None]]:
    """An activity inside. Call what it yields with the number of parts done, a note to show beside it, and the seconds
    left, which follow from the pace if they are not given.

    >>> with activity("counting", 3) as report:
    ...     for number in range(3):
    ...         report(number + 1)
    """
    one = Activity(name, total, time.monotonic(), done, done)

    def report(completed: int, note: str = "", left_s: float | None = None) -> None:
        if completed == done:  # what came before the first part does not tell how long a part takes
            one.started = time.monotonic()
        one.done, one.note = completed, note
        one.end = None if left_s is None else time.monotonic() + left_s

    ACTIVE.append(one)
    try:
        yield report
    finally:
        ACTIVE.remove(one)
