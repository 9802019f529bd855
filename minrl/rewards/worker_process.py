"""The process of a reward worker, and the pipe to it. The other side is `minrl.rewards.worker`."""

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
from io import BufferedReader
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

from loguru import logger

from minrl.dataflow import Job
from minrl.rewards.worker import Failure, Lost
from minrl.utils.processor import processor_s
from minrl.utils.signals import blocked
from minrl.utils.text import printable

START_S = 120.0
"""Until a worker has loaded what its job needs. To take longer is the machine's doing."""

LONGEST_S = 1e6
"""Longest deadline: the system refuses to wait for a month."""

ROOT = str(Path(__file__).resolve().parents[2])

SHOWN, WIDTH = 20, 200
"""Lines that the code of tasks prints, and characters of each, that are shown."""

PRINTED = itertools.count(1)


class Worker:
    """A worker's process and the pipe to it, used by one thread."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with blocked():  # until it ignores them
            self.process = subprocess.Popen(
                # P: no working directory on sys.path; u: what is printed is not kept back
                [sys.executable, "-Pu", "-m", "minrl.rewards.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, *sys.path]), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        theirs.close()
        self.reader = Thread(target=show_printed, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def run(self, job: Job, deadline_s: float) -> Any:  # noqa: ANN401 - whatever the job returned
        """The job's result. A job that cannot be sent or begun is a `Failure`; `Lost` if the worker died or missed the
        deadline, which counts from when it is ready.
        """
        try:
            payload = pickle.dumps((job.function, job.arguments))
        except Exception as error:  # pickling a task's objects may raise anything
            return Failure(f"the job cannot be sent to a worker: {error}")
        computed_s: float | None = None  # before the job
        try:
            self.connection.send_bytes(payload)
            if not self.connection.poll(START_S):
                self.kill()
                return Failure(f"no worker was ready within {START_S:g} s")
            computed_s = self.connection.recv()
            if self.connection.poll(min(deadline_s, LONGEST_S)):
                return self.connection.recv()
        except (EOFError, OSError):
            return self._died(ready=computed_s is not None)
        spent_s = processor_s(self.process.pid, children=False) - computed_s
        self.kill()
        reason = f"no reward within its deadline of {deadline_s} s"
        return Lost(reason, "timeout", by_completion=spent_s >= deadline_s / 2)

    def _died(self, ready: bool) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it closes its pipe shortly before it ends
            self.process.wait(timeout=1.0)
        self.kill()
        reason = f"the worker died (exit status {self.process.returncode})"
        if not ready:
            return Failure(f"{reason} before it was ready")
        timeout = self.process.returncode == -signal.SIGXCPU
        return Lost(reason, "timeout" if timeout else "crash", by_completion=timeout)

    def interrupt(self) -> None:
        """Kill the process and its session, from any thread."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def usable(self) -> bool:
        """Whether the process is there; what is left of one that has ended is ended."""
        if self.process.poll() is not None:
            self.kill()
        return not self.connection.closed

    def kill(self) -> None:
        """End the process, and show the rest of what it printed."""
        if self.connection.closed:
            return
        self.interrupt()
        self.process.wait()
        self.connection.close()
        self.reader.join(timeout=1.0)  # what it started outside its session may hold the pipe


def show_printed(pipe: BufferedReader) -> None:
    """Show the first lines that workers print, of all workers of this process."""
    with pipe:
        for line in pipe:
            number = next(PRINTED)
            if number <= SHOWN:
                text = printable(line.decode(errors="replace").removesuffix("\n"))
                logger.info(f"printed by the task: {text if len(text) <= WIDTH else text[:WIDTH] + ' ...'}")
            elif number == SHOWN + 1:
                logger.info("printed by the task: further lines are not shown")
