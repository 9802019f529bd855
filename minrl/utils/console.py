"""The terminal of a run: messages, progress with the time left, tables. No bars where the output is not a terminal.

A line about progress is logged where an activity has lasted for a second for the first time, and then every 30 s, by a
thread: nothing that lasts long is silent. `--quiet` leaves the warnings, and the result.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

from loguru import logger
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import Segments
from rich.table import Table as Grid
from rich.text import Text

from minrl.utils.files import writing
from minrl.utils.text import indented, one_line, printable, without_keys

SHOWN_AFTER_S, SAID_EVERY_S, TICK_S = 1.0, 30.0, 0.25
"""A shorter activity has no bar and no line; between two lines; between two looks of the thread."""

STEP = "step"
"""The activity of a run's steps, whose bar is always shown."""

FILE_ONLY, RESULT = "file_only", "result"
"""Marks of messages (`logger.bind`): not on the terminal, and with --quiet too."""

IN_FILE: dict[str, Any] = {
    "level": "INFO",
    "format": "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}",
    "diagnose": False,  # variables in tracebacks may be as long as a batch, or a key
}


# Progress: whoever works reports with `activity`, and a screen shows what is active


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


class Screen:
    """The terminal of one process; `show` is False for all but the first. Inside its context progress is shown."""

    def __init__(self, quiet: bool, show: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        self.console = Console(stderr=True, quiet=not show, emoji=False)
        self.quiet, self.logs, self.now = quiet or not show, show, now
        self._live: Live | None = None
        self._said, self._named = now(), set[str]()
        self._early: list[str] = []
        self._drawing = threading.RLock()  # of two threads at once, rich erases what one wrote
        self._ended = threading.Event()
        logger.remove()
        logger.add(self._write, level="INFO", format="{time:HH:mm:ss} {level: <7} {message}", filter=self._shown)
        self._keeping = logger.add(self._early.append, **IN_FILE)

    def __enter__(self) -> "Screen":
        if self.console.is_terminal and not self.quiet:
            self._live = Live(
                get_renderable=self._bars,
                console=self.console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()

    def progress(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Callable[..., None]]:
        """A bar with the time left; yields `report(parts done, note beside the bar)`."""
        return activity(title, total, done)

    def _watch(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()

    def tick(self) -> None:
        """Draw the bars, and log the line that is due."""
        now, active = self.now(), list(ACTIVE)
        if self._live is not None:
            with self._terminal():
                self._live.refresh()
        outermost = [one for one in active if one.name != STEP][:1] or [one for one in active if one.done > one.begun]
        lasting = {one.name for one in outermost if now - one.started >= SHOWN_AFTER_S}
        if self.logs and active and (lasting - self._named or now - self._said >= SAID_EVERY_S):
            self._said = now
            self._named |= lasting
            line = "  ".join(_line_of(one, now) for one in active)
            # Where bars are drawn, the line is for log.txt only.
            (logger if self._live is None else logger.bind(**{FILE_ONLY: True})).info(line)

    def _bars(self) -> RenderableType:
        now, grid = self.now(), Grid.grid(padding=(0, 1))
        shown = [one for one in list(ACTIVE) if one.name == STEP or now - one.started >= SHOWN_AFTER_S]
        for depth, one in enumerate(shown):
            bar = ProgressBar(one.total or None, one.done, width=20, pulse=not one.total)
            texts = (
                f"{one.done}/{one.total}" * bool(one.total),
                _time_left(one, now) or duration(now - one.started),
                one.note,
            )
            grid.add_row(Text("  " * depth + one.name), bar, *map(Text, texts))
        return grid if shown else Group()

    def log_to(self, path: Path) -> None:
        """Write the messages to a file too, including the earlier ones."""
        logger.remove(self._keeping)
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.writelines(map(_line, self._early))
        self._early.clear()
        self._keeping = logger.add(partial(_append, path), **IN_FILE)

    def _shown(self, record: Any) -> bool:  # noqa: ANN401 - loguru's
        extra = record["extra"]
        loud = RESULT in extra or record["level"].no >= logger.level("WARNING").no
        return FILE_ONLY not in extra and (loud or not self.quiet)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Held by who writes. A terminal that was closed reads no more, and the run saves its step all the same."""
        with self._drawing:
            try:
                yield
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # also for what is left in the stream's buffer

    def _write(self, message: str) -> None:
        with self._terminal():
            self.console.print(_line(message).rstrip(), markup=False, highlight=False, soft_wrap=True)


def _append(path: Path, message: str) -> None:
    """Add a message to the file. A full disk is no error here: the message was shown, and required writes fail."""
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(_line(message))


def _line(message: str) -> str:
    """A message as it is shown: what others wrote commands no terminal, begins no line of the log and holds no key."""
    return without_keys(indented(message.rstrip())) + "\n"


def _line_of(one: Activity, now: float) -> str:
    """How much is done, and the time left if that is known."""
    count = f"{one.done}/{one.total}" if one.total else f"for {duration(now - one.started)}"
    return "  ".join(filter(None, [f"{one.name} {count}", one.note, _time_left(one, now)]))


def _time_left(one: Activity, now: float) -> str:
    if one.end is not None:
        return f"{duration(max(0.0, one.end - now))} left"
    if not one.total or one.done <= one.begun:
        return ""
    return f"{duration((now - one.started) / (one.done - one.begun) * (one.total - one.done))} left"


def duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> duration(2.6), duration(89.0), duration(200.0), duration(20000.0)
    ('2.6 s', '89 s', '3 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Table:
    """Texts by line and column, the first column aligned to the left. `notes` stand below."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def print_tables(tables: Iterable[Table], elsewhere: str, console: Console | None = None) -> None:
    """Write tables to the console (None: standard output), as wide as the terminal but at least 80 columns. Long names
    are broken and figures are not; a table that is too wide is left out, and `elsewhere` says where it is.
    """
    console = console or Console()
    width = max(80, console.width)
    for table in tables:
        drawn = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        lines = [[one_line(cell) for cell in line] for line in table.lines]
        for place, column in enumerate(map(one_line, table.columns)):
            if place == 0:
                drawn.add_column(Text(column), overflow="fold", min_width=12)
            else:
                heading = wrap(column, max(8, *(len(line[place]) for line in lines)))
                drawn.add_column(Text("\n".join(heading)), justify="right", no_wrap=True)
        for line in lines:
            drawn.add_row(*map(Text, line))
        least = Measurement.get(console, console.options.update(max_width=10_000), drawn).minimum
        if least > width:
            console.print(Text(f"\n{printable(table.title)}: too wide for this terminal, see {elsewhere}"))
            continue
        console.print(Text(f"\n{printable(table.title)}", style="bold"))
        console.print(Segments(console.render(drawn, console.options.update(width=width))), crop=False)
        for note in table.notes:
            console.print(Text(printable(note)))
