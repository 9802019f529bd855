"""Flags from dataclasses, and the values that a command line sets.

A field `group_size` is the flag `--group-size`, which may be written with underscores too. A switch takes no value and
is turned off by `--no-`; a tuple takes all words up to the next flag; where a flag is repeated, the last one counts.
"""

import ast
import dataclasses
import difflib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minrl import __version__
from minrl.config.bounds import meant
from minrl.types import UserError, require

ALONE = "alone"
"""Metadata of a field: the value of its flag if no words follow it."""

ROWS = "rows"
"""Metadata of a field: the table whose keys are its values."""

SWITCHED = ("true", "false", "yes", "no", "on", "off", "0", "1")
"""Words that people write after a switch, which takes none."""

OTHER_NAMES = {
    "lr": "learning-rate", "model": "model-id", "model-name-or-path": "model-id", "epochs": "steps", "beta": "kl-coef",
    "max-steps": "steps", "batch-size": "prompts-per-step", "num-generations": "group-size", "dataset": "data-path",
    "max-new-tokens": "max-tokens", "max-completion-length": "max-tokens", "output-dir": "runs-dir",
}  # fmt: skip
"""What other trainers call a flag."""

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
    table: str = ""
    """The table whose keys are its values, such as `minrl.algorithms.ALGORITHMS`."""

    @property
    def spelled(self) -> str:
        """As it is written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def several(self) -> bool:
        """Whether it takes all words up to the next flag."""
        return get_origin(_required(self.hint)) in (tuple, list)


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
        if not field.init:
            continue
        if dataclasses.is_dataclass(hints[field.name]):
            flags.update(flags_of(hints[field.name], field.name, prefix, default))
        else:
            name, alone, table = prefix + field.name, field.metadata.get(ALONE, ()), field.metadata.get(ROWS, "")
            flags[name] = Flag(name, hints[field.name], default, cls, group, alone, table)
    return flags


def show_version(arguments: Sequence[str]) -> None:
    """End the program with its version where the arguments ask for it."""
    if "--version" in arguments:
        sys.stdout.write(f"minrl {__version__}\n")
        raise SystemExit(0)


def given_flags(arguments: Sequence[str]) -> list[Given]:
    """The command line as flags and the words after each."""
    show_version(arguments)
    given = [Given("")]
    for argument in arguments:
        if IS_FLAG.match(argument):
            flag, equals, value = argument.partition("=")
            given.append(Given(flag, (value,) if equals else (), bool(equals)))
        else:
            given[-1] = dataclasses.replace(given[-1], words=(*given[-1].words, argument))
    return given


@cache
def rows_of(table: str) -> tuple[str, ...]:
    """The keys of a table, read from the source of its module, which may import torch."""
    module, _, name = table.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (rows,) = (n.value for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == name)
    assert isinstance(rows, ast.Dict)
    return tuple(ast.literal_eval(key) for key in rows.keys if key is not None)


def in_its_table(flag: Flag, value: Any) -> Any:  # noqa: ANN401 - whatever a setting is
    """The value, refused if the flag has a table and the table does not have it."""
    rows = rows_of(flag.table) if flag.table else (value,)
    require(value in rows, f"no {flag.name} {value!r}: choose one of {', '.join(map(str, rows))}{meant(value, rows)}")
    return value


def read_flags(
    given: Sequence[Given], flags: Mapping[str, Flag], tasks: Iterable[str] = (), others: Sequence[str] = ()
) -> dict[str, Any]:
    """The values of the settings that were given. `tasks` are names that may stand where --task was forgotten, `others`
    the flags that set nothing.
    """
    values: dict[str, Any] = {}
    for one in given:
        rest = one.words
        if one.flag:
            name, value, rest = _read(one, flags, others)
            values[name] = value
        if rest:
            bare = rest[0].lstrip("-\u2013\u2014").partition("=")[0].replace("-", "_")  # editors make long dashes
            close = difflib.get_close_matches(rest[0], list(tasks), n=1) if "task" in flags else []
            meant = flags[bare].spelled if bare in flags else f"--task {close[0]}" if close else ""
            hint = f"did you mean {meant}?" if meant else "--help lists all"
            raise UserError(f"unknown flag {rest[0]}: {hint}")
    return values


def _read(given: Given, flags: Mapping[str, Flag], others: Sequence[str]) -> tuple[str, Any, tuple[str, ...]]:
    """The name and the value of the setting that the flag sets, and the words that are left over."""
    off, words = given.name not in flags, given.words
    flag = flags.get(given.name.removeprefix("no_") if off else given.name)
    if flag is None or (off and flag.hint is not bool):
        known = [*(one.spelled for one in flags.values()), *others]
        raise unknown(f"flag {given.flag}", given.flag.lstrip("-"), [one.lstrip("-") for one in known])
    if flag.hint is bool:
        if given.joined or (words and words[0].lower() in SWITCHED):
            raise UserError(
                f"{flag.spelled} takes no value, got {words[0]!r}: {flag.spelled} turns it on and "
                f"--no-{flag.spelled[2:]} off"
            )
        return flag.name, not off, words
    if not words and flag.several:
        return flag.name, flag.alone, words
    require(bool(words), f"Missing value for argument '{flag.spelled}': it must be {_allowed(flag.hint)}")
    taken = len(words) if flag.several else 1
    return flag.name, in_its_table(flag, _of_words(flag.spelled, flag.hint, words[:taken])), words[taken:]


def _of_words(spelled: str, hint: Any, words: Sequence[str]) -> Any:  # noqa: ANN401 - types are data here
    """The words as a value of the type."""
    if NoneType in get_args(hint) and words == ("None",):
        return None
    hint = _required(hint)
    if get_origin(hint) in (tuple, list):
        kinds = _kinds(hint, len(words))
        require(len(kinds) == len(words), f"{spelled} takes {len(kinds)} values, got {len(words)}")
        return get_origin(hint)(_of_words(spelled, kind, [word]) for kind, word in zip(kinds, words, strict=True))
    (word,) = words
    if get_origin(hint) is Literal or hint is bool:
        choices = get_args(hint) or (True, False)
        chosen = {str(choice): choice for choice in choices} | ({"true": True, "false": False} if hint is bool else {})
        require(
            word in chosen,
            f"invalid choice {word!r} for argument '{spelled}'. Expected one of {choices}{meant(word, chosen)}",
        )
        return chosen[word]
    try:
        return hint(word)
    except ValueError:
        raise UserError(f"{spelled} must be {_allowed(hint)}, got {word!r}") from None


def _required(hint: Any) -> Any:  # noqa: ANN401 - types are data here
    """The type without its `| None`."""
    return next(one for one in get_args(hint) if one is not NoneType) if NoneType in get_args(hint) else hint


def _kinds(hint: Any, count: int) -> Sequence[Any]:  # noqa: ANN401 - types are data here
    """The types of the elements of a list or tuple of so many."""
    inner = get_args(hint)
    return [inner[0]] * count if get_origin(hint) is list or inner[-1] is Ellipsis else inner


def checked(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    """A value from a file as the type has it; refused where it is of another type."""
    try:
        return _fitted(hint, value)
    except OverflowError:
        raise UserError(f"{name} must be {_allowed(hint)}: the integer is too large for one") from None
    except (TypeError, ValueError):
        choices = get_args(_required(hint)) if get_origin(_required(hint)) is Literal else ()
        raise UserError(f"{name} must be {_allowed(hint)}, got {value!r}{meant(value, choices)}") from None


def _fitted(hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    """The value as the type has it. TypeError or ValueError if it is of another type."""
    if NoneType in get_args(hint) and value is None:
        return None
    hint = _required(hint)
    if get_origin(hint) in (tuple, list) and isinstance(value, list | tuple):
        kinds = _kinds(hint, len(value))
        return get_origin(hint)(_fitted(kind, one) for kind, one in zip(kinds, value, strict=True))
    if get_origin(hint) is Literal and value in get_args(hint):
        return value
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return float(value)  # YAML reads 3e-4 as a string
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint in SCALARS and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise TypeError(hint)


def _allowed(hint: Any) -> str:  # noqa: ANN401 - types are data here
    """What the type takes, in words."""
    hint = _required(hint)
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if get_origin(hint) is tuple and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}: {', '.join(map(_word, inner))}"
    return f"a list of {_word(inner[0])}" if inner else f"of type {_word(hint)}"


def _word(hint: Any) -> str:  # noqa: ANN401 - types are data here
    return _allowed(hint) if get_args(hint) else hint.__name__


def by_name(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values by the names of fields, which a file may write with hyphens."""
    named: dict[str, Any] = {}
    for key, value in values.items():
        require(isinstance(key, str), f"the names of settings must be text, got {key!r}")
        name = key.replace("-", "_")
        require(name not in named, f"{name} may be given once, got it with hyphens and with underscores")
        named[name] = value
    return named


def unknown(what: str, name: str, known: Sequence[str]) -> UserError:
    """The error for a name that nothing has, with the names that are near: those of the task if it is a task's."""
    inside = [one for one in known if one.startswith(f"{name}.")]
    lower = name.lower()
    other = [one for one in known if one == OTHER_NAMES.get(lower.replace("_", "-"))]
    near, nearest = (difflib.get_close_matches(lower, known, n=3, cutoff=cutoff) for cutoff in (0.7, 0.9))
    close = inside[:3] or nearest or other or near
    hint = f"did you mean {' or '.join(close)}?" if close else "--help lists all"
    return UserError(f"unknown {what}: {hint}")
