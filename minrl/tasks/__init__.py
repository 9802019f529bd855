"""The tasks. A new one is one file, and one line here."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from minrl.dataflow import UserError, require
from minrl.tasks.custom import definition_in_file, definition_installed, installed_tasks, member_of_file
from minrl.tasks.custom import tasks_in as tasks_in
from minrl.tasks.custom import with_absolute_path as with_absolute_path
from minrl.tasks.definition import TaskDefinition as TaskDefinition
from minrl.tasks.definition import definition_of, imported
from minrl.tasks.task import Dataset as Dataset
from minrl.tasks.task import Task as Task
from minrl.tasks.task import TaskOptions as TaskOptions
from minrl.tasks.task import ToolDefinition as ToolDefinition
from minrl.utils.task_names import option_keys, split_tool, task_key

TASK_DEFINITIONS: dict[str, TaskDefinition | Task | Mapping[str, Any]] = {
    # name: dataset, reward (none of a game), options, more fields, words of every base model
    "code": TaskDefinition("minrl.tasks.code:dataset", ":reward", ":CodeOptions", ":more"),
    "code_execution": TaskDefinition("minrl.tasks.code_execution:dataset", ":reward", ":CodeExecutionOptions", ":more"),
    "code_game": TaskDefinition("minrl.tasks.code_game:dataset", None, ":CodeGameOptions", ":more"),
    "countdown": TaskDefinition("minrl.tasks.countdown:dataset", ":reward", ":CountdownOptions", ":more", ":words"),
    "countdown_3to4": TaskDefinition(
        "minrl.tasks.countdown_3to4:dataset", ":rewarding", ":Countdown3to4Options", ":more"
    ),
    "extraction": TaskDefinition("minrl.tasks.extraction:dataset", ":reward", ":ExtractionOptions", ":more"),
    "hanoi": TaskDefinition("minrl.tasks.hanoi:dataset", ":reward", ":HanoiOptions", ":more", ":words"),
    "rust": TaskDefinition("minrl.tasks.rust:dataset", ":RustReward", ":RustOptions", ":more"),
    "sentences": TaskDefinition("minrl.tasks.sentences:dataset", ":reward", ":SentencesOptions", ":more"),
    "tictactoe": TaskDefinition("minrl.tasks.tictactoe:dataset", None, ":TictactoeOptions", ":more"),
    "connections": TaskDefinition("minrl.tasks.connections:dataset", ":reward", ":ConnectionsOptions", ":more"),
    "gsm8k": TaskDefinition("minrl.tasks.gsm8k:dataset", ":reward", ":GSM8KOptions", ":more"),
    "math": TaskDefinition("minrl.tasks.math:dataset", ":reward", ":MathOptions", ":more"),
}
"""The tasks by name: dataset, reward, options, and what else a task has. A row may be a `Task`, or a dict with
`dataset` and `reward`. One of your own: TASK_DEFINITIONS["mine"] = TaskDefinition(dataset=..., reward=...)."""

BUILT_IN = dict(TASK_DEFINITIONS)
"""The rows above, whatever becomes of them in TASK_DEFINITIONS."""

TASK_FAMILIES = {"reasoning_gym": "minrl.tasks.reasoning_gym:define", "verifiers": "minrl.tasks.verifiers:define"}
"""Tasks by `family/member`: what defines each member of a family from its name. `verifiers:NAME` is one too."""

TOOLS = {"python": "minrl.tasks.python_tool:TOOL", "tools": "minrl.tasks.tools:TOOL"}
"""Tools with which any task can be played, as `countdown+python`; `tools` are functions."""


def base_vocabulary(options: Mapping[str, object]) -> list[str]:
    """The words that every base model knows, by the built-in tasks' options (their defaults where there are none)."""
    words: list[str] = []
    for name, row in BUILT_IN.items():
        if isinstance(row, TaskDefinition) and row.words:
            own = options.get(name)
            words += row.offered_words(own if isinstance(own, row.options_class) else row.options_class())
    return words


def load_task(name: str, options: Mapping[str, object] | None = None, data_path: str = "") -> Task:
    """The task of that name, made from what `options` holds for it (its defaults where that is nothing). `data_path` is
    the run's local file, for a task whose options name none.
    """
    chosen = dict(options or {})
    (bare, tool), (own, *_) = split_tool(name), option_keys(name)
    definition = find_definition(bare)
    tools = tool or definition.tool
    own_tools = isinstance(definition.tool, ToolDefinition) or bare.startswith("verifiers/")
    require(not (tool and own_tools), f"the tools of {bare} are its own: leave out --tools")
    own_options: Any = chosen.get(own) or definition.options_class()
    if data_path and not getattr(own_options, "data_path", ""):
        known = hasattr(own_options, "data_path")
        require(known, f"{name} takes no data_path: derive {type(own_options).__name__} from minrl.tasks.TaskOptions")
        own_options = replace(own_options, data_path=data_path)
    task = definition.make(own_options)
    task = replace(task, name=own, max_tokens=getattr(own_options, "max_tokens", 0) or task.max_tokens)
    if tools:
        found = find_tool(tools)
        task = found.wrap(task, chosen.get(found.key) or found.options(), *found.functions)
    return replace(task, name=task_key(name))


def register(name: str, task: Task | TaskDefinition) -> str:
    """Make a task of the program that runs known by this name, which is returned. The later of two takes it, as where a
    notebook's cell is run again.
    """
    require(name.isidentifier() and name not in BUILT_IN, f"{name!r} is a built-in task's name or none: choose another")
    TASK_DEFINITIONS[name] = task
    return name


def is_of_the_program(name: str) -> bool:
    """Whether only the program that runs knows the task: it put it into TASK_DEFINITIONS."""
    return TASK_DEFINITIONS.get(name) is not BUILT_IN.get(name)


def find_tool(name: str | Sequence[Callable[..., Any]] | ToolDefinition) -> ToolDefinition:
    """A tool by its name; functions as tools, those that `/path/to/file.py:name+/path/to/file.py:other` names, or those
    of the MCP server that `mcp:COMMAND` starts.
    """
    if isinstance(name, ToolDefinition):
        return name
    if not isinstance(name, str):
        return replace(imported(TOOLS["tools"]), functions=tuple(name))
    if name.startswith("/"):
        return find_tool([member_of_file(one) for one in name.split("+/")])
    if name.startswith("mcp:"):
        return find_tool([imported("minrl.tasks.mcp:server")(unquote(name.removeprefix("mcp:")))])
    named = "choose python, as in countdown+python, or name functions, --tools path/to/file.py:name, or mcp:COMMAND"
    require(name in TOOLS, f"no tool {name!r} to play a task with: {named}")
    return imported(TOOLS[name])


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
        return imported(TASK_FAMILIES[family])(member)
    if name in TASK_DEFINITIONS:
        return definition_of(name, TASK_DEFINITIONS[name])
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
    """The option dataclasses of the tasks named, and of their tools, by `option_keys`."""
    classes = dict[str, type]()
    for name in names:
        task, tool = ("", name) if name in TOOLS else split_tool(name)  # a file may have the options of a tool alone
        definition = find_definition(task) if task else None
        if played := tool or (definition.tool if definition else ""):
            found = find_tool(played)
            classes[found.key] = found.options
        if definition is None:
            continue
        classes[task_key(task)] = definition.options_class
    return classes


def flag_identifier(key: str) -> str:
    """A task's key as the name of a field, from which its options' flags begin.

    >>> flag_identifier("even-words"), flag_identifier("family/member")
    ('even_words', 'family_member')
    """
    return key.replace("/", "_").replace("-", "_")
