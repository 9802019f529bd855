"""Settings as frozen dataclasses: converted to their types, checked against their bounds, given flat or in groups.

>>> @dataclass(frozen=True, kw_only=True)
... class Sizes(Settings):
...     group_size: Annotated[int, Bound(least=1)] = 8
>>> Sizes(group_size="4")
Sizes(group_size=4)
>>> Sizes(group_size=0)
Traceback (most recent call last):
    ...
minrl.dataflow.UserError: group_size must be at least 1, got 0
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from minrl.dataflow import UserError, require

ROWS = "rows"
"""Metadata of a setting of text: the names that it may have, beside `path/to/file.py:name`."""


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
        texts: dict[float, str] = {2.0**63: "2^63"}
        words = " and ".join(f"{name} {texts.get(limit, f'{limit:g}')}" for name, limit in limits if abs(limit) < inf)
        if -inf < self.least and self.most < inf:
            words = f"from {self.least:g} to {self.most:g}"
        return f"0 ({self.zero}), or {words}" if self.zero else words

    def holds(self, value: float) -> bool:
        """Whether the value is in the interval; NaN is in none."""
        inside = self.least <= value <= self.most and self.above < value < self.below
        return inside or (bool(self.zero) and value == 0)


Count = Annotated[int, Bound(least=1)]
Natural = Annotated[int, Bound(least=0)]
CountOrOff = Annotated[int, Bound(least=1, zero="off")]
Positive = Annotated[float, Bound(above=0)]
PositiveOrOff = Annotated[float, Bound(above=0, zero="off")]
Share = Annotated[float, Bound(least=0, most=1)]
ShareBelowOne = Annotated[float, Bound(least=0, below=1)]
Seed = Annotated[int, Bound(least=0, below=2**63)]
Calls = Annotated[int, Bound(least=1, most=256)]


@dataclass(frozen=True)
class Setting:
    """A field of a config, or of a group in it. `owner` is the dataclass that declares it."""

    name: str
    hint: Any
    bounds: tuple[Bound, ...]
    default: Any
    metadata: Mapping[Any, Any]
    owner: type
    group: str = ""


def _settings_of(cls: Any) -> dict[str, Setting]:  # noqa: ANN401 - a dataclass
    found: dict[str, Setting] = {}
    hints, bounded = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    for one in fields(cls):
        hint = hints[one.name]
        if is_dataclass(hint):
            for name, inner in settings_of(hint).items():
                found[name] = replace(inner, group=one.name, default=getattr(one.default, name))
        elif one.init:
            bounds = getattr(bounded[one.name], "__metadata__", ())
            found[one.name] = Setting(one.name, hint, bounds, one.default, one.metadata, cls)
    return found


settings_of: Callable[[Any], dict[str, Setting]] = cache(_settings_of)
"""Every setting of a dataclass and of the groups in it, by name."""


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
    elif kind is str and isinstance(value, os.PathLike):  # a path, or a task of one's own by its name
        return os.fspath(value)
    elif isinstance(value, str if kind in (int, float, Path) else ()) or (kind is float and type(value) is int):
        with suppress(ValueError, OverflowError):
            return kind(value)  # YAML reads 3e-4 as a string
    elif origin is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    made = ", or what @minrl.task makes of a function" if callable(value) and kind is str else ""
    raise UserError(f"{name} must be {_in_words(kind)}{made}, got {value!r:.80}{meant(value, inner)}")


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


class Settings:
    """A dataclass whose settings are converted to their types and checked against their bounds when it is made."""

    prefix = ""
    """What messages put before the name of a setting, such as `countdown.` for a task's options."""

    def __new__(cls, **given: Any) -> Self:  # noqa: ANN401 - settings
        """An object that knows what it was given."""
        made = super().__new__(cls)
        object.__setattr__(made, "_arguments", frozenset(given))
        return made

    def __post_init__(self) -> None:
        for name, one in settings_of(type(self)).items():
            if one.group:
                continue
            value = converted(self.prefix + name, one.hint, getattr(self, name))
            infinite = isinstance(value, float) and not math.isfinite(value)
            require(not infinite, f"{self.prefix}{name} must be finite, got {value}")
            for bound in one.bounds:
                require(bound.holds(value), f"{self.prefix}{name} must be {bound}, got {value}")
            object.__setattr__(self, name, value)

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were given; those that are not at their defaults, if all were, as
        `dataclasses.replace` does.
        """
        own = {name: one.default for name, one in settings_of(type(self)).items() if not one.group}
        if vars(self)["_arguments"] >= {one.name for one in fields(self)}:  # type: ignore[arg-type]
            return frozenset(name for name, default in own.items() if getattr(self, name) != default)
        return vars(self)["_arguments"].intersection(own)


class Grouped(Settings):
    """A config that has groups of settings. It takes groups, single settings of theirs, or both."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - settings and groups
        left, hints = dict(given), get_type_hints(type(self))
        groups = {one.group for one in settings_of(type(self)).values()}
        replaced = given.keys() == {one.name for one in fields(self)}  # type: ignore[arg-type]
        for one in fields(self):  # type: ignore[arg-type]
            kind: Any = hints[one.name]
            value: Any = one.default
            if one.name not in groups:
                value = left.pop(one.name, value)
                require(value is not MISSING, f"{one.name} has no default: give {flag_of(one.name)}")
            else:
                whole = isinstance(left.get(one.name), kind)
                require(whole or not replaced, f"dataclasses.replace takes {one.name} as a group: see with_settings")
                value = left.pop(one.name) if whole else value
                own = {name: left.pop(name) for name in settings_of(kind) if name in left}
                value = kind(**{**{name: getattr(value, name) for name in value.given}, **own}) if own else value
            object.__setattr__(self, one.name, value)
        for name in left:
            raise UserError(f"unknown setting {name!r}{meant(name, settings_of(type(self)))}")
        self.__post_init__()

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were given, alone or in groups."""
        return super().given.union(*(group.given for group in vars(self).values() if isinstance(group, Settings)))

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its name, without groups."""
        found = settings_of(type(self)).values()
        return {one.name: getattr(getattr(self, one.group) if one.group else self, one.name) for one in found}

    def with_settings(self, **changed: Any) -> Self:  # noqa: ANN401 - settings
        """A copy with other values of single settings."""
        before = self.settings
        return type(self)(**{**{name: before[name] for name in self.given}, **changed})
