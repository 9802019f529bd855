"""The tasks. A new one is one file with a `TASK`, and one line here."""

import difflib
import importlib
import keyword
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from minrl.config import task_key
from minrl.tasks.outside import (
    definition_in_file,
    definition_installed,
    installed_tasks,
    provider,
    with_absolute_path,
)
from minrl.tasks.task import Dataset, Task, TaskDefinition
from minrl.types import UserError, require

T = TypeVar("T")


class Registry(UserDict[str, T]):
    """A mapping whose rows name modules. The module is imported, and its attribute taken, when the row is read."""

    def __init__(self, attribute: str, modules: Mapping[str, str]) -> None:
        super().__init__(cast(Mapping[str, T], modules))
        self.attribute = attribute

    def __getitem__(self, name: str) -> T:
        """The value of the row: what its module holds, or what was assigned."""
        row = super().__getitem__(name)
        return getattr(importlib.import_module(row), self.attribute) if isinstance(row, str) else row


TASK_DEFINITIONS: Registry[TaskDefinition] = Registry(
    "TASK",
    {
        "code": "minrl.tasks.code",
        "code_game": "minrl.tasks.code.game",
        "countdown": "minrl.tasks.countdown",
        "hanoi": "minrl.tasks.hanoi",
        "rust": "minrl.tasks.rust",
        "tictactoe": "minrl.tasks.tictactoe",
        "connections": "minrl.tasks.connections",
        "gsm8k": "minrl.tasks.gsm8k",
        "math": "minrl.tasks.math",
    },
)

TASK_FAMILIES: Registry[Callable[[str], TaskDefinition]] = Registry(
    "define", {"reasoning_gym": "minrl.tasks.reasoning_gym"}
)
"""Tasks by `family/member`: what defines each member of a family from its name."""

OFFER_WORDS = ("countdown", "hanoi")
"""The tasks whose definitions have `words`, in the order of the words in every base model's tokenizer."""


def offered_words(options: Mapping[str, object]) -> list[str]:
    """The words that every base model knows, by the tasks' options (their defaults where there are none)."""
    words: list[str] = []
    for name in OFFER_WORDS:
        definition = TASK_DEFINITIONS[name]
        assert definition.words is not None, name
        words += definition.words(options.get(name) or definition.options())
    return words


def load_task(name: str, options: Mapping[str, object] | None = None, data_path: str = "") -> Task:
    """The task of that name, made from what `options` holds for it (its defaults where that is nothing)."""
    definition = find_definition(name)
    chosen = (options or {}).get(task_key(name))
    task = definition.make(definition.options() if chosen is None else chosen, data_path)
    require(isinstance(task, Task), f"`make` of {name} must return a Task, got {type(task).__name__}")
    return replace(task, name=task_key(name))


def find_definition(name: str) -> TaskDefinition:
    """A built-in task by its name or `family/member`, one in a file by `path/to/file.py:name`, or one of an installed
    package.
    """
    in_file = definition_in_file(name)
    if in_file is not None:
        return in_file
    family, slash, member = name.partition("/")
    if slash and family in TASK_FAMILIES:
        return TASK_FAMILIES[family](member)
    installed = installed_tasks()
    offers = installed.get(name, [])
    if name in TASK_DEFINITIONS and offers:
        raise UserError(f"{provider(offers[0])} offers a task {name!r}, which is a built-in one's name: uninstall it")
    if name in TASK_DEFINITIONS:
        return TASK_DEFINITIONS[name]
    if len(offers) > 1:
        raise UserError(f"{' and '.join(map(provider, offers))} offer a task {name!r} each: uninstall one of them")
    if offers:
        return definition_installed(offers[0])
    known = [*TASK_DEFINITIONS, *(f"{family}/NAME" for family in TASK_FAMILIES), *installed]
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UserError(f"no task {name!r}: {meant}choose one of {', '.join(known)}, or name a file: path/to/file.py:name")


def option_classes(names: Iterable[str]) -> dict[str, type]:
    """The option dataclasses of the tasks named, by `task_key`. Two tasks whose flags would be the same are refused."""
    classes, owners = {}, {flag_identifier(name): name for name in TASK_DEFINITIONS}
    for name in names:
        definition, key = find_definition(name), task_key(name)
        identifier = flag_identifier(key)
        if not identifier.isidentifier() or identifier.startswith("_") or keyword.iskeyword(identifier):
            raise UserError(f"{key!r} of {name!r} cannot begin a flag: name it with letters, digits, - and /")
        other = owners.setdefault(identifier, name)
        if other != name:
            raise UserError(f"flags --{key}.* would be those of both {other!r} and {name!r}: rename one of them")
        classes[key] = definition.options
    return classes


def flag_identifier(key: str) -> str:
    """A task's key as the name of a field, from which its options' flags begin.

    >>> flag_identifier("even-words"), flag_identifier("family/member")
    ('even_words', 'family_member')
    """
    return key.replace("/", "_").replace("-", "_")


__all__ = [
    "OFFER_WORDS",
    "TASK_DEFINITIONS",
    "TASK_FAMILIES",
    "Dataset",
    "Registry",
    "Task",
    "TaskDefinition",
    "find_definition",
    "flag_identifier",
    "load_task",
    "offered_words",
    "option_classes",
    "with_absolute_path",
]
