"""Tasks from outside the package: `path/to/file.py:name`, and the entry points of installed packages.

A reward worker imports such a task by its module's name, so the file's folder joins `sys.path`, which workers share.
"""

import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from minrl.tasks.task import TaskDefinition
from minrl.types import UserError
from minrl.utils.files import importing
from minrl.utils.task_names import mixed, weights_of

if TYPE_CHECKING:  # each reward worker would pay for the import
    from importlib.metadata import EntryPoint

GROUP = "minrl.tasks"
"""The group of entry points under which an installed package offers tasks."""

FILE_TASK = re.compile(r"(?P<path>.+\.py)(:(?P<attribute>.*))?")


def with_absolute_path(name: str) -> str:
    """The task's name with the path of its file made absolute, so that a resumed run finds it from any folder.

    >>> with_absolute_path("/somewhere/else/../sevens.py:sevens"), with_absolute_path("countdown")
    ('/somewhere/sevens.py:sevens', 'countdown')
    """
    match = FILE_TASK.fullmatch(name)
    return str(Path(match["path"]).resolve()) + (match[2] or "") if match else name


def tasks_in(setting: str, value: str) -> tuple[str, list[str]]:
    """A setting that names tasks, with absolute paths of their files, and these tasks. `eval_tasks` names several, and
    `task` too, with weights.
    """
    if setting == "task":
        weights = {with_absolute_path(name): weight for name, weight in weights_of(value).items()}
        return mixed(weights), list(weights)
    names = value.split(",") if setting == "eval_tasks" else [value]
    found = [with_absolute_path(name.strip()) for name in names if name.strip()]
    return ",".join(found), found


def definition_in_file(name: str) -> TaskDefinition | None:
    """The `TaskDefinition` that `path/to/file.py:name` says, also for a reward function of TRL's form
    (`minrl.tasks.columns`); None where the name is of another form.
    """
    match = FILE_TASK.fullmatch(name)
    if match is None:
        return None
    path, attribute = Path(match["path"]).resolve(), match["attribute"]
    if not path.is_file():
        raise UserError(f"--task {name}: no file {path}")
    if not attribute:
        raise UserError(f"--task {name}: say which of its attributes is the task, such as {name.rstrip(':')}:TASK")
    from minrl.tasks.columns import definition_of, takes_columns

    module = _module_of(path)
    found = getattr(module, attribute, None)
    if isinstance(found, TaskDefinition):
        return found
    if callable(found) and takes_columns(found):
        return definition_of(found)
    offered = [key for key, value in vars(module).items() if isinstance(value, TaskDefinition)]
    has = f"{path} has {', '.join(offered)}" if offered else f"{path} has none: make one, as in README"
    what = f"is no TaskDefinition but {type(found).__name__}" if hasattr(module, attribute) else "is not there"
    raise UserError(f"--task {name}: {attribute} {what}; of TaskDefinitions {has}")


def _module_of(path: Path) -> ModuleType:
    """The file imported as a module named by its stem."""
    stem = path.stem
    if not stem.isidentifier():
        raise UserError(f"a task's file must be named as a Python module is, got {path.name}: rename it")
    importlib.invalidate_caches()  # the file may be younger than what was cached of its folder
    _require_free(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, so that nothing beside the file hides an installed module
    _require_free(path)  # a package of its name in its own folder would be imported in its place
    with importing(str(path)):
        return importlib.import_module(stem)


def _require_free(path: Path) -> None:
    """Refuse a file whose module name is another module's: workers would import that one."""
    try:
        spec = importlib.util.find_spec(path.stem)
    except ValueError:  # a module without a spec is being run, such as __main__
        raise UserError(f"{path.name} has the name of the module {path.stem!r}: rename the file") from None
    if spec is not None and (spec.origin is None or Path(spec.origin).resolve() != path):
        raise UserError(
            f"{path} has the name of another module, {spec.origin or path.stem}: rename the file, because reward "
            "workers import it by its name"
        )


def installed_tasks() -> dict[str, list["EntryPoint"]]:
    """What installed packages offer, by name: more than one entry where two packages offer the same name."""
    return _entries(tuple(sys.path))


@cache  # by the folders of `sys.path`: reading every distribution takes 20 ms
def _entries(_folders: tuple[str, ...]) -> dict[str, list["EntryPoint"]]:
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        same = found.setdefault(entry.name, [])
        if entry.value not in {other.value for other in same}:  # a package may be on sys.path twice
            same.append(entry)
    return found


def definition_installed(entry: "EntryPoint") -> TaskDefinition:
    """The `TaskDefinition` that an installed package's entry point names."""
    said = f"the entry point {entry.name} = {entry.value!r} of {provider(entry)}"
    with importing(said):
        found = entry.load()
    if not isinstance(found, TaskDefinition):
        raise UserError(f"{said} must be a minrl.tasks.TaskDefinition, got {type(found).__name__}")
    return found


def provider(entry: "EntryPoint") -> str:
    """The installed package that an entry point is of."""
    return entry.dist.name if entry.dist is not None else "an installed package"
