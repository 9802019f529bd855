"""A pool of reward workers: processes, each of which runs one job at a time under a deadline.

A thread drives each process. A worker loads what a job needs before the job's deadline counts. One that misses its
deadline or dies is replaced, and the other jobs continue.

A `Grader` whose worker was lost runs once more, in a new worker. If that is lost too, it was the completion's doing:
the grader names the result. A job that computed for half of its deadline has no second run, because no
other process can have spent its processor time. Second runs begin within one deadline of the first of them; a grader
for which that is too late fails, as jobs that are no graders do.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from threading import BoundedSemaphore, Condition, Thread
from typing import Any

from minrl.dataflow import Job
from minrl.rewards.worker import Failure, Lost, call
from minrl.rewards.worker_process import Worker
from minrl.tasks.grader import Grader
from minrl.utils.console import activity
from minrl.utils.processor import cpu_cores

SLOTS = BoundedSemaphore(256)
"""Concurrent jobs that wait for a server."""

NO_SECOND_RUN = "it missed its deadline, and no time was left for a second run"
"""The reason of a job that failed for its time alone."""


class Workers:
    """A pool of worker processes, started when first needed."""

    def __init__(self, count: int, deadline_s: float) -> None:
        self.count, self.deadline_s = count or cpu_cores(), deadline_s
        self._changed = Condition()  # holds what follows
        self._queue = deque[tuple[Job, Future]]()
        self._running: dict[Future, Worker | None] = {}
        self._threads: list[Thread] = []
        self._free, self._waiting, self._closed = self.count, 0, False
        self._until: float | None = None  # when second runs may begin
        self._seconds = 0.0

    def limit(self, free: int) -> None:
        """While nobody waits for results, only so many workers compute: the cores that an engine leaves, since torch's
        threads wait for one another at every product, and one that shares its core holds all of them up.
        """
        with self._changed:
            self._free = min(self.count, free)
            self._changed.notify_all()

    def submit(self, job: Job) -> Future:
        """Start a job: a cheap one here, one that waits for a server in a thread, all others in the workers."""
        future: Future = Future()
        if job.cheap:
            started = time.perf_counter()
            future.set_result(call(job))
            self._seconds += time.perf_counter() - started
        elif job.waits:  # the interpreter's exit does not wait for such a thread
            Thread(target=self._wait, args=(job, future), daemon=True).start()
        else:
            with self._changed:
                assert not self._closed
                self._queue.append((job, future))
                if len(self._threads) < min(self.count, len(self._queue) + len(self._running)):
                    self._threads.append(Thread(target=self._drive, daemon=True))
                    self._threads[-1].start()
                self._changed.notify()
        return future

    def run(self, jobs: Sequence[Job | Future]) -> list[Any]:
        """The result or `Failure` of each job, in order. Some may have been submitted before."""
        return self.results([job if isinstance(job, Future) else self.submit(job) for job in jobs])

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """The result or `Failure` of each job, in order. All workers compute until they are there."""
        started, found = time.perf_counter(), list[Any]()
        self._wait_with(1)
        try:
            with activity("rewards", len(futures)) as report:
                for future in futures:
                    found.append(future.result())
                    report(len(found))
        finally:
            self._wait_with(-1)
        self._seconds += time.perf_counter() - started
        return found

    def give_up(self, futures: Iterable[Future]) -> None:
        """End the jobs, whose results nobody wants."""
        with self._changed:
            for future in futures:
                future.cancel()
                if worker := self._running.get(future):
                    worker.interrupt()

    def take_seconds(self) -> float:
        """Seconds spent in `results`, and in cheap jobs, since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def close(self) -> None:
        """End all workers, and give up what has not ended."""
        with self._changed:
            self._closed = True
            self.give_up([*self._running, *(future for _, future in self._queue)])
            self._changed.notify_all()
        patience = time.monotonic() + 1.0  # for all: what they started outside their sessions may hold the pipes
        for thread in self._threads:
            thread.join(max(0.0, patience - time.monotonic()))

    def _wait_with(self, more: int) -> None:
        with self._changed:
            self._waiting += more
            self._until = None
            self._changed.notify_all()

    def _wait(self, job: Job, future: Future) -> None:
        with SLOTS:
            if not future.cancelled():
                self._end(future, call(job))

    def _end(self, future: Future, result: Any) -> None:  # noqa: ANN401 - whatever the job returned
        with self._changed:
            if not future.cancelled():
                future.set_result(result)

    def _drive(self) -> None:
        """A worker's thread, which lives as long as its processes: they end with the thread that started them."""
        worker: Worker | None = None
        while (item := self._next()) is not None:
            job, future = item
            try:
                worker = worker if worker is not None and worker.usable else Worker()
                result = self._run(worker, job, future)
                if isinstance(result, Lost):
                    worker = None
                    result, worker = self._once_more(result, job, future)
                self._end(future, result)
            except Exception as error:  # no process can be started, no result read: raised where it is asked for
                if worker is not None:
                    worker.kill()
                with self._changed:
                    if not future.cancelled():
                        future.set_exception(error)
            finally:
                with self._changed:
                    del self._running[future]
                    self._changed.notify_all()
        if worker is not None:
            worker.kill()

    def _next(self) -> tuple[Job, Future] | None:
        """The next job of the queue, once it may run; None after `close`."""
        with self._changed:
            while not self._closed:
                if self._queue and len(self._running) < (self.count if self._waiting else self._free):
                    job, future = self._queue.popleft()
                    self._running[future] = None
                    return job, future
                self._changed.wait()
        return None

    def _run(self, worker: Worker, job: Job, future: Future) -> Any:  # noqa: ANN401 - whatever the job returned
        with self._changed:
            if future.cancelled():
                return None
            self._running[future] = worker
        return worker.run(job, self._deadline_s(job))

    def _once_more(self, lost: Lost, job: Job, future: Future) -> tuple[Any, Worker | None]:
        """The result of a job whose worker was lost: of a second run in a new one, or what the grader names. With the
        new worker if it is there.
        """
        grader: object = job.function
        if not isinstance(grader, Grader):
            return Failure(lost.reason), None
        if not lost.by_completion:
            if self._is_late(self._deadline_s(job)):
                return Failure(NO_SECOND_RUN), None
            worker = Worker()
            result = self._run(worker, job, future)
            if not isinstance(result, Lost):
                return result, worker
            lost = result
        return grader.otherwise(lost.end), None

    def _is_late(self, deadline_s: float) -> bool:
        """Whether it is too late for a second run, which somebody waits for."""
        with self._changed:
            if self._waiting and self._until is None:
                self._until = time.monotonic() + deadline_s
            return self._until is not None and time.monotonic() > self._until

    def _deadline_s(self, job: Job) -> float:
        """The deadline of a job, for each completion of a group: a grader that ends itself has the time for it."""
        grader: object = job.function
        one = max(self.deadline_s, grader.seconds) if isinstance(grader, Grader) else self.deadline_s
        return one * len(job.arguments[0]) if job.group else one
