"""The console scripts: `minrl-train` is train.py, `minrl-evaluate` is evaluate.py.

A wheel has both files in this folder (see setup.py), a checkout at its root.
"""

from importlib import import_module
from pathlib import Path
from typing import NoReturn

from minrl.pipeline.config import EvaluateConfig
from minrl.terminal.command_line import before_imports, parse_trainer, parse_with_tasks, run_main

__path__.append(str(Path(__file__).parents[2]))  # searched last: the wheel's own files come first


def run_train() -> NoReturn:
    """Run train.py."""
    before_imports(parse_trainer)
    run_main(import_module("minrl.scripts.train").main)


def run_evaluate() -> NoReturn:
    """Run evaluate.py."""
    before_imports(lambda arguments: parse_with_tasks(EvaluateConfig, arguments))
    run_main(import_module("minrl.scripts.evaluate").main)
