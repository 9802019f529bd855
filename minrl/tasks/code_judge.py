"""The two processes that judge a program by tests. They exchange plain data, never code or references to objects.

`serve` loads the program in one sandbox and calls its functions; `check` runs the tests in another sandbox. Neither
imports more than the standard library. What a test expects never reaches the program.

    (1, "a", {2.5})  ->  ["tuple", 1, "a", ["set", 2.5]]  ->  (1, "a", {2.5})
"""

import builtins
import json
import os
import sys
from functools import partial
from typing import Any

MAX_MESSAGE = 16 * 2**20
CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)}
TYPES: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, *CONTAINERS.values())}
ERRORS = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}


class Gone(BaseException):
    """The program's process ended, or sent nonsense: no test can pass any more. No `except Exception` stops it."""


def packed(value: Any, classes: Any = ()) -> Any:  # noqa: ANN401 - JSON is of many types
    """JSON of plain data, and of objects of these classes, which only tests send. Subclasses cross as what they are."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, dict):
        return ["dict", *([packed(key, classes), packed(held, classes)] for key, held in value.items())]
    for name, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return [name, *(packed(one, classes) for one in value)]
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    if type(value).__name__ in classes:
        return ["object", type(value).__name__, packed(vars(value), classes)]
    raise TypeError(f"a {type(value).__name__} cannot cross")


def unpacked(data: Any, program: Any = None) -> Any:  # noqa: ANN401 - whatever was sent
    """The value. Objects are made of the program's classes. Raises ValueError or TypeError for what is no value."""
    match data:
        case None | bool() | int() | float() | str():
            return data
        case ["complex", real, imaginary]:
            return complex(real, imaginary)
        case ["dict", *pairs]:
            return {unpacked(key, program): unpacked(held, program) for key, held in pairs}
        case [str() as name, *items] if name in CONTAINERS:
            return CONTAINERS[name](unpacked(one, program) for one in items)
        case ["type", str() as name] if name in TYPES:
            return TYPES[name]
        case ["object", name, fields] if program is not None:
            made = object.__new__(getattr(program, name))
            vars(made).update(unpacked(fields, program))
            return made
    raise ValueError(f"no value: {str(data)[:80]}")


class Channel:
    """Messages over a descriptor: a line of JSON each."""

    def __init__(self, descriptor: int) -> None:
        self._reader, self._writer = (open(descriptor, mode, closefd=False) for mode in ("rb", "wb"))  # noqa: SIM115

    def send(self, message: object) -> None:
        """Send a message. Raises ValueError or RecursionError for one that cannot be sent, before any of it is."""
        data = json.dumps(message).encode() + b"\n"
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(data)} bytes")
        self._writer.write(data)
        self._writer.flush()

    def receive(self) -> Any:  # noqa: ANN401 - JSON is of many types
        """The next message. Raises OSError, EOFError, ValueError or RecursionError if the other side sends none."""
        line = self._reader.readline(MAX_MESSAGE)
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)


def silence() -> None:
    """Let nothing be read or printed."""
    sys.set_int_max_str_digits(0)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)


def serve() -> None:
    """Load `program.py`, say whether that went well, and answer calls until the tests are through."""
    silence()
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which the interpreter lacks without its `site`
    channel, program = Channel(3), type(sys)("program")
    program.__file__, sys.modules["program"] = os.path.abspath("program.py"), program
    try:
        with open("program.py", "rb") as file:
            exec(compile(file.read(), "program.py", "exec"), program.__dict__)
    except BaseException as error:  # a program that fails while it loads has nothing to offer
        if not isinstance(error, SystemExit) or error.code:
            channel.send(["failed"])
            return
    channel.send(["loaded"])
    answer(channel, program)


def answer(channel: Channel, program: Any) -> None:  # noqa: ANN401 - a module
    """Answer calls until the tests' process is gone."""
    while True:
        name, given = channel.receive()
        try:
            arguments, keywords = unpacked(given, program)
            channel.send(["value", packed(getattr(program, name)(*arguments, **keywords))])
        except BaseException as error:  # the program may raise anything, and the tests are told what
            kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
            channel.send(["raised", kind.__name__, str(error)[:1000]])


def ask(channel: Channel, classes: Any, name: str, *arguments: object, **keywords: object) -> Any:  # noqa: ANN401
    """What a function of the program returns. What the program raised is raised."""
    request = [name, packed([arguments, keywords], classes)]
    try:
        channel.send(request)
        match channel.receive():
            case ["value", data]:
                return unpacked(data)
            case ["raised", str() as kind, str() as said]:
                raised = ERRORS.get(kind, RuntimeError)
            case other:
                raise ValueError(f"no answer: {str(other)[:80]}")
    except (OSError, EOFError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Gone from error
    # a StopIteration could end a loop of the tests early
    raise RuntimeError(said) if issubclass(raised, StopIteration | StopAsyncIteration | UnicodeError) else raised(said)


def run(channel: Channel, tests: dict[str, Any]) -> dict[str, Any]:
    """Whether the program loaded, whether its process was lost, and which statements, by number, raised nothing."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    passed, loaded, lost = [], False, False
    try:
        loaded = channel.receive() == ["loaded"]
        exec(compile(tests["before"], "before", "exec"), namespace)
        for name in tests["names"]:
            namespace[name] = partial(ask, channel, tests["classes"], name)
        for number, source in enumerate(tests["statements"] if loaded else ()):
            try:
                exec(compile(source, "test", "exec"), namespace)
                passed.append(number)
            except Exception:  # an assert that does not hold, or what the program raised
                pass
    except (Gone, OSError, EOFError, ValueError, RecursionError):
        lost = True
    except Exception:  # the tests' own preparation failed
        pass
    return {"loaded": loaded, "lost": lost, "passed": passed}


def check() -> None:
    """Tests on standard input, the verdict on standard output, which the tests themselves cannot write to."""
    tests, verdict = json.loads(sys.stdin.buffer.read()), os.dup(1)
    silence()
    os.write(verdict, json.dumps(run(Channel(3), tests)).encode())
