"""What the code of tasks prints: the first lines are shown as a run's own messages are, the others counted."""

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import BufferedReader
from threading import Lock, RLock
from typing import Any

from loguru import logger

from minrl.utils.text import printable

SHOWN = 20
"""Lines that are shown until the workers end."""

WIDTH = 200
"""Characters of a line that are shown."""


class Printed:
    """Shows and counts lines."""

    def __init__(self) -> None:
        self._lines, self._lock = 0, Lock()  # a worker's output is read in a thread

    def add(self, line: str) -> None:
        """Show the line if it is one of the first."""
        with self._lock:
            self._lines += 1
            number = self._lines
        if number <= SHOWN:
            text = printable(line)
            logger.info(f"printed by the task: {text if len(text) <= WIDTH else text[:WIDTH] + ' ...'}")
        if number == SHOWN + 1:
            logger.info(f"printed by the task: more than {SHOWN} lines; the others are counted")

    def read(self, pipe: BufferedReader) -> None:
        """Add each line of a worker's output until it ends."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        with pipe, closing(Lines(self, pipe)) as lines:
            for piece in iter(partial(pipe.read1, 2**16), b""):
                lines.write(decode(piece))

    def close(self) -> None:
        """Say how many lines there were, and begin again."""
        with self._lock:
            lines, self._lines = self._lines, 0
        if lines > SHOWN:
            logger.info(f"printed by the task: {lines:,} lines in all, of which the first {SHOWN} are shown")


class Lines:
    """Stands for a stream: what is written is added line by line, of which no more than WIDTH is kept. When it is
    closed it goes to the stream: a thread that redirected its output meanwhile may leave this in the stream's place.
    """

    def __init__(self, printed: Printed, stream: Any) -> None:  # noqa: ANN401 - what sys.stdout is at this moment
        # Where rich draws its bars while this stands for the stream, or for what rich has put in its place.
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)
        self._printed, self._begun, self._stream, self._closed = printed, "", stream, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Add the lines that end in the text, and keep the beginning of the next."""
        if self._closed:
            return self._stream.write(text)
        first, *others = text.split("\n")
        self._begun += first[: WIDTH + 1 - len(self._begun)]
        for line in others:
            self._printed.add(self._begun)
            self._begun = line[: WIDTH + 1]
        return len(text)

    def close(self) -> None:
        """Add the line that was begun."""
        self._closed = True
        if self._begun:
            self._printed.add(self._begun)
            self._begun = ""


PRINTED = Printed()
"""Of this process and its workers."""

_ONE_AT_A_TIME = RLock()


@contextmanager
def caught() -> Iterator[None]:
    """Inside, what is printed is added to PRINTED."""
    with (
        _ONE_AT_A_TIME,
        closing(Lines(PRINTED, sys.stdout)) as out,
        closing(Lines(PRINTED, sys.stderr)) as err,
        redirect_stdout(out),  # type: ignore[type-var]
        redirect_stderr(err),  # type: ignore[type-var]
    ):
        yield
