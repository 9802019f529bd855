"""What the code of tasks prints in reward workers: the first lines are shown as a run's own, the others counted."""

from io import BufferedReader
from threading import Lock

from loguru import logger

from minrl.utils.text import printable

SHOWN = 20
"""Lines that are shown until the workers end."""

WIDTH = 200
"""Characters of a line that are shown."""


class Printed:
    """Shows and counts lines."""

    def __init__(self) -> None:
        self._lines, self._lock = 0, Lock()  # each worker's output is read in a thread

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
        with pipe:
            for line in pipe:
                self.add(line.decode(errors="replace").removesuffix("\n"))

    def close(self) -> None:
        """Say how many lines there were, and begin again."""
        with self._lock:
            lines, self._lines = self._lines, 0
        if lines > SHOWN:
            logger.info(f"printed by the task: {lines:,} lines in all, of which the first {SHOWN} are shown")


PRINTED = Printed()
"""Of the workers of this process."""
