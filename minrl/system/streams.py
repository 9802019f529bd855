"""Standard output and error that survive a closed terminal, or a pipe whose reader ended."""

import errno
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from minrl.system.foreign_text import printable
from minrl.system.keys import without_keys

CLOSED = (errno.EPIPE, errno.EIO)
"""Errors of a write to a pipe without a reader, and to a closed terminal."""


def first_line(error: Exception) -> str:
    """The first line of an error of a library's, or its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class Forgiving:
    """A stream that discards what is written once its reader is gone, instead of failing."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - what sys.stdout is at this moment
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self._stream, name)

    def __enter__(self) -> "Forgiving":
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def write(self, text: str) -> int:
        """Write, unless the stream is closed."""
        with self._forgiven():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line, unless the stream is closed."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, unless the stream is closed."""
        with self._forgiven():
            self._stream.flush()

    @contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also for the stream's buffer and other writers
            os.close(nowhere)


def forgive_closed_streams() -> None:
    """Make standard output and error forgiving, and what nothing catches harmless there. A stream that the program
    started without (`2>&-`) goes nowhere.
    """
    sys.excepthook = show_fault
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or _nowhere()
        if not isinstance(stream, Forgiving):
            setattr(sys, name, Forgiving(stream))


def show_fault(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Show an exception that nothing caught as Python does, but nothing that commands a terminal, and no key."""
    sys.stderr.write(without_keys(printable("".join(traceback.format_exception(error)))))


def _nowhere() -> TextIO:
    """A stream that discards. It takes the lowest free number, which is the closed stream's; children inherit it."""
    stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the program ends
    os.set_inheritable(stream.fileno(), True)
    return stream
