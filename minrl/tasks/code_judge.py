"""The two processes that judge a program by tests. They exchange plain data, never code or references to objects.

`serve` loads the program in one sandbox and calls its functions; `check` runs the tests in another sandbox. Neither
imports more than the standard library. What a test expects never reaches the program before its result has arrived.

    (1, "a", {2.5})    ->    ["tuple", 1, "a", ["set", 2.5]]                ->    (1, "a", {2.5})
    Fraction(1, 3)     ->    ["built", "Fraction", 1, 3]                    ->    Fraction(1, 3)
    Point(1, 2)        ->    ["object", "Point", {"x": 1, "y": 2}, null]    ->    an `Object` with these fields
"""

import builtins
import importlib
import itertools
import json
import math
import operator
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MemberDescriptorType
from typing import Any, NoReturn

MAX_MESSAGE = 16 * 2**20
MAX_ITEMS = 10_000
"""The longest iterator that crosses."""
LONG_INTEGER = 2**1000

KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Iterable[Any]]]] = {
    "int": (lambda digits: int(digits, 16), lambda value: (hex(value),)),
    "bytes": (bytes.fromhex, lambda value: (value.hex(),)),
    "complex": (lambda real, imaginary: complex(real, imaginary), lambda value: (value.real, value.imag)),
    "dict": (lambda *pairs: dict(pairs), dict.items),
    **{kind.__name__: (lambda *items, kind=kind: kind(items), iter) for kind in (list, tuple, set, frozenset)},
    "iterator": (lambda *items: iter(items), iter),
}
"""Python's own types by name: what builds a value, and of what."""
PLAIN = (bool, float, str, int, bytes, complex, dict, list, tuple, set, frozenset)
PURE = (
    "abs all any bin callable chr divmod enumerate filter hash hex isinstance issubclass len map max min oct ord pow "
    "range repr reversed round sorted sum zip"
)
ERRORS = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
FUNCTIONS = {
    f"{module.__name__}.{name}": function
    for module in (math, operator)
    for name, function in vars(module).items()
    if type(function) is type(len) and not name.startswith("_")
}
NAMED: dict[str, Any] = {
    **{kind.__name__: kind for kind in PLAIN},
    **{name: getattr(builtins, name) for name in PURE.split()},
    **ERRORS,
    **FUNCTIONS,
}
"""What crosses by its name: types, exceptions and functions of Python's own that change nothing."""
NAMES = {id(thing): name for name, thing in NAMED.items()}
BUILT: dict[str, tuple[str, Callable[[Any], Iterable[Any]]]] = {
    "Fraction": ("fractions", lambda value: (value.numerator, value.denominator)),
    "Decimal": ("decimal", lambda value: (str(value),)),
    "date": ("datetime", lambda value: (value.year, value.month, value.day)),
    "time": ("datetime", lambda value: (value.hour, value.minute, value.second, value.microsecond)),
    "datetime": ("datetime", lambda value: (*value.timetuple()[:6], value.microsecond)),
    "timedelta": ("datetime", lambda value: (value.days, value.seconds, value.microseconds)),
    "range": ("builtins", lambda value: (value.start, value.stop, value.step)),
    "deque": ("collections", lambda value: (list(value), value.maxlen)),
}
"""Types of the standard library by name: their module, and the plain data that a value is built from."""


class Gone(BaseException):
    """The program's process ended, or sent nonsense: no test can pass any more. No `except Exception` stops it."""


def plain_type(value: object) -> type | None:
    """The plain type as which a value crosses: its own, or a base with the same comparison. A named tuple is equal to
    the tuple of its fields, so it crosses as one; a number that is equal to everything does not cross.
    """
    kind = type(value)
    if kind in PLAIN:
        return kind
    if kind in (Counter, OrderedDict):
        return dict
    return next((base for base in PLAIN if isinstance(value, base) and kind.__eq__ is base.__eq__), None)


def to_json(value: Any, describe: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - JSON is of many types
    """JSON that `from_json` turns back into an equal value. `describe` does so with an object that is not plain."""
    kind, each = plain_type(value), partial(to_json, describe=describe)
    if value is None or kind in (bool, str, float) or (kind is int and -LONG_INTEGER < value < LONG_INTEGER):
        return value
    if kind is not None:
        return [kind.__name__, *map(each, KINDS[kind.__name__][1](value))]
    own = type(value)
    module, parts = BUILT.get(own.__name__, ("", None))
    if parts and getattr(sys.modules.get(module), own.__name__, None) is own:  # a subclass may compare as it likes
        if getattr(value, "tzinfo", None) is not None:
            raise TypeError("a time with a time zone cannot cross")
        return ["built", own.__name__, *map(each, parts(value))]
    if id(value) in NAMES:
        return ["named", NAMES[id(value)]]
    if isinstance(value, Iterator) and own.__module__ in ("builtins", "itertools"):
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise TypeError(f"an iterator of more than {MAX_ITEMS} items cannot cross")
        return ["iterator", *map(each, items)]
    return describe(value)


def from_json(data: Any, make: Callable[..., Any]) -> Any:  # noqa: ANN401 - whatever was sent
    """The value. `make` makes an object of its class' name, its fields and, where a test made it, its arguments.
    Raises ValueError, TypeError or ArithmeticError for what is no value.
    """
    each = partial(from_json, make=make)
    match data:
        case None | bool() | int() | float() | str():
            return data
        case [str() as name, *parts] if name in KINDS:
            return KINDS[name][0](*map(each, parts))
        case ["named", str() as name] if name in NAMED:
            return NAMED[name]
        case ["built", str() as name, *parts] if name in BUILT:
            values = [*map(each, parts)]
            if all(type(value) in (int, str, list, type(None)) for value in values):
                return getattr(importlib.import_module(BUILT[name][0]), name)(*values)
        case ["object", str() as kind, dict() as fields, call]:
            return make(kind, {name: each(one) for name, one in fields.items()}, each(call))
    raise ValueError(f"no value: {str(data)[:80]}")


class Channel:
    """Messages over a descriptor: a line of JSON each."""

    def __init__(self, descriptor: int) -> None:
        self._reader = open(descriptor, "rb", closefd=False)  # noqa: SIM115 - it lives as long as the process
        self._writer = open(descriptor, "wb", closefd=False)  # noqa: SIM115

    def send(self, message: object) -> None:
        """Raises ValueError or RecursionError for a message that cannot be sent, before any of it is."""
        data = json.dumps(message, check_circular=False).encode() + b"\n"
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


class Candidate:
    """The program, for the tests' process. Nothing of the tests is here."""

    def __init__(self, program: Any) -> None:  # noqa: ANN401 - a module
        self.program = program

    def describe(self, value: Any) -> list[Any]:  # noqa: ANN401
        """An object of a class of the program as its fields, slots and private ones among them."""
        kind = type(value)
        if kind.__module__ != "program":
            raise TypeError(f"a {kind.__name__} cannot cross")
        members = [(name, one) for base in reversed(kind.__mro__) for name, one in vars(base).items()]
        slots = [name for name, one in members if type(one) is MemberDescriptorType and hasattr(value, name)]
        fields = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        return ["object", kind.__name__, {name: to_json(one, self.describe) for name, one in fields.items()}, None]

    def make(self, name: str, fields: Mapping[str, Any], call: Any) -> Any:  # noqa: ANN401
        """An object of a class of the program, with these fields."""
        kind = getattr(self.program, name)
        made = kind(*call[0], **call[1]) if call else object.__new__(kind)
        for key, value in fields.items():
            object.__setattr__(made, key, value)
        return made

    def answer(self, request: list[Any]) -> list[Any]:
        """The answer to a request: a value, or that a name is that of something to call."""
        match request:
            case ["name", name]:
                value = getattr(self.program, name)
                return ["function"] if callable(value) else ["value", to_json(value, self.describe)]
            case ["call", name, given]:
                arguments, keywords = from_json(given, self.make)
                value = getattr(self.program, name)(*arguments, **keywords)
            case made:
                value = from_json(made, self.make)
        return ["value", to_json(value, self.describe)]


def serve() -> None:
    """Load `program.py`, say whether that went well, and answer until the tests are through."""
    _silence()
    channel = Channel(3)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which the interpreter lacks without its `site`
    program = type(sys)("program")
    program.__file__ = os.path.abspath("program.py")
    sys.modules["program"] = program
    with open("program.py", "rb") as file:
        source = file.read()
    try:
        exec(compile(source, "program.py", "exec"), program.__dict__)
    except BaseException as error:  # a program that fails while it loads has nothing to offer
        if not isinstance(error, SystemExit) or error.code:
            channel.send(["failed"])
            return
    channel.send(["loaded"])
    answer(channel, Candidate(program))


def answer(channel: Channel, candidate: Candidate) -> None:
    """Answer until the tests' process is gone."""
    while True:
        request = channel.receive()
        try:
            channel.send(candidate.answer(request))
        except BaseException as error:  # the program may raise anything, and the tests are told what
            kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
            short = all(type(one) in (bool, int, float, str) and sys.getsizeof(one) < 1000 for one in error.args)
            channel.send(["raised", kind.__name__, list(error.args) if short else [str(error)[:1000]]])


def _silence() -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)


class Object:
    """An object of a class of the program, as a test sees it: one that the program returned, with its fields, or the
    description of one that the test makes by a call, with the attributes that it has set. The program's process makes
    the latter when it is an argument or is compared.
    """

    __slots__ = ("__dict__", "_remote_kind_call")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, remote: "Remote", kind: str, fields: Mapping[str, Any], call: Any = None) -> None:  # noqa: ANN401
        self._remote_kind_call = remote, kind, call
        vars(self).update(fields)

    def __eq__(self, other: object) -> bool:
        mine, theirs = (held(one) if type(one) is Object else one for one in (self, other))
        if type(mine) is Object and type(theirs) is Object:  # in order: a bag of all values could begin with any
            parts = [(one._remote_kind_call[1], list(vars(one).items())) for one in (mine, theirs)]
            return parts[0] == parts[1]
        return Object not in (type(mine), type(theirs)) and bool(mine == theirs)


def held(thing: Object) -> Any:  # noqa: ANN401 - an object or, of a named tuple, a tuple
    """What an object holds. One that does not hold what a test made it of could be equal to all, and is refused."""
    remote, _, call = thing._remote_kind_call
    if call is None:
        return thing
    made, (arguments, keywords) = remote.ask(remote.describe(thing)), call
    fields = vars(made) if type(made) is Object else {}
    values = made if type(made) is tuple else tuple(fields.values())
    named = {name: name if name in fields else f"_{name}" for name in keywords}
    if values[: len(arguments)] != arguments or any(
        key not in fields or fields[key] != keywords[name] for name, key in named.items()
    ):
        raise TypeError("an object must hold what it is made of")
    return made


class Remote:
    """The program's process, as the tests see it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def describe(self, value: object) -> list[Any]:
        """An object of the program. Other objects of the tests cannot cross."""
        if type(value) is not Object:
            raise TypeError(f"a test cannot give the program a {type(value).__name__}")
        _, kind, call = value._remote_kind_call
        fields = {name: to_json(one, self.describe) for name, one in vars(value).items()}
        return ["object", kind, fields, to_json(call, self.describe)]

    def ask(self, request: list[Any], name: str = "") -> Any:  # noqa: ANN401 - whatever the program returned
        """One request and its answer: a value, or a function of this name. What the program raised is raised."""
        try:
            self.channel.send(request)
            match self.channel.receive():
                case ["value", data]:
                    return from_json(data, lambda kind, fields, _: Object(self, kind, fields))
                case ["function"] if name:
                    return partial(self.call, name)
                case ["raised", str() as kind, list() as arguments]:
                    raised = ERRORS.get(kind, RuntimeError)
                case answer:
                    raise ValueError(f"no answer: {str(answer)[:80]}")
        except (OSError, EOFError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
            raise Gone from error
        if issubclass(raised, StopIteration | StopAsyncIteration):  # could end a loop of the tests early
            raised = RuntimeError
        try:
            made = raised(*arguments)
        except TypeError:  # it takes other arguments
            made = RuntimeError(*arguments)
        raise made

    def call(self, name: str, *arguments: object, **keywords: object) -> Any:  # noqa: ANN401
        """What a function of the program returns."""
        return self.ask(["call", name, to_json([arguments, keywords], self.describe)])


def missing(*_: object, **__: object) -> NoReturn:
    """Stands for a name that the program does not define: no namesake of Python's may answer for it."""
    raise NameError("the program does not define it")


def run(remote: Remote, tests: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the program loaded, whether its process was lost, and which asserts passed: those that held each time
    they ran, in statements that came to their end.
    """
    ran, passed, failed = set[int](), set[int](), set[int]()
    namespace: dict[str, Any] = {"__name__": "tests", tests["report"]: ran.add}
    loaded = lost = False
    try:
        loaded = remote.channel.receive() == ["loaded"]
        exec(compile(tests["before"], "before", "exec"), namespace)
        for name in tests["names"] if loaded else ():
            namespace[name] = _bound(remote, name, name in tests["classes"])
        for source, numbers in tests["statements"] if loaded else ():
            ran.clear()
            try:
                exec(compile(source, "test", "exec"), namespace)
                passed |= ran
            except (Exception, Gone) as error:
                failed.update(numbers)
                if isinstance(error, Gone):
                    raise
    except (Gone, OSError, EOFError, ValueError, RecursionError):
        lost = True
    except Exception:  # the tests' own preparation failed
        pass
    return {"loaded": loaded, "lost": lost, "passed": sorted(passed - failed)}


def _bound(remote: Remote, name: str, is_class: bool) -> Any:  # noqa: ANN401 - a function or a value
    """What the program's name stands for in the tests."""
    try:
        found = remote.ask(["name", name], name)
    except AttributeError:
        return missing
    return partial(_make, remote, name) if is_class else found


def _make(remote: Remote, kind: str, *arguments: object, **keywords: object) -> Object:
    return Object(remote, kind, {}, (arguments, keywords))


def check() -> None:
    """Tests on standard input, the verdict on standard output, which the tests themselves cannot write to."""
    tests = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)
    _silence()
    os.write(verdict, json.dumps(run(Remote(Channel(3)), tests)).encode())
