"""Cases as the programs read them: rows of a data file, examples, lines of completions."""

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.hostile.cases import Case

HERE = Path(__file__).parent

KEYS = ("text", "instructions", "prompt", "question", "problem")
"""The columns that pose a problem, by which prompts and rows are told apart."""


def all_cases() -> list[Case]:
    """The `CASES` of all modules of this folder."""
    names = [path.stem for path in sorted(HERE.glob("*.py")) if not path.stem.startswith(("test_", "_"))]
    modules = [importlib.import_module(f"tests.hostile.{name}") for name in names]
    return [case for module in modules for case in getattr(module, "CASES", [])]


def key_of(row: Mapping[str, Any]) -> str:
    """The text that poses the problem."""
    return next((str(row[name]) for name in KEYS if name in row), "")


def write_rows(path: Path, cases: Iterable[Case], copies: int) -> dict[str, Any]:
    """Write the problems of the cases as a task's data, each several times with its text numbered. Gives back the
    strictest of the cases' options.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    options: dict[str, Any] = {}
    for case in cases:
        rows.setdefault(key_of(case.row), case.row)
        for name, value in case.options.items():
            options[name] = min(options.get(name, value), value)
    with path.open("w") as file:
        for number, (key, row) in enumerate((pair for pair in rows.items() for _ in range(copies)), 1):
            column = next(name for name in KEYS if name in row)
            names = {name: f"{row[name]}-{number}" for name in ("slug", "name", "id") if name in row}
            if "task_id" in row:
                names["task_id"] = 10_000 + number
            file.write(json.dumps({**row, **names, column: f"{key}\n\nProblem {number}."}) + "\n")
    return options
