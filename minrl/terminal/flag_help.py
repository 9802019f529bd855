"""The page of --help: the program in a line, examples, the flags used most, then every flag under its group.

All of it is read from the config dataclasses: the program and its examples from the docstring, the flags used most from
the attribute `often`, a flag's meaning from the string below its field.
"""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from minrl.terminal.commands import CONSOLE_SCRIPTS, documented
from minrl.terminal.flags import Flag, rows_of

INDENT = 28
"""Columns before the meaning of a flag; fewer in a terminal of less than 80, down to 4."""

SENTENCE_END = re.compile(r"(?<=[^.]\.) ")
SPECIAL_VALUE = re.compile(r"[\w-]+( [\w-]+)?: ")
"""How a sentence on a special value begins, such as `0: off` or `Not given: the model's`."""


def help_text(cls: type, flags: Mapping[str, Flag], options: Mapping[str, Flag], everything: bool) -> str:
    """The page for a program. `everything`: whole descriptions; else the first sentence of each."""
    often = [flags[name] for name in getattr(cls, "often", ())]
    lines = [inspect.getdoc(cls) or "", ""]
    if hasattr(cls, "trainer"):
        lines += ["--config FILE reads settings from YAML or from a run's config.json; flags go on top.", ""]
    lines += _section("used most", often, everything)
    hints = get_type_hints(cls)
    for group in dict.fromkeys(["", *(flag.group for flag in flags.values())]):
        inside = [flag for flag in flags.values() if flag.group == group and flag not in often]
        about = f"{group}: {first_paragraph(hints[group])}" if group else "run"
        lines += _section(about, inside, everything)
    for task in dict.fromkeys(flag.group for flag in options.values()):
        lines += _section(f"task {task}", [flag for flag in options.values() if flag.group == task], everything)
    if not everything:
        of_tasks = " and the options of every task; --task NAME --help those of one" if "task" in flags else ""
        lines.append(f"--help-all shows whole descriptions{of_tasks}.")
    page = "\n".join(lines) + "\n"
    for command in CONSOLE_SCRIPTS:
        page = page.replace(command, documented(command))
    return page


def _section(about: str, flags: list[Flag], everything: bool) -> list[str]:
    """A heading and a line or more for each flag."""
    width = min(120, shutil.get_terminal_size().columns)
    indent = min(INDENT, max(4, width - 52))
    lines = [*textwrap.wrap(about, width)] if flags else []
    for flag in flags:
        meaning = meanings(flag.owner).get(flag.name.rpartition(".")[2], "")
        whole = everything or get_origin(flag.hint) is Literal
        text = meaning if whole else _brief(meaning)
        if flag.table:
            text += f" One of {', '.join(rows_of(flag.table))}"
        text = text.rstrip(".") + _default(flag.default)
        head = f"  {_spelled(flag)} "
        lines += [] if len(head) <= indent else [head.rstrip()]
        start = head.ljust(indent) if len(head) <= indent else " " * indent
        lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * indent)
    return [*lines, ""] if flags else []


def _brief(meaning: str) -> str:
    """The first sentence, and those that say what a special value means."""
    first, *others = SENTENCE_END.split(meaning)
    return " ".join([first, *filter(SPECIAL_VALUE.match, others)])


def _spelled(flag: Flag) -> str:
    """The flag with what follows it, such as `--steps INT`."""
    if flag.hint is bool:
        return f"{flag.spelled}, --no-{flag.spelled[2:]}" if flag.default is True else flag.spelled
    kind = flag.hint
    while inner := [one for one in get_args(kind) if one is not type(None)]:
        if get_origin(kind) is Literal:
            break
        kind = inner[0]
    value = f"{{{','.join(map(str, inner))}}}" if inner else kind.__name__.upper()
    return f"{flag.spelled} {value}" + (" ..." if flag.several else "")


def _default(value: Any) -> str:  # noqa: ANN401 - whatever a setting is
    """The default, in brackets."""
    if isinstance(value, bool):
        return " [on]" if value else ""
    if not isinstance(value, str | int | float | tuple | list | Path) or value in ("", (), []):
        return ""
    return f" [{' '.join(map(str, value)) if isinstance(value, tuple | list) else value}]"


def first_paragraph(cls: type) -> str:
    """The first paragraph of a class's docstring, in one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


@cache
def meanings(cls: type) -> Mapping[str, str]:
    """The string below each field of a dataclass and of those that it inherits from, by the field's name."""
    return {name: text for owner in reversed(cls.__mro__[:-1]) for name, text in _strings_below(owner)}


def _strings_below(owner: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    declared = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    for field, below in pairwise(declared.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield ast.unparse(field.target), " ".join(str(below.value.value).split())
