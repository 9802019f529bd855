"""What a program does when it is told to stop: by Ctrl-C, by a supervisor (SIGTERM) or by a closed terminal (SIGHUP).

A program ends at once and releases what it holds, unless it answers otherwise: see `minrl.run.stopping`. A signal that is
ignored, as SIGHUP is under nohup, stays ignored.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STDERR = 2


class Stopped(KeyboardInterrupt):
    """The program is told to stop at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = exit_status(number)


def exit_status(number: int) -> int:
    """The exit status that shells have for the end by a signal.

    >>> [exit_status(number) for number in STOP_SIGNALS]
    [130, 143, 129]
    """
    return 128 + number


def stop_at_once(number: int, _frame: FrameType | None = None) -> None:
    """Answer a signal: end the program."""
    raise Stopped(number)


@contextmanager
def answered(answer: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, the signals to stop that are not ignored are answered like this."""
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    ours = {number: before for number, before in previous.items() if before not in (signal.SIG_IGN, None)}
    for number in ours:
        signal.signal(number, answer)
    try:
        yield
    finally:
        for number, before in ours.items():
            signal.signal(number, before)


def ignore_stop_signals() -> None:
    """For a process whose parent decides when it ends, while a terminal or a supervisor tells the whole group to."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def tell(text: str) -> None:
    """Write to standard error from where a signal is answered: something else may be half written, so that no buffer
    and no lock can be used.
    """
    with suppress(OSError):  # the terminal may be what has just been closed
        os.write(STDERR, text.encode())
