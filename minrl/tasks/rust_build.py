"""Builds, lints and tests a Rust solution with cargo, in the sandbox, each time in a folder that is gone afterwards.

The verdict is what libtest prints for each hidden test, checked against cargo's exit status. The names of the tests are
drawn anew for each solution, and each must have exactly one verdict. A solution shares a process with its tests, so a
passed test may prove nothing. Two checks do not ask why:

- Twins: some tests are run a second time with another expected value. A solution that passes more than a quarter of
  these, such as one whose type is equal to everything or is filled in by the expected value, is refused. Of the
  references of 84 exercises none passes more than one.
- Passed tests count beyond those that constants pass: see `constant_passes`.
"""

import json
import math
import random
import re
import secrets
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from minrl.dataflow import UserError, require
from minrl.sandbox import Limits, Outcome, SandboxError, run
from minrl.tasks.rust_quality import TEXTS, Node, attributes, before_items, field_text, parse, text, tokens, walk
from minrl.utils.settings import Count, Positive, Settings

AGAIN_S = 600.0
"""Seconds after which an empty package is built again before a failed build counts as the source's fault."""
MOST_TWINS = 8
"""Tests of a solution that have a twin, drawn anew for each solution."""
ASSERTIONS = ("assert", "assert_eq", "assert_ne")
LITERALS = frozenset((*TEXTS, "integer_literal", "float_literal", "boolean_literal"))
VERDICT = re.compile(r"^test (?:\S+::)?(\w+)(?: - should panic)? \.\.\. (ok|FAILED)$", re.MULTILINE)
Edit = tuple[int, int, str]
"""A range of bytes and what replaces it."""


@dataclass(frozen=True, kw_only=True)
class BuildLimits(Settings):
    """What building and testing one solution may take."""

    build_seconds: Positive = 5.0
    """Limit for each compilation of one solution, in seconds of processor time."""
    test_seconds: Positive = 15.0
    """Limit for running the tests, in seconds of processor time; by the clock twice as many."""
    seconds: Positive = 120.0
    """Limit for all of one solution, in seconds by the clock: what ends it on a machine that is too busy. The reward's
    deadline is later, whatever --reward-deadline-s says."""
    build_memory_mib: Count = 4096
    """Memory (address space) for the compiler, in MiB."""
    test_memory_mib: Count = 1024
    """Memory (address space) for the tests, in MiB."""


@dataclass(frozen=True)
class Package:
    """What a row decides about its package: allowed lints, features (which are off) and other files of src/."""

    crate: str
    edition: str = "2024"
    allowed_lints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def sources(self, solution: str, own_tests: bool = False) -> dict[str, str]:
        """The files of the package. With `own_tests` the solution's own tests are built."""
        manifest = [
            f'[package]\nname = "solution"\nversion = "0.1.0"\nedition = {json.dumps(self.edition)}',
            f"[lib]\nname = {json.dumps(self.crate)}\ntest = {json.dumps(own_tests)}\ndoctest = false",
            "[workspace]\n[profile.dev]\ndebug = false\nincremental = false",
            "[features]",
            *(f"{json.dumps(name)} = []" for name in self.features),
            "[lints.clippy]",
            *(f'{json.dumps(name)} = "allow"' for name in self.allowed_lints),
        ]
        return {**self.files, "Cargo.toml": "\n".join(manifest) + "\n", "src/lib.rs": solution}


@cache
def toolchain() -> Path:
    """The folder of cargo, rustc and clippy, of the toolchain that rustc names. `UserError` if one is missing: rustup
    installs these names before any toolchain.
    """
    missing = [name for name in ("rustc", "cc") if shutil.which(name) is None]
    require(
        not missing, f"the rust task needs {' and '.join(missing)}: install Rust from https://rustup.rs and a C linker"
    )
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    require(found.returncode == 0, f"rustc does not work ({first_line(found.stderr)}): run `rustup default stable`")
    programs = Path(found.stdout.strip()) / "bin"
    if not (programs / "rustc").exists():  # a distribution's own: all programs lie in one folder
        programs = Path(shutil.which("rustc") or "").resolve().parent
    for name, component in (("cargo", "cargo"), ("clippy-driver", "clippy")):
        require((programs / name).exists(), f"the rust task needs {component}: run `rustup component add {component}`")
    return programs


@cache
def working_toolchain(interval: int = 0) -> Path:
    """`toolchain()`, after an empty package was built, tested and linted. `UserError`, in one line, if that does not
    work here: every right solution would earn nothing. Each `interval` tries it again.
    """
    programs, cargo = toolchain(), Cargo(Package("empty"), BuildLimits(build_seconds=60.0))
    try:
        if cargo.hidden_tests("//! Nothing.\n", {"tests/t.rs": "#[test] fn runs() {}\n"}, "").get("tests") != 1.0:
            raise SandboxError("an empty package does not build")
        if not cargo.lints("//! Nothing.\n"):
            raise SandboxError("an empty package is not linted")
    except SandboxError as error:
        raise UserError(
            f"Rust in {programs} does not run in the sandbox ({first_line(str(error))}): install Rust where every user "
            "may read it (RUSTUP_HOME=/opt/rustup), or bubblewrap"
        ) from error
    return programs


def first_line(said: str) -> str:
    """The first line, to stand within a sentence."""
    return said.strip().partition("\n")[0].rstrip(".")


class Cargo:
    """cargo for one solution, within its limits, which begin now."""

    def __init__(self, package: Package, limits: BuildLimits) -> None:
        self.package, self.limits = package, limits
        self._ends = time.monotonic() + limits.seconds

    def hidden_tests(self, solution: str, tests: Mapping[str, str], stub: str) -> dict[str, float]:
        """Build the solution with the row's tests, files by path, and run them. A test that wants a panic counts only
        if an ordinary one passed: `todo!()` panics too.
        """
        functions = defined_functions(parse(stub))
        files = {**self.package.sources(solution), **tests}
        asked: dict[str, RustTest] = {}
        twins: set[str] = set()
        targets: list[str] = []
        for path, source in tests.items():
            found, false, files[path] = draw(source, functions)
            asked |= found
            twins |= set(false.values())
            targets += [f"--test {Path(path).stem}"] if found else []
        ran, passed = self._run(files, " ".join(targets))
        if passed is None:
            return {"build_limit": float(self._took_too_much(ran))}
        if 4 * len(passed & twins) > len(twins):
            return {"refused": 1.0, "refused_forged": 1.0}
        good, free = passed & asked.keys(), constant_passes(asked.values(), functions)
        beyond = (len(good) - free) / (len(asked) - free) if free < len(asked) else good == asked.keys()
        ordinary = any(not asked[name].wants_panic for name in good)
        return {"build": 1.0, "tests": max(0.0, float(beyond)) if ordinary else 0.0}

    def own_tests(self, solution: str, hidden: str, wanted: int) -> float:
        """The share of the wanted number of real own tests, times the share of all own tests that pass. A real one
        calls a function that the hidden tests call, and fails if one of its assertions is made false.
        """
        functions = set(tokens(parse(hidden))) & defined_functions(parse(solution))
        tests, twins, source = draw(solution, functions, of_solution=True)
        passed = self._run(self.package.sources(source, own_tests=True), "--lib")[1] or set()
        good = tests.keys() & passed
        real = sum(twins.get(name, name) not in passed for name in good)
        return min(1.0, real / wanted) * len(good) / max(1, len(tests))

    def lints(self, solution: str) -> bool:
        """Whether clippy reports nothing."""
        ran = self._in_sandbox("exec cargo clippy --offline --quiet -- -D warnings", self.package.sources(solution))
        if ran.status == "error" and b"could not compile" not in ran.stderr:
            raise SandboxError(f"clippy could not run: {first_line(ran.stderr.decode(errors='replace'))}")
        return ran.status == "ok"

    def _run(self, files: Mapping[str, str], targets: str) -> tuple[Outcome, set[str] | None]:
        """Build the targets of `cargo test` and run them: how the sandbox's call ended, and the names of the tests that
        passed, each with one verdict; None if the build failed. If the program dies, the tests before count.
        """
        limits, mark = self.limits, secrets.token_hex(16)
        build = f"ulimit -t {math.ceil(limits.build_seconds)}; exec cargo test --offline --no-run {targets}"
        test = (
            f"ulimit -t {math.ceil(limits.test_seconds)}; ulimit -v {1024 * limits.test_memory_mib}; "
            f"exec timeout -s KILL {math.ceil(2 * limits.test_seconds)} cargo test --offline --no-fail-fast {targets} "
            "-- --include-ignored --test-threads=1"
        )
        ran = self._in_sandbox(f"({build}) || exit 1\necho {mark}\n({test}); s=$?; echo; echo {mark} $s", files)
        _, built, tested = ran.stdout.decode(errors="replace").partition(f"{mark}\n")
        output, _, status = tested.partition(f"\n{mark} ")
        said: dict[str, list[str]] = defaultdict(list)
        for name, verdict in VERDICT.findall(output):
            said[name].append(verdict)
        passed = {name for name, verdicts in said.items() if verdicts == ["ok"]}
        if status == "0\n" and len(passed) < len(said):  # cargo says that none failed
            passed = set()
        return ran, passed if built else None

    def _in_sandbox(self, script: str, files: Mapping[str, str]) -> Outcome:
        linker, left_s = Path(shutil.which("cc") or "cc").resolve(), max(1.0, self._ends - time.monotonic())
        cpu_s, memory_mib = max(self.limits.build_seconds, self.limits.test_seconds), self.limits.build_memory_mib
        allowed = Limits(
            wall_s=left_s, cpu_s=cpu_s, memory_mib=memory_mib, processes=128, file_mib=512, output_bytes=2**22
        )
        return run(
            ["sh", "-c", script],
            {name: content.encode("utf-8", "replace") for name, content in files.items()},
            allowed,
            readable=[toolchain().parent, linker.parent],
            environment={"PATH": f"{toolchain()}:/usr/local/bin:/usr/bin:/bin", "RUST_BACKTRACE": "0"},
        )

    def _took_too_much(self, ran: Outcome) -> bool:
        """Whether a build failed since the compiler had no time or memory left; False for an error in the source. A
        build that fails for another reason is no verdict. Where the clock ended it, half of the processor time is
        enough.
        """
        if ran.status == "timeout" and ran.processor_s < self.limits.build_seconds / 2:
            raise SandboxError(
                "the compiler got too little of the processor: leave the machine more, or raise --rust.seconds"
            )
        if ran.status != "error" or b"(signal: " in ran.stderr:
            return True
        if b"could not compile" not in ran.stderr:
            said = first_line(ran.stderr.decode(errors="replace")) or f"exit status {ran.exit_code}"
            raise SandboxError(f"the compiler could not run: {said}")
        if self.package.crate != "empty":
            working_toolchain(int(time.monotonic() // AGAIN_S))
        return False


class RustTest(NamedTuple):
    """A `#[test]` function, the block of its statements, where its name stands, and whether it must panic."""

    node: Node
    body: Node
    name_at: tuple[int, int]
    wants_panic: bool


def find_tests(root: Node) -> list[RustTest]:
    """The tests that are compiled without features, in order."""
    before, found, pending = before_items(root), [], [root]
    while pending:
        node = pending.pop()
        marks = attributes(node, before)
        if any(mark.startswith("cfg") and mark.replace(" ", "") != "cfg(test)" for mark in marks):
            continue
        if node.type == "function_item" and "test" in marks:
            body, name = node.child_by_field_name("body"), node.child_by_field_name("name")
            wants_panic = any(mark.startswith("should_panic") for mark in marks)
            found.append(RustTest(node, body, (name.start_byte, name.end_byte), wants_panic))
        pending += reversed(node.children)
    return found


def draw(
    source: str, functions: set[str], of_solution: bool = False
) -> tuple[dict[str, RustTest], dict[str, str], str]:
    """Draw names for the tests of a file, and tests that get a twin, which in a solution's own tests is each that calls
    one of the functions. The tests by their names, the names of twins by the same, and the source that holds both.

    libtest runs tests by name, and a test can read its own: a name says neither which test it is nor whether of a twin.
    """
    tests = {_name(): test for test in find_tests(parse(source))}
    changes: dict[str, Edit] = {}
    for name, test in tests.items():
        calls = of_solution and not functions.isdisjoint(tokens(test.body))
        change = other_value(test.body, functions) or (opposite(test.body) if calls else None)
        if change and not test.wants_panic and calls == of_solution:
            changes[name] = change
    chosen = random.SystemRandom().sample(list(changes), len(changes) if of_solution else min(MOST_TWINS, len(changes)))
    twins = {name: _name() for name in chosen}
    edits = [(*test.name_at, name) for name, test in tests.items()]
    for name in chosen:
        node = tests[name].node
        changed = [(*tests[name].name_at, twins[name]), changes[name]]
        twin = replace(
            text(node), [(start - node.start_byte, end - node.start_byte, new) for start, end, new in changed]
        )
        edits.append((node.end_byte, node.end_byte, f"\n#[test]\n{twin}"))
    allowed = "" if of_solution else "#![allow(arithmetic_overflow, overflowing_literals, unconditional_panic)]\n"
    return tests, twins, allowed + replace(source, edits)


def _name() -> str:
    return f"t{secrets.token_hex(8)}"


def replace(source: str, edits: Iterable[Edit]) -> str:
    """The source with each range of bytes replaced; ranges may not overlap."""
    data, pieces, position = source.encode("utf-8", "replace"), [], 0
    for start, end, new in sorted(edits):
        pieces += [data[position:start], new.encode()]
        position = end
    return b"".join([*pieces, data[position:]]).decode("utf-8", "replace")


def defined_functions(root: Node) -> set[str]:
    """The names of all functions and methods."""
    return {
        field_text(node, "name") for node in walk(root) if node.type in ("function_item", "function_signature_item")
    }


def other_value(body: Node, functions: set[str]) -> Edit | None:
    """The edit that changes the value that a test's last `assert_eq!` expects, which is the side that calls none of the
    functions, or the second; None if no literal stands there.
    """
    lets = _lets(body)
    for macro in reversed([node for node in walk(body) if field_text(node, "macro") == "assert_eq"]):
        sides = [[lets.get(text(node), node) for node in side] for side in reversed(arguments(macro)[:2])]
        sides.sort(key=lambda side: any(not functions.isdisjoint(tokens(node)) for node in side))
        literals = [inner for node in sides[0] for inner in walk(node) if inner.type in LITERALS and _is_value(inner)]
        if literals:
            return literals[-1].start_byte, literals[-1].end_byte, _changed(text(literals[-1]))
    return None


def opposite(body: Node) -> Edit | None:
    """The edit that turns the condition of a test's last `assert!` into its opposite."""
    for macro in reversed([node for node in walk(body) if field_text(node, "macro") == "assert"]):
        condition = arguments(macro)[0]
        start, end = condition[0].start_byte, condition[-1].end_byte
        return start, end, f"!({body.text[start - body.start_byte : end - body.start_byte].decode()})"
    return None


def _is_value(literal: Node) -> bool:
    """Whether a literal is no part of a type, such as the length of an array."""
    return literal.prev_sibling is None or literal.prev_sibling.type not in (";", "<")


def _changed(literal: str) -> str:
    """Another literal of the same type. A number becomes smaller, so that it fits its type, or 1 in place of 0.

    >>> [_changed(text) for text in ("20", "0u8", "true", "'a'", '"1.0"', '"ab"', "0x0", "0xc8", "0b10")]
    ['10', '1u8', 'false', "'b'", '"1.1"', '"~ab"', '0x1', '0xb8', '0b00']
    """
    others = {"true": "false", "false": "true", "'a'": "'b'"}
    if literal in others or literal.startswith("'"):
        return others.get(literal, "'a'")
    if '"' in literal:
        last = re.search(r"\d(?=[^\d\\]*\Z)", literal)
        if last:
            return f"{literal[: last.start()]}{(int(last[0]) + 1) % 10}{literal[last.end() :]}"
        return literal.replace('"', '"~', 1)
    start = 2 if re.match("0[xob]", literal) else 0
    digit = re.compile("[0_.]*([1-9a-f])" if start else r"[\d_.]*?([1-9])", re.IGNORECASE).match(literal, start)
    if digit is None:
        return f"{literal[:start]}1{literal[start + 1 :]}"
    return f"{literal[: digit.start(1)]}{int(digit[1], 16) - 1:x}{literal[digit.end() :]}"


def constant_passes(tests: Iterable[RustTest], functions: set[str]) -> int:
    """How many tests pass at most if each function gives one constant: those that expect the same of the same
    functions, whatever these are given. Such are `assert!(is_leap(2000))` and `assert!(is_leap(1996))`.
    """
    expected: dict[frozenset[str], Counter[str]] = defaultdict(Counter)
    for test in tests:
        if not test.wants_panic:
            words = list(_expectation(test.body, functions))
            expected[frozenset(functions).intersection(words)][" ".join(words)] += 1
    return sum(max(counts.values()) for counts in expected.values())


def _expectation(body: Node, functions: set[str]) -> Iterator[str]:
    """The words of a test's assertions, with the values of its variables, without the arguments of the functions."""
    lets = {name: tokens(value, texts=True) for name, value in _lets(body).items()}
    words = [
        word for node in walk(body) if field_text(node, "macro") in ASSERTIONS for word in tokens(node, texts=True)
    ]
    words = words or tokens(body, texts=True)
    for _ in range(3):  # variables of variables
        words = [more for word in words for more in lets.get(word, [word])]
    depth, previous = 0, ""
    for word in words:
        if depth or (word == "(" and previous in functions):
            depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
        else:
            yield word
        previous = word


def _lets(body: Node) -> dict[str, Node]:
    """The values of the variables that a body's own statements declare and that are used once, by name. One that is
    used twice may be what is asked as well as what is expected.
    """
    declared = [node for node in body.named_children if node.type == "let_declaration"]
    values = {field_text(node, "pattern"): node.child_by_field_name("value") for node in declared}
    named = Counter(tokens(body))
    return {name: value for name, value in values.items() if value is not None and named[name] == 2}


def arguments(macro: Node) -> list[list[Node]]:
    """The tokens of a macro's arguments, split at its commas."""
    parts = groupby(macro.named_children[-1].children[1:-1], key=lambda token: token.type == ",")
    return [list(part) for is_comma, part in parts if not is_comma]
