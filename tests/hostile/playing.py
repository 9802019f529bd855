"""Cases as the programs read them: examples, lines of completions, jobs."""

import functools
import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from minrl.dataflow import Example, Job, Reward, Turn
from minrl.rewards.worker import Failure
from minrl.sandbox import calls
from minrl.tasks import Task, find_definition, load_task
from minrl.tasks.rust import RustOptions, read_row
from minrl.utils.task_names import task_key
from tests.hostile.cases import Case


@functools.cache
def task_of(name: str, options: str = "{}") -> Task:
    """The task, with options as JSON."""
    return load_task(name, {task_key(name): find_definition(name).options_class(**json.loads(options))})


@functools.cache
def _read(row: str) -> Example:
    example = read_row(json.loads(row), RustOptions())
    assert isinstance(example, Example), example
    return example


def example_of(case: Case) -> Example:
    """The example of the case's row. A row of Rust is read into packages and tests first."""
    if case.task != "rust" or "package" in case.row:
        return Example(str(case.row.get("id", case.row.get("task_id", ""))), "", case.row)
    return _read(json.dumps(dict(case.row)))


def play(cases: Sequence[Case], run: Callable[[Sequence[Job]], Sequence[Any]]) -> list[Any]:
    """The reward of each case or why it has none."""
    results: dict[int, Any] = {}
    episodes = {number: _episode(case) for number, case in enumerate(cases)}
    sent: dict[int, Any] = dict.fromkeys(episodes)
    while episodes:
        jobs: dict[int, Job] = {}
        for number, episode in list(episodes.items()):
            try:
                jobs[number] = episode.send(sent[number])
            except StopIteration as ended:
                results[number] = ended.value
                del episodes[number]
        sent = dict(zip(jobs, run(list(jobs.values())), strict=True))
        for number, result in sent.items():
            if isinstance(result, Failure):
                results[number] = result
                del episodes[number]
    return [results[number] for number in range(len(cases))]


def _episode(case: Case) -> Generator[Job, Any, Any]:
    """The jobs of a case. Where a task has several turns, those of the first role say the completion, all others 0."""
    task, example, sent, first = task_of(case.task, json.dumps(dict(case.options))), example_of(case), None, ""
    if task.reward is not None:
        return (yield task.reward_job(case.completion, example))
    episode = task.play(example, random.Random(0))
    while True:
        try:
            step = episode.send(sent)
        except StopIteration as ended:
            return ended.value[first]
        if isinstance(step, Turn):
            first = first or step.role
            sent = case.completion if step.role == first else "0"
        else:
            sent = yield step


def wrong(cases: Sequence[Case], results: Sequence[Any]) -> list[tuple[str, str, str, Any]]:
    """The cases that were paid too much or too little, or that have no reward."""
    return [
        (case.task, case.family, case.name, getattr(result, "value", result))
        for case, result in zip(cases, results, strict=True)
        if not (isinstance(result, Reward) and case.least - 1e-9 <= result.value <= case.most + 1e-9)
    ]


def at_level(job: Job, level: str) -> Job:
    """The job, whose function sets the level where it runs. A grader stays one."""
    grader: Any = job.function
    if hasattr(grader, "otherwise"):
        return replace(job, function=replace(grader, function=functools.partial(run_at, level, grader.function)))
    return replace(job, function=functools.partial(run_at, level, grader))


def run_at(level: str, function: Callable[..., Any], *arguments: object) -> Any:
    """What the function returns at a level of the sandbox."""
    calls.level = lambda: level
    return function(*arguments)
