"""Programs that are right once, graders that are broken on purpose, integers that do not follow from a source."""

import pytest

from minrl.tasks import code, find_definition, load_task
from minrl.tasks.code.checker import Gone, exception_of, run
from minrl.tasks.code.judge import numbered
from minrl.types import Example
from tests.hostile.code import CASES, TESTS, row

FAST = ("for, raises", "for, exits after 1", "for, takes all the memory after 3", "right, for")


class Here:
    """Answers as a candidate does, without a sandbox."""

    def __init__(self, **names):
        self.names = names

    def receive(self):
        return True

    def ask(self, kind, name):
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
    for error in (ValueError(), exception_of("AssertionError", ""), exception_of("StopIteration", ""), Gone()):
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
    sources, _ = numbered(["assert half(2) == 1", "assert half(4) == 2", "assert half(6) == 3"])
    message = {"passed": "__passed__", "failed": "__failed__", "unit": "__unit__", "before": "", "names": ["half"]}
    for error, passed in ((ValueError(), [0, 1]), (Gone(), [0, 1])):
        assert run(Here(half=half_that_ends(error, 2)), {**message, "sources": sources})["passed"] == passed


@pytest.mark.parametrize("case", [one for one in CASES if one.name in FAST], ids=lambda case: case.name)
def test_hostile_programs_are_paid_nothing_and_honest_ones_in_full(case):
    assert case.least <= paid(case) <= case.most


@pytest.mark.slow
@pytest.mark.parametrize("case", [one for one in CASES if one.name not in FAST], ids=lambda case: case.name)
def test_so_are_all_others(case):
    assert case.least <= paid(case) <= case.most


def paid(case):
    task = load_task(case.task, {case.task: find_definition(case.task).options(**case.options)})
    return task.reward(case.completion, Example("", "", case.row)).value
