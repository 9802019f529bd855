"""Every case of `cases.py` earns what it may, and what it attacks holds: graders, the programs' judge, the machine."""

import os
import random
import resource
import socket
import subprocess
import sys
import threading
import types
from contextlib import suppress
from dataclasses import asdict, replace

import pytest

from minrl.dataflow import Example, UserError
from minrl.rewards.worker import call
from minrl.rewards.workers import Workers
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import LEVELS, Limits
from minrl.tasks import code, load_task, reasoning_gym
from minrl.tasks.code_game import CodeGameOptions, judge_program
from minrl.tasks.code_judge import Channel, answer, run
from minrl.tasks.grader import MEMORY_MIB
from tests.hostile.cases import (
    CASES,
    FORGED_ANSWERS,
    OBJECTS,
    PLAIN,
    SHAPES,
    WHAT_NO_SOURCE_TELLS,
    humaneval,
)
from tests.hostile.census import descendants, left_over, slots_folder
from tests.hostile.machine import attack, machine_cases, problem_of
from tests.hostile.playing import at_level, play, task_of, wrong

MATHS_COST = ("math", "cost")
TEXT_TASKS = sorted({case.task for case in CASES} - {"code", "code_game", "rust"})
QUICK, PLAYED, ALL = 6, 10, 10**9
"""How many attacks are tried, the same ones each time: texts of a task in the quick set, programs by real workers."""


def run_here(jobs):
    """Run jobs in this process."""
    return [call(job) for job in jobs]


def sampled(cases, number):
    """Every honest case and so many of the others."""
    attacks = [case for case in cases if case.family != "honest"]
    honest = [case for case in cases if case.family == "honest"]
    return honest + random.Random(0).sample(attacks, min(number, len(attacks)))


@pytest.mark.parametrize("number", [QUICK, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("task", TEXT_TASKS)
def test_no_text_is_paid_for_what_it_is_not_and_every_right_answer_is(task, number, monkeypatch):
    monkeypatch.setattr(reasoning_gym, "GRADING_S", 0.3)
    cases = [case for case in CASES if case.task == task and (task, case.family) != MATHS_COST]
    if task == "math":  # a timeout, which is slow, would be paid nothing
        cases = [replace(case, options={**case.options, "timeout_s": 60.0}) for case in cases if case.family != "seed"]
    cases = sampled(cases, number)
    assert wrong(cases, play(cases, run_here)) == []


@pytest.mark.slow
def test_what_costs_much_is_scored_within_bounds():
    costly = [replace(case, options={"timeout_s": 0.3}) for case in CASES if (case.task, case.family) == MATHS_COST]
    workers = Workers(1, 60.0)
    try:
        paid = workers.run(
            [task_of("math", '{"timeout_s": 0.3}').reward_job(c.completion, Example("", "", c.row)) for c in costly]
        )
    finally:
        workers.close()
    assert wrong(costly, paid) == []
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    assert peak_mib < 400 + MEMORY_MIB  # more than a worker with math-verify and sympy holds


def printed(program):
    """The integer of a program of the game; empty if there is none."""
    return judge_program(program, CodeGameOptions(time_limit_s=60.0)).printed


def test_an_integer_that_does_not_follow_from_the_source_does_not_count():
    assert {name: shown for name, program in WHAT_NO_SOURCE_TELLS.items() if (shown := printed(program))} == {}


def test_plain_programs_print_what_python_prints():
    assert {program: printed(program) for program in PLAIN} == PLAIN


def share_in_a_thread(program, row):
    """The share of the tests that pass, with the program in a thread of this process."""
    tests = code.tests_of(row)
    ours, theirs = socket.socketpair()
    module = types.ModuleType("program")
    exec(compile(program, "program.py", "exec"), vars(module))

    def serve():
        with theirs, suppress(EOFError, OSError):
            channel = Channel(theirs.fileno())
            channel.send(["loaded"])
            answer(channel, module)

    thread = threading.Thread(target=serve)
    thread.start()
    verdict = run(Channel(ours.fileno()), asdict(tests))
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
    ours.close()
    return len(tests.counted.intersection(verdict["passed"])) / len(tests.counted)


IN_A_THREAD = {*OBJECTS, *FORGED_ANSWERS} | {f"{shape}, raises" for shape in SHAPES}
IN_A_THREAD |= {f"right, {shape}" for shape in SHAPES}


@pytest.mark.parametrize("case", [one for one in CASES if one.name in IN_A_THREAD], ids=lambda case: case.name)
def test_programs_are_paid_by_what_they_return_in_every_shape_of_test(case):
    assert case.least <= share_in_a_thread(code.extract_program(case.completion), case.row) <= case.most


def test_what_does_not_break_off_keeps_its_share():
    share = lambda program, test: share_in_a_thread(f"def half(x): return {program}", humaneval(test))  # noqa: E731
    three = "assert half(2) == 1\nassert half(4) == 2\nassert half(6) == 3"
    assert share("x / 2 if x < 6 else 1 // 0", three) == pytest.approx(2 / 3)


FAST = {"for, exits", "the reference", "sends a fake verdict", "closes the channel", "looks for the tests everywhere"}
"""Some of each kind. Others are tried in the slow set, as each takes two sandboxes of its own."""
PROGRAMS = [case for case in CASES if case.task in ("code", "code_game") and case.name not in IN_A_THREAD]


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_hostile_programs_are_paid_nothing_and_honest_ones_in_full(fast):
    cases = [case for case in PROGRAMS if (case.name in FAST) == fast]
    assert len(cases) >= len(FAST) and wrong(cases, play(cases, run_here)) == []


def test_a_completion_that_breaks_its_grader_is_paid_the_worst_that_its_task_pays():
    for name, worst in (("code", 0.0), ("code_execution", -1.0)):
        task = load_task(name)
        paid_then = task.reward_job("", Example("", "", {})).function.otherwise("crash")
        assert (paid_then.value, paid_then.parts) == (worst, {"grader_crash": 1.0})
    judging = load_task("code_game").episode(Example("", "", {}), random.Random(0))
    next(judging)
    assert judging.send("print(7)").function.otherwise("timeout").name == "timeout"


@pytest.mark.slow
def test_hostile_rust_earns_no_more_than_a_constant_and_solves_nothing():
    pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")
    try:
        task_of("rust").notes()
    except UserError as refused:
        pytest.skip(str(refused))
    cases = [case for case in CASES if case.task == "rust"]
    paid = play(cases, run_here)
    assert wrong(cases, paid) == []
    assert {case.family for case, reward in zip(cases, paid, strict=True) if reward.solved} == {"honest"}


LIMITS = Limits(wall_s=120.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
"""The clock is far: a look may take half a second of processor time, which a busy machine gives in half a minute."""
ROOT = os.geteuid() == 0


@pytest.mark.slow
def test_real_workers_pay_what_programs_deserve_and_nothing_of_them_stays(level):
    cases, folder = sampled(PROGRAMS, PLAYED), slots_folder()
    files, below = set(left_over(folder)), set(descendants(os.getpid()))
    workers = Workers(2, 120.0)
    try:
        paid = play(cases, lambda jobs: workers.run([at_level(job, level) for job in jobs]))
    finally:
        workers.close()
    assert wrong(cases, paid) == []
    assert set(left_over(folder)) <= files and set(descendants(os.getpid())) <= below


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may write to, with a file that everybody may write to."""
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest-of" in str(folder):
            folder.chmod(0o755)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("ours")
    (folder / "file").chmod(0o666)
    return folder


@pytest.mark.parametrize("case", machine_cases("namespaces"), ids=lambda case: case.name)
def test_the_machine_is_held(level, case, open_folder):
    if case not in machine_cases(level):
        pytest.skip("what the level `limits` says that it does not hold here")
    outcome = attack(level, case.completion, open_folder, LIMITS)
    assert problem_of(case, outcome) == ""
    assert outcome.seconds < LIMITS.wall_s + 10.0, "its time is looked at too late"
    assert [path.name for path in open_folder.iterdir()] == ["file"]
    assert (open_folder / "file").read_text() == "ours"


@pytest.mark.slow
def test_an_ordinary_user_is_held_too():
    """Every attack at every level, as a user who is not root; so few calls that they are made in one process."""
    if not ROOT:
        pytest.skip("the tests above have run as an ordinary user")
    source = """
from minrl.sandbox.calls import LEVELS, Limits, _unavailable
from tests.hostile.machine import attack, machine_cases, problem_of
limits = Limits(wall_s=120.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
held = [level for level in LEVELS if not _unavailable(level)]
for level in held:
    for case in machine_cases(level):
        if problem := problem_of(case, attack(level, case.completion, '/var/tmp', limits)):
            print(level, problem)
print('tried', held)
"""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": sandbox.ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    interpreter = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    ended = subprocess.run(
        [interpreter, "-c", source], env=environment, user=61185, group=61185, extra_groups=[], capture_output=True
    )
    if ended.returncode:
        pytest.skip(f"that user cannot read this interpreter or this folder: {ended.stderr.decode()[-200:]}")
    levels = [name for name in LEVELS if not sandbox._unavailable(name)]
    assert ended.stdout.decode() == f"tried {levels}\n"
