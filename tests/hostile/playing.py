"""Cases as the programs read them: examples, lines of completions, jobs."""

import functools
import json
import random
import socket
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from minrl.dataflow import Example, Reward
from minrl.rewards.worker import call
from minrl.tasks import Task, code, find_definition, load_task
from minrl.tasks.code_judge import Channel, answer
from minrl.tasks.code_judge import run as run_tests
from minrl.utils.task_names import task_key
from tests.hostile.cases import Case


@functools.cache
def task_of(name: str, options: str = "{}") -> Task:
    """The task, with options as JSON."""
    return load_task(name, {task_key(name): find_definition(name).options_class(**json.loads(options))})


def play(cases: Sequence[Case]) -> list[Any]:
    """The reward of each case or why it has none."""
    return [_played(case) for case in cases]


def _played(case: Case) -> Any:
    """What a case is paid. Where a task has several turns, those of the first role say the completion, all others 0."""
    task, said = task_of(case.task, json.dumps(dict(case.options))), case.completion
    example = Example(str(case.row.get("task_id", "")), "", case.row)
    if task.reward is not None:
        return call(task.reward_job(said, example))
    episode = task.play(example, random.Random(0))
    first = next(episode).role
    try:
        while True:
            said = case.completion if episode.send(said).role == first else "0"
    except StopIteration as ended:
        return ended.value[first]


def wrong(cases: Sequence[Case], results: Sequence[Any]) -> list[tuple[str, str, str, Any]]:
    """The cases that were paid too much or too little, or that have no reward."""
    return [
        (case.task, case.family, case.name, getattr(result, "value", result))
        for case, result in zip(cases, results, strict=True)
        if not (isinstance(result, Reward) and case.least - 1e-9 <= result.value <= case.most + 1e-9)
    ]


def share_in_a_thread(program: str, row: Mapping[str, Any]) -> float:
    """The share of a row's tests that pass, with both sides of the judge in this process and without a sandbox."""
    tests = code.tests_of(row)
    ours, theirs = socket.socketpair()
    module = types.ModuleType("program")
    exec(compile(program, "program.py", "exec"), vars(module))

    def serve() -> None:
        with theirs, suppress(EOFError, OSError):
            channel = Channel(theirs.fileno())
            channel.send(["loaded"])
            answer(channel, module)

    thread = threading.Thread(target=serve)
    thread.start()
    verdict = run_tests(Channel(ours.fileno()), asdict(tests))
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
    ours.close()
    return len(tests.counted.intersection(verdict["passed"])) / len(tests.counted)
