"""Values that cross from one interpreter to another: data of plain types, parsed strictly, never code.

The checker, which trusts the tests, and the candidate, which nobody trusts, use it inside the sandbox. An object that
is not plain stays where it is, and a number, its handle, crosses instead.

    (1, "a", {2.5})    ->    ["tuple", 1, "a", ["set", 2.5]]    ->    (1, "a", {2.5})
"""

import json
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

MAX_MESSAGE = 16 * 2**20
LONG_INTEGER_BITS = 1000


def _range(parts: Iterable[Any]) -> range:
    start, stop, step = parts
    return range(start, stop, step)


GATHERED: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "range": _range}
PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
TYPES = {kind.__name__: kind for kind in PLAIN}

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
    if type(value) is range:
        return ["range", *(to_json(part, handle) for part in (value.start, value.stop, value.step))]
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
    named = [name for name, plain in TYPES.items() if value is plain]  # a type of Python's own, such as `int`
    return ["type", *named] if named else ["handle", handle(value)]


def from_json(data: Any, handle: Callable[[int], Any]) -> Any:  # noqa: ANN401 - whatever was sent
    """The value. `handle` gives the object of a number. Raises `Malformed`."""
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
        case ["handle", int() as number]:
            return handle(number)
        case ["type", str() as name] if name in TYPES:
            return TYPES[name]
        case ["list" | "tuple" | "set" | "frozenset" | "range" as name, *items]:
            return GATHERED[name](from_json(item, handle) for item in items)
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
