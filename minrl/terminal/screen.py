"""The terminal of a run: a progress bar, messages, a table at the end. No bars where the output is not a terminal.

`--quiet` leaves the warnings, and the result.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger
from rich.console import Console

from minrl.system.disk import writing
from minrl.system.foreign_text import indented
from minrl.system.keys import without_keys
from minrl.system.progress import listening
from minrl.terminal.bars import FILE_ONLY, Bars
from minrl.terminal.tables import Table, print_tables

RESULT = "result"
"""Marks a message (`logger.bind`) that is shown with --quiet too."""

IN_FILE: dict[str, Any] = {
    "level": "INFO",
    "format": "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}",
    "diagnose": False,  # variables in tracebacks may be as long as a batch, or a key
}


class Screen:
    """The terminal of one process; `show` is False for all but the first. Its context shows `minrl.system.progress`."""

    def __init__(self, quiet: bool, show: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not show, emoji=False)
        self.bars = Bars(self.console, shown=show and not quiet and self.console.is_terminal, logged=show)
        self.quiet = quiet or not show
        self._early: list[str] = []
        logger.remove()
        logger.add(
            self._write,
            level="INFO",
            format="{time:HH:mm:ss} {level: <7} {message}",
            colorize=False,
            filter=lambda record: (
                FILE_ONLY not in (extra := record["extra"])
                and (not self.quiet or RESULT in extra or record["level"].no >= logger.level("WARNING").no)
            ),
        )
        self._keeping = logger.add(self._early.append, **IN_FILE)

    def __enter__(self) -> "Screen":
        self._open = ExitStack()
        self._open.enter_context(self.bars)
        self._open.enter_context(listening(self.bars))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def log_to(self, path: Path) -> None:
        """Write the messages to a file too, including the earlier ones."""
        logger.remove(self._keeping)
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.writelines(map(_line, self._early))
        self._early.clear()
        self._keeping = logger.add(partial(_append, path), **IN_FILE)

    def progress(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Callable[..., None]]:
        """A bar with the time left; yields `report(steps done, note beside the bar, seconds left)`, as `Bars.bar`."""
        return self.bars.bar(title, total, done)

    def before_and_after(self, before: Mapping[str, dict], after: Mapping[str, dict]) -> None:
        """Held-out pass@1 before and after with 95 % intervals, one row per task."""
        rows = [
            {
                "task": name,
                "before": _interval(before.get(name)),
                "after": _interval(new),
                "greedy": " to ".join(_greedy(one) for one in (before.get(name), new)),
                "samples": new["n"],
            }
            for name, new in after.items()
        ]
        self._table("held-out pass@1 in %, 95 % interval", rows)

    def rounds(self, rows: Sequence[Mapping[str, object]]) -> None:
        """What each round of an expert iteration kept and reached, one row per round."""
        if self.quiet or not rows:
            return
        title = "rounds: kept completions and examples, held-out pass@1, entropy in nats, seconds"
        self._table(title, rows)

    def _table(self, title: str, rows: Sequence[Mapping[str, object]]) -> None:
        lines = [[str(row.get(column, "-")) for column in rows[-1]] for row in rows]
        with self.bars.drawing:
            print_tables([Table(title, list(rows[-1]), lines)], "summary.json", self.console)

    def samples(self, texts: Mapping[bool, str]) -> None:
        """A solved (True) and a failed completion, each with its prompt. Either may be missing."""
        if self.quiet:
            return
        for title, solved in (("a solved sample", True), ("a failed sample", False)):
            if solved in texts:
                self.console.print(f"[bold]{title}[/bold]")
                self.console.print(f"  {indented(texts[solved])}", markup=False, highlight=False, soft_wrap=True)

    def _write(self, message: str) -> None:
        with self.bars.drawing:
            self.console.print(_line(message).rstrip(), markup=False, highlight=False, soft_wrap=True)


def _append(path: Path, message: str) -> None:
    """Add a message to the file. A full disk is no error here: the message was shown, and required writes fail."""
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(_line(message))


def _line(message: str) -> str:
    """A message as it is shown: what others wrote commands no terminal, begins no line of the log and holds no key."""
    return without_keys(indented(message.rstrip())) + "\n"


def _interval(evaluation: dict | None) -> str:
    if evaluation is None or evaluation["pass@1"] is None:
        return "-"
    low, high = evaluation["ci95"]
    return f"{_percent(evaluation['pass@1'])} ({_percent(low)} to {_percent(high)})"


def _greedy(evaluation: dict | None) -> str:
    if evaluation is None or evaluation["pass@1_greedy"] is None:
        return "-"
    return _percent(evaluation["pass@1_greedy"])


def _percent(part: float) -> str:
    return f"{100 * part:.1f}" if part < 1 else "100"
