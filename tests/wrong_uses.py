"""One wrong use of a program, in this process: it ends in one line, and what was there stays as it was."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from minrl.__main__ import PROGRAMS, main
from minrl.run import base_model
from minrl.utils.cli import run_main

for program in PROGRAMS.values():  # which says that it loads, the first time
    import_module(program.module)

TINY = """--device cpu --threads 1 --quiet --no-preflight --steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 4
    --no-eval-first --eval-every 0 --eval-examples 2 --eval-samples 1 --save-every 0"""


def listing(folder):
    """Each file with its content, each link with its target, each folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[path.relative_to(folder)] = (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
    return found


class Refused:
    """Runs a program where it must refuse; returns the line that it says."""

    def __init__(self, capfd, monkeypatch):
        self.capfd = capfd
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, getattr(sys, name))  # put back when the test is over

    def __call__(self, program, arguments, *words):
        before = listing(Path())
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_main(main, [program, *map(str, arguments)])
        said = self.capfd.readouterr().err.removeprefix(f"reading {arguments[0]}\n" if program == "report" else "")
        assert ended.value.code == 2, said
        assert said.startswith("error: ") and said.count("\n") == 1, said
        lacking = [word for word in words if word not in said]
        assert not lacking, f"{lacking} not in {said}"
        after = listing(Path())
        assert after == before, {path for path in {*before, *after} if before.get(path, 0) != after.get(path, 0)}
        return said


def never(*arguments, **more):
    raise AssertionError("this was not refused")


@pytest.fixture
def refused(capfd, monkeypatch):
    """Where a wrong use is not refused, no model is made for minutes."""
    monkeypatch.setattr(base_model, "make_base_model", never)
    return Refused(capfd, monkeypatch)
