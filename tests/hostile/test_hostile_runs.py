"""The families through evaluate.py and through a training run, at every level that the machine has.

Everything is real: the programs, the pool of workers, the sandbox. Only the policy is made to say what the cases say.
"""

import gzip
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minrl.__main__ import main
from minrl.rewards.workers import Workers
from minrl.sandbox import calls
from minrl.types import UserError
from tests.hostile.cases import Case
from tests.hostile.census import descendants, left_over
from tests.hostile.forced import save_reader, saying
from tests.hostile.playing import _measured, all_cases, key_of, line_of, task_of, write_rows
from tests.hostile.seeds import CASES

pytestmark = pytest.mark.slow

SANDBOXED = ("code", "rust")
MOST_OF_A_TASK, MOST, MOST_HONEST = 8, {"rust": 2}, 2
"""Attacks of a task that are tried at a level, and right answers. Other tasks are tried at one level."""


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """Afterwards no process, no file and no segment is there that was not there before."""
    slots = str(calls._message(calls.Call([]), "")["folder"])
    files, below = set(left_over(slots)), set(descendants(os.getpid()))
    yield
    assert set(left_over(slots)) <= files
    assert set(descendants(os.getpid())) <= below


@pytest.fixture(params=calls.LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A level of this machine, which all workers take."""
    if reason := calls._unavailable(request.param):
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    run = Workers.run
    at_level = lambda pool, jobs: run(pool, [_measured(job, request.param) for job in jobs])  # noqa: E731
    monkeypatch.setattr(Workers, "run", at_level)
    return str(request.param)


def chosen(level: str) -> dict[tuple[str, str], list[Case]]:
    """Cases by task and options: an attack of each family and others, other ones at each level, and right answers."""
    number = list(calls.LEVELS).index(level)
    by_task: dict[str, list[Case]] = defaultdict(list)
    for case in all_cases():
        if task_of(case.task, json.dumps(dict(case.options))).reward is not None:
            by_task[case.task].append(case)
    found: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for task, cases in by_task.items():
        if task == "rust" and (number or not rust_works()):
            continue
        attacks, honest = [c for c in cases if not c.least], [c for c in cases if c.least]
        if number and task not in SANDBOXED:
            continue
        random.Random(number).shuffle(attacks)
        firsts = {case.family: case for case in attacks}
        rest = [case for case in attacks if case not in firsts.values()]
        attacks = [*firsts.values(), *rest][: MOST.get(task, MOST_OF_A_TASK)]
        honest = [case for n, case in enumerate(honest) if n % len(calls.LEVELS) == number][:MOST_HONEST]
        for case in [*attacks, *honest]:
            found[task, json.dumps(dict(case.options), sort_keys=True)].append(case)
    return found


def rust_works() -> bool:
    try:
        task_of("rust").notes()
    except UserError:
        return False
    return True


def test_every_family_is_scored_by_evaluate_as_it_deserves(level: str, nothing_stays: None, tmp_path: Path) -> None:
    wrong = []
    for (task, options), cases in chosen(level).items():
        rows, scored = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
        rows.write_text("".join(line_of(case) + "\n" for case in cases))
        flags = ["--task", task, "--completions", str(rows), "--output", str(scored), "--reward-workers", "2"]
        for name, value in json.loads(options).items():
            flags += [f"--{task}.{name.replace('_', '-')}", str(value)]
        assert main(["evaluate", *flags, "--reward-deadline-s", "120", "--quiet"]) == 0
        found = [json.loads(line) for line in scored.read_text().split("\n") if line]
        wrong += [undeserved(case, line["reward"]) for case, line in zip(cases, found, strict=True)]
    assert not [one for one in wrong if one]


def undeserved(case: Case, reward: float | None) -> str:
    """What is wrong with a reward; empty if nothing is."""
    right = reward is not None and case.least - 1e-9 <= reward <= case.most + 1e-9
    return "" if right else f"{case.task}, {case.family}, {case.name}: {reward}"


STEPS, GROUP = 2, 8


def test_a_training_run_pays_no_attack_and_every_right_answer(nothing_stays: None, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.task == "code"]
    cases = [replace(case, options={"timeout_s": 5.0}) for case in cases if "sleep" not in case.completion]
    cases = [case for case in cases if "while True" not in case.completion]  # nothing that takes all of its time
    save_reader(tmp_path / "model", [case.completion for case in cases])
    options = write_rows(tmp_path / "rows.jsonl", cases, copies=16)
    given: dict[str, Case] = {}

    def says(prompt: str, rng: random.Random) -> str:
        honest = rng.random() < 0.5
        case = rng.choice([c for c in cases if key_of(c.row) in prompt and (c.least > 0) == honest])
        given[case.completion] = case
        return case.completion

    flags = f"""--task code --data-path {tmp_path}/rows.jsonl --model-id {tmp_path}/model --runs-dir {tmp_path}/runs
        --checkpoints-dir {tmp_path}/checkpoints --device cpu --threads 1 --quiet --steps {STEPS} --prompts-per-step 2
        --group-size {GROUP} --max-tokens 8 --no-preflight --no-eval-first --eval-every 0 --eval-examples 2
        --eval-samples 1 --save-every 0 --rollouts-every 1 --code.timeout-s {options["timeout_s"]}"""
    with saying(says):
        assert main(["train", *flags.split()]) == 0
    (run,) = (tmp_path / "runs").glob("*")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward/unscorable_frac"] for line in metrics if "reward/unscorable_frac" in line] == [0.0] * STEPS
    lines = [line for path in run.glob("rollouts/*.gz") for line in read_lines(path) if line["purpose"] == "train"]
    assert len(lines) == STEPS * 2 * GROUP
    assert not [wrong for line in lines if (wrong := undeserved(given[line["text"]], line["reward"]))]
    assert {given[line["text"]].least for line in lines} == {0.0, 1.0}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rollouts of a step."""
    return [json.loads(line) for line in gzip.open(path, "rt").read().splitlines()]
