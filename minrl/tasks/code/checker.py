"""The trusted side: runs the tests, and asks the candidate in the other sandbox when they call the program.

Answers are data. An object that is not plain is a `Handle`, equal only to itself, whatever it claims on the other side.
Changes that the candidate makes to an argument do not come back.
"""

import builtins
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from minrl.tasks.code.values import Channel, Malformed, from_json, to_json

STEERING = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions by which Python's own loops end: passed on, one of them could end a loop of the tests early."""


class Gone(BaseException):
    """The candidate ended, or speaks nonsense: no test can pass any more. No `except Exception` of a test stops it."""


class Remote:
    """The conversation with the candidate."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.handles: dict[int, Handle] = {}

    def handle(self, number: int) -> "Handle":
        """The handle of the candidate's object of this number."""
        return self.handles.setdefault(number, Handle(self, number))

    def ask(self, kind: str, *values: object) -> Any:  # noqa: ANN401 - whatever the program returned
        """One request and its answer. Raises TypeError if an argument cannot be sent."""
        try:
            self.channel.send([kind, *(to_json(value, number_of) for value in values)])
        except OSError as error:
            raise Gone from error
        except (Malformed, RecursionError) as error:
            raise TypeError(str(error)) from error
        return self.receive()

    def receive(self) -> Any:  # noqa: ANN401 - whatever the program returned
        """The value that the program returned. What it raised is raised."""
        try:
            answer = self.channel.receive()
            match answer:
                case ["value", data]:
                    return from_json(data, self.handle)
                case ["raised", str() as name, str() as text]:
                    pass
                case _:
                    raise Malformed(str(answer)[:80])
        except (EOFError, OSError, Malformed, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise Gone from error
        raise exception_of(name, text)


def exception_of(name: str, text: str) -> Exception:
    """An exception of Python's own by its name; any other is a RuntimeError.

    >>> exception_of("KeyError", "x"), exception_of("StopIteration", ""), exception_of("SystemExit", "0")
    (KeyError('x'), RuntimeError(''), RuntimeError('0'))
    """
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, STEERING):
        try:
            return kind(text)
        except TypeError:  # it takes more than a text
            return RuntimeError(text)
    return RuntimeError(text)


def number_of(value: object) -> int:
    """The number of a handle. Other objects of the tests cannot cross."""
    if type(value) is not Handle:
        raise TypeError(f"the tests cannot give the program a {type(value).__name__}")
    return int(object.__getattribute__(value, "_number"))


class Handle:
    """An object of the candidate. Requests go to the other side; it is compared by identity here."""

    # ruff: noqa: D102 - the special methods mean what they mean in Python

    def __init__(self, remote: Remote, number: int) -> None:
        object.__setattr__(self, "_ask", remote.ask)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: object, **keywords: object) -> Any:  # noqa: ANN401
        return self._ask("call", self, arguments, keywords)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):  # the other side must not steer Python's protocols
            raise AttributeError(name)
        return self._ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("set", self, name, value)

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401
        return self._ask("item", self, key)

    def __len__(self) -> int:
        return int(self._ask("length", self))

    def __bool__(self) -> bool:
        return self._ask("truth", self) is True

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iterate", self)
        while chunk := self._ask("next", iterator):
            yield from chunk


class Missing:
    """A name that the program does not define."""

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
                namespace[name] = remote.ask("name", name)
            except AttributeError:
                namespace[name] = Missing()  # nor may a namesake of Python's answer for it
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
