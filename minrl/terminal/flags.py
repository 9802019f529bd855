"""Flags from dataclasses, and the values that a command line sets.

A field `group_size` is the flag `--group-size`, which may be written with underscores too. A switch takes no value and
is turned off by `--no-`; a tuple takes all words up to the next flag; where a flag is repeated, the last one counts.
"""

import contextlib
import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minrl.config.bounds import meant
from minrl.types import UserError, require

ALONE = "alone"
"""Metadata of a field: the value of its flag if no words follow it."""

SWITCHED = ("true", "false", "yes", "no", "on", "off", "0", "1")
"""Words that people write after a switch, which takes none."""

IS_FLAG = re.compile(r"(?!-(inf|infinity|nan)$)(--|-[a-z])[^\s=]*(=|$)", re.IGNORECASE)
"""A flag has no space before its `=`; what begins with dashes and has one is a value, and so is -inf."""

SCALARS = (int, float, str, bool, Path)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A setting that can be given on the command line."""

    name: str
    """`group_size`, or `countdown.max_number` for a task's option."""
    hint: Any
    """Its type."""
    default: Any
    owner: type
    """The dataclass that declares it."""
    group: str
    """The heading under which --help shows it."""
    alone: Any = ()
    """Its value where no words follow."""

    @property
    def spelled(self) -> str:
        """As it is written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def several(self) -> bool:
        """Whether it takes all words up to the next flag."""
        return get_origin(self.hint) in (tuple, list)


@dataclasses.dataclass(frozen=True)
class Given:
    """A flag as it was given, and the words up to the next one. `flag` is empty for words before the first flag."""

    flag: str
    words: tuple[str, ...] = ()
    joined: bool = False
    """Whether the first word was written as `--flag=word`."""

    @property
    def name(self) -> str:
        """The name of the setting that the flag spells."""
        return self.flag.removeprefix("--").replace("-", "_")


def flags_of(cls: type, group: str = "", prefix: str = "", start: object = None) -> dict[str, Flag]:
    """Every flag of a dataclass and of the groups in it, by name. `start` holds other defaults than the class's own."""
    flags: dict[str, Flag] = {}
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = made if start is None else getattr(start, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            flags.update(flags_of(hints[field.name], field.name, prefix, default))
        else:
            name, alone = prefix + field.name, field.metadata.get(ALONE, ())
            flags[name] = Flag(name, hints[field.name], default, cls, group, alone)
    return flags


def given_flags(arguments: Sequence[str]) -> list[Given]:
    """The command line as flags and the words after each."""
    given = [Given("")]
    for argument in arguments:
        if IS_FLAG.match(argument):
            flag, equals, value = argument.partition("=")
            given.append(Given(flag, (value,) if equals else (), bool(equals)))
        else:
            given[-1] = dataclasses.replace(given[-1], words=(*given[-1].words, argument))
    return given


def read_flags(given: Sequence[Given], flags: Mapping[str, Flag], tasks: Iterable[str] = ()) -> dict[str, Any]:
    """The values of the settings that were given. `tasks` are names that may stand where --task was forgotten."""
    values: dict[str, Any] = {}
    for one in given:
        rest = one.words
        if one.flag:
            name, value, rest = _read(one, flags)
            values[name] = value
        if rest:
            close = difflib.get_close_matches(rest[0], list(tasks), n=1) if "task" in flags else []
            hint = f"did you mean --task {close[0]}?" if close else "--help lists all"
            raise UserError(f"unknown flag {rest[0]}: {hint}")
    return values


def _read(given: Given, flags: Mapping[str, Flag]) -> tuple[str, Any, tuple[str, ...]]:
    """The name and the value of the setting that the flag sets, and the words that are left over."""
    off, words = given.name not in flags, given.words
    flag = flags.get(given.name.removeprefix("no_") if off else given.name)
    if flag is None or (off and flag.hint is not bool):
        raise unknown(f"flag {given.flag}", given.flag.lstrip("-"), (known.spelled[2:] for known in flags.values()))
    if flag.hint is bool:
        if given.joined or (words and words[0].lower() in SWITCHED):
            raise UserError(
                f"{flag.spelled} takes no value, got {words[0]!r}: {flag.spelled} turns it on and "
                f"--no-{flag.spelled[2:]} off"
            )
        return flag.name, not off, words
    if not words and flag.several:
        return flag.name, flag.alone, words
    require(bool(words), f"Missing value for argument '{flag.spelled}'. Expected 1 values.")
    taken = len(words) if flag.several else 1
    return flag.name, _of_words(flag.spelled, flag.hint, words[:taken]), words[taken:]


def _of_words(spelled: str, hint: Any, words: Sequence[str]) -> Any:  # noqa: ANN401 - types are data here
    """The words as a value of the type."""
    inner = get_args(hint)
    if get_origin(hint) in (tuple, list):
        return get_origin(hint)(_of_words(spelled, inner[0], [word]) for word in words)
    (word,) = words
    if get_origin(hint) is Literal:
        chosen = {str(choice): choice for choice in inner}
        require(
            word in chosen,
            f"invalid choice {word!r} for argument '{spelled}'. Expected one of {inner}{meant(word, chosen)}",
        )
        return chosen[word]
    if NoneType in inner:
        return None if word == "None" else _of_words(spelled, _without_none(hint), words)
    require(hint in SCALARS, f"{spelled} is of type {hint}, which no flag can set: set it in a --config file")
    try:
        return hint(word)
    except ValueError as error:
        raise UserError(f"Error parsing {spelled}: {error}") from None


def _without_none(hint: Any) -> Any:  # noqa: ANN401 - types are data here
    return next(one for one in get_args(hint) if one is not NoneType)


def checked(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    """A value from a file as the type has it; refused where it is of another type."""
    inner = get_args(hint)
    if NoneType in inner:
        return None if value is None else checked(name, _without_none(hint), value)
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(v, inner[0]) for v in value):
            return tuple(value)
    elif inner and value in inner:
        return value
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML reads 3e-4 as a string
            return float(value)
    elif not inner and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if get_origin(hint) is tuple:
        allowed = f"a list of {inner[0].__name__}"
    else:
        allowed = f"one of {', '.join(map(str, inner))}" if inner else f"of type {hint.__name__}"
    raise UserError(f"{name} must be {allowed}, got {value!r}{meant(value, inner)}")


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that nothing has, with the names that are near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "--help lists all"
    return UserError(f"unknown {what}: {hint}")
