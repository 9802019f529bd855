"""Every case of `cases.py` earns what it may, and what it attacks holds: graders, the programs' judge, the machine."""

import os
import random
import subprocess
import sys

import pytest

from minrl.dataflow import Example, UserError
from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import LEVELS, Limits
from minrl.tasks import code, load_task
from minrl.tasks.code_game import CodeGameOptions, judge_program
from tests.hostile.cases import CASES, FORGED_ANSWERS, OBJECTS, WHAT_NO_SOURCE_TELLS
from tests.hostile.machine import attack, machine_cases, problem_of
from tests.hostile.playing import play, share_in_a_thread, task_of, wrong


def test_an_integer_that_does_not_follow_from_the_source_does_not_count():
    options = CodeGameOptions(time_limit_s=60.0)
    verdicts = {name: judge_program(program, options) for name, program in WHAT_NO_SOURCE_TELLS.items()}
    assert {name: verdict.printed for name, verdict in verdicts.items() if verdict.printed} == {}


IN_A_THREAD = {*OBJECTS, *FORGED_ANSWERS, "raises"}


@pytest.mark.parametrize("case", [one for one in CASES if one.name in IN_A_THREAD], ids=lambda case: case.name)
def test_programs_are_paid_by_what_they_return_in_every_shape_of_test(case):
    assert case.least <= share_in_a_thread(code.extract_program(case.completion), case.row) <= case.most


FAST = {"exits", "the reference", "sends a fake verdict", "looks for the tests everywhere"}
"""Some of each kind. Others are tried in the slow set, as each takes two sandboxes of its own."""
PROGRAMS = [case for case in CASES if case.task == "code" and case.name not in IN_A_THREAD]


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_hostile_programs_are_paid_nothing_and_honest_ones_in_full(fast):
    cases = [case for case in PROGRAMS if (case.name in FAST) == fast]
    assert len(cases) >= len(FAST) and wrong(cases, play(cases)) == []


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
    paid = play(cases)
    assert wrong(cases, paid) == []
    assert {case.family for case, reward in zip(cases, paid, strict=True) if reward.solved} == {"honest"}


LIMITS = Limits(wall_s=120.0, cpu_s=20.0, memory_mib=256, file_mib=16, processes=24)
"""The clock is far: a look may take half a second of processor time, which a busy machine gives in half a minute."""
ROOT = os.geteuid() == 0


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
for level in [level for level in LEVELS if not _unavailable(level)]:
    attacks = machine_cases(level)
    print(level, *(problem_of(case, attack(level, case.completion, '/var/tmp', limits)) for case in attacks))
"""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": sandbox.ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    interpreter = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    ended = subprocess.run(
        [interpreter, "-c", source], env=environment, user=61185, group=61185, extra_groups=[], capture_output=True
    )
    if ended.returncode:
        pytest.skip(f"that user cannot read this interpreter or this folder: {ended.stderr.decode()[-200:]}")
    levels = [name for name in LEVELS if not sandbox._unavailable(name)]
    assert ended.stdout.decode().split() == levels
