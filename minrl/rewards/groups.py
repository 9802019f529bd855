"""Jobs of rewards that see a group: those with the same key run as one."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from minrl.dataflow import Job
from minrl.rewards.worker import Failure
from minrl.rewards.workers import Workers
from minrl.tasks.conventions import NOT_FOR_THIS_ROW


def run_grouped(jobs: Sequence[tuple[Hashable, Job | Future]], workers: Workers) -> list[Any]:
    """The result of each job, in order, of which some may have been submitted before. A failure, and the
    reward for a lost worker, are those of the whole group.
    """
    calls: dict[Hashable, list[int]] = defaultdict(list)
    for number, (key, job) in enumerate(jobs):
        calls[(key,) if isinstance(job, Job) and job.group else number].append(number)
    results: list[Any] = [None] * len(jobs)
    ended = workers.run([_joined([jobs[number][1] for number in numbers]) for numbers in calls.values()])
    for numbers, result in zip(calls.values(), ended, strict=True):
        each = result if isinstance(result, list) else [result] * len(numbers)
        for number, one in zip(numbers, each, strict=True):
            results[number] = Failure(NOT_FOR_THIS_ROW) if one is None else one
    return results


def _joined(jobs: Sequence[Job | Future]) -> Job | Future:
    """One job that does the work of a group's; any other job as it is."""
    own = [job for job in jobs if isinstance(job, Job)]
    if not own or not own[0].group:
        return jobs[0]
    return replace(own[0], arguments=tuple(map(list, zip(*(job.arguments for job in own), strict=True))))
