"""Bounds of settings, declared in their types and checked in one place.

>>> @dataclass(frozen=True, kw_only=True)
... class Sizes(Bounded):
...     group_size: Annotated[int, at_least(1)] = 8
>>> Sizes(group_size=0)
Traceback (most recent call last):
    ...
minrl.types.UserError: group_size must be at least 1, got 0
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, get_type_hints

from minrl.types import require


@dataclass(frozen=True)
class Bound:
    """What a setting must be: in words, as a message has it, and as a test, which NaN never passes."""

    says: str
    holds: Callable[[int | float], bool]


def at_least(least: int | float, purpose: str = "") -> Bound:
    """`least` or more; `purpose` ends the message, such as `to sample`."""
    return Bound(f"at least {least} {purpose}".rstrip(), lambda value: value >= least)


def above(limit: int | float, unit: str = "") -> Bound:
    """More than the limit."""
    return Bound(f"above {limit} {unit}".rstrip(), lambda value: value > limit)


def within(least: float, most: float) -> Bound:
    """From the one to the other, both included."""
    return Bound(f"from {least:g} to {most:g}", lambda value: least <= value <= most)


def from_zero(meaning: str = "") -> Bound:
    """0 or more. `meaning` is what 0 stands for, such as `off`."""
    return Bound(f"0 ({meaning}) or more" if meaning else "0 or more", lambda value: value >= 0)


def share(says: str = "in [0, 1]") -> Bound:
    """From 0 to 1, both included."""
    return Bound(says, lambda value: 0 <= value <= 1)


def share_below_one(says: str = "in [0, 1)") -> Bound:
    """From 0 to 1, without 1."""
    return Bound(says, lambda value: 0 <= value < 1)


Count = Annotated[int, at_least(1)]
"""At least one."""

Natural = Annotated[int, from_zero()]
"""0 or more."""

Seconds = Annotated[float, above(0, "seconds")]
"""A time limit."""

Seed = Annotated[int, Bound("0 or more and below 2^63", lambda value: 0 <= value < 2**63)]
"""torch's generators take no other."""

Calls = Annotated[int, Bound("1 to 256", lambda value: 1 <= value <= 256)]
"""How many calls of a server are in flight at the same time."""


class Bounded:
    """A dataclass whose settings are checked against their declared bounds when it is made."""

    prefix = ""
    """What messages put before the name of a setting, such as `countdown.` for a task's options."""

    def __post_init__(self) -> None:
        for name, bound in _bounds(type(self)):  # type: ignore[arg-type] # a class is hashable
            value = getattr(self, name)
            require(bound.holds(value), f"{self.prefix}{name} must be {bound.says}, got {value}")


@cache
def _bounds(cls: type) -> list[tuple[str, Bound]]:
    """The settings of a class that have a bound, each with its bound."""
    hints = get_type_hints(cls, include_extras=True)
    return [(name, bound) for name, hint in hints.items() for bound in getattr(hint, "__metadata__", ())]


def meant(word: object, choices: Iterable[object]) -> str:
    """A suggestion to append, where one or two of the choices are near."""
    names = [one for one in choices if isinstance(one, str)]
    close = sorted(difflib.get_close_matches(str(word), names, n=2, cutoff=0.5), key=names.index)
    return f": did you mean {' or '.join(close)}?" if close else ""
