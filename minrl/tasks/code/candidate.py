"""The untrusted side: loads the program and does what the checker asks of it. It runs inside the sandbox.

Nothing of the tests is here: neither what they expect nor how they look at what they get.
"""

import builtins
import itertools
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

from minrl.tasks.code.values import Channel, from_json, to_json

CHUNK = 256
DO: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, keywords: function(*arguments, **keywords),
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "operate": lambda name, left, right: getattr(operator, name)(left, right),
    "length": len,
    "truth": bool,
    "text": str,
    "shown": repr,
    "isinstance": isinstance,
    "iterate": iter,
    "next": lambda iterator, count: list(itertools.islice(iterator, min(count, CHUNK))),
}
"""What the checker may ask of an object."""


class Candidate:
    """The program's names, and the objects of it that the checker holds handles to."""

    def __init__(self, program: Any) -> None:  # noqa: ANN401 - a module
        self.program = program
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def number(self, value: object) -> int:
        """The object's handle, the same each time. It is kept, so that no other takes its address."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def do(self, request: list[Any]) -> Any:  # noqa: ANN401 - whatever the program returns
        """One request of the checker."""
        kind, *values = request
        values = [from_json(item, lambda number, *_: self.objects[number]) for item in values]
        if kind == "said":
            return self.said()
        return getattr(self.program, *values) if kind == "name" else DO[kind](*values)

    def said(self) -> dict[int, tuple[type, list[str], list[Any]]]:
        """What the objects hold that have a comparison of their own: class, names and values of what is compared."""
        found = {}
        for number, value in enumerate(self.objects):  # which grow by the objects that these hold
            kind = type(value)
            if kind.__eq__ is not object.__eq__ and not isinstance(value, type):
                names = list(getattr(value, "__dict__", {}))
                if hasattr(kind, "__dataclass_fields__"):
                    names = [field.name for field in sys.modules["dataclasses"].fields(value) if field.compare]
                found[number] = (kind, names, [getattr(value, name) for name in names])
                to_json(found[number], self.number)
        return found


def serve(channel: Channel, program: Any) -> None:  # noqa: ANN401 - a module
    """Answer until the checker is gone: `["value", ...]`, or `["raised", type, arguments, text, the exception]`."""
    candidate = Candidate(program)
    while True:
        request = channel.receive()
        try:
            channel.send(["value", to_json(candidate.do(request), candidate.number)])
        except BaseException as error:  # the program may raise anything, and the checker is told what
            text = str(error)[:1000]
            arguments = list(error.args) if all(map(is_short, error.args)) else [text]
            channel.send(["raised", *(to_json(one, candidate.number) for one in (type(error), arguments, text, error))])


def is_short(argument: object) -> bool:
    """Whether an exception's argument crosses as it is."""
    return argument is None or (type(argument) in (bool, int, float, str) and sys.getsizeof(argument) < 1000)


def main() -> None:
    """Load `program.py`, say whether that went well, and serve."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    channel = Channel(3)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which the interpreter lacks without its `site`
    program = type(sys)("program")
    sys.modules["program"] = program
    with open("program.py", "rb") as file:
        source = file.read()
    try:
        exec(compile(source, "program.py", "exec"), program.__dict__)
    except BaseException as error:  # a program that fails while it loads has nothing to offer
        if not isinstance(error, SystemExit) or error.code:
            channel.send(["failed"])
            return
    channel.send(["value", True])
    serve(channel, program)
