"""The tasks. A new one is one file with a `TASK`, and one line here."""

import difflib
import importlib
import keyword
import pickle
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from minrl.dataflow import UserError, require
from minrl.tasks.custom import (
    NoOptions,
    definition_in_file,
    definition_installed,
    installed_tasks,
    say_runs_here,
    tasks_in,
    with_absolute_path,
)
from minrl.tasks.task import Dataset, Task, TaskDefinition, ToolDefinition
from minrl.utils.task_names import option_keys, split_tool, task_key

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
        "code_game": "minrl.tasks.code_game",
        "code_tool": "minrl.tasks.code_tool",
        "countdown": "minrl.tasks.countdown",
        "countdown_3to4": "minrl.tasks.countdown_3to4",
        "extraction": "minrl.tasks.extraction",
        "hanoi": "minrl.tasks.hanoi",
        "rust": "minrl.tasks.rust",
        "sentences": "minrl.tasks.sentences",
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

TOOLS: Registry[ToolDefinition] = Registry("TOOL", {"python": "minrl.tasks.python_tool"})
"""Tools with which any task can be played, as `countdown+python`."""

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
    chosen = dict(options or {})
    (bare, tool), (own, *_) = split_tool(name), option_keys(name)
    definition = find_definition(bare)
    tool = tool or definition.tool
    task = definition.make(chosen.get(own) or definition.options(), data_path)
    require(isinstance(task, Task), f"`make` of {name} must return a Task, got {type(task).__name__}")
    task = replace(task, name=own)
    if tool:
        task = find_tool(tool).wrap(task, chosen.get(tool) or find_tool(tool).options())
    return replace(task, name=task_key(name))


def register(task: Task) -> str:
    """Make a task known by its name, which is returned. A reward that no worker process can import, such as one of a
    notebook's cell, runs in this process, without a deadline.
    """
    name, given = task.name or "task", task
    if task.reward is not None and not task.cheap and not _importable(task.reward):
        say_runs_here(name)
        task = replace(task, cheap=True)

    def make(options: NoOptions, data_path: str) -> Task:
        require(not data_path, f"a Task has its own examples and takes no data_path, got {data_path!r}")
        return task

    return free_name(name, given, TaskDefinition(NoOptions, make))


OWNERS: dict[str, object] = {}
"""The tasks of the program that runs, by the names that they got here."""


def free_name(name: str, task: object, definition: TaskDefinition) -> str:
    """The name under which a program's own task is known from now on: its own, with a number if another one has it."""
    built_in = isinstance(TASK_DEFINITIONS.data.get(name), str)
    require(name.isidentifier() and not built_in, f"{name!r} is a built-in task's name or none: choose another")
    names = (name, *(f"{name}_{number}" for number in range(2, len(TASK_DEFINITIONS) + 2)))
    known = TASK_DEFINITIONS.data
    free = next(one for one in names if one not in known or known[one] is task or OWNERS.get(one) is task)
    TASK_DEFINITIONS[free], OWNERS[free] = definition, task
    return free


def _importable(function: Callable[..., object]) -> bool:
    try:
        return b"__main__" not in pickle.dumps(function)
    except Exception:  # pickling a task's objects may raise anything
        return False


def find_tool(name: str) -> ToolDefinition:
    """A tool by its name."""
    require(name in TOOLS, f"no tool {name!r} to play a task with: choose {' or '.join(TOOLS)}, as in countdown+python")
    return TOOLS[name]


def find_definition(name: str) -> TaskDefinition:
    """A built-in task by its name or `family/member`, one in a file by `path/to/file.py:name`, or one of an installed
    package. Of a task with a tool it is that of the task.
    """
    name, _ = split_tool(name)
    in_file = definition_in_file(name)
    if in_file is not None:
        return in_file
    family, slash, member = name.partition("/")
    if slash and family in TASK_FAMILIES:
        return TASK_FAMILIES[family](member)
    if name in TASK_DEFINITIONS:
        found: object = TASK_DEFINITIONS[name]
        if isinstance(found, TaskDefinition):
            return found
        got, takes = type(found).__name__, "a function with @task above it, or a TaskDefinition"
        raise UserError(f"TASK_DEFINITIONS[{name!r}] must be {takes}, got {got}: TrainerConfig(task=...) takes a Task")
    if (offered := definition_installed(name)) is not None:
        return offered
    known = [*TASK_DEFINITIONS, *(f"{family}/NAME" for family in TASK_FAMILIES), *sorted(installed_tasks().names)]
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UserError(
        f"no task {name!r}: {meant}choose one of {', '.join(known)}, or name a file: path/to/file.py:name (a run of a "
        "task that a program made is resumed by that program, with the task in its TrainerConfig)"
    )


def option_classes(names: Iterable[str]) -> dict[str, type]:
    """The option dataclasses of the tasks named, and of their tools, by `option_keys`. Two tasks whose flags would be
    the same are refused.
    """
    classes, owners = {}, {flag_identifier(name): name for name in [*TASK_DEFINITIONS, *TOOLS]}
    for name in names:
        task, tool = ("", name) if name in TOOLS else split_tool(name)  # a file may have the options of a tool alone
        definition = find_definition(task) if task else None
        if tool := tool or (definition.tool if definition else ""):
            classes[tool] = find_tool(tool).options
        if definition is None:
            continue
        key = task_key(task)
        identifier = flag_identifier(key)
        if not identifier.isidentifier() or identifier.startswith("_") or keyword.iskeyword(identifier):
            raise UserError(f"{key!r} of {name!r} cannot begin a flag: name it with letters, digits, - and /")
        other = owners.setdefault(identifier, task)
        if other != task:
            raise UserError(f"flags --{key}.* would be those of both {other!r} and {task!r}: rename one of them")
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
    "TOOLS",
    "Dataset",
    "Registry",
    "Task",
    "TaskDefinition",
    "ToolDefinition",
    "find_definition",
    "find_tool",
    "flag_identifier",
    "load_task",
    "offered_words",
    "option_classes",
    "tasks_in",
    "with_absolute_path",
]
