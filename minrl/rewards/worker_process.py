"""The process of a reward worker, and the pipe to it. The other side is `minrl.rewards.worker`."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

from minrl.rewards.begun import Begun
from minrl.rewards.printed import PRINTED
from minrl.rewards.worker import Failure, Lost
from minrl.utils.processor import processor_s
from minrl.utils.signals import blocked

READY = object()
"""What a worker says first: from then on a job's deadline counts."""

START_S = 120.0
"""Until a worker has loaded what its job needs. To take longer is the machine's doing."""

ROOT = str(Path(__file__).resolve().parents[2])


class Worker:
    """A worker's process and the pipe to it."""

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
        self.reader = Thread(target=PRINTED.read, args=(self.process.stdout,), daemon=True)
        self.reader.start()
        self.begun: Begun  # the current job, as the deadline and the seconds until it
        self.deadline: float
        self.deadline_s: float
        self.ready = False

    def start(self, begun: Begun, deadline_s: float) -> Failure | None:
        """Send the job. A job that cannot be pickled fails here."""
        try:
            payload = pickle.dumps((begun.job.function, begun.job.arguments))
        except Exception as error:  # pickling a task's objects may raise anything
            return Failure(f"the job cannot be sent to a worker: {error}")
        self.begun, self.deadline_s, self.ready = begun, deadline_s, False
        self.deadline = time.monotonic() + START_S
        with contextlib.suppress(BrokenPipeError):  # it just died, as `receive` will find
            self.connection.send_bytes(payload)
        return None

    def receive(self) -> Any:  # noqa: ANN401 - whatever the job returned
        """`READY`, then the job's result; a failure if the worker died, or ended after its deadline."""
        try:
            said, what = self.connection.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # it closes its pipe shortly before it ends
                self.process.wait(timeout=1.0)
            self.kill()
            status = self.process.returncode
            reason = f"the worker died (exit status {status})"
            if not self.ready:
                return Failure(f"{reason} before it was ready")
            timeout = status == -signal.SIGXCPU
            return Lost(reason, "timeout" if timeout else "crash", blamed=timeout)
        if self.ready:
            return what if said <= self.deadline else self.late()
        self.ready, self.deadline, self._computed_s = True, said + self.deadline_s, what
        return READY

    def late(self) -> Failure:
        """Kill it, and say why."""
        computed_s = processor_s(self.process.pid, children=False) - self._computed_s if self.ready else 0.0
        self.kill()
        if not self.ready:
            return Failure(f"no worker was ready within {START_S:g} s")
        reason = f"no reward within its deadline of {self.deadline_s} s"
        return Lost(reason, "timeout", blamed=computed_s >= self.deadline_s / 2)

    def kill(self) -> None:
        """Kill the process and its session."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()
