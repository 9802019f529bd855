"""Progress with the time left: bars in a terminal, and lines in log.txt and where there is no terminal.

A line is logged where an activity has lasted for a second for the first time, and then every 30 s, by a thread: nothing
that lasts long is silent.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from loguru import logger
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

SHOWN_AFTER_S = 1.0
"""A shorter activity has no bar, which would only flicker, and no line."""

SAID_EVERY_S = 30.0
"""Between two lines about progress."""

TICK_S = 0.25
"""How often the thread looks whether a line or a bar is due."""

STEP = "step"
"""The bar of a run's steps."""

FILE_ONLY = "file_only"
"""Marks a message (`logger.bind`) that reaches the terminal by another way."""


@dataclass
class _Activity:
    """An activity, and its bar once it has one. `begun` is how much was done when it started, `end` when it will end,
    if whoever reports has said so.
    """

    name: str
    total: int
    started: float
    done: int = 0
    begun: int = 0
    note: str = ""
    end: float | None = None
    bar: TaskID | None = None

    def line(self, now: float) -> str:
        """How much is done, and the time left if that is known."""
        done = f"{self.done}/{self.total}" if self.total else f"for {duration(now - self.started)}"
        left = self.left(now)
        return "  ".join(filter(None, [f"{self.name} {done}", self.note, f"{left} left" if left else ""]))

    def left(self, now: float) -> str:
        """The time left: as reported, or at the pace so far; empty if it is not known."""
        if self.end is not None:
            return duration(max(0.0, self.end - now))
        if not self.total or self.done <= self.begun:
            return ""
        return duration((now - self.started) / (self.done - self.begun) * (self.total - self.done))


class Bars:
    """The bars of one terminal, drawn if `shown`. A listener of `minrl.system.progress`, logged if `logged`.

    Inside its context a thread draws and logs what is due while nobody reports.
    """

    def __init__(
        self, console: Console, shown: bool, logged: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.shown, self.logged, self._now = console, shown, logged, now
        self._said, self._named = now(), set[str]()
        self._drawn: Progress | None = None
        self._count = 0
        self._steps: list[_Activity] = []
        self._activities: list[_Activity] = []
        self._lock, self._ended = threading.RLock(), threading.Event()
        self.drawing = threading.RLock()
        """Held by whoever writes to the console: of two threads at once, rich erases what one wrote. Nothing is logged
        under it."""

    def __enter__(self) -> "Bars":
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
        """A bar that stays; yields `report(completed, note, left_s=None)`, with the note shown beside the bar. The
        seconds left follow from the pace if they are not given.
        """
        steps = _Activity(title, total, self._now(), done, done)
        with self._lock:
            drawn, bar = self._add(title, steps) if self.shown else (None, None)
            self._steps.append(steps)

        def report(completed: int, note: str, left_s: float | None = None) -> None:
            with self._lock:
                if completed == done:  # what came before the first step does not tell how long a step takes
                    steps.started = self._now()
                steps.done, steps.note = completed, note
                steps.end = None if left_s is None else self._now() + left_s
                if drawn is not None and bar is not None:
                    drawn.update(bar, completed=completed, note=note)
                self.tick()

        try:
            with _above_bars(self.console) if self.shown else nullcontext():
                yield report
        finally:
            with self._lock:
                self._steps.remove(steps)
                if drawn is not None:
                    self._drop()

    def begin(self, name: str, total: int) -> None:
        """Start an activity. Its bar appears once the activity lasts."""
        with self._lock:
            self._activities.append(_Activity(name, total, self._now()))

    def advance(self, done: int) -> None:
        """Set how much of the innermost activity is done."""
        with self._lock:
            activity = self._activities[-1]
            activity.done = done
            self.tick()
            if activity.bar is not None and self._drawn is not None:
                self._drawn.update(activity.bar, completed=done)

    def end(self) -> None:
        """End the innermost activity and remove its bar."""
        with self._lock:
            activity = self._activities.pop()
            if activity.bar is not None and self._drawn is not None:
                self._drawn.remove_task(activity.bar)
                self._drop()

    def tick(self) -> None:
        """Draw the bars that are due, and log the line that is due."""
        with self._lock:
            now, outermost = self._now(), self._activities[:1] or [one for one in self._steps if one.done > one.begun]
            lasting = [one.name for one in outermost if now - one.started >= SHOWN_AFTER_S]
            if self.shown and lasting and self._activities and self._activities[-1].bar is None:
                self._show()
            new = not self._named.issuperset(lasting)
            if self.logged and (new or now - self._said >= SAID_EVERY_S) and (self._steps or self._activities):
                self._said = now
                self._named.update(lasting)
                line = "  ".join(one.line(now) for one in (*self._steps, *self._activities))
                # Where bars are drawn, the line is for log.txt only.
                (logger.bind(**{FILE_ONLY: True}) if self.shown else logger).info(line)

    def _watch(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()
            with self._lock, self.drawing:
                if self._drawn is not None:
                    self._drawn.refresh()

    def _show(self) -> None:
        """Add a bar for each activity without one, outermost first."""
        for depth, activity in enumerate(self._activities, 1):
            if activity.bar is None:
                drawn, activity.bar = self._add("  " * depth + activity.name, activity)
                drawn.tasks[-1].start_time = drawn.get_time() - (self._now() - activity.started)

    def _add(self, title: str, shown: _Activity) -> tuple[Progress, TaskID]:
        if self._drawn is None:
            self._drawn = _new_progress(self.console)
            with self.drawing:
                self._drawn.start()
        self._count += 1
        fields: dict[str, Any] = {"note": "", "left": lambda: shown.left(self._now())}
        return self._drawn, self._drawn.add_task(title, total=shown.total or None, completed=shown.done, **fields)

    def _drop(self) -> None:
        """Count one bar less. After the last one the terminal is released."""
        self._count -= 1
        if self._count == 0 and self._drawn is not None:
            with self.drawing:
                self._drawn.stop()
            self._drawn = None


@contextmanager
def _above_bars(console: Console) -> Iterator[None]:
    """Inside, what others print stands above the bars. Rich would do so in whatever thread draws the first bar, and put
    back what stood for a stream at that moment, such as what catches the prints of a reward that is called then.
    """
    if isinstance(sys.stdout, FileProxy):  # an outer bar's
        yield
        return
    out, err = FileProxy(console, sys.stdout), FileProxy(console, sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
            err.flush()


def duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> duration(2.6), duration(89.0), duration(200.0), duration(20000.0)
    ('2.6 s', '89 s', '3 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class _Left(ProgressColumn):
    """The time left."""

    def render(self, task: Task) -> Text:
        """The time left of the activity whose bar it is."""
        return Text(task.fields["left"]() or "-")


def _new_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        _Left(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
