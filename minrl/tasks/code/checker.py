"""The trusted side: runs the tests, and asks the candidate in the other sandbox when they call the program."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from minrl.tasks.code.remote import Gone, Handle, Remote
from minrl.tasks.code.values import Channel


class Missing:
    """A name that the program does not define."""

    # ruff: noqa: D102 - the special method means what it means in Python

    def __call__(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        raise NameError("the program does not define it")


class Ledger:
    """Which asserts passed and which failed, and which ran in the units that are open."""

    def __init__(self) -> None:
        self.passed, self.failed = set[int](), set[int]()
        self.open: dict[int, set[int]] = {}

    def add(self, number: int) -> None:
        """The assert of this number has passed once."""
        self.passed.add(number)
        for ran in self.open.values():
            ran.add(number)

    def unit(self, *held: int) -> "Unit":
        """A statement, or the body of a function that holds these asserts."""
        return Unit(self, held)


class Unit:
    """Open while its statements run. If an exception leaves it, the asserts that ran in it have not passed."""

    def __init__(self, ledger: Ledger, held: Iterable[int]) -> None:
        self.ledger, self.held = ledger, held

    def __enter__(self) -> None:
        self.ledger.open[id(self)] = set(self.held)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ran = self.ledger.open.pop(id(self))
        if kind is not None and kind is not GeneratorExit:  # nobody asks a generator for more: that is no failure
            self.ledger.failed |= ran


def run(remote: Remote, tests: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the program loaded, whether its process was lost, and which asserts passed each time they ran, in units
    that came to their end.
    """
    ledger = Ledger()
    functions = {tests["passed"]: ledger.add, tests["failed"]: ledger.failed.add, tests["unit"]: ledger.unit}
    namespace = {"__name__": "tests", **functions}
    loaded = lost = False
    try:
        loaded = remote.receive() is True
        exec(compile(tests["before"], "before", "exec"), namespace)
        for name in tests["names"]:
            try:
                namespace[name] = value = remote.ask("name", name)
            except AttributeError:
                namespace[name] = Missing()  # nor may a namesake of Python's answer for it
                continue
            if name in tests["classes"] and type(value) is Handle:
                vars(value)["_is_class"] = True
        for source in tests["sources"]:
            try:
                exec(compile(source, "test", "exec"), namespace)
            except Exception:  # outside of its asserts: those it did not reach have not passed
                continue
    except Gone:
        lost = True
    except Exception:  # the program did not load, or the tests' own preparation failed
        pass
    return {"loaded": loaded, "lost": lost, "passed": sorted(ledger.passed - ledger.failed)}


def main() -> None:
    """Tests on standard input, the verdict on standard output, which the tests themselves cannot write to."""
    tests = json.loads(sys.stdin.buffer.read())
    verdict, quiet = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    answer = run(Remote(Channel(3)), tests)
    os.write(verdict, json.dumps(answer).encode())
