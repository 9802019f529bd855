"""Ends the process when an engine call hangs: a run that hangs looks like a slow one."""

import faulthandler
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

EXIT_HUNG = 70
"""Exit status of a run whose engine hung (EX_SOFTWARE of sysexits.h)."""

GRACE_S = 15.0
"""Seconds after the time limit until the process is ended even if Python cannot run any more."""


class Watchdog:
    """A context around engine calls. One that takes longer than `limit_s` seconds ends the process.

    `going_on` says where the last complete checkpoint is and which command resumes it. 0 seconds: no limit.
    """

    def __init__(self, limit_s: float, going_on: Callable[[], str]) -> None:
        self.limit_s, self.going_on = limit_s, going_on
        self._timer: threading.Timer | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._arm()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._disarm()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, somebody else computes in the middle of an engine call, which has its whole time again afterwards."""
        self._disarm()
        try:
            yield
        finally:
            self._arm()

    def _arm(self) -> None:
        if not self.limit_s:
            return
        self._timer = threading.Timer(self.limit_s, self._end)
        self._timer.daemon = True
        self._timer.start()
        # a C thread, for calls that never release the interpreter
        faulthandler.dump_traceback_later(self.limit_s + GRACE_S, exit=True, file=_stderr())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            faulthandler.cancel_dump_traceback_later()

    def _end(self) -> None:
        """Report what happened and how to resume, kill the workers, exit without waiting for anything."""
        stderr = _stderr()
        stderr.write(f"error: the engine did not answer within {self.limit_s:g} s (--engine-timeout-s)\n")
        stderr.flush()
        faulthandler.dump_traceback(file=stderr)
        try:
            stderr.write(f"{self.going_on()}\n")
            stderr.flush()
            for worker in multiprocessing.active_children():
                worker.kill()
        finally:
            os._exit(EXIT_HUNG)


def _stderr() -> Any:  # noqa: ANN401 - a file with a number, which sys.stderr under a test's capture is not
    return sys.__stderr__ or sys.stderr
