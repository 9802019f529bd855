"""Standard output and error that outlive their terminal.

A run goes on, or ends in order, after its terminal was closed or the reader of its pipe has gone.
"""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

CLOSED = (errno.EPIPE, errno.EIO)
"""What a write to a pipe without a reader fails with, and one to a terminal that is gone."""


class Forgiving:
    """A stream to which writing never fails because nobody is there to read: from then on it is written to nowhere."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - what sys.stdout is at this moment
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self._stream, name)

    def __enter__(self) -> "Forgiving":
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def write(self, text: str) -> int:
        """Write, where somebody reads."""
        with self._forgiven():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write, where somebody reads."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, where somebody reads."""
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
            os.dup2(nowhere, self._stream.fileno())  # also for what is in the stream's buffer, and for other writers
            os.close(nowhere)


def forgive_closed_streams() -> None:
    """Let the program outlive the readers of its standard output and error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Forgiving):
            setattr(sys, name, Forgiving(stream))
