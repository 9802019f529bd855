"""Bars with the time that is left: one for the run, and below it one for each long thing that goes on inside."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHOWN_AFTER_S = 1.0
"""An activity that is over sooner has no bar: it would only flicker."""

PACE_OVER_S = 3600.0
"""The time left goes by the pace of the last so many seconds, which hold several steps also where one takes minutes."""


@dataclass
class _Activity:
    """Something that goes on, and its bar once it has one."""

    name: str
    total: int
    started: float
    done: int = 0
    bar: TaskID | None = None


class Bars:
    """The bars of one terminal; a listener of `minrl.system.progress`. Where `shown` is False nothing is ever drawn."""

    def __init__(self, console: Console, shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.console, self.shown, self._now = console, shown, now
        self._drawn: Progress | None = None
        self._count = 0
        self._activities: list[_Activity] = []

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
        """A bar that stays; yields `report(how many are done, what to show beside it)`."""
        if not self.shown:
            yield lambda completed, note: None
            return
        bar = self._add(title, total, done)
        assert self._drawn is not None
        drawn = self._drawn
        try:
            yield lambda completed, note: drawn.update(bar, completed=completed, note=note)
        finally:
            self._drop(None)

    def begin(self, name: str, total: int) -> None:
        """An activity begins; its bar comes when it lasts, and at once where nobody knows how long it will take."""
        self._activities.append(_Activity(name, total, self._now()))
        if not total:
            self._show()

    def advance(self, done: int) -> None:
        """So much of the innermost activity is done."""
        activity = self._activities[-1]
        activity.done = done
        if activity.bar is None and self._now() - self._activities[0].started >= SHOWN_AFTER_S:
            self._show()
        if activity.bar is not None and self._drawn is not None:
            self._drawn.update(activity.bar, completed=done)

    def end(self) -> None:
        """The innermost activity is over, and its bar goes away."""
        activity = self._activities.pop()
        if activity.bar is not None:
            self._drop(activity.bar)

    def _show(self) -> None:
        """Bars for all activities that have none yet, the outer ones first."""
        for depth, activity in enumerate(self._activities if self.shown else (), 1):
            if activity.bar is None:
                title = "  " * depth + activity.name
                activity.bar = self._add(title, activity.total or None, activity.done, elapsed_from=activity.started)

    def _add(self, title: str, total: int | None, done: int, elapsed_from: float | None = None) -> TaskID:
        if self._drawn is None:
            self._drawn = self._new()
            self._drawn.start()
        self._count += 1
        bar = self._drawn.add_task(title, total=total, completed=done, note="")
        if elapsed_from is not None:
            self._drawn.tasks[-1].start_time = self._drawn.get_time() - (self._now() - elapsed_from)
        return bar

    def _drop(self, bar: TaskID | None) -> None:
        """One bar less: taken away, or left where it stands. After the last one the terminal is given back."""
        assert self._drawn is not None
        if bar is not None:
            self._drawn.remove_task(bar)
        self._count -= 1
        if self._count == 0:
            self._drawn.stop()
            self._drawn = None

    def _new(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            speed_estimate_period=PACE_OVER_S,
        )
