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
    "length": len,
    "truth": bool,
    "iterate": iter,
    "next": lambda iterator: list(itertools.islice(iterator, CHUNK)),
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
        values = [from_json(item, self.objects.__getitem__) for item in values]
        return getattr(self.program, *values) if kind == "name" else DO[kind](*values)


def serve(channel: Channel, program: Any) -> None:  # noqa: ANN401 - a module
    """Answer until the checker is gone: `["value", ...]` or `["raised", its nearest type of Python's own, text]`."""
    candidate = Candidate(program)
    while True:
        request = channel.receive()
        try:
            channel.send(["value", to_json(candidate.do(request), candidate.number)])
        except BaseException as error:  # the program may raise anything, and the checker is told what
            kind = next(base for base in type(error).__mro__ if vars(builtins).get(base.__name__) is base)
            channel.send(["raised", kind.__name__, str(error)[:1000]])


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
            channel.send(["raised", type(error).__name__, str(error)[:1000]])
            return
    channel.send(["value", True])
    serve(channel, program)
