"""Objects of a program: ordinary tests can use them, and none of them decides a verdict."""

import socket
import threading
import types
from contextlib import suppress
from dataclasses import asdict

import pytest

from minrl.tasks import code
from minrl.tasks.code import candidate, extract_program
from minrl.tasks.code.checker import run
from minrl.tasks.code.remote import Remote
from minrl.tasks.code.values import Channel
from minrl.types import Example
from tests.hostile.objects import CASES, HONEST


def share(program, row):
    """The share of the asserts that pass, with the program in a thread of this process."""
    tests, _ = code.tests_of(row)
    ours, theirs = socket.socketpair()
    module = types.ModuleType("program")
    exec(compile(program, "program.py", "exec"), vars(module))

    def serve():
        with theirs, suppress(EOFError, OSError):
            channel = Channel(theirs.fileno())
            channel.send(["value", True])
            candidate.serve(channel, module)

    thread = threading.Thread(target=serve)
    thread.start()
    names = {"passed": "__passed__", "failed": "__failed__", "unit": "__unit__"}
    verdict = run(Remote(Channel(ours.fileno())), {**names, **asdict(tests)})
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
    ours.close()
    return len(verdict["passed"]) / tests.num_asserts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_objects_are_judged_by_what_they_hold(case):
    program = extract_program(case.completion)
    if "while True: pass" in program:
        program = program.replace("while True: pass", "raise RuntimeError")
    assert case.least <= share(program, case.row) <= case.most


def test_in_the_sandbox_too():
    for case in (CASES[0], CASES[len(HONEST)]):
        paid = code.reward_for_tests(case.completion, Example("", "", case.row), code.CodeOptions(timeout_s=60.0))
        assert case.least <= paid.value <= case.most
