"""A reward worker: a new process (`python -m minrl.rewards.worker`), never a fork of one in which torch has threads.

It imports little, because each worker waits for it. The other side of the pipe is `minrl.rewards.worker_process`.
"""

import pickle
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from minrl.dataflow import Job, Mistake
from minrl.tasks.grader import Grader, Reason
from minrl.utils.signals import die_with_parent, ignore_stop_signals


@dataclass(frozen=True)
class Failure:
    """Why a job has no result, such as a traceback or a missed deadline."""

    reason: str


@dataclass(frozen=True)
class Lost(Failure):
    """The job's worker missed its deadline or died. `by_completion`: the job did it, which spent the processor time."""

    end: Reason
    by_completion: bool = False


def call(job: Job) -> Any:  # noqa: ANN401 - whatever the job returns
    """The job's result, or a `Failure` with its traceback, of a mistake with its message."""
    try:
        return job.function(*job.arguments)
    except Mistake as error:
        return Failure(str(error))
    except (Exception, SystemExit):  # of a task's own code: the rollout becomes unscorable and is counted
        return Failure(traceback.format_exc())


def serve(connection: Connection) -> None:
    """Run jobs until the other side closes. It is sent the processor time before each job, and then the result."""
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        job = _loaded(payload)
        connection.send(time.process_time())
        result = call(job)
        try:
            answer = pickle.dumps(result)
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
    die_with_parent()  # a killed trainer sets no deadline to the job that runs
    worker.serve(Connection(int(sys.argv[1])))
