"""Progress with the time left: bars in a terminal, and a line every 30 s in log.txt and where there is no terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loguru import logger
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
"""A shorter activity has no bar, which would only flicker."""

PACE_OVER_S = 3600.0
"""The window over which the time left is estimated. It holds several steps even where a step takes minutes."""

SAID_EVERY_S = 30.0
"""Between two lines about progress."""

FILE_ONLY = "file_only"
"""Marks a message (`logger.bind`) that reaches the terminal by another way."""


@dataclass
class _Activity:
    """An activity, and its bar once it has one."""

    name: str
    total: int
    started: float
    done: int = 0
    bar: TaskID | None = None


class Bars:
    """The bars of one terminal, drawn if `shown`. A listener of `minrl.system.progress`, logged if `logged`."""

    def __init__(
        self, console: Console, shown: bool, logged: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.shown, self.logged, self._now = console, shown, logged, now
        self._said = now()
        self._drawn: Progress | None = None
        self._count = 0
        self._activities: list[_Activity] = []

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
        """A bar that stays; yields `report(completed, note)`, with the note shown beside the bar."""
        started = self._now()
        drawn, bar = self._add(title, total, done) if self.shown else (None, None)

        def report(completed: int, note: str) -> None:
            if drawn is not None and bar is not None:
                drawn.update(bar, completed=completed, note=note)
            pace = (self._now() - started) / max(1, completed - done)
            self._say(
                f"{title} {completed}/{total}  {note}  {pace:.1f} s/step  {_minutes(pace * (total - completed))} left"
            )

        try:
            yield report
        finally:
            if drawn is not None:
                self._drop()

    def begin(self, name: str, total: int) -> None:
        """Start an activity. Its bar appears once the activity lasts, and at once where its length is unknown."""
        self._activities.append(_Activity(name, total, self._now()))
        if not total:
            self._show()

    def advance(self, done: int) -> None:
        """Set how much of the innermost activity is done."""
        activity = self._activities[-1]
        activity.done = done
        if activity.bar is None and self._now() - self._activities[0].started >= SHOWN_AFTER_S:
            self._show()
        if activity.bar is not None and self._drawn is not None:
            self._drawn.update(activity.bar, completed=done)
        self._say("  ".join(f"{one.name} {one.done}/{one.total}" for one in self._activities))

    def end(self) -> None:
        """End the innermost activity and remove its bar."""
        activity = self._activities.pop()
        if activity.bar is not None and self._drawn is not None:
            self._drawn.remove_task(activity.bar)
            self._drop()

    def _say(self, line: str) -> None:
        """Log a line, unless the last one was a short while ago. Where bars are drawn it is for log.txt only."""
        if self.logged and self._now() - self._said >= SAID_EVERY_S:
            self._said = self._now()
            (logger.bind(**{FILE_ONLY: True}) if self.shown else logger).info(line)

    def _show(self) -> None:
        """Add a bar for each activity without one, outermost first."""
        for depth, activity in enumerate(self._activities if self.shown else (), 1):
            if activity.bar is None:
                drawn, activity.bar = self._add("  " * depth + activity.name, activity.total or None, activity.done)
                drawn.tasks[-1].start_time = drawn.get_time() - (self._now() - activity.started)

    def _add(self, title: str, total: int | None, done: int) -> tuple[Progress, TaskID]:
        if self._drawn is None:
            self._drawn = _new_progress(self.console)
            self._drawn.start()
        self._count += 1
        return self._drawn, self._drawn.add_task(title, total=total, completed=done, note="")

    def _drop(self) -> None:
        """Count one bar less. After the last one the terminal is released."""
        self._count -= 1
        if self._count == 0 and self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _new_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        speed_estimate_period=PACE_OVER_S,
    )
