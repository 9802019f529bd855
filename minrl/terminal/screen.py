"""What a run shows in the terminal: a progress bar, messages, a table at the end.

Quiet where it is told to be, and without bars where the output is not a terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger
from rich.console import Console
from rich.table import Table

from minrl.evaluation import is_solved
from minrl.policy import Policy
from minrl.system.disk import writing
from minrl.system.progress import listening
from minrl.terminal.bars import Bars
from minrl.types import Rollout

FILE_ONLY = "file_only"
"""Marks a message (`logger.bind`) that the terminal has already or will get otherwise."""

IN_FILE: dict[str, Any] = {
    "level": "INFO",
    "format": "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}",
    "diagnose": False,  # no values of variables: they may be as long as a batch, or a key
}


class Screen:
    """The terminal of one process. `show` is False for all but the first process.

    Inside its context it shows how far the activities of `minrl.system.progress` are.
    """

    def __init__(self, quiet: bool, show: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not show)
        self.bars = Bars(self.console, shown=show and not quiet and self.console.is_terminal)
        self.quiet = quiet or not show
        self._early: list[str] = []
        logger.remove()
        level = "WARNING" if self.quiet else "INFO"
        logger.add(
            self._write,
            level=level,
            format="{time:HH:mm:ss} {level: <7} {message}",
            colorize=False,
            filter=lambda record: FILE_ONLY not in record["extra"],
        )
        self._keeping = logger.add(self._early.append, **IN_FILE)

    def __enter__(self) -> "Screen":
        self._listening = listening(self.bars)
        self._listening.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.__exit__(None, None, None)

    def log_to(self, path: Path) -> None:
        """Keep the messages in a file too, with those from before there was one."""
        logger.remove(self._keeping)
        with writing(path), path.open("a") as file:
            file.writelines(self._early)
        self._early.clear()
        self._keeping = logger.add(partial(_append, path), **IN_FILE)

    def progress(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Callable[[int, str], None]]:
        """A bar with time left; yields `report(steps done, what to show beside it)`."""
        return self.bars.bar(title, total, done)

    def before_and_after(self, before: Mapping[str, dict], after: Mapping[str, dict]) -> None:
        """Held-out pass@1 before and after with 95 % intervals, a line for each task."""
        if self.quiet:
            return
        table = Table(title="held-out pass@1 (95 % interval)")
        for column in ("task", "before", "after", "greedy before", "greedy after", "samples"):
            table.add_column(column, justify="left" if column == "task" else "right")
        for name, new in after.items():
            cells = [_interval(before.get(name)), _interval(new), _greedy(before.get(name)), _greedy(new)]
            table.add_row(name, *cells, str(new["n"]))
        self.console.print(table)

    def rounds(self, rows: Sequence[Mapping[str, object]]) -> None:
        """What each round of an expert iteration kept and reached, a line each."""
        if self.quiet or not rows:
            return
        table = Table(
            title="rounds: kept completions and examples, held-out pass@1 (95 % interval), entropy in nats, seconds"
        )
        for column in rows[-1]:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*[str(row.get(column, "-")) for column in rows[-1]])
        self.console.print(table)

    def samples(self, rollouts: Sequence[Rollout], policy: Policy) -> None:
        """One solved and one failed completion, with their prompts."""
        if self.quiet:
            return
        for title, wanted in (("a solved sample", True), ("a failed sample", False)):
            rollout = next((r for r in rollouts if is_solved(r) == wanted), None)
            if rollout is not None:
                self.console.print(f"[bold]{title}[/bold]")
                self.console.print(f"  {policy.decode_all(rollout.ids)}", markup=False, highlight=False)

    def _write(self, message: str) -> None:
        self.console.print(message.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _append(path: Path, message: str) -> None:
    """Add a message to the file. Where the disk is full, it has been shown, and whatever the run cannot do without will
    fail: this must not come between.
    """
    with suppress(OSError), path.open("a") as file:
        file.write(message)


def _interval(evaluation: dict | None) -> str:
    if evaluation is None or evaluation["pass@1"] is None:
        return "-"
    low, high = evaluation["ci95"]
    return f"{evaluation['pass@1']:.1%} ({low:.1%} to {high:.1%})"


def _greedy(evaluation: dict | None) -> str:
    if evaluation is None or evaluation["pass@1_greedy"] is None:
        return "-"
    return f"{evaluation['pass@1_greedy']:.1%}"
