"""Rows of Rust problems, in two shapes, read into what the task shows and tests.

slug, instructions, stub, tests, example, extra_files, cargo_toml     as exercism's: files by path, or one text
prompt, tests (a list of assertions, or a program whose main asserts)  as MultiPL-E's
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loguru import logger

from minrl.tasks.rows import Row
from minrl.tasks.rust.compiler import Package
from minrl.tasks.rust.syntax import parse, text, tokens
from minrl.tasks.rust.tests import find_tests, listed_tests, main_assertions, replace
from minrl.types import UserError

LIST_CRATE = "solution"


@dataclass(frozen=True)
class Problem:
    """One row, read: `given` is all the Rust that the row itself brings."""

    id: str
    instructions: str
    stub: str
    tests: Mapping[str, str]
    package: Package
    given: str
    category: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A row that is no problem here: its name and why."""

    name: str
    reason: Literal["crates", "unsafe"]


def problems(found: Iterable[Problem | LeftOut]) -> list[Problem]:
    """The problems that can be tested offline. What is left out is logged."""
    everything = list(found)
    out = [each for each in everything if isinstance(each, LeftOut)]
    for reason, why in WHY.items():
        names = [each.name for each in out if each.reason == reason]
        if names:
            logger.info("rust: {} rows left out, {}: {}", len(names), why, ", ".join(names))
    return [each for each in everything if isinstance(each, Problem)]


WHY = {"crates": "they need crates", "unsafe": "their reference is unsafe (--rust.unsafe-rows allowed)"}


def read_problem(row: Row, allow_unsafe: bool) -> Problem | LeftOut:
    """A row, read. Raises UserError for one that cannot be used."""
    if any(_manifest(row).get(table) for table in ("dependencies", "dev-dependencies")):
        return LeftOut(_name(row), "crates")
    if not allow_unsafe and "unsafe" in tokens(parse(reference(row))):
        return LeftOut(_name(row), "unsafe")
    return _problem(row, allow_unsafe)


def reference(row: Row) -> str:
    """The Rust of the row's own solution as one text; empty if it has none."""
    files = _files(row.get("example") or "", "lib.rs")
    return "\n".join(content for path, content in files.items() if path.endswith(".rs"))


def _problem(row: Row, allow_unsafe: bool) -> Problem:
    if "instructions" in row:
        problem = _exercise(row, allow_unsafe)
    elif "prompt" in row:
        problem = _listed(row)
    else:
        raise UserError(
            f"a row of Rust problems has neither instructions nor a prompt (it has {', '.join(row)}): give "
            "instructions, stub, tests, or prompt and tests"
        )
    if not any(find_tests(parse(source)) for source in problem.tests.values()):
        raise UserError(f"{problem.id} has no test that could be run in `tests`")
    return problem


def _exercise(row: Row, allow_unsafe: bool) -> Problem:
    manifest = _manifest(row)
    named = manifest.get("package", {}).get("name") or _name(row)
    crate = str(manifest.get("lib", {}).get("name") or named).replace("-", "_")
    tests = _files(row["tests"], f"tests/{crate}.rs")
    extra = _files(row.get("extra_files") or {}, "src/extra.rs")
    stub, example = _files(row.get("stub") or "", "src/lib.rs").get("src/lib.rs", ""), reference(row)
    files = {name: content for name, content in {**extra, **tests}.items() if name.startswith("src/")}
    hidden = {name: content for name, content in {**extra, **tests}.items() if name.startswith("tests/")}
    lints = manifest.get("lints", {}).get("clippy", {})
    package = Package(
        crate,
        str(manifest.get("package", {}).get("edition", "2024")),
        tuple(name for name, level in lints.items() if level == "allow"),
        tuple(name for name in manifest.get("features", {}) if name != "default"),
        files,
        allow_unsafe and "unsafe" in tokens(parse(example)),
    )
    given = "\n".join([stub, example, *files.values(), *hidden.values()])
    category = {"difficulty": str(row["difficulty"])} if row.get("difficulty") else {}
    return Problem(_name(row), row["instructions"], stub, hidden, package, given, category)


def _listed(row: Row) -> Problem:
    prompt, tests = str(row["prompt"]), row["tests"]
    statements = main_assertions(tests) if isinstance(tests, str) else [str(test) for test in tests]
    shown = prompt.rstrip()
    if shown.endswith("{"):  # the head of a function
        stub, instructions = _public(shown + "\n    todo!()\n}\n"), "Complete the function."
    else:  # the name cannot be known from the prompt: the first assertion shows it, and does not count
        stub, instructions = "", f"{shown}\n\nThis must hold:\n\n```rust\n{statements[0]}\n```"
        statements = statements[1:]
    imports = "".join(text(node) for node in parse(stub).children if node.type == "use_declaration")
    source = listed_tests(statements, LIST_CRATE, imports)
    name = f"tests/{LIST_CRATE}_list.rs"
    return Problem(_name(row), instructions, stub, {name: source}, Package(LIST_CRATE, "2021"), stub + "\n" + source)


def _public(stub: str) -> str:
    """The source with its functions made `pub`."""
    functions = [child for child in parse(stub).children if child.type == "function_item" and "pub" not in text(child)]
    return replace(stub, [(function.start_byte, function.start_byte, "pub ") for function in functions])


def _name(row: Row) -> str:
    """The identity: slug or name, else a hash of the question."""
    named = next((row[column] for column in ("slug", "name", "task_id", "id") if row.get(column)), None)
    asked = str(row.get("prompt", row.get("instructions")))
    return str(named) if named else hashlib.sha256(asked.encode()).hexdigest()[:16]


def _manifest(row: Row) -> dict[str, Any]:
    try:
        return tomllib.loads(str(row.get("cargo_toml") or ""))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the cargo_toml of {_name(row)} is not TOML: {error}") from error


def _files(value: object, name: str) -> dict[str, str]:
    """Files by path; a single text is the file of that name."""
    if isinstance(value, Mapping):
        return {str(path): str(content) for path, content in value.items() if content is not None}
    return {name: str(value)} if value else {}
