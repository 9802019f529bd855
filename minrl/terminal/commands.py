"""Commands as they can be typed here: with the interpreter that runs, from the folder in which the user is."""

import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import minrl

CONSOLE_SCRIPTS = {
    "python train.py": "minrl-train",
    "python evaluate.py": "minrl-evaluate",
    "python -m minrl.serve": "minrl-serve",
}
"""The names of the scripts in an installed package."""


def documented(command: str) -> str:
    """The command of a program: as `python -m minrl` was told, or its console script if that was called or there is no
    checkout.
    """
    if ("-m", "minrl") in pairwise(sys.orig_argv):
        return CONSOLE_SCRIPTS.get(command, command).replace("minrl-", "python -m minrl ")
    called = Path(sys.argv[0]).name in CONSOLE_SCRIPTS.values()
    return CONSOLE_SCRIPTS.get(command, command) if called or not (_checkout() / "train.py").exists() else command


def as_typed(command: str) -> str:
    """The command of a program such that a shell in this folder finds it, also where no environment is activated."""
    first, *rest = documented(command).split()
    words = [near(_checkout() / word) if word.endswith(".py") else word for word in rest]
    return shlex.join([tool(first), *words])


def tool(name: str) -> str:
    """The name of a program of this environment if the shell would find that one, else its path."""
    own = Path(sys.executable) if name == "python" else Path(sys.executable).with_name(name)
    found = shutil.which(name)
    same = found is not None and Path(found).parent.resolve() == own.parent.resolve()
    if name == "python":  # a folder may hold several
        same = same and Path(found or "").resolve() == own.resolve()
    return name if same or not own.exists() else near(own)


def near(path: Path) -> str:
    """The path from the current folder if it is below it, else the whole path."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _checkout() -> Path:
    """The folder of train.py, where there is a checkout."""
    return Path(minrl.__file__ or "").parents[1]
