"""A pool of reward workers: processes, each of which runs one job at a time under a deadline.

A worker loads what a job needs before the job's deadline counts. One that misses its deadline or dies is replaced, and
the other jobs continue.

`begin` starts a job while its caller does something else, such as sampling further completions; `run` waits.

A `Grader` whose worker was lost runs once more, in a new worker; all such runs together take one deadline more at
most. If that is lost too, and a further one is well, it was the completion's doing: the result is what the grader
pays then. A job that computed for half of its deadline has no second run, because no other process can have spent its
processor time. One that no time was left for fails, as jobs that are no graders do.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from loguru import logger

from minrl.dataflow import Job
from minrl.rewards.begun import Begun
from minrl.rewards.printed import PRINTED
from minrl.rewards.worker import Failure, Lost, call
from minrl.rewards.worker_process import READY, Worker
from minrl.tasks.grader import Grader
from minrl.utils.console import activity
from minrl.utils.processor import cpu_cores

LONGEST_WAIT_S = 3600.0
"""Longest single wait: the system refuses one of a month."""

NO_SECOND_RUN = "it missed its deadline, and no time was left for a second run"
"""The reason of a job that failed for its time alone."""


class Workers:
    """A pool of worker processes, started when first needed."""

    def __init__(self, count: int, deadline_s: float) -> None:
        self.count, self.deadline_s = count or cpu_cores(), deadline_s
        self._beside = self.count
        self._idle: list[Worker] = []
        self._busy: dict[Connection, Worker] = {}
        self._queue: deque[Begun] = deque()
        self._begun: dict[Begun, None] = {}  # in the order in which they were begun
        self._ended: SimpleQueue[Begun] = SimpleQueue()
        self._seconds, self._said = 0.0, False

    def beside(self, taken: int, cores: int) -> int:
        """From now on jobs are begun beside an engine that computes on `taken` of the process's `cores`, and nobody
        asks for what was begun before. Only the cores that it leaves are used, since torch's threads wait for one
        another at every product: one that shares its core holds all of them up. One that takes none leaves all workers.
        Returns how many there are.
        """
        self._beside = min(self.count, max(0, cores - taken)) if taken else self.count
        self._take([])
        return self._beside

    def begin(self, job: Job, whose: Any = None) -> None:  # noqa: ANN401 - what `poll` gives back
        """Start a job. A cheap one runs here, one that waits for a server in a thread, all others in the workers beside
        the engine, or in `run` if there are none.
        """
        begun = Begun(job, whose, self._ended.put)
        self._begun[begun] = None
        if job.cheap:
            started = time.perf_counter()
            begun.end(call(job))
            self._seconds += time.perf_counter() - started
        else:
            self._start(begun)
            self._hand_out(self._beside)

    def poll(self) -> list[tuple[Any, Any]]:
        """Whose begun jobs have ended, with the results; waits for nothing. `run` gives those whose worker was lost."""
        if self._busy or (self._queue and self._beside):
            self._collect(0.0)
            self._hand_out(self._beside)
        ended = []
        while not self._ended.empty():
            begun = self._ended.get()
            if not isinstance(begun.result, Lost):
                del self._begun[begun]
                ended.append((begun.whose, begun.result))
        return ended

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """The result or `Failure` of each job, in order: of those that were begun, and of others. Cheap jobs run here,
        jobs that wait for a server in threads, all others in the workers. What else was begun is given up.
        """
        started = time.perf_counter()
        with activity("rewards", len(jobs)) as report:
            results = self._run(jobs, report)
        self._seconds += time.perf_counter() - started
        return results

    def take_seconds(self) -> float:
        """Seconds spent in `run`, and in cheap jobs that were begun, since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _run(self, jobs: Sequence[Job], report: Callable[[int], None]) -> list[Any]:
        asked = self._take(jobs)
        for one in asked:
            if one.job.cheap and not one.there:
                one.end(call(one.job))
        self._work(len(asked), report)
        return self._second(jobs, [one.wait() for one in asked])

    def _take(self, jobs: Sequence[Job]) -> list[Begun]:
        """Each job on its way, those that were begun and new ones. Nothing else is from now on."""
        before, self._begun, self._ended = self._begun, {}, SimpleQueue()
        found: dict[int, deque[Begun]] = {}
        for one in before:
            found.setdefault(id(one.job), deque()).append(one)
        asked = [found[id(job)].popleft() if found.get(id(job)) else Begun(job) for job in jobs]
        self._keep({*asked})
        for one in before.keys() - {*asked}:
            one.given_up = True
        for one in asked:
            if one not in before:
                self._start(one)
        return asked

    def _start(self, begun: Begun) -> None:
        """Bring a job on its way, unless it is a cheap one."""
        if begun.job.waits:
            begun.begin_thread()
        elif not begun.job.cheap:
            self._queue.append(begun)

    def _keep(self, wanted: Collection[Begun]) -> None:
        """Give up all other jobs."""
        self._queue = deque(one for one in self._queue if one in wanted)
        for connection, worker in list(self._busy.items()):
            if worker.begun not in wanted:
                worker.kill()
                del self._busy[connection]

    def _work(self, count: int, report: Callable[[int], None]) -> None:
        """Run all jobs of the queue in the workers, the last of `count` jobs."""
        while self._queue or self._busy:
            self._hand_out(self.count)
            if self._collect() or not self._busy:
                report(count - len(self._queue) - len(self._busy))

    def _hand_out(self, most: int) -> None:
        """Send jobs of the queue until so many workers are busy."""
        while self._queue and len(self._busy) < most:
            worker, begun = self._next_worker(), self._queue[0]
            failed = worker.start(begun, self._deadline_s(begun.job))
            self._queue.popleft()  # not before: what raises above must not lose it
            if failed is None:
                self._busy[worker.connection] = worker
            else:
                self._idle.append(worker)
                begun.end(failed)

    def _deadline_s(self, job: Job) -> float:
        """The deadline of a job: a grader that ends itself has the time for it."""
        grader: object = job.function
        return max(self.deadline_s, grader.seconds) if isinstance(grader, Grader) else self.deadline_s

    def _second(self, jobs: Sequence[Job], results: list[Any]) -> list[Any]:
        """The results, with those of second runs, or what is paid, in place of those whose worker was lost."""
        lost = [number for number, result in enumerate(results) if isinstance(result, Lost)]
        graders = [number for number in lost if isinstance(jobs[number].function, Grader)]
        again = [number for number in graders if not results[number].blamed]
        found = dict(enumerate(results)) | dict(zip(again, self._again([jobs[n] for n in again]), strict=True))
        broken = [number for number in graders if isinstance(found[number], Lost)]
        well = not broken or not isinstance(self._again([Job(int)])[0], Failure)  # whether the machine is
        for number in lost:
            result, grader = found[number], jobs[number].function
            if number in broken and well:
                found[number] = grader.otherwise(result.end)  # type: ignore[attr-defined]
                if not self._said:
                    logger.warning(f"a completion broke its grader, and is paid the task's worst: {result.reason}")
                self._said = True
            elif isinstance(result, Lost):
                found[number] = Failure(result.reason)
        return list(found.values())

    def _again(self, jobs: Sequence[Job]) -> list[Any]:
        """The results of jobs in new workers, together, for no longer than one deadline: those that were to start at
        once have all of theirs, and what has not ended then fails.
        """
        started, longest_s = time.monotonic(), max(map(self._deadline_s, jobs), default=0.0)
        idle, self._idle = self._idle, []
        asked = [Begun(job) for job in jobs]
        self._queue.extend(asked)
        while self._queue or self._busy:
            left_s = started + longest_s - time.monotonic()
            if left_s <= 0 and all(one.there for one in asked[: self.count]):
                break
            self._hand_out(self.count)
            self._collect(left_s if left_s > 0 else LONGEST_WAIT_S)
        self._keep([])
        self._idle += idle
        for one in asked:
            if not one.there:
                one.end(Failure(NO_SECOND_RUN))
        return [one.wait() for one in asked]

    def _next_worker(self) -> Worker:
        """An idle worker that is still alive, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        return Worker()

    def close(self) -> None:
        """End all workers, and give up what was begun."""
        workers = [*self._idle, *self._busy.values()]
        self._take([])
        for worker in self._idle:
            worker.kill()
        patience = time.monotonic() + 1.0  # for all: what they started outside their sessions may hold the pipes
        for worker in workers:
            worker.reader.join(timeout=max(0.0, patience - time.monotonic()))
        self._idle = []
        PRINTED.close()

    def _collect(self, longest_s: float = LONGEST_WAIT_S) -> bool:
        """Take the results of workers that answered, died or missed their deadline. Waits for one, no longer than
        `longest_s`; returns whether there was one.
        """
        if not self._busy:
            return False
        before, patience = len(self._busy), min(worker.deadline for worker in self._busy.values()) - time.monotonic()
        ready = set(wait(list(self._busy), timeout=min(max(0.0, patience), longest_s)))
        for connection, worker in list(self._busy.items()):
            result: Any = READY
            if connection in ready:
                result = worker.receive()
                if result is READY and connection.poll():  # nobody may look again for a while
                    result = worker.receive()
            elif time.monotonic() >= worker.deadline:
                result = worker.late()
            if result is not READY:
                del self._busy[connection]
                if not connection.closed:  # it was not killed
                    self._idle.append(worker)
                worker.begun.end(result)
        return len(self._busy) < before
