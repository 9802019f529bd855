"""The console scripts: `minrl-train` is train.py, `minrl-evaluate` is evaluate.py, `minrl-serve` is `python -m
minrl.tools.serve`; `python -m minrl` has all programs.

A wheel has both files in this folder (see setup.py), a checkout at its root.
"""

import ast
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_module
from typing import NoReturn

from minrl.evaluate.config import EvaluateConfig
from minrl.tools.serve.config import parse_serve
from minrl.utils.cli import HELP, before_imports, parse, parse_trainer, run_main, show_version, unknown

PROGRAMS = {
    "train": "minrl.scripts.train",
    "evaluate": "minrl.scripts.evaluate",
    "sft": "minrl.sft.__main__",
    "filter": "minrl.sft.filter",
    "expert_iteration": "minrl.sft.expert_iteration",
    "audit": "minrl.tools.audit.__main__",
    "report": "minrl.report.__main__",
    "viewer": "minrl.report.rollouts.__main__",
    "sweep": "minrl.tools.sweep.__main__",
    "serve": "minrl.tools.serve.__main__",
    "verify": "minrl.tools.verify.__main__",
}
"""The programs of `python -m minrl NAME`, each a module."""

__path__.append(str(Path(__file__).parents[2]))  # searched last: the wheel's own files come first


def run_train() -> NoReturn:
    """Run train.py."""
    before_imports(parse_trainer)
    run_main(import_module("minrl.scripts.train").main)


def run_evaluate() -> NoReturn:
    """Run evaluate.py."""
    before_imports(lambda arguments: parse(EvaluateConfig, arguments))
    run_main(import_module("minrl.scripts.evaluate").main)


def run_serve() -> NoReturn:
    """Run `python -m minrl.tools.serve`."""
    before_imports(parse_serve)
    run_main(import_module("minrl.tools.serve.__main__").main)


def main(arguments: Sequence[str]) -> int:
    """Run the program that is named first; without one, list them."""
    show_version(arguments[:1])
    name = arguments[0] if arguments else "--help"
    if name in HELP:
        lines = [
            textwrap.fill(_first_line(module), 80, initial_indent=f"  {program:<18}", subsequent_indent=" " * 20)
            for program, module in PROGRAMS.items()
        ]
        sys.stdout.write("\n".join(["python -m minrl PROGRAM ... (--help after it: its flags)", "", *lines, ""]))
    elif name not in PROGRAMS:
        raise unknown(f"program {name!r}", name, list(PROGRAMS))
    else:
        del sys.argv[1]
        run_module(PROGRAMS[name], run_name="__main__", alter_sys=True)
    return 0


def _first_line(module: str) -> str:
    """The first line of a module's docstring, read from its source: the program is not imported."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "").split("\n")[0]
