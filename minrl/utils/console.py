"""The terminal of a run: messages, progress bars with the time left, tables. Where the output is no terminal there are
no bars, and a line for each step. `--quiet` leaves the warnings, and the result.

Inside a program of the user's (`in_program`) the program's own handlers of loguru show the messages, and stay as they
are.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from minrl.utils.files import writing
from minrl.utils.text import one_line, printable, without_keys

SHOWN_AFTER_S = 1.0
"""A shorter activity has no bar."""

FILE_ONLY, RESULT = "file_only", "result"
"""Marks of messages (`logger.bind`): not on the terminal, and with --quiet too."""

_HOSTED = ContextVar("hosted", default=False)


@contextmanager
def in_program() -> Iterator[None]:
    """Screens inside add nothing to the terminal, which is that of a user's program, and log minrl's messages alone."""
    before = _HOSTED.set(True)
    try:
        yield
    finally:
        _HOSTED.reset(before)


class _Bars(Progress):
    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table([task for task in self.tasks if (task.elapsed or 0) >= SHOWN_AFTER_S])


BARS = _Bars(
    TextColumn("{task.description}", markup=False),
    BarColumn(20),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
    TextColumn("{task.fields[note]}", markup=False),
    console=Console(stderr=True, emoji=False),
    transient=True,
    speed_estimate_period=3600.0,  # a step may take minutes
    redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
)
"""What is going on, the outermost first. Nothing is drawn before a `Screen` starts it."""


@contextmanager
def activity(name: str, total: int = 0, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar inside, of work of `total` parts (0: unknown) of which some are done. Yields `report(parts done,
    note beside the bar)`. Where no bars are drawn, a report with a note is logged.

    >>> with activity("counting", 3) as report:
    ...     for number in range(3):
    ...         report(number + 1)
    """
    shown = "  " * len(BARS.task_ids) + printable(name)
    task = BARS.add_task(shown, total=total or None, completed=done, note="")

    def report(completed: int, note: str = "") -> None:
        BARS.update(task, completed=completed, note=printable(note))
        if note and not BARS.live.is_started:
            logger.info(f"{name} {completed}/{total}  {note}")

    try:
        yield report
    finally:
        BARS.remove_task(task)


class Screen:
    """The terminal of one process; `show` is False for all but the first. It takes back its own handlers alone."""

    def __init__(self, quiet: bool, show: bool = True) -> None:
        self.quiet, self.show = quiet, show and not _HOSTED.get()
        self._handlers: list[int] = []

    def __enter__(self) -> "Screen":
        if self.show:
            self._add(self._write, "{time:HH:mm:ss} {level: <7} {message}", self._shown)
        if self.show and not self.quiet and BARS.console.is_terminal:
            BARS.start()
        return self

    def __exit__(self, *error: object) -> None:
        if BARS.live.is_started:
            with _terminal():
                BARS.stop()
        for handler in self._handlers:
            logger.remove(handler)

    def log_to(self, path: Path) -> None:
        """Write the messages from now on to a file too."""

        def append(message: str) -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write(_line(message) + "\n")

        with writing(path):
            path.touch()
        self._add(append, "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}", "minrl" if _HOSTED.get() else None)

    def _add(self, sink: Callable[[str], None], form: str, which: Any) -> None:  # noqa: ANN401 - loguru's filters
        # Variables in tracebacks may be as long as a batch, or a key.
        self._handlers.append(logger.add(sink, level="INFO", format=form, filter=which, diagnose=False))

    def _shown(self, record: Any) -> bool:  # noqa: ANN401 - loguru's
        loud = RESULT in record["extra"] or record["level"].no >= logger.level("WARNING").no
        return FILE_ONLY not in record["extra"] and (loud or not self.quiet)

    def _write(self, message: str) -> None:
        with _terminal():
            BARS.console.print(_line(message), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _terminal() -> Iterator[None]:
    """Of who writes to it. A terminal that was closed reads no more, and the run saves its step all the same."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # also for what is left in the stream's buffer


def _line(message: str) -> str:
    """A message as it is shown: what others wrote commands no terminal, begins no line of the log and holds no key."""
    return without_keys(printable(message.rstrip()).replace("\n", "\n    "))


@dataclass(frozen=True)
class Table:
    """Texts by line and column, the first column aligned to the left. `notes` stand below."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def print_tables(tables: Iterable[Table], console: Console | None = None) -> None:
    """Write tables to the console (None: standard output). What is too wide for it is folded."""
    console = console or Console()
    for table in tables:
        drawn = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place, column in enumerate(table.columns):
            drawn.add_column(Text(one_line(column)), justify="right" if place else "left", overflow="fold")
        for line in table.lines:
            drawn.add_row(*(Text(one_line(cell)) for cell in line))
        notes = (Text(printable(note)) for note in table.notes)
        console.print(Text(f"\n{printable(table.title)}", style="bold"), drawn, *notes, sep="\n")
