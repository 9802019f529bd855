"""The tasks. A new one is one file with a `TASK`, and one line here."""

import difflib
import keyword
from collections.abc import Callable, Iterable, Mapping

from minrl.config import task_key
from minrl.tasks import code, connections, countdown, gsm8k, hanoi, math, reasoning_gym, rust, tictactoe
from minrl.tasks.code import game as code_game
from minrl.tasks.outside import (
    definition_in_file,
    definition_installed,
    installed_tasks,
    provider,
    with_absolute_path,
)
from minrl.tasks.task import Dataset, Task, TaskDefinition
from minrl.types import UserError

TASK_DEFINITIONS: dict[str, TaskDefinition] = {
    "code": code.TASK,
    "code_game": code_game.TASK,
    "countdown": countdown.TASK,
    "hanoi": hanoi.TASK,
    "rust": rust.TASK,
    "tictactoe": tictactoe.TASK,
    "connections": connections.TASK,
    "gsm8k": gsm8k.TASK,
    "math": math.TASK,
}


TASK_FAMILIES: dict[str, Callable[[str], TaskDefinition]] = {
    "reasoning_gym": reasoning_gym.define,
}
"""Tasks by `family/member`: what defines each member of a family from its name."""


def load_task(name: str, options: Mapping[str, object] | None = None, data_path: str = "") -> Task:
    """The task of that name, made from what `options` holds for it (its defaults where that is nothing)."""
    definition = find_definition(name)
    chosen = (options or {}).get(task_key(name))
    return definition.make(definition.options() if chosen is None else chosen, data_path)


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
    """The dataclasses of options that flags and files may set, by `task_key`: each built-in task's, and those of the
    tasks named. Two tasks whose flags would be the same are refused.
    """
    classes = {name: definition.options for name, definition in TASK_DEFINITIONS.items()}
    owners = {flag_identifier(name): name for name in classes}
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
    "TASK_DEFINITIONS",
    "Dataset",
    "Task",
    "TaskDefinition",
    "find_definition",
    "flag_identifier",
    "load_task",
    "option_classes",
    "with_absolute_path",
]
