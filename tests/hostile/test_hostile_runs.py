"""Cases through evaluate.py with real programs, workers and sandbox, at every level that the machine has."""

import json
import os
import random
from collections import defaultdict

import pytest

from minrl.__main__ import main
from minrl.rewards.workers import Workers
from minrl.sandbox import calls
from minrl.types import UserError
from tests.hostile.cases import CASES
from tests.hostile.census import descendants, left_over, slots_folder
from tests.hostile.playing import at_level, line_of, task_of

pytestmark = pytest.mark.slow

SANDBOXED = ("code", "rust")
MOST, MOST_OF_RUST = 10, 2
"""Cases of a task that are tried at a level, other ones at each. Tasks without programs are tried at one level."""


@pytest.fixture
def nothing_stays():
    """Afterwards no process, no file and no segment is there that was not there before."""
    slots = slots_folder()
    files, below = set(left_over(slots)), set(descendants(os.getpid()))
    yield
    assert set(left_over(slots)) <= files
    assert set(descendants(os.getpid())) <= below


@pytest.fixture(params=calls.LEVELS)
def level(request, monkeypatch):
    """A level of this machine, which all workers take."""
    if reason := calls._unavailable(request.param):
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    run = Workers.run
    monkeypatch.setattr(Workers, "run", lambda pool, jobs: run(pool, [at_level(job, request.param) for job in jobs]))
    return request.param


def chosen(level):
    """Cases by task and options."""
    number, by_task, found = list(calls.LEVELS).index(level), defaultdict(list), defaultdict(list)
    for case in CASES:
        if task_of(case.task, json.dumps(dict(case.options))).reward is not None:
            by_task[case.task].append(case)
    for task, cases in by_task.items():
        if (number and task not in SANDBOXED) or (task == "rust" and not rust_works()):
            continue
        for case in random.Random(number).sample(cases, MOST_OF_RUST if task == "rust" else MOST):
            found[task, json.dumps(dict(case.options), sort_keys=True)].append(case)
    return found


def rust_works():
    try:
        task_of("rust").notes()
    except UserError:
        return False
    return True


def test_every_family_is_scored_by_evaluate_as_it_deserves(level, nothing_stays, tmp_path):
    wrong = []
    for (task, options), cases in chosen(level).items():
        rows, scored = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
        rows.write_text("".join(line_of(case) + "\n" for case in cases))
        flags = ["--task", task, "--completions", str(rows), "--output", str(scored), "--reward-workers", "2"]
        for name, value in json.loads(options).items():
            flags += [f"--{task}.{name.replace('_', '-')}", str(value)]
        assert main(["evaluate", *flags, "--reward-deadline-s", "120", "--quiet"]) == 0
        paid = [json.loads(line)["reward"] for line in scored.read_text().split("\n") if line]
        for case, reward in zip(cases, paid, strict=True):
            if reward is None or not case.least - 1e-9 <= reward <= case.most + 1e-9:
                wrong.append((case.task, case.family, case.name, reward))
    assert wrong == []
