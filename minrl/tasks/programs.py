"""The programs that make a task and its rewards: its own file, and all that it imports in MinRL or beside it."""

import ast
import hashlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import minrl
from minrl.tasks import find_definition, find_tool
from minrl.utils.task_names import split_tool

INSTALLED = ("site-packages", "dist-packages")


def programs(task: str) -> dict[str, str]:
    """The digest of each module of a task, by the module's name.

    Imports in the sources are followed, inside functions too: through MinRL, and through what lies beside the task's
    file or in its package. The versions identify other libraries.
    """
    return _digests(_modules(task))


def programs_outside(task: str) -> dict[str, str]:
    """The same for the modules outside MinRL, whose author may change them at any time."""
    return _digests(_modules(task, outside=True))


def files_outside(task: str) -> list[Path]:
    """The files of the modules outside MinRL, and the task's own rows."""
    rows = find_definition(task).path
    return [*_modules(task, outside=True).values(), *([Path(rows)] if rows else [])]


def _digests(modules: Mapping[str, Path]) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in modules.items()}


def _is_outside(module: str) -> bool:
    return module.partition(".")[0] != minrl.__name__


def _modules(task: str, outside: bool = False) -> dict[str, Path]:
    """The file of each module of a task, by the module's name. With `outside` no module of MinRL's is read or given."""
    definition = find_definition(task)
    module = sys.modules.get(definition.module)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return {}
    root = Path(file).resolve().parents[module.__name__.count(".") + (Path(file).name == "__init__.py")]
    own = module.__name__.partition(".")[0] if set(INSTALLED) & set(root.parts) else ""
    found: dict[str, Path] = {}
    tool = split_tool(task)[1] or definition.tool
    waiting = [module.__name__, definition.options.__module__, *([find_tool(tool).wrap.__module__] if tool else [])]
    while waiting:
        name = waiting.pop()
        path = _file_of(name, root, own)
        if path is None or name in found or (outside and not _is_outside(name)):
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting += _imports(path.read_bytes(), package)
    return dict(sorted(found.items()))


def _file_of(module: str, root: Path, own: str) -> Path | None:
    """The file of a module in MinRL or in the task's folder. `own` is the task's package if others lie beside it."""
    if not _is_outside(module):
        root = Path(minrl.__file__ or "").resolve().parent.parent
    elif own and module.partition(".")[0] != own:
        return None
    path = root.joinpath(*module.split("."))
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _imports(source: bytes, package: str) -> list[str]:
    """Every module that a source imports, and each name that it imports from one, which may be a module too. It also
    finds MinRL's modules in a text that another process runs.
    """
    found = [name.decode() for name in re.findall(rb"(?:from|import) (minrl(?:\.\w+)+)", source)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found
