"""How the house is built: floors, doors, budgets, and no knob that turns nothing."""

import ast
import dataclasses
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

from minrl.audit.config import AuditConfig
from minrl.config import TrainerConfig
from minrl.pipeline.config import EvaluateConfig
from minrl.report.__main__ import ReportConfig
from minrl.serve.config import ServeConfig
from minrl.sft.config import ExpertIterationConfig, FilterConfig, SftConfig
from minrl.sweep.__main__ import SweepConfig
from minrl.tasks import TASK_DEFINITIONS, TASK_FAMILIES, TOOLS
from tests.run_time_types import STATES_SHAPES

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "minrl").rglob("*.py"))
SCRIPTS = [path for path in (ROOT / "train.py", ROOT / "evaluate.py") if path.exists()]

ROOMS = [
    "types",
    "system",
    "config",
    "statistics",
    "divergence",
    "losses",
    "advantages",
    "algorithms",
    "batch",
    "kernels",
    "model",
    "scoring",
    "policy",
    "optimizer",
    "update",
    "sandbox",
    "tasks",
    "engines",
    "rewards",
    "rollout",
    "draw",
    "evaluation",
    "terminal",
    "viewer",
    "run",
    "record",
    "report",
    "sweep",
    "sft",
    "audit",
    "pipeline",
    "serve",
    "scripts",
    "verify",
    "__main__",
    "train",
    "evaluate",
]
"""Folders and flat files of minrl/ and the scripts, from the ground up. Imports go down, never up."""

EVENING = 2500
"""Lines of train.py and the flat files of minrl/, with docstrings: whoever reads them has read the algorithm."""

DOORS = {
    "transformers": {"minrl.model.gguf", "minrl.model.loading", "minrl.model.source", "minrl.engines.vllm.checkpoint"},
    "tokenizers": {"minrl.model.gguf", "minrl.model.loading"},
    "gguf": {"minrl.model.gguf"},
    "accelerate": {"minrl.model.processes"},
    "tensorboard": {"minrl.record.tensorboard"},
    "torch.utils.tensorboard": {"minrl.record.tensorboard"},
    "datasets": {"minrl.tasks"},
    "math_verify": {"minrl.tasks.math.agreement"},
    "vllm": {
        "minrl.engines.vllm.engine",
        "minrl.engines.vllm.start",
        "minrl.engines.vllm.versions",
        "minrl.engines.vllm_server.transfer",
        "minrl.engines.vllm_server.worker",
    },
    "httpx2": {"minrl.engines.vllm_server.client"},
    "yaml": {"minrl.terminal.command_line"},
    "rich": {"minrl.terminal.screen", "minrl.terminal.bars", "minrl.terminal.tables"},
    "wandb": {"minrl.record.wandb"},
    "peft": {"minrl.model.lora"},
    "bitsandbytes": {"minrl.kernels.moments"},
    "openai": {"minrl.rewards.chat_client"},
    "reasoning_gym": {"minrl.tasks.reasoning_gym"},
    "matplotlib": {"minrl.report.charts"},
    "pyarrow": {"minrl.pipeline.table"},
    "tree_sitter": {"minrl.tasks.rust.syntax"},
    "tree_sitter_rust": {"minrl.tasks.rust.syntax"},
}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@cache
def imports_of(path):
    """Every module that the file imports, at its top or inside functions."""
    return list(_imports_of(path))


def _imports_of(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            yield node.module
            for alias in node.names:  # `from minrl import checkpoint` imports a module
                if (ROOT / f"{node.module.replace('.', '/')}/{alias.name}.py").exists():
                    yield f"{node.module}.{alias.name}"


def within(name, package):
    return name == package or name.startswith(package + ".")


def room_of(name):
    """The folder or flat file that a module is in; None for the package itself."""
    parts = name.split(".")
    return parts[0] if parts[0] != "minrl" else parts[1] if len(parts) > 1 else None


def test_every_file_is_in_a_room():
    assert {room_of(module_of(path)) for path in [*FILES, *SCRIPTS]} - {None} == set(ROOMS)


def above(path):
    """The rooms above its own that the file imports from."""
    own = room_of(module_of(path))
    imported = {room_of(name) for name in imports_of(path) if within(name, "minrl")} - {None, own}
    return {room for room in imported if ROOMS.index(room) > ROOMS.index(own)}


def test_imports_go_down():
    assert {module_of(path): up for path in [*FILES, *SCRIPTS] if (up := above(path))} == {}


def test_the_algorithm_is_one_evenings_reading():
    evening = [ROOT / "train.py", *(ROOT / "minrl").glob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in evening) <= EVENING


def test_no_imports_go_in_a_circle():
    known = {module_of(path): path for path in FILES}
    down = {name: {i for i in imports_of(path) if i in known and not within(name, i)} for name, path in known.items()}
    while leaves := [name for name, imported in down.items() if not imported]:
        for leaf in leaves:
            del down[leaf]
        for imported in down.values():
            imported.difference_update(leaves)
    assert not down, "these wait for each other"


@pytest.mark.parametrize("library", DOORS)
def test_each_library_comes_in_by_its_door(library):
    users = {module_of(p) for p in [*FILES, *SCRIPTS] for name in imports_of(p) if within(name, library)}
    trespassers = {user for user in users if not any(within(user, door) for door in DOORS[library])}
    assert not trespassers


def test_nobody_counts_on_a_vague_file():
    vague = {"utils", "common", "helpers", "constants", "core", "misc"}
    assert not [path for path in FILES if path.stem in vague]


def test_every_module_says_what_it_answers():
    assert [module_of(path) for path in [*FILES, *SCRIPTS] if not ast.get_docstring(tree_of(path))] == []


def functions_of(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def fields_of(cls):
    for name, hint in get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from fields_of(hint)
        else:
            yield cls, name


PROGRAMS = (TrainerConfig, EvaluateConfig, SftConfig, FilterConfig, ExpertIterationConfig, AuditConfig)
PROGRAMS += (ReportConfig, SweepConfig, ServeConfig)
CONFIGS = [field for program in PROGRAMS for field in fields_of(program)]
CONFIGS += [
    field for definition in [*TASK_DEFINITIONS.values(), *TOOLS.values()] for field in fields_of(definition.options)
]
CONFIGS = list(dict.fromkeys(CONFIGS))


def names_read():
    """Attributes that are read somewhere outside checks: in no `__post_init__` and in no config file's class body."""
    read = set()
    for path in [*FILES, *SCRIPTS]:
        checks = {
            inner for function in functions_of(path) if function.name == "__post_init__" for inner in ast.walk(function)
        }
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in checks:
                read.add(node.attr)
    return read


def test_every_config_field_is_read_somewhere():
    read = names_read()
    assert [f"{cls.__name__}.{name}" for cls, name in CONFIGS if name not in read] == []


@pytest.mark.parametrize("cls", list(dict.fromkeys(cls for cls, _ in CONFIGS)), ids=lambda cls: cls.__name__)
def test_every_config_field_has_a_docstring_of_its_own(cls):
    path = Path(sys.modules[cls.__module__].__file__)
    node = next(n for n in ast.walk(tree_of(path)) if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            has_string = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert has_string and isinstance(following.value.value, str), f"{cls.__name__}.{field.target.id}"


@pytest.mark.parametrize(
    "module", ["minrl.types", "minrl.config", "minrl.tasks", "minrl.rewards.workers", "minrl.rewards.completions"]
)
def test_tasks_and_types_are_imported_without_torch(module):
    code = f"import {module}, sys; assert not {{'torch', 'datasets', 'transformers'}} & set(sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


NOT_FOR_COUNTDOWN = (
    *(row for name, row in [*TASK_DEFINITIONS.data.items(), *TASK_FAMILIES.data.items()] if name != "countdown"),
    *TOOLS.data.values(),
    *("minrl.sandbox", "minrl.rewards.judge", "minrl.rewards.chat_client", "minrl.record.wandb", "minrl.viewer.build"),
    *(
        "minrl.report",
        "minrl.sweep",
        "minrl.sft",
        "minrl.pipeline",
        "minrl.serve",
        "minrl.engines.vllm.engine",
        "minrl.engines.vllm_server",
        "wandb",
        "openai",
        "matplotlib",
        "vllm",
    ),
)
"""Modules that a run of countdown has no use for: other tasks, sandbox, judge, boards, pages, other programs."""


@pytest.mark.slow
def test_a_run_of_countdown_imports_nothing_of_other_tasks():
    code = (
        "import sys, train\n"
        "from minrl.tasks import TASK_DEFINITIONS, load_task\n"
        "from minrl.terminal.command_line import parse_trainer\n"
        "load_task('countdown', parse_trainer(['--task', 'countdown'])[1])\n"
        "list(TASK_DEFINITIONS)\n"
        f"print(*(name for name in sys.modules if name.startswith({NOT_FOR_COUNTDOWN})))"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout) == (0, "\n"), finished.stderr


def test_shapes_are_checked_in_every_module_that_states_them():
    stating = {module_of(path) for path in FILES if "jaxtyping" in imports_of(path)}
    assert set(STATES_SHAPES) == stating


def test_types_need_the_standard_library_only():
    imported = {name.split(".")[0] for name in imports_of(ROOT / "minrl/types.py")}
    assert imported <= sys.stdlib_module_names


def compared_in(path):
    """The strings that the file compares something with."""
    return {
        constant.value
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Compare)
        for constant in node.comparators
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }


def test_nobody_asks_for_an_algorithms_or_a_tasks_name():
    from minrl.algorithms import ALGORITHMS

    names = {*ALGORITHMS, *TASK_DEFINITIONS}
    assert {module_of(path): found for path in [*FILES, *SCRIPTS] if (found := compared_in(path) & names)} == {}


def test_train_fits_on_one_screen():
    train = next(f for f in functions_of(ROOT / "train.py") if f.name == "train")
    assert train.end_lineno - train.lineno < 50
