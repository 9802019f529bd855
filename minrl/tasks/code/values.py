"""Values that cross from one interpreter to another: data of plain types, parsed strictly, never code.

The checker, which trusts the tests, and the candidate, which nobody trusts, use it inside the sandbox. Values of some
types of the standard library are built anew from plain data, and what Python itself names crosses by its name. Any
other object stays where it is, and a number, its handle, crosses instead.

    (1, "a", {2.5})    ->    ["tuple", 1, "a", ["set", 2.5]]          ->    (1, "a", {2.5})
    Fraction(1, 3)     ->    ["built", "Fraction", 1, 3]              ->    Fraction(1, 3)
    class E(KeyError)  ->    ["error", 5, "E", ["named", "KeyError"]] ->    a class E of the checker's own
"""

import builtins
import importlib
import json
import math
import operator
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

MAX_MESSAGE = 16 * 2**20
LONG_INTEGER_BITS = 1000


GATHERED: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
PURE = (
    "abs all any bin callable chr divmod enumerate filter hash hex isinstance issubclass len map max min oct ord pow "
    "range repr reversed round sorted sum zip"
)
NAMED: dict[str, Any] = {
    **{kind.__name__: kind for kind in PLAIN},
    **{name: getattr(builtins, name) for name in PURE.split()},
    **{name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)},
    **{
        f"{module.__name__}.{name}": function
        for module in (math, operator)
        for name, function in vars(module).items()
        if type(function) is type(len) and not name.startswith("_")
    },
}
"""What is the same on both sides: types, exceptions and functions of Python's own that change nothing."""
NAMES = {id(thing): name for name, thing in NAMED.items()}

BUILT: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "Fraction": ("fractions", lambda value: (value.numerator, value.denominator)),
    "Decimal": ("decimal", lambda value: (str(value),)),
    "date": ("datetime", lambda value: (value.year, value.month, value.day)),
    "time": ("datetime", lambda value: (*_clock(value), value.tzinfo)),
    "datetime": ("datetime", lambda value: (value.year, value.month, value.day, *_clock(value), value.tzinfo)),
    "timedelta": ("datetime", lambda value: (value.days, value.seconds, value.microseconds)),
    "timezone": ("datetime", lambda value: (value.utcoffset(None),)),
    "range": ("builtins", lambda value: (value.start, value.stop, value.step)),
    "deque": ("collections", lambda value: (list(value), value.maxlen)),
}
"""Types of the standard library by name: their module, and the plain data that a value is built from."""


def _clock(value: Any) -> tuple[int, int, int, int]:  # noqa: ANN401 - a time of day
    return value.hour, value.minute, value.second, value.microsecond


def built_type(value: object) -> str:
    """The name in `BUILT` of the value's own type; empty for other types. A subclass may compare as it likes."""
    kind = type(value)
    module, _ = BUILT.get(kind.__name__, ("", None))
    known = module and getattr(sys.modules.get(module), kind.__name__, None) is kind
    zone = getattr(value, "tzinfo", None) if known else None
    return kind.__name__ if known and (zone is None or built_type(zone)) else ""


def build(name: str, parts: list[Any]) -> Any:  # noqa: ANN401 - a value of the type
    """The value of a type in `BUILT`. Raises Malformed or what its constructor raises for other data."""
    simple = (int, str, list, type(None))
    if any(type(part) not in simple and not built_type(part) for part in parts):
        raise Malformed(f"a {name} of {parts}"[:80])
    try:
        return getattr(importlib.import_module(BUILT[name][0]), name)(*parts)
    except ArithmeticError as error:
        raise Malformed(str(error)) from error


EQUAL: dict[type, Callable[[Any], Any]] = {bytearray: bytes, type({}.keys()): set}
"""Types of Python's own whose values cross as others that they are equal to."""


class Malformed(Exception):
    """A message that is no message."""


def plain_type(value: object) -> type | None:
    """The plain type as which a value crosses: its own, or a base with the same comparison. A named tuple is equal to
    the tuple of its fields, so it crosses as one; an object with a comparison of its own does not.
    """
    kind = type(value)
    if kind in PLAIN:
        return kind
    if kind in (Counter, OrderedDict):
        return dict
    return next((base for base in PLAIN if isinstance(value, base) and kind.__eq__ is base.__eq__), None)


def to_json(value: Any, handle: Callable[[Any], int]) -> Any:  # noqa: ANN401 - JSON is of many types
    """JSON that `from_json` turns back into an equal value. `handle` numbers an object that is not plain."""
    value = EQUAL.get(type(value), lambda same: same)(value)
    kind = plain_type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return str.__str__(value)
    if kind is int:
        number = int.__int__(value)
        return number if number.bit_length() < LONG_INTEGER_BITS else ["int", hex(number)]
    if kind is float:
        real = float.__float__(value)
        return real if real - real == 0 else ["float", repr(real)]
    if kind is complex:
        return ["complex", repr(value.real), repr(value.imag)]
    if kind is bytes:
        return ["bytes", bytes.hex(value)]
    if kind is dict:
        pairs = [(to_json(key, handle), to_json(item, handle)) for key, item in dict.items(value)]
        return ["dict", *pairs]
    if kind is not None:
        items: Iterable[Any] = GATHERED[kind.__name__].__iter__(value)
        return [kind.__name__, *(to_json(item, handle) for item in items)]
    return _object_to_json(value, handle)


def _object_to_json(value: Any, handle: Callable[[Any], int]) -> list[Any]:  # noqa: ANN401 - of any other type
    if name := built_type(value):
        return ["built", name, *(to_json(part, handle) for part in BUILT[name][1](value))]
    if id(value) in NAMES:
        return ["named", NAMES[id(value)]]
    if isinstance(value, type) and Exception in type.mro(value):
        return ["error", handle(value), value.__name__, to_json(value.__base__, handle)]
    return ["handle", handle(value)]


def from_json(data: Any, handle: Callable[..., Any]) -> Any:  # noqa: ANN401 - whatever was sent
    """The value. `handle` gives the object of a number, and of a class of exceptions also its name and base. Raises
    `Malformed`.
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    match data:
        case ["int", str() as digits]:
            return int(digits, 16)
        case ["float", "inf" | "-inf" | "nan" as special]:
            return float(special)
        case ["complex", str() as real, str() as imaginary]:
            return complex(float(real), float(imaginary))
        case ["bytes", str() as digits]:
            return bytes.fromhex(digits)
        case ["dict", *pairs] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {from_json(key, handle): from_json(item, handle) for key, item in pairs}
        case ["list" | "tuple" | "set" | "frozenset" as name, *items]:
            return GATHERED[name](from_json(item, handle) for item in items)
    return _object_from_json(data, handle)


def _object_from_json(data: Any, handle: Callable[..., Any]) -> Any:  # noqa: ANN401 - whatever was sent
    match data:
        case ["handle", int() as number]:
            return handle(number)
        case ["error", int() as number, str() as name, base]:
            return handle(number, name, from_json(base, handle))
        case ["named", str() as name] if name in NAMED:
            return NAMED[name]
        case ["built", str() as name, *parts] if name in BUILT:
            return build(name, [from_json(part, handle) for part in parts])
    raise Malformed(f"no value: {str(data)[:80]}")


class Channel:
    """Messages over a descriptor: a length of four bytes, then JSON of that length."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._reader = open(descriptor, "rb", closefd=False)  # noqa: SIM115 - it lives as long as the process

    def send(self, message: object) -> None:
        """Raises Malformed for a message that is too long or too deeply nested, before any of it is sent."""
        try:
            data = json.dumps(message, allow_nan=False, check_circular=False).encode()
        except (ValueError, RecursionError) as error:
            raise Malformed(str(error)) from error
        if len(data) > MAX_MESSAGE:
            raise Malformed(f"a message of {len(data)} bytes")
        rest = memoryview(len(data).to_bytes(4, "big") + data)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]

    def receive(self) -> Any:  # noqa: ANN401 - JSON is of many types
        """The next message. Raises EOFError if the other side is gone, Malformed if it sends something else."""
        size = int.from_bytes(self._exactly(4), "big")
        if size > MAX_MESSAGE:
            raise Malformed(f"a message of {size} bytes")
        data = self._exactly(size)
        try:
            return json.loads(data, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise Malformed(str(error)) from error

    def _exactly(self, count: int) -> bytes:
        try:
            data = self._reader.read(count)
        except ConnectionResetError:
            data = b""
        if len(data) < count:
            raise EOFError
        return data


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
