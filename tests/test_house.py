"""How the package is built: imports go down, lines are counted, every setting is documented and read."""

import ast
import re
import sys
import tomllib
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path

import pytest

from minrl.__main__ import PROGRAMS
from minrl.tasks import TASK_DEFINITIONS, TOOLS, option_classes
from minrl.tasks.rust import PartWeights
from minrl.tasks.rust_quality import QualityWeights
from minrl.utils.settings import settings_of

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "minrl").rglob("*.py"))

ROOMS = [
    *("dataflow", "utils.text", "utils.signals", "utils.processor", "utils.files", "utils.other_names"),
    *("utils.console", "utils.settings", "utils.task_names", "rewards.chat_client", "tracking.timers", "config"),
    *("evaluate.statistics", "advantages", "losses", "algorithms", "batch", "models", "policy", "optimizer", "update"),
    *("sandbox", "tasks", "engines", "models.check", "rewards", "rollout", "sampling", "evaluation", "utils.cli"),
    *("run", "report.lines", "report.rollouts", "tracking", "trainer", "report", "sft", "evaluate", "tools"),
    "__main__",
]
"""Folders and flat files of minrl/, files of utils and a few others, from the ground up. Imports go down, never up."""

FILES_OF_THEIR_OWN = {room for room in ROOMS if "." in room}

EVENING = 3158
"""Lines of the modules right in minrl/: whoever reads them has read the algorithm and its settings."""

PACKAGE = 29270
"""Lines of the package. Every change that lowers them lowers this number."""


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports_of(path):
    """Every module that the file imports, at its top or inside functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            yield node.module
            for alias in node.names:  # `from minrl import checkpoint` imports a module
                if (ROOT / f"{node.module.replace('.', '/')}/{alias.name}.py").exists():
                    yield f"{node.module}.{alias.name}"


def room_of(name):
    """The folder or flat file that a module is in, or the file of utils; None for the packages themselves."""
    parts = name.removeprefix("minrl").strip(".").split(".")
    if ".".join(parts[:2]) in FILES_OF_THEIR_OWN:
        return ".".join(parts[:2])
    return None if parts == ["utils"] else parts[0] or None


def above(path):
    """The rooms above its own that the file imports from."""
    own = room_of(module_of(path))
    imported = {room_of(name) for name in imports_of(path) if f"{name}.".startswith("minrl.")} - {None, own}
    return {room for room in imported if ROOMS.index(room) > ROOMS.index(own)}


def test_imports_go_down():
    assert {room_of(module_of(path)) for path in FILES} - {None} == set(ROOMS)
    assert {module_of(path): up for path in FILES if (up := above(path))} == {}


def test_every_package_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines} | {"minrl"}
    packages = {name.partition(".")[0] for path in FILES for name in imports_of(path)} - sys.stdlib_module_names
    assert {{"yaml": "pyyaml"}.get(name, name) for name in packages} - declared == set()


@pytest.mark.house
def test_the_algorithm_is_one_evenings_reading_and_the_package_no_longer_than_it_was():
    evening = [path for path in (ROOT / "minrl").glob("*.py") if path.name[0] != "_"]
    assert sum(len(path.read_text().splitlines()) for path in evening) <= EVENING
    assert sum(len(path.read_text().splitlines()) for path in FILES) <= PACKAGE


def configs():
    """Every class of settings."""
    for config, _, _ in PROGRAMS.values():
        module, _, name = config.partition(":")
        yield getattr(import_module(module), name)
    yield from option_classes([*TASK_DEFINITIONS, *TOOLS]).values()


SETTINGS = sorted({(cls, name) for cls in configs() for name in settings_of(cls)}, key=str)


def documented():
    """Each class and field of it that has a string below it."""
    for node in chain.from_iterable(ast.walk(tree_of(path)) for path in FILES):
        for one, below in pairwise(node.body) if isinstance(node, ast.ClassDef) else ():
            if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr):
                yield node.name, ast.unparse(one.target)


def test_every_setting_is_documented_and_read():
    assert len(SETTINGS) > 200
    found = {*documented()}
    undocumented = [one for one in SETTINGS if not {(owner.__name__, one[1]) for owner in one[0].__mro__} & found]
    assert undocumented == []
    read = {name for path in FILES for name in re.findall(r"(?<=[\w)\]])\.(\w+)\b(?! = )", path.read_text())}
    read |= {one.name for cls in (PartWeights, QualityWeights) for one in fields(cls)}  # all of a class
    assert [f"{cls.__name__}.{name}" for cls, name in SETTINGS if name not in read] == []
