"""Settings as dataclasses: converted to their types and checked against their bounds, when made and when assigned.

>>> @dataclass(init=False)
... class Sizes(Settings):
...     group_size: Annotated[int, Bound(least=1)] = 8
>>> sizes = Sizes(group_size="4")
>>> sizes.group_size = 0
Traceback (most recent call last):
    ...
minrl.dataflow.UserError: group_size must be at least 1, got 0
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from minrl.dataflow import UserError, require

BY_SIZE = "by the model's size"
"""Marks a setting whose default is None: `minrl.run.sizes` fills it in."""

PATH, PATH_OR_NAME = "a path", "a path, or a name"
"""Mark a setting whose path is made absolute; the second only where it exists."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An interval in which a setting must be.

    >>> str(Bound(least=1)), str(Bound(above=0, below=1)), str(Bound(least=1, most=1024))
    ('at least 1', 'above 0 and below 1', 'from 1 to 1024')
    """

    least: float = -inf
    above: float = -inf
    most: float = inf
    below: float = inf

    def __str__(self) -> str:
        if -inf < self.least and self.most < inf:
            return f"from {self.least:g} to {self.most:g}"
        limits = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{name} {limit:g}" for name, limit in limits if abs(limit) < inf)

    def holds(self, value: float) -> bool:
        """Whether the value is in the interval; NaN is in none."""
        return self.least <= value <= self.most and self.above < value < self.below


Count = Annotated[int, Bound(least=1)]
Natural = Annotated[int, Bound(least=0)]
Positive = Annotated[float, Bound(above=0)]
NotNegative = Annotated[float, Bound(least=0)]
Share = Annotated[float, Bound(least=0, most=1)]
ShareBelowOne = Annotated[float, Bound(least=0, below=1)]
Seed = Annotated[int, Bound(least=0, below=2**63)]
Calls = Annotated[int, Bound(least=1, most=256)]
LocalPath = Annotated[str, PATH]
PathOrName = Annotated[str, PATH_OR_NAME]


@dataclass(frozen=True)
class Setting:
    """A field of a config, or of a task's options. `marks` are bounds and the marks above."""

    name: str
    hint: Any
    marks: tuple[Any, ...]
    default: Any

    @property
    def by_size(self) -> bool:
        """Whether None stands for what follows from the model's size."""
        return BY_SIZE in self.marks

    def checked(self, value: Any, name: str = "") -> Any:  # noqa: ANN401 - a setting
        """The value as the setting has it. Raises `UserError` if it is of another type or out of bounds."""
        name = name or self.name
        if self.by_size and value in (None, "None"):
            return None
        value = converted(name, self.hint, value)
        for mark in self.marks:
            if isinstance(mark, Bound) and value is not None:
                require(mark.holds(value), f"{name} must be {mark}, got {value}")
        absolute = PATH in self.marks or (PATH_OR_NAME in self.marks and Path(value or "/").exists())
        return os.path.abspath(os.path.expanduser(value)) if value and absolute else value


def _settings_of(cls: Any) -> dict[str, Setting]:  # noqa: ANN401 - a dataclass
    hints, found = get_type_hints(cls, include_extras=True), {}
    left_out = set(getattr(cls, "not_taken", ())) - cls.__annotations__.keys()
    for one in fields(cls):
        if one.init and one.name not in left_out:
            hint, *marks = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else [hints[one.name]]
            found[one.name] = Setting(one.name, hint, tuple(marks), one.default)
    return found


settings_of: Callable[[Any], dict[str, Setting]] = cache(_settings_of)
"""Every setting of a dataclass, by name."""


def between(cls: Any, first: str, last: str) -> frozenset[str]:  # noqa: ANN401 - a dataclass
    """The names of the fields from one to another, in the order in which they are declared."""
    names = [one.name for one in fields(cls)]
    return frozenset(names[names.index(first) : names.index(last) + 1])


class Settings:
    """A dataclass whose settings are converted to their types and checked, when it is made and when one is assigned.

    With `dataclass(init=False)` the names of other trainers are taken too, and an unknown name is one line.
    """

    prefix: ClassVar[str] = ""
    """What messages put before the name of a setting, such as `countdown.` for a task's options."""
    not_taken: ClassVar[frozenset[str]] = frozenset()
    """Fields of a class above that this program has no setting for, unless it declares one itself."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Settings by the names that other trainers have for them."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to say of names that other trainers have for what is not there."""

    def __new__(cls, **given: Any) -> Self:  # noqa: ANN401 - settings
        """An object that knows what it was given: a resumed run keeps the rest."""
        made = super().__new__(cls)
        object.__setattr__(made, "_given", frozenset(given))
        return made

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - settings
        values = with_own_names(type(self), given)
        object.__setattr__(self, "_given", frozenset(values))
        for one in fields(self):  # type: ignore[arg-type]
            value = values.get(one.name, one.default)
            require(value is not MISSING, f"{one.name} has no default: give {flag_of(one.name)}")
            object.__setattr__(self, one.name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        for name, one in settings_of(type(self)).items():
            object.__setattr__(self, name, one.checked(getattr(self, name), self.prefix + name))
        object.__setattr__(self, "_made", True)
        self.check()

    def check(self) -> None:
        """Refuse values that contradict each other: when the config is made, and when a run starts."""

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - a setting
        if "_made" in vars(self):
            (name,) = with_own_names(type(self), {name: value})
            value = settings_of(type(self))[name].checked(value, self.prefix + name)
            object.__setattr__(self, "_given", self._given | {name})
        object.__setattr__(self, name, value)

    _given: frozenset[str]

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were given; those that are not at their defaults, if all were, as
        `dataclasses.replace` does.
        """
        own = settings_of(type(self))
        if self._given >= own.keys():
            return frozenset(name for name, one in own.items() if getattr(self, name) != one.checked(one.default))
        return self._given

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its name."""
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def with_settings(self, **changed: Any) -> Self:  # noqa: ANN401 - settings
        """A copy with other values of single settings."""
        before = self.settings
        return type(self)(**{**{name: before[name] for name in self.given}, **changed})


def with_own_names(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the names of the class's settings. Raises `UserError` that names all unknown ones."""
    known = settings_of(cls)
    named: dict[str, Any] = {}
    for given, value in values.items():
        name = given if given in known else cls.aliases.get(given, given)
        same = name not in named or named[name] == value
        require(same, f"{name} is given twice, under two names, as {named.get(name)!r} and {value!r}: leave one out")
        named[name] = value
    hidden = cls.not_taken - known.keys()  # which `dataclasses.replace` gives too, at their defaults
    named = {name: value for name, value in named.items() if name not in hidden or value != getattr(cls, name)}
    if unknown := [name for name in named if name not in known]:
        raise UserError(unknown_names("setting", {name: repr(name) for name in unknown}, cls, [*known, *cls.aliases]))
    return named


def unknown_names(kind: str, unknown: Mapping[str, str], cls: type, known: Iterable[str]) -> str:
    """One line on names that nothing has, each with the hint for it or the names that are near. `unknown` has the
    spelling of each.
    """
    hints, known, said = getattr(cls, "hints", {}), list(known), []
    for name, spelled in unknown.items():
        hint = hints.get(name.lower()) or meant(spelled.strip("'"), known)[2:]
        said.append(f"{spelled}: {hint}" if hint else spelled)
    return f"unknown {kind}{'s' * (len(said) > 1)} {'; '.join(said)}"


def converted(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    """A value of Python, YAML, JSON or the command line as a setting of this type. Raises `UserError` for others.

    >>> converted("steps", int, "5"), converted("learning_rate", float, "3e-4"), converted("k", tuple[int, ...], ["1"])
    (5, 0.0003, (1,))
    """
    inner = get_args(hint)
    if NoneType in inner:
        return None if value in (None, "None") else converted(name, inner[0], value)
    origin, value = get_origin(hint), value.item() if type(value).__module__ == "numpy" else value
    if origin in (tuple, list) and isinstance(value, str):
        value = [value]  # as `stop_strings: END` in YAML
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(converted(name, inner[0], one) for one in value)
    if origin is Literal and value in inner:
        return value
    if hint in (str, Path) and isinstance(value, str | os.PathLike):  # a path, or a task of one's own by its name
        return hint(os.fspath(value))
    if hint in (int, float) and isinstance(value, str | int) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = hint(value)  # YAML reads 3e-4 as a string
    known = hint in WORDS and isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    if known and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    if origin is None and hint not in WORDS:
        return value
    made = ", or what @minrl.task makes of a function" if callable(value) and hint is str else ""
    kind = f"one of {', '.join(map(str, inner))}" if origin is Literal else WORDS[origin or hint]
    raise UserError(f"{name} must be {kind}{made}, got {value!r:.80}{meant(value, inner)}")


WORDS: dict[Any, str] = {
    int: "an integer", float: "a finite number", str: "text", bool: "true or false", Path: "a path",
    tuple: "a list", list: "a list",
}  # fmt: skip


def flag_of(name: str) -> str:
    """The flag of a setting, or of a task's option.

    >>> flag_of("group_size"), flag_of("reasoning_gym/chain_sum.min_terms")
    ('--group-size', '--reasoning-gym-chain-sum.min-terms')
    """
    return f"--{name}".replace("_", "-").replace("/", "-")


def close_names(word: object, choices: Iterable[object], cutoff: float = 0.75) -> list[str]:
    """The one or two choices that a word may have meant: none below this likeness (`difflib`, 0 to 1)."""
    names, lower = {one.lower(): one for one in choices if isinstance(one, str)}, str(word).lower()
    close = [lower] if lower in names else difflib.get_close_matches(lower, names, n=2, cutoff=cutoff)
    return [names[one] for one in close]


def meant(word: object, choices: Iterable[object], cutoff: float = 0.75) -> str:
    """A suggestion to append, where one or two of the choices are near."""
    close = close_names(word, choices, cutoff)
    return f": did you mean {' or '.join(close)}?" if close else ""
