"""The examples in the package's docstrings are true."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [path for path in sorted((ROOT / "minrl").rglob("*.py")) if ">>>" in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_examples_of_a_module(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0 and failed == 0
