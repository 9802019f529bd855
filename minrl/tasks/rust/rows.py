"""Rows of Rust problems -> what the rust task shows and what it tests: two shapes.

slug, instructions, stub, tests, example, extra_files, cargo_toml     as exercism's: files by path, or one text
prompt, tests (a list of assertions, or a program whose main asserts)  as MultiPL-E's
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from minrl.tasks.rows import Row
from minrl.tasks.rust.cargo import Package
from minrl.tasks.rust.guard import tokens
from minrl.tasks.rust.syntax import parse, text
from minrl.tasks.rust.tests import count_tests, listed_tests, main_assertions
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


def problems(rows: Iterable[Row], allow_unsafe: bool) -> list[Problem]:
    """The rows that can be tested offline. Those that need crates, or `unsafe` where it is not allowed, are left out
    and counted in the log.
    """
    kept, crates, needs_unsafe = [], [], []
    for number, row in enumerate(rows, 1):
        if _dependencies(row):
            crates.append(row)
        elif not allow_unsafe and "unsafe" in tokens(_only(row.get("example") or "")):
            needs_unsafe.append(row)
        else:
            kept.append(_problem(row, number, allow_unsafe))
    if crates:
        logger.info("rust: {} rows left out, they need crates: {}", len(crates), ", ".join(map(_name, crates)))
    if needs_unsafe:
        logger.info(
            "rust: {} rows left out, their reference is unsafe: {} (--rust.unsafe-rows allowed)",
            len(needs_unsafe),
            ", ".join(map(_name, needs_unsafe)),
        )
    return kept


def reference(row: Row) -> str:
    """The row's own solution, empty where it has none."""
    return _only(row.get("example") or "")


def _problem(row: Row, number: int, allow_unsafe: bool) -> Problem:
    if "instructions" in row:
        problem = _exercise(row, allow_unsafe)
    elif "prompt" in row:
        problem = _listed(row)
    else:
        raise UserError(
            f"row {number} of the Rust problems has neither instructions nor a prompt (it has {', '.join(row)}): "
            "give instructions, stub, tests, or prompt and tests"
        )
    if count_tests(problem.tests) == 0:
        raise UserError(f"row {number} of the Rust problems ({problem.id}) has no test that could be run in `tests`")
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
        allow_unsafe and "unsafe" in tokens(example),
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
    root = parse(stub)
    starts = [child.start_byte for child in root.children if child.type == "function_item" and "pub" not in text(child)]
    data = stub.encode()
    for start in sorted(starts, reverse=True):
        data = data[:start] + b"pub " + data[start:]
    return data.decode()


def _name(row: Row) -> str:
    """The identity: slug or name, else a hash of what is asked."""
    for column in ("slug", "name", "task_id", "id"):
        if row.get(column):
            return str(row[column])
    return hashlib.sha256(str(row.get("prompt", row.get("instructions"))).encode()).hexdigest()[:16]


def _manifest(row: Row) -> dict[str, Any]:
    try:
        return tomllib.loads(str(row.get("cargo_toml") or ""))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the cargo_toml of {_name(row)} is not TOML: {error}") from error


def _dependencies(row: Row) -> list[str]:
    manifest = _manifest(row)
    return [name for table in ("dependencies", "dev-dependencies") for name in manifest.get(table, {})]


def _files(value: object, name: str) -> dict[str, str]:
    """Files by path; one text alone is the file of that name."""
    if isinstance(value, Mapping):
        return {str(path): str(content) for path, content in value.items() if content is not None}
    return {name: str(value)} if value else {}


def _only(value: object) -> str:
    """The Rust among the files, as one text."""
    return "\n".join(content for path, content in _files(value, "lib.rs").items() if path.endswith(".rs"))
