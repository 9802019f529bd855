"""A pool of reward workers: processes, each of which runs one job at a time under a deadline.

A worker loads what a job needs before the job's deadline counts. One that misses its deadline or dies is replaced, and
the other jobs continue.

A `Grader` whose worker was lost runs once more, alone in a new worker. If that is lost too, and a further one is well,
it was the completion's doing: the result is what the grader pays then. A job that computed for half of its deadline has
no second run, because no other process can have spent its processor time. Jobs that are no graders fail.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from loguru import logger

from minrl.rewards.printed import PRINTED, caught
from minrl.rewards.worker import READY, Failure, Lost, call
from minrl.system.cores import cpu_cores
from minrl.system.processor import processor_s
from minrl.system.progress import activity
from minrl.system.signals import blocked
from minrl.tasks.grader import Grader
from minrl.types import Job

MOST_THREADS = 256
"""Concurrent jobs that wait for a server."""

LONGEST_WAIT_S = 3600.0
"""Longest single wait: the system refuses one of a month."""

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
        self.ready, self.deadline = True, time.monotonic() + self.deadline_s
        self._computed_s = processor_s(self.process.pid, children=False)
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


class Workers:
    """A pool of worker processes, started when first needed."""

    def __init__(self, count: int, deadline_s: float) -> None:
        self.count, self.deadline_s = count or cpu_cores(), deadline_s
        self._idle: list[Worker] = []
        self._busy: dict[Connection, Worker] = {}
        self._seconds, self._said = 0.0, False

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
        waiting = [index for index, job in enumerate(jobs) if not (job.cheap or job.waits)]
        self._work(jobs, waiting, results, report)
        for index in waiting:
            if isinstance(lost := results[index], Lost):
                results[index] = self._second(jobs[index], lost)
        return [results[index] for index in range(len(jobs))]

    def _work(
        self, jobs: Sequence[Job], indices: Sequence[int], results: dict[int, Any], report: Callable[[int], None]
    ) -> None:
        """Add the results of the jobs of these indices."""
        waiting = list(indices)[::-1]
        while waiting or self._busy:
            while waiting and len(self._busy) < self.count:
                index = waiting.pop()
                worker = self._next_worker()
                failed = worker.start(index, jobs[index], self._deadline_s(jobs[index]))
                if failed is None:
                    self._busy[worker.connection] = worker
                else:
                    results[index] = failed
                    self._idle.append(worker)
            finished = self._finished()
            results.update({worker.index: result for worker, result in finished})
            if finished or not self._busy:
                report(len(jobs) - len(waiting) - len(self._busy))

    def _deadline_s(self, job: Job) -> float:
        """The deadline of a job: a grader that ends itself has the time for it."""
        grader: object = job.function
        return max(self.deadline_s, grader.seconds) if isinstance(grader, Grader) else self.deadline_s

    def _second(self, job: Job, lost: Lost) -> Any:  # noqa: ANN401 - whatever the job returned
        """The result of a job whose worker was lost: a grader's second run, or what it pays for the loss."""
        grader: object = job.function
        if not isinstance(grader, Grader):
            return Failure(lost.reason)
        result: Any = lost if lost.blamed else self._alone(job)
        if not isinstance(result, Lost):
            return result
        if isinstance(self._alone(Job(int)), Failure):  # the machine is not well
            return Failure(result.reason)
        if not self._said:
            logger.warning(f"a completion broke its grader, and is paid the task's worst: {result.reason}")
        self._said = True
        return grader.otherwise(result.end)

    def _alone(self, job: Job) -> Any:  # noqa: ANN401 - whatever the job returned
        """The result of a job in a new worker, while no other job runs."""
        results: dict[int, Any] = {}
        idle, self._idle = self._idle, []
        self._work([job], [0], results, lambda _: None)
        self._idle += idle
        return results[0]

    def _next_worker(self) -> Worker:
        """An idle worker that is still alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        return Worker()

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

    def _finished(self) -> list[tuple[Worker, Any]]:
        """Workers that answered, died or missed their deadline, each with its result."""
        if not self._busy:
            return []
        patience = min(worker.deadline for worker in self._busy.values()) - time.monotonic()
        ready = set(wait(list(self._busy), timeout=min(max(0.0, patience), LONGEST_WAIT_S)))
        finished = []
        for connection, worker in list(self._busy.items()):
            if connection in ready:
                result = worker.receive()
                if result is not READY:
                    finished.append((worker, result))
            elif time.monotonic() >= worker.deadline:
                finished.append((worker, worker.late()))
        for worker, _ in finished:
            del self._busy[worker.connection]
            if not worker.connection.closed:  # it was not killed
                self._idle.append(worker)
        return finished


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
