"""Rewards in worker processes, each with a deadline.

A worker is a new process (`python -m minrl.rewards.workers`), never a fork of one in which torch has threads. A worker
that misses its deadline or dies is replaced; its job fails and the others continue.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from minrl.rewards.printed import PRINTED, caught
from minrl.system.cores import cpu_cores
from minrl.system.progress import activity
from minrl.system.signals import ignore_stop_signals
from minrl.types import Job, Mistake

MOST_THREADS = 256
"""Concurrent jobs that wait for a server."""

LONGEST_WAIT_S = 3600.0
"""Longest single wait: the system refuses one of a month."""

ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Failure:
    """Why a job has no result, such as a traceback or a missed deadline."""

    reason: str


class Workers:
    """A pool of worker processes, started when first needed."""

    def __init__(self, count: int, deadline_s: float) -> None:
        self.count, self.deadline_s = count or cpu_cores(), deadline_s
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._seconds = 0.0

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """The result or `Failure` of each job, in order. Cheap jobs run here, jobs that wait for a server in threads,
        all others in the workers.
        """
        started = time.perf_counter()
        with activity("rewards", len(jobs)) as report:
            results = self._run(jobs, report)
        self._seconds += time.perf_counter() - started
        return results

    def take_seconds(self) -> float:
        """Seconds spent in `run` since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _run(self, jobs: Sequence[Job], report: Callable[[int], None]) -> list[Any]:
        results = dict(in_threads({index: job for index, job in enumerate(jobs) if job.waits}))
        with caught():
            results.update({index: call(job) for index, job in enumerate(jobs) if job.cheap})
        waiting = [index for index, job in enumerate(jobs) if not (job.cheap or job.waits)][::-1]
        while waiting or self._busy:
            while waiting and len(self._busy) < self.count:
                index = waiting.pop()
                worker = self._next_worker()
                failed = worker.start(index, jobs[index], self.deadline_s)
                if failed is None:
                    self._busy[worker.connection] = worker
                else:
                    results[index] = failed
                    self._idle.append(worker)
            for worker, result in self._finished():
                results[worker.index] = result
            report(len(jobs) - len(waiting) - len(self._busy))
        return [results[index] for index in range(len(jobs))]

    def _next_worker(self) -> "_Worker":
        """An idle worker that is still alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        return _Worker()

    def close(self) -> None:
        """End all workers."""
        workers = [*self._idle, *self._busy.values()]
        for worker in workers:
            worker.kill()
        patience = time.monotonic() + 1.0  # for all: what they started outside their sessions may hold the pipes
        for worker in workers:
            worker.reader.join(timeout=max(0.0, patience - time.monotonic()))
        self._idle, self._busy = [], {}
        PRINTED.close()

    def _finished(self) -> list[tuple["_Worker", Any]]:
        """Workers that answered, died or missed their deadline, each with its result."""
        if not self._busy:
            return []
        patience = min(worker.deadline for worker in self._busy.values()) - time.monotonic()
        ready = set(wait(list(self._busy), timeout=min(max(0.0, patience), LONGEST_WAIT_S)))
        finished = []
        for connection, worker in list(self._busy.items()):
            if connection in ready:
                finished.append((worker, worker.receive()))
            elif time.monotonic() >= worker.deadline:
                finished.append((worker, Failure(f"no reward within its deadline of {self.deadline_s} s")))
                worker.kill()
        for worker, _ in finished:
            del self._busy[worker.connection]
            if not worker.connection.closed:  # it was not killed
                self._idle.append(worker)
        return finished


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            # P: no working directory on sys.path; u: what is printed is not kept back
            [sys.executable, "-Pu", "-m", "minrl.rewards.workers", str(theirs.fileno())],
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
        self.index: int  # of the current job, as the deadline
        self.deadline: float

    def start(self, index: int, job: Job, deadline_s: float) -> Failure | None:
        """Send the job. A job that cannot be pickled fails here."""
        try:
            payload = pickle.dumps((job.function, job.arguments))
        except Exception as error:  # pickling a task's objects may raise anything
            return Failure(f"the job cannot be sent to a worker: {error}")
        self.index, self.deadline = index, time.monotonic() + deadline_s
        with contextlib.suppress(BrokenPipeError):  # it just died, as `receive` will find
            self.connection.send_bytes(payload)
        return None

    def receive(self) -> Any:  # noqa: ANN401 - whatever the job returned
        """The worker's answer; a `Failure` if it died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # it closes its pipe shortly before it ends
                self.process.wait(timeout=1.0)
            self.kill()
            return Failure(f"the worker died (exit status {self.process.returncode})")

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


def in_threads(jobs: Mapping[int, Job]) -> Iterator[tuple[int, Any]]:
    """Each job's number with its result or `Failure`, run concurrently, in the order in which they end.

    Neither an abandoned generator nor the interpreter's exit waits for the threads.
    """
    waiting = deque(jobs.items())
    ended: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def work() -> None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                number, job = waiting.popleft()
                result: Any = Failure("its thread ended")
                try:
                    result = call(job)
                finally:
                    ended.put((number, result))

    for _ in range(min(len(jobs), MOST_THREADS)):
        Thread(target=work, daemon=True).start()
    try:
        for _ in jobs:
            yield ended.get()
    finally:
        waiting.clear()


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes."""
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments = pickle.loads(payload)
            answer = pickle.dumps(call(Job(function, arguments)))
        except Exception:  # the task's module cannot be imported here, or its result not be pickled
            answer = pickle.dumps(Failure(traceback.format_exc()))
        connection.send_bytes(answer)


if __name__ == "__main__":
    from minrl.rewards import workers

    ignore_stop_signals()  # the trainer handles them and lets the step end
    workers.serve(Connection(int(sys.argv[1])))
