"""Settings as frozen dataclasses: converted to their types, checked against their bounds, given flat or in groups.

>>> @dataclass(frozen=True, kw_only=True)
... class Sizes(Bounded):
...     group_size: Annotated[int, Bound(least=1)] = 8
>>> Sizes(group_size="4")
Sizes(group_size=4)
>>> Sizes(group_size=0)
Traceback (most recent call last):
    ...
minrl.types.UserError: group_size must be at least 1, got 0
"""

import difflib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from minrl.types import UserError, require

ROWS = "rows"
"""Metadata of a setting: the dictionary whose keys are its values."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An interval in which a setting must be. `zero` says what 0 means where it is allowed beside the interval.

    >>> str(Bound(least=1)), str(Bound(above=0, below=1)), str(Bound(least=1, most=1024, zero="one per core"))
    ('at least 1', 'above 0 and below 1', '0 (one per core), or from 1 to 1024')
    """

    least: float = -inf
    above: float = -inf
    most: float = inf
    below: float = inf
    zero: str = ""

    def __str__(self) -> str:
        limits = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        words = " and ".join(f"{name} {_short(limit)}" for name, limit in limits if math.isfinite(limit))
        if math.isfinite(self.least) and math.isfinite(self.most):
            words = f"from {_short(self.least)} to {_short(self.most)}"
        return f"0 ({self.zero}), or {words}" if self.zero else words

    def holds(self, value: float) -> bool:
        """Whether the value is in the interval; NaN and infinities are in none."""
        inside = self.least <= value <= self.most and self.above < value < self.below
        return inside or (bool(self.zero) and value == 0)


def _short(limit: float) -> str:
    return "2^63" if limit == 2**63 else f"{limit:g}"


Count = Annotated[int, Bound(least=1)]
Natural = Annotated[int, Bound(least=0)]
CountOrOff = Annotated[int, Bound(least=1, zero="off")]
Positive = Annotated[float, Bound(above=0)]
PositiveOrOff = Annotated[float, Bound(above=0, zero="off")]
Share = Annotated[float, Bound(least=0, most=1)]
ShareBelowOne = Annotated[float, Bound(least=0, below=1)]
Seed = Annotated[int, Bound(least=0, below=2**63)]
Calls = Annotated[int, Bound(least=1, most=256)]


@cache
def hints_of(cls: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    """The types of a dataclass's fields, without their bounds, by name."""
    hints = get_type_hints(cls)
    return {one.name: hints[one.name] for one in fields(cls) if one.init}


@cache
def _bounds(cls: Any) -> list[tuple[str, Bound]]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(cls, include_extras=True)
    return [(name, bound) for name, hint in hints.items() for bound in getattr(hint, "__metadata__", ())]


def converted(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    """A value of Python, YAML, JSON or the command line as a setting of this type. Raises `UserError` for others.

    >>> converted("steps", int, "5"), converted("learning_rate", float, "3e-4"), converted("k", tuple[int, ...], ["1"])
    (5, 0.0003, (1,))
    """
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    if kinds != [hint] and value in (None, "None"):
        return None
    kind, origin, inner = kinds[0], get_origin(kinds[0]), get_args(kinds[0])
    if origin in (tuple, list) and isinstance(value, list | tuple):
        each = [inner[0]] * len(value) if origin is list or inner[-1] is Ellipsis else inner
        if len(each) == len(value):
            return origin(converted(name, one, own) for one, own in zip(each, value, strict=True))
    elif (origin is Literal and value in inner) or (origin is None and kind not in WORDS):
        return value
    elif kind is str and isinstance(value, Path):
        return str(value)
    elif isinstance(value, str if kind in (int, float, Path) else ()) or (kind is float and type(value) is int):
        with suppress(ValueError, OverflowError):
            return kind(value)  # YAML reads 3e-4 as a string
    elif origin is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{name} must be {_in_words(kind)}, got {value!r:.80}{meant(value, inner)}")


WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def _in_words(kind: Any) -> str:  # noqa: ANN401 - types are data here
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if get_origin(kind) is tuple and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}: {', '.join(map(_in_words, inner))}"
    return f"a list, each {_in_words(inner[0])}" if inner else WORDS[kind]


def flag_of(name: str) -> str:
    """The flag of a setting, or of a task's option.

    >>> flag_of("group_size"), flag_of("reasoning_gym/chain_sum.min_terms")
    ('--group-size', '--reasoning-gym-chain-sum.min-terms')
    """
    return f"--{name}".replace("_", "-").replace("/", "-")


def close_names(word: object, choices: Iterable[object], cutoff: float = 0.5) -> list[str]:
    """The one or two choices that a word may have meant."""
    names, lower = {one.lower(): one for one in choices if isinstance(one, str)}, str(word).lower()
    close = [lower] if lower in names else difflib.get_close_matches(lower, names, n=2, cutoff=cutoff)
    return [names[one] for one in close]


def meant(word: object, choices: Iterable[object], cutoff: float = 0.5) -> str:
    """A suggestion to append, where one or two of the choices are near."""
    close = close_names(word, choices, cutoff)
    return f": did you mean {' or '.join(close)}?" if close else ""


class Bounded:
    """A dataclass whose settings are converted to their types and checked against their bounds when it is made."""

    prefix = ""
    """What messages put before the name of a setting, such as `countdown.` for a task's options."""

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():  # type: ignore[arg-type]
            value = converted(self.prefix + name, hint, getattr(self, name))
            infinite = isinstance(value, float) and not math.isfinite(value)
            require(not infinite, f"{self.prefix}{name} must be finite, got {value}")
            object.__setattr__(self, name, value)
        for name, bound in _bounds(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            require(bound.holds(value), f"{self.prefix}{name} must be {bound}, got {value}")


class Grouped(Bounded):
    """A config that has groups of settings. It takes groups, single settings of theirs, or both."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - settings and groups
        left, replaced = dict(given), given.keys() == hints_of(type(self)).keys()  # type: ignore[arg-type]
        for one in fields(self):  # type: ignore[arg-type]
            kind = hints_of(type(self))[one.name]  # type: ignore[arg-type]
            value: Any = one.default
            if not is_dataclass(kind):
                value = left.pop(one.name, value)
                require(value is not MISSING, f"{one.name} has no default: give {flag_of(one.name)}")
            else:
                whole = isinstance(left.get(one.name), kind)  # type: ignore[arg-type]
                require(whole or not replaced, f"dataclasses.replace takes {one.name} as a group: see with_settings")
                value = left.pop(one.name) if whole else value
                own = {inner.name: left.pop(inner.name) for inner in fields(kind) if inner.name in left}
                value = replace(value, **own) if own else value
            object.__setattr__(self, one.name, value)
        for name in left:
            raise UserError(f"unknown setting {name!r}{meant(name, self.settings)}")
        self.__post_init__()
        groups = [group for group in vars(self).values() if is_dataclass(group)]
        changed = {n for group in groups for n, value in vars(group).items() if value != getattr(type(group), n, None)}
        names = {name for name, value in given.items() if not is_dataclass(value)}  # a group may have a setting's name
        if replaced:  # dataclasses.replace gives every field, also those that nobody gave
            names -= {one.name for one in fields(self) if getattr(self, one.name) == one.default}  # type: ignore[arg-type]
        object.__setattr__(self, "_given", frozenset((names | changed) & self.settings.keys()))

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were given; of a whole group, those that are not at their defaults."""
        return vars(self)["_given"]

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its name, without groups."""
        values: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            values.update(vars(value) if is_dataclass(value) else {one.name: value})
        return values

    def with_settings(self, **changed: Any) -> Self:  # noqa: ANN401 - settings
        """A copy with other values of single settings."""
        copy = type(self)(**{**self.settings, **changed})
        object.__setattr__(copy, "_given", self.given | changed.keys())
        return copy
