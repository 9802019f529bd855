"""The candidate as the tests see it: its objects are handles, and what it says is data.

An object that is not plain is a `Handle`, equal only to itself, whatever it claims on the other side.
But for one that the tests made of a class: of those with a comparison of their own it is equal to one that held the
same data before the program was shown what this one is made of.

    move(Point(1, 2)) == Point(4, 6)    the program gives a handle, then says what this holds, then is shown 4 and 6

Changes that the candidate makes to an argument do not come back.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from minrl.tasks.code.values import Channel, Malformed, from_json, to_json

STEERING = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions by which Python's own loops end: passed on, one of them could end a loop of the tests early."""


class Gone(BaseException):
    """The candidate ended, or speaks nonsense: no test can pass any more. No `except Exception` of a test stops it."""


class Made(NamedTuple):
    """An object that the tests made: when, what it holds, and what the others held before."""

    asked: int
    held: object
    before: Mapping[int, object]


class Remote:
    """The conversation with the candidate."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.handles: dict[int, Any] = {}
        self.asked = 0
        self.touched: dict[int, int] = {}  # when an object may have changed
        self.made: dict[int, Made] = {}

    def handle(self, number: int, name: str = "", base: object = None) -> Any:  # noqa: ANN401 - a handle or a class
        """The handle of the candidate's object of this number. A class of exceptions has a class here."""
        if number not in self.handles:
            self.handles[number] = error_class(self, number, name, base) if name else Handle(self, number)
        return self.handles[number]

    def ask(self, kind: str, *values: object) -> Any:  # noqa: ANN401 - whatever the program returned
        """One request and its answer. Raises TypeError if an argument cannot be sent."""
        self.asked += 1

        def crossing(value: object) -> int:
            number = number_of(value)
            if kind not in LOOKING:
                self.touched[number] = self.asked
            return number

        try:
            self.channel.send([kind, *(to_json(value, crossing) for value in values)])
        except OSError as error:
            raise Gone from error
        except (Malformed, RecursionError) as error:
            raise TypeError(str(error)) from error
        return self.receive()

    def receive(self) -> Any:  # noqa: ANN401 - whatever the program returned
        """The value that the program returned. What it raised is raised."""
        try:
            match self.channel.receive():
                case ["value", data]:
                    return from_json(data, self.handle)
                case ["raised", *told]:
                    kind, arguments, text, told_of = (from_json(data, self.handle) for data in told)
                case answer:
                    raise Malformed(str(answer)[:80])
        except (EOFError, OSError, Malformed, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise Gone from error
        raise exception_of(kind, arguments, text, told_of)

    def make(self, kind: "Handle", arguments: tuple[object, ...], keywords: Mapping[str, object]) -> Any:  # noqa: ANN401
        """What the program makes of a class. The objects are asked what they hold before it is shown the arguments."""
        before, seen, known = self.ask("said"), dict(self.touched), len(self.handles)
        made = self.ask("call", kind, arguments, keywords)
        if type(made) is Handle:
            if known == len(self.handles) and (arguments or keywords):
                raise TypeError("what is made of a class and of arguments must be a new object")
            held = self.ask("said").get(number_of(made))
            if held is not None and holds(held, arguments, keywords):
                self.touched = seen  # it keeps what it was given, and no more
                self.made[number_of(made)] = Made(self.asked, held, before)
        elif type(made) is not tuple or any(given not in made for given in (*arguments, *keywords.values())):
            raise TypeError("what is made of a class must be an object of it, or hold what it is made of")
        return made

    def equal(self, one: "Handle", other: "Handle") -> bool:
        """Whether two objects, of which the tests made the later one, hold the same."""
        earlier, later = sorted(map(number_of, (one, other)), key=lambda n: self.made[n].asked if n in self.made else 0)
        if later not in self.made or earlier not in self.made[later].before:
            return False
        made = self.made[later]
        changed = any(self.touched.get(number, 0) > made.asked for number in (earlier, later))
        return not changed and made.before[earlier] == made.held


LOOKING = ("name", "get", "text", "shown", "length", "truth", "isinstance")
"""Requests that change no object."""


def holds(held: Any, arguments: tuple[object, ...], keywords: Mapping[str, object]) -> bool:  # noqa: ANN401
    """Whether what the candidate says that an object holds begins with what it was made of."""
    _, names, values = held
    named = dict(zip(names, values, strict=True))
    return list(arguments) == list(values)[: len(arguments)] and all(
        name in named and named[name] == value for name, value in keywords.items()
    )


def error_class(remote: Remote, number: int, name: str, base: Any) -> type[Exception]:  # noqa: ANN401
    """A class for a class of exceptions of the program, below the same class of Python's own."""
    known = isinstance(base, type) and issubclass(base, Exception) and not issubclass(base, STEERING)
    above = base if known else RuntimeError
    own = () if issubclass(above, Foreign) else (Foreign,)
    return type(name, (*own, above), {"_number": number})


class Foreign(Exception):
    """An exception of a class of the program. Its attributes are those of the program's object."""

    _text = ""
    _object: object = None

    def __str__(self) -> str:
        return self._text or super().__str__()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("_") or self._object is None:
            raise AttributeError(name)
        return getattr(self._object, name)


def exception_of(kind: Any, arguments: Any, text: Any, error: object = None) -> Exception:  # noqa: ANN401
    """The exception that the program raised; a RuntimeError if it is none that may be passed on.

    >>> exception_of(KeyError, ["x"], "'x'"), exception_of(StopIteration, [], ""), exception_of(7, [], "0")
    (KeyError('x'), RuntimeError(''), RuntimeError('0'))
    """
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, STEERING):
        try:
            raised = kind(*arguments)
        except TypeError:  # it takes other arguments
            return RuntimeError(text)
        if isinstance(raised, Foreign):
            raised._text, raised._object = str(text), error
        return raised
    return RuntimeError(text)


def number_of(value: object) -> int:
    """The number of a handle or of a class of exceptions. Other objects of the tests cannot cross."""
    if isinstance(value, type) and issubclass(value, Foreign) and "_number" in vars(value):
        return int(vars(value)["_number"])
    if type(value) is not Handle:
        raise TypeError(f"the tests cannot give the program a {type(value).__name__}")
    return int(object.__getattribute__(value, "_number"))


class Handle:
    """An object of the candidate. Requests go to the other side; it is compared by what was said of it."""

    # ruff: noqa: D102 - the special methods mean what they mean in Python

    def __init__(self, remote: Remote, number: int) -> None:
        vars(self).update(_remote=remote, _ask=remote.ask, _number=number, _is_class=False, _ahead=deque())

    def __call__(self, *arguments: object, **keywords: object) -> Any:  # noqa: ANN401
        if self._is_class:
            return self._remote.make(self, arguments, keywords)
        return self._ask("call", self, arguments, keywords)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name.startswith("__"):  # the other side must not steer Python's protocols
            raise AttributeError(name)
        value = self._ask("get", self, name)
        if type(value) is Handle:  # perhaps a method that changes the object
            self._remote.touched[self._number] = self._remote.asked
        return value

    def __setattr__(self, name: str, value: object) -> None:
        self._ask("set", self, name, value)

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401
        return self._ask("item", self, key)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Handle:
            return NotImplemented
        return self is other or self._remote.equal(self, other)

    def __hash__(self) -> int:
        return 0  # what is equal has one hash, and which are is known when they are compared

    def __str__(self) -> str:
        return _text_of(self._ask("text", self))

    def __repr__(self) -> str:
        return _text_of(self._ask("shown", self))

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Handle and self._ask("isinstance", value, self) is True

    def __len__(self) -> int:
        return int(self._ask("length", self))

    def __bool__(self) -> bool:
        return self._ask("truth", self) is True

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iterate", self)
        if type(iterator) is not Handle:
            raise TypeError("what iterates must be an object")
        count = 0
        while True:
            try:
                value = iterator.__next__(count)
            except StopIteration:
                return
            yield value
            count += 1

    def __next__(self, given: int = 0) -> Any:  # noqa: ANN401
        """The next one. The first ones are asked for one at a time: the one after them may never come."""
        if not self._ahead:
            self._ahead.extend(self._ask("next", self, given if given >= ONE_AT_A_TIME else 1))
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()


ONE_AT_A_TIME = 16


def _text_of(value: object) -> str:
    if type(value) is not str:
        raise TypeError("a text must be a str")
    return value


def _operated(name: str) -> Callable[[Handle, object], Any]:
    """An operator between two objects of the program. With a value of the tests it would be shown what they expect."""

    def operate(left: Handle, right: object) -> Any:  # noqa: ANN401
        return left._ask("operate", name, left, right) if type(right) is Handle else NotImplemented

    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "and_", "or_", "xor"):
    setattr(Handle, f"__{_name.strip('_')}__", _operated(_name))
