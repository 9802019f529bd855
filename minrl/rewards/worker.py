"""A reward worker: a new process (`python -m minrl.rewards.worker`), never a fork of one in which torch has threads."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any

from minrl.rewards.printed import PRINTED
from minrl.system.signals import ignore_stop_signals
from minrl.tasks.grader import Grader, Reason
from minrl.types import Job, Mistake

START_S = 120.0
"""Until a worker has loaded what its job needs. To take longer is the machine's doing."""

READY = b"ready"

ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Failure:
    """Why a job has no result, such as a traceback or a missed deadline."""

    reason: str


@dataclass(frozen=True)
class Lost(Failure):
    """The job's worker missed its deadline or died. `blamed`: the job did it, since it spent the processor time."""

    end: Reason
    blamed: bool = False


class Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
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
        self.index: int  # of the current job, as the deadline and the seconds until it
        self.deadline: float
        self.deadline_s: float
        self.ready = False

    def start(self, index: int, job: Job, deadline_s: float) -> Failure | None:
        """Send the job. A job that cannot be pickled fails here."""
        try:
            payload = pickle.dumps((job.function, job.arguments))
        except Exception as error:  # pickling a task's objects may raise anything
            return Failure(f"the job cannot be sent to a worker: {error}")
        self.index, self.deadline_s, self.ready = index, deadline_s, False
        self.deadline = time.monotonic() + START_S
        with contextlib.suppress(BrokenPipeError):  # it just died, as `receive` will find
            self.connection.send_bytes(payload)
        return None

    def receive(self) -> Any:  # noqa: ANN401 - whatever the job returned
        """`READY`, from which on the deadline counts, then the job's result; a failure if the worker died."""
        try:
            if self.ready:
                return self.connection.recv()
            self.connection.recv_bytes()
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
        self.ready, self.deadline, self._computed_s = True, time.monotonic() + self.deadline_s, self._processor_s()
        return READY

    def late(self) -> Failure:
        """Kill it, and say why."""
        computed_s = self._processor_s() - self._computed_s if self.ready else 0.0
        self.kill()
        if not self.ready:
            return Failure(f"no worker was ready within {START_S:g} s")
        reason = f"no reward within its deadline of {self.deadline_s} s"
        return Lost(reason, "timeout", blamed=computed_s >= self.deadline_s / 2)

    def _processor_s(self) -> float:
        """Seconds of processor time that it has spent; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill the process and its session."""
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()


def call(job: Job) -> Any:  # noqa: ANN401 - whatever the job returns
    """The job's result, or a `Failure` with its traceback, of a mistake with its message."""
    try:
        return job.function(*job.arguments)
    except Mistake as error:
        return Failure(str(error))
    except (Exception, SystemExit):  # of a task's own code: the rollout becomes unscorable and is counted
        return Failure(traceback.format_exc())


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes."""
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        job = _loaded(payload)
        connection.send_bytes(READY)
        try:
            answer = pickle.dumps(call(job))
        except Exception:  # the result cannot be pickled
            answer = pickle.dumps(Failure(traceback.format_exc()))
        connection.send_bytes(answer)


def _loaded(payload: bytes) -> Job:
    """The job, with all that it needs; one that fails if the task's module cannot be imported here."""
    try:
        job = Job(*pickle.loads(payload))
        if isinstance(job.function, Grader) and job.function.warm is not None:
            job.function.warm()
    except Exception:  # of a task's own code
        return Job(Failure, (traceback.format_exc(),))
    return job


if __name__ == "__main__":
    from minrl.rewards import worker

    ignore_stop_signals()  # the trainer handles them and lets the step end
    worker.serve(Connection(int(sys.argv[1])))
