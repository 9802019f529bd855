"""The tasks that settings name: one or several with weights in `--task`, and what `--task-...` say for single ones."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from minrl.types import require

ENTRY = re.compile(r"\s*(/.*?\.py[^,]*|[^,]+)")
"""One of several values between commas; an absolute path of a task's file may have commas of its own."""


WITH_TOOL = re.compile(r"(.+)\+([a-z_]+)")
"""A task that is played with a tool."""


class TaskTerms(NamedTuple):
    """What holds for a task that is trained: its longest completion of one turn, and the scale of its rewards."""

    max_tokens: int
    reward_scale: float


def task_key(task: str) -> str:
    """The task's name in flags, metrics and folders. For `path/to/file.py:name` it is the part after the colon, or the
    file's name if that part is TASK. That of several tasks joins theirs.

    >>> task_key("countdown"), task_key("mine/sevens.py:most"), task_key("mine/sevens.py:TASK")
    ('countdown', 'most', 'sevens')
    >>> task_key("countdown:2,hanoi+python:1")
    'countdown+hanoi+python'
    """
    return "+".join(map(_key, weights_of(task)))


def _key(name: str) -> str:
    return "+".join(option_keys(name))


def option_keys(task: str) -> list[str]:
    """The names under which one task, and the tool that it is played with, have their options.

    >>> option_keys("countdown"), option_keys("mine/sevens.py:TASK+python")
    (['countdown'], ['sevens', 'python'])
    """
    task, tool = split_tool(task)
    path, _, name = task.rpartition(":")
    own = task if not path.endswith(".py") else Path(path).stem if name == "TASK" else name
    return [own, tool] if tool else [own]


def split_tool(task: str) -> tuple[str, str]:
    """One task alone, and the name of its tool, which is empty without one.

    >>> split_tool("countdown+python"), split_tool("c++/sevens.py:TASK")
    (('countdown', 'python'), ('c++/sevens.py:TASK', ''))
    """
    found = WITH_TOOL.fullmatch(task)
    return (found[1], found[2]) if found else (task, "")


def weights_of(task: str) -> dict[str, Fraction]:
    """The weight of each task that `--task` names, by its name there; 1 where none is given. Raises `UserError`.

    >>> weights_of("countdown:2.5, hanoi")
    {'countdown': Fraction(5, 2), 'hanoi': Fraction(1, 1)}
    """
    weights: dict[str, Fraction] = {}
    for entry in _entries(task):
        name, colon, said = entry.rpartition(":")
        if not colon or name.endswith(".py"):
            name, said = entry, "1"
        require(bool(name), f"task must name a task before its weight, got {entry!r}: such as countdown:2,hanoi:1")
        require(_key(name) not in map(_key, weights), f"task names {_key(name)} twice: give it once, with one weight")
        weights[name] = Fraction(repr(_number(f"the weight of {name}", said)))
    return weights


def mixed(weights: Mapping[str, Fraction]) -> str:
    """Tasks with weights as `--task` has them; one task has none.

    >>> mixed(weights_of("countdown:2.5, hanoi")), mixed(weights_of("countdown:3"))
    ('countdown:2.5,hanoi:1', 'countdown')
    """
    if len(weights) == 1:
        return next(iter(weights))
    return ",".join(f"{name}:{_plain(weight)}" for name, weight in weights.items())


def title_of(task: str) -> str:
    """The tasks in the name of a folder, with weights that differ.

    >>> title_of("countdown,hanoi"), title_of("countdown:2,hanoi:1"), title_of("reasoning_gym/zebra_puzzles")
    ('countdown+hanoi', 'countdown=2+hanoi=1', 'reasoning_gym-zebra_puzzles')
    """
    weights = weights_of(task)
    if len(set(weights.values())) <= 1:
        return task_key(task).replace("/", "-")
    return "+".join(f"{_key(name)}={_plain(weight)}" for name, weight in weights.items()).replace("/", "-")


def by_task(setting: str, text: str, tasks: Sequence[str] | None = None) -> dict[str, str]:
    """What a setting such as `hanoi:256,countdown:64` says for single tasks, by their keys. Raises `UserError` where
    one is not among `tasks` (None: any may be), or named twice.
    """
    found = dict[str, str]()
    for entry in _entries(text):
        key, colon, said = (part.strip() for part in entry.partition(":"))
        of_them = f", and the tasks are {', '.join(tasks)}" if tasks is not None and key not in tasks else ""
        require(
            bool(colon and said) and key not in found and not of_them,
            f"{setting} must say TASK:VALUE, each task once and separated by commas, got {text!r}{of_them}",
        )
        found[key] = said
    return found


def data_by_task(text: str) -> dict[str, str]:
    """The files of `task_data_path`, by task without its tool: the problems are the same."""
    return {split_tool(key)[0]: path for key, path in by_task("task_data_path", text).items()}


def limits_by_task(text: str, tasks: Sequence[str] | None = None) -> dict[str, int]:
    """The numbers of `task_max_tokens`, by task."""
    said = by_task("task_max_tokens", text, tasks)
    for key, value in said.items():
        of_it = f"task_max_tokens of {key} must be a whole number above 0, got {value!r}"
        require(value.isascii() and value.isdigit() and int(value[:18]) > 0, of_it)
    return {key: int(value) for key, value in said.items()}


def scales_by_task(text: str, tasks: Sequence[str] | None = None) -> dict[str, float]:
    """The numbers of `task_reward_scale`, by task."""
    said = by_task("task_reward_scale", text, tasks)
    return {key: _number(f"task_reward_scale of {key}", value) for key, value in said.items()}


def absolute_paths(text: str) -> str:
    """`task_data_path` with absolute paths."""
    entries = [entry.partition(":") for entry in _entries(text)]
    return ",".join(f"{key.strip()}:{os.path.abspath(path.strip())}" for key, _, path in entries)


def _entries(text: str) -> list[str]:
    return [entry for entry in map(str.strip, ENTRY.findall(text)) if entry]


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(0 < value < math.inf, f"{what} must be a number above 0, got {text!r}")
    return value


def _plain(weight: Fraction) -> str:
    return repr(float(weight)).removesuffix(".0")
