"""The tasks that settings name: one, or several with weights, and values for single ones."""

import os
import re
import shlex
from collections.abc import Mapping
from fractions import Fraction
from math import inf
from pathlib import Path

from minrl.dataflow import UserError, require
from minrl.utils.settings import converted

ENTRY = re.compile(r"\s*(/.*?\.py[^,]*|[^,]+)")
"""One of several values between commas; an absolute path of a task's file may have commas of its own."""


def entries_of(text: str) -> list[str]:
    """The values between commas.

    >>> entries_of("/a,b/c.py:one, hanoi")
    ['/a,b/c.py:one', 'hanoi']
    """
    return [entry for entry in map(str.strip, ENTRY.findall(text)) if entry]


WITHOUT_WEIGHT = re.compile(r"(?!.*\+mcp:).*\.py|.*\+mcp|verifiers", re.DOTALL)
"""What stands before the last colon of a task that has no weight behind it."""


def task_key(task: str) -> str:
    """The task's name in flags, metrics and folders; that of several tasks joins theirs.

    >>> task_key("countdown:2,hanoi+python:1")
    'countdown+hanoi+python'
    """
    return "+".join(key for name in weights_of(task) for key in option_keys(name))


def option_keys(task: str) -> list[str]:
    """The names under which one task, and the tool that it is played with, have their options.

    >>> option_keys("countdown"), option_keys("mine/sevens.py:most"), option_keys("mine/sevens.py:TASK+python")
    (['countdown'], ['most'], ['sevens', 'python'])
    """
    task, tool = split_tool(task)
    path, _, name = task.rpartition(":")
    own = task if not path.endswith(".py") else Path(path).stem if name == "TASK" else name
    return [own, "tools" if tool.startswith(("/", "mcp:")) else tool] if tool else [own]


def split_tool(task: str) -> tuple[str, str]:
    """One task alone, and the name of its tool, or those of the functions that are its tools; empty without any.

    >>> split_tool("countdown+python"), split_tool("c++/sevens.py:TASK")
    (('countdown', 'python'), ('c++/sevens.py:TASK', ''))
    >>> split_tool("/mine/shop.py:shop+/mine/tools.py:add+/mine/tools.py:price")
    ('/mine/shop.py:shop', '/mine/tools.py:add+/mine/tools.py:price')
    >>> split_tool("hanoi+mcp:python /mine/server.py"), split_tool("verifiers:owner/word-game")
    (('hanoi', 'mcp:python /mine/server.py'), ('verifiers/word-game', ''))
    """
    task = re.sub(r"^verifiers:([\w.-]+/)?", "verifiers/", task)
    found = re.fullmatch(r"(.+?)\+(mcp:.+)", task, re.DOTALL) or re.fullmatch(r"(.+)\+([a-z_]+)", task)
    found = found or re.fullmatch(r"([^/+]+(?:/[\w-]+)?|.+?\.py:\w+)\+(/.+\.py:\w+)", task)
    return (found[1], found[2]) if found else (task, "")


def played_with(task: str, tools: str) -> str:
    """What `--task` names, played with what `--tools` names: functions of files, one of TOOLS, or the tools of an MCP
    server, whose command is behind `mcp:`.

    >>> played_with("gsm8k:2,hanoi:1", "/mine/tools.py:add,price")
    'gsm8k+/mine/tools.py:add+/mine/tools.py:price:2,hanoi+/mine/tools.py:add+/mine/tools.py:price:1'
    """
    served = tools.startswith("mcp:")
    found, file = [command_name(tools)] if served else list[str](), ""
    for entry in () if served else entries_of(tools):
        path, colon, name = entry.rpartition(":")
        file = os.path.abspath(path) if colon else file
        known = bool(name) and (file.endswith(".py") or tools.isidentifier())
        require(known, f"tools must be path/to/file.py:name, got {entry!r}")
        found.append(f"{file}:{name}" if file else name)
    named = {name: split_tool(name) for name in weights_of(task)}
    for name, (_, own) in named.items():
        require(not own, f"{name} has a tool already: leave out --tools {tools}")
    return mixed({"+".join([name, *found]): weight for name, weight in weights_of(task).items()})


def command_name(tools: str) -> str:
    """The tools of an MCP server as a part of a task's name, without signs that divide names. Files of the command are
    named by absolute paths, so that a resumed run finds them from any folder.

    >>> command_name("mcp:python -m server --units=m,s")
    'mcp:python -m server --units=m%2Cs'
    """
    try:
        words = shlex.split(tools.removeprefix("mcp:"))
    except ValueError as error:
        raise UserError(f"--tools {tools} is no command: {error}") from error
    require(bool(words), "--tools mcp: needs the command of a server behind it, such as mcp:python server.py")
    one = "one server and nothing beside it, which speaks over stdin and stdout and not by an address"
    wrong = ",mcp:" in tools or "://" in words[0]
    require(not wrong, f"--tools {tools} must be the command of {one}, such as mcp:python server.py")
    paths = [
        os.path.abspath(word) if os.path.isfile(word) and (n or "/" in word) else word for n, word in enumerate(words)
    ]
    return "mcp:" + re.sub(r"[%,:+]", lambda sign: f"%{ord(sign[0]):02X}", shlex.join(paths))


def weights_of(task: str, setting: str = "task") -> dict[str, Fraction]:
    """The weight of each task that the setting names, by its name there; 1 where none is given. Raises `UserError`.

    >>> weights_of("countdown:2.5, hanoi")
    {'countdown': Fraction(5, 2), 'hanoi': Fraction(1, 1)}
    >>> [*weights_of("verifiers:word-game, verifiers:sums:2, hanoi+mcp:run /server.py, gsm8k+mcp:run /server.py:2")]
    ['verifiers:word-game', 'verifiers:sums', 'hanoi+mcp:run /server.py', 'gsm8k+mcp:run /server.py']
    """
    weights, keys = dict[str, Fraction](), set[str]()
    for entry in entries_of(task):
        name, colon, weight = entry.rpartition(":")
        if not colon or WITHOUT_WEIGHT.fullmatch(name):
            name, weight = entry, "1"
        require(bool(name), f"{setting} must have a name before the weight, got {entry!r}: such as countdown:2,hanoi:1")
        key = "+".join(option_keys(name))
        require(key not in keys, f"{setting} names {key} twice: give it once, with one weight")
        keys.add(key)
        value = converted(f"the weight of {name}", float, weight)
        require(0 < value < inf, f"the weight of {name} must be a number above 0, got {weight!r}")
        weights[name] = Fraction(repr(value))
    return weights


def mixed(weights: Mapping[str, Fraction]) -> str:
    """Tasks with weights as `--task` has them; one task has none.

    >>> mixed(weights_of("countdown:2.5, hanoi")), mixed(weights_of("countdown:3"))
    ('countdown:2.5,hanoi:1', 'countdown')
    """
    return ",".join(name if len(weights) == 1 else f"{name}:{_plain(weight)}" for name, weight in weights.items())


def _plain(weight: Fraction) -> str:
    return repr(float(weight)).removesuffix(".0")
