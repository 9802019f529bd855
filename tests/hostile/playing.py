"""Cases as the programs read them: rows of a data file, examples, lines of completions."""

import functools
import importlib
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minrl.rewards.workers import Failure, Workers
from minrl.sandbox import calls
from minrl.tasks import Task, find_definition, load_task
from minrl.types import Example, Job, Reward, Turn
from minrl.utils.task_names import task_key
from tests.hostile.cases import Case
from tests.hostile.census import held_mib

HERE = Path(__file__).parent

KEYS = ("text", "instructions", "prompt", "question", "problem")
"""The columns that pose a problem, by which prompts and rows are told apart."""


def all_cases() -> list[Case]:
    """The `CASES` of all modules of this folder."""
    names = [path.stem for path in sorted(HERE.glob("*.py")) if "\nCASES" in path.read_text()]
    return [case for name in names for case in importlib.import_module(f"tests.hostile.{name}").CASES]


def key_of(row: Mapping[str, Any]) -> str:
    """The text that poses the problem."""
    return next((str(row[name]).rstrip() for name in KEYS if name in row), "")


def write_rows(path: Path, cases: Iterable[Case], copies: int) -> dict[str, Any]:
    """Write the problems of the cases as a task's data, each several times with its text numbered. Gives back the
    strictest of the cases' options.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    options: dict[str, Any] = {}
    for case in cases:
        rows.setdefault(key_of(case.row), case.row)
        for name, value in case.options.items():
            options[name] = min(options.get(name, value), value)
    with path.open("w") as file:
        for number, (key, row) in enumerate((pair for pair in rows.items() for _ in range(copies)), 1):
            column = next(name for name in KEYS if name in row)
            names = {"task_id": 10_000 + number} if "task_id" in row else {}
            file.write(json.dumps({**row, **names, column: f"{key.rstrip()}\n    # Problem {number}\n"}) + "\n")
    return options


@functools.cache
def task_of(name: str, options: str = "{}") -> Task:
    """The task, with options as JSON."""
    return load_task(name, {task_key(name): find_definition(name).options(**json.loads(options))})


def example_of(case: Case) -> Example:
    """The example of the case's row. A row of Rust is read into packages and tests first."""
    if case.task != "rust" or "package" in case.row:
        return Example(str(case.row.get("id", case.row.get("task_id", ""))), "", case.row)
    return _read(json.dumps(dict(case.row)), str(case.options.get("unsafe_rows", "left out")))


@functools.cache
def _read(row: str, unsafe_rows: str) -> Example:
    """The example of a row of Rust as the task reads its data."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write_rows(path, [Case("", "", "rust", json.loads(row), "")], copies=64)
        options = find_definition("rust").options(unsafe_rows=unsafe_rows)
        dataset = load_task("rust", {"rust": options}, str(path)).dataset
        return [*dataset.train, *dataset.held_out][0]


def line_of(case: Case) -> str:
    """The case as a line of evaluate.py's --completions."""
    fields = {name: value for name, value in example_of(case).fields.items() if name not in ("completion", "reward")}
    return json.dumps({**fields, "completion": case.completion})


SECONDS, MEMORY = "measured_seconds", "measured_mib"
"""Parts that a measured reward has beside its own."""


def play(cases: Sequence[Case], workers: Workers, level: str = "") -> list[Any]:
    """The reward of each case or why it has none, by the pool as a run uses it, at a level of the sandbox."""
    results: dict[int, Any] = {}
    episodes = {number: _episode(case) for number, case in enumerate(cases)}
    sent: dict[int, Any] = dict.fromkeys(episodes)
    while episodes:
        jobs: dict[int, Job] = {}
        for number, episode in list(episodes.items()):
            try:
                jobs[number] = _measured(episode.send(sent[number]), level)
            except StopIteration as ended:
                results[number] = ended.value
                del episodes[number]
        sent = dict(zip(jobs, workers.run(list(jobs.values())), strict=True))
        for number, result in sent.items():
            if isinstance(result, Failure):
                results[number] = result
                del episodes[number]
    return [results[number] for number in range(len(cases))]


def _episode(case: Case) -> Generator[Job, Any, Any]:
    """The jobs of a case. Where a task has several turns, those of the first role say the completion, all others 0."""
    task, example, sent, first = task_of(case.task, json.dumps(dict(case.options))), example_of(case), None, ""
    if task.reward is not None:
        return (yield task.paid(case.completion, example))
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


def _measured(job: Job, level: str) -> Job:
    """The job, whose function sets the level where it runs and measures itself. A grader stays one."""
    grader: Any = job.function
    if hasattr(grader, "otherwise"):
        return replace(job, function=replace(grader, function=functools.partial(measured, level, grader.function)))
    return replace(job, function=functools.partial(measured, level, grader))


def measured(level: str, function: Callable[..., Any], *arguments: object) -> Any:
    """What the function returns; a reward with the seconds, and the most memory of the programs below."""
    if level:
        calls.level = lambda: level
    most, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], held_mib(os.getpid()))

    threading.Thread(target=watch, daemon=True).start()
    started = time.monotonic()
    try:
        result = function(*arguments)
    finally:
        ended.set()
    if not isinstance(result, Reward):
        return result
    return replace(result, parts={**result.parts, SECONDS: time.monotonic() - started, MEMORY: most[0]})
