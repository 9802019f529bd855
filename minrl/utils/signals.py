"""Signals that stop a program: Ctrl-C, SIGTERM of a supervisor, SIGHUP of a closed terminal, SIGUSR1 of a batch system.

By default the program ends at once and releases its resources; `minrl.run.stopping` lets a step finish. An ignored
signal, such as SIGHUP under nohup, stays ignored.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Stopped(KeyboardInterrupt):
    """A signal stops the program."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = exit_status(number)


def exit_status(number: int) -> int:
    """The exit status that shells use for a signal.

    >>> [exit_status(number) for number in STOP_SIGNALS]
    [130, 143, 129, 138]
    """
    return 128 + number


def stop_at_once(number: int, _frame: FrameType | None = None) -> None:
    """A signal handler that ends the program."""
    raise Stopped(number)


@contextmanager
def answered(answer: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler inside for the stop signals that are not ignored. What was ignored inside stays ignored. In a
    thread other than the main one, which gets no signals, nothing is installed.
    """
    numbers = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    handlers = ((number, signal.getsignal(number)) for number in numbers)
    ours = {number: before for number, before in handlers if before not in (signal.SIG_IGN, None)}
    for number in ours:
        signal.signal(number, answer)
    try:
        yield
    finally:
        for number, before in ours.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, before)


def ignore_stop_signals() -> None:
    """For a process whose parent ends it, although terminals and supervisors signal the whole group."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def blocked() -> Iterator[None]:
    """Keep the stop signals waiting inside. A process started here has them blocked until it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """Be killed when the process dies that started this one, where the system can do it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell(text: str) -> None:
    """Write to standard error from a signal handler, where no buffer and no lock can be used."""
    with suppress(OSError):  # the terminal may have just been closed
        os.write(2, text.encode())
