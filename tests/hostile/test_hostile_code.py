"""Programs that are right once, graders that are broken on purpose, integers that do not follow from a source."""

import io
import itertools
import random
import socket
import threading
import time
import types
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, replace

import pytest

from minrl.rewards.workers import Workers
from minrl.tasks import code, find_definition, load_task, reasoning_gym
from minrl.tasks.code_game import CodeGameOptions, guarded, refusal
from minrl.tasks.code_judge import Candidate, Channel, Gone, Remote, answer, run
from minrl.tasks.grader import bounded
from minrl.types import Example
from tests.apart import apart
from tests.hostile import programs
from tests.hostile.code_cases import ANSWERS as FORGED_ANSWERS
from tests.hostile.code_cases import CASES, FORGED, HONEST, PLAIN, TESTS, WHAT_NO_SOURCE_TELLS, row

ANSWERS, OBJECTS = programs.CASES, {*HONEST, *FORGED, *FORGED_ANSWERS}

FAST = {
    *("for, raises", "for, exits after 1", "for, takes all the memory after 3", "right, for", *list(HONEST)[:1]),
    *("an infinite loop", "a 100 MB answer", "an answer nested without end", "equal to everything", *list(FORGED)[:1]),
    *("prints a fake verdict", "sends a fake verdict", "answers before it is asked", "closes the channel"),
    *("redefines exceptions", "replaces its own harness", "looks for the tests everywhere", "fork bomb"),
}
"""Some of each kind. The others are tried in the slow set, as each takes two sandboxes of its own."""


def printed(program):
    """What a program of the game prints; empty if it is refused or fails."""
    out = io.StringIO()
    if not refusal(program, CodeGameOptions()):
        with suppress(Exception), redirect_stdout(out):
            exec(compile(guarded(program), "program.py", "exec"), {"__name__": "__main__"})
    return out.getvalue().strip()


@pytest.mark.parametrize("program", WHAT_NO_SOURCE_TELLS.values(), ids=WHAT_NO_SOURCE_TELLS)
def test_an_integer_that_does_not_follow_from_the_source_is_not_printed(program):
    assert printed(program) == ""


@pytest.mark.parametrize("program", PLAIN)
def test_plain_programs_print_what_python_prints(program):
    assert printed(program) == PLAIN[program]
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    assert out.getvalue().strip() == PLAIN[program]


class Here:
    """Answers as a candidate does, without a sandbox."""

    def __init__(self, **names):
        self.names, self.channel = names, types.SimpleNamespace(receive=lambda: ["loaded"])

    def ask(self, request, name):
        if name not in self.names:
            raise AttributeError(name)
        return self.names[name]


def half_that_ends(error, after):
    calls = []

    def half(x):
        calls.append(x)
        if len(calls) > after:
            raise error
        return x / 2

    return half


def share(test, half):
    """The share of the asserts that pass."""
    tests, _ = code.tests_of(row(test))
    message = {"passed": "__passed__", "failed": "__failed__", "unit": "__unit__", **vars(tests)}
    return len(run(Here(half=half), message)["passed"]) / tests.num_asserts


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_an_assert_that_passed_before_its_unit_broke_off_has_not_passed(test):
    assert share(test, lambda x: x / 2) == 1
    for error in (ValueError(), AssertionError(), Gone()):
        for after in (1, 2):
            assert share(test, half_that_ends(error, after)) == 0, (error, after)


def test_what_does_not_break_off_keeps_its_share():
    three = "assert half(2) == 1\nassert half(4) == 2\nassert half(6) == 3"
    assert share(three, lambda x: min(x / 2, 2)) == pytest.approx(2 / 3)  # an assert that fails stops no other
    expected = "assert half(2) == 1\ntry:\n    half('')\n    assert half(0) == 7\nexcept TypeError:\n    pass"
    assert share(expected, lambda x: x / 2) == 1 / 2  # an exception that the tests catch breaks nothing off
    abandoned = "def cases():\n    assert half(2) == 1\n    yield 1\nassert next(cases()) == half(2)"
    assert share(abandoned, lambda x: x / 2) == 1


def test_in_a_list_of_asserts_each_counts_for_itself():
    sources, _ = code.numbered(["assert half(2) == 1", "assert half(4) == 2", "assert half(6) == 3"])
    message = {
        "passed": "__passed__",
        "failed": "__failed__",
        "unit": "__unit__",
        "before": "",
        "names": ["half"],
        "classes": [],
    }
    for error, passed in ((ValueError(), [0, 1]), (Gone(), [0, 1])):
        assert run(Here(half=half_that_ends(error, 2)), {**message, "sources": sources})["passed"] == passed


def share_in_a_thread(program, row):
    """The share of the asserts that pass, with the program in a thread of this process."""
    tests, _ = code.tests_of(row)
    ours, theirs = socket.socketpair()
    module = types.ModuleType("program")
    exec(compile(program, "program.py", "exec"), vars(module))

    def serve():
        with theirs, suppress(EOFError, OSError):
            channel = Channel(theirs.fileno())
            channel.send(["loaded"])
            answer(channel, Candidate(module))

    thread = threading.Thread(target=serve)
    thread.start()
    names = {"passed": "__passed__", "failed": "__failed__", "unit": "__unit__"}
    verdict = run(Remote(Channel(ours.fileno())), {**names, **asdict(tests)})
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
    ours.close()
    return len(verdict["passed"]) / tests.num_asserts


@pytest.mark.parametrize("case", [one for one in CASES if one.name in OBJECTS], ids=lambda case: case.name)
def test_objects_are_judged_by_what_they_hold(case):
    assert case.least <= share_in_a_thread(code.extract_program(case.completion), case.row) <= case.most


@pytest.mark.parametrize("case", [one for one in CASES if one.name in FAST], ids=lambda case: case.name)
def test_hostile_programs_are_paid_nothing_and_honest_ones_in_full(case):
    assert case.least <= paid(case) <= case.most


@pytest.mark.slow
@pytest.mark.parametrize("case", [one for one in CASES if one.name not in FAST], ids=lambda case: case.name)
def test_so_are_all_others(case):
    assert case.least <= paid(case) <= case.most


@pytest.mark.parametrize("name", sorted({case.task for case in ANSWERS}))
def test_no_answer_is_paid_for_what_it_is_not_and_none_takes_long(name):
    for case in (case for case in ANSWERS if case.task == name):
        started = time.process_time()
        assert case.least <= paid(case) <= case.most, case.name
        assert time.process_time() - started < 2 * reasoning_gym.GRADING_S


@apart
def test_an_answer_that_takes_too_long_is_wrong_and_says_so(monkeypatch):
    monkeypatch.setattr(reasoning_gym, "GRADING_S", 0.05)
    monkeypatch.setattr(
        reasoning_gym, "_verifier", lambda *_: lambda answer, entry: [n for n in itertools.count() if n < 0]
    )
    case = ANSWERS[0]
    reward = reasoning_gym.reward("<answer>8</answer>", Example("", "", case.row), "countdown", "")
    assert (reward.value, reward.parts) == (0.0, {"answered": 1.0, "timeout": 1.0})


def test_a_completion_that_breaks_its_grader_is_paid_the_worst_that_its_task_pays():
    for mode, worst in (("tests", 0.0), ("execute", -1.0)):
        task = load_task("code", {"code": code.CodeOptions(mode=mode)})
        paid_then = task.paid("", Example("", "", {})).function.otherwise("crash")
        assert (paid_then.value, paid_then.parts) == (worst, {"grader_crash": 1.0})
    judging = load_task("code_game").episode(Example("", "", {}), random.Random(0))
    next(judging)
    assert judging.send("print(7)").function.otherwise("timeout").name == "timeout"


@pytest.mark.slow
def test_what_no_guard_knows_is_ended_and_innocent_answers_after_it_are_paid():
    """A power of integers, which no alarm interrupts, between right answers, in one worker."""
    honest = next(case for case in ANSWERS if case.least == 1 and "countdown" in case.task)
    task = load_task(honest.task)
    right = task.paid(honest.completion, Example("", "", honest.row))
    bomb = replace(right, function=replace(right.function, function=_power))
    pool = Workers(1, deadline_s=30.0)
    try:
        rewards = pool.run([right, bomb, right, bomb, right])
    finally:
        pool.close()
    assert [reward.value for reward in rewards] == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert [dict(reward.parts) for reward in rewards][1] == {"grader_timeout": 1.0}


def _power(*_):
    with bounded(0.2):
        return 9**9**9


def paid(case):
    task = load_task(case.task, {case.task: find_definition(case.task).options(**case.options)})
    return task.reward(case.completion, Example("", "", case.row)).value
