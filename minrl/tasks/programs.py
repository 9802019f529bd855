"""The files that make a task and its rewards: its own, and all that it imports in MinRL or beside it."""

import hashlib
import sys
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import minrl
from minrl.tasks import find_definition, find_tool
from minrl.utils.task_names import split_tool

PACKAGE = Path(minrl.__file__ or "").resolve().parent


class Finder(ModuleFinder):
    """Finds the modules that a file imports."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:  # noqa: ANN401 - as its base has it
        """A module; none for a folder without `__init__.py`, which modulefinder does not know (it asks its loader)."""
        try:
            return super().find_module(name, path, parent)  # type: ignore[misc]
        except AttributeError as error:
            raise ImportError(name) from error


def files_of(task: str) -> dict[str, Path]:
    """The file of each module of a task, by the module's name. Imports inside functions are followed too; the versions
    identify what is installed.
    """
    definition = find_definition(task)
    tool = split_tool(task)[1] or definition.tool
    of_tool = sorted(find_tool(tool).modules) if tool else []
    found: dict[str, Path] = {}
    # Both are often one, and reading takes a quarter of a second.
    for name in dict.fromkeys([definition.options_class.__module__, definition.module, *of_tool]):
        module = getattr(sys.modules.get(name), "__file__", None)
        if not module or not Path(module).is_file():  # a program that is read from stdin has no file
            continue
        file = found[name] = Path(module).resolve()
        own = file.parents[name.count(".") + (file.name == "__init__.py")]
        finder = Finder(path=[str(PACKAGE.parent), *([] if "site-packages" in own.parts else [str(own)])])
        finder.run_script(str(file))
        modules: dict[str, Any] = finder.modules
        found |= {key: Path(one.__file__) for key, one in modules.items() if one.__file__ and key != "__main__"}
    return dict(sorted(found.items()))


def programs(task: str) -> dict[str, str]:
    """The digest of each module of a task, by the module's name."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in files_of(task).items()}


def files_outside(task: str) -> list[Path]:
    """The files of the modules outside MinRL, whose author may change them at any time, and the task's own rows."""
    outside = [path for path in files_of(task).values() if not path.is_relative_to(PACKAGE)]
    rows = find_definition(task).path
    return [*outside, *([Path(rows)] if rows else [])]
