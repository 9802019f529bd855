"""Builds, lints and tests a Rust solution with cargo, in the sandbox, each time in a folder that is gone afterwards.

The verdict is what libtest prints for each hidden test, checked against cargo's exit status. The names of the tests are
drawn anew for each solution, and each must have exactly one verdict: what a solution prints itself is none.
"""

import json
import math
import re
import secrets
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from minrl.dataflow import UserError, require
from minrl.sandbox import Limits, Outcome, SandboxError, run
from minrl.tasks.rust_quality import marks, parse
from minrl.utils.settings import Positive, Settings

VERDICT = re.compile(r"^test (?:\S+::)?(\w+)(?: - should panic)? \.\.\. (ok|FAILED)$", re.MULTILINE)
MESSAGE = re.compile(rb"^\S+:\d+:\d+: (error|warning)", re.MULTILINE)
LIBRARY = "src/lib.rs"
"""Where the solution stands. Tests of this path are appended to it, and see what is not `pub`."""
BUILD_MEMORY_MIB, TEST_MEMORY_MIB = 4096, 1024
"""Address space of the compiler and of the tests."""


@dataclass(frozen=True, kw_only=True)
class BuildLimits(Settings):
    """What building and testing one solution may take."""

    build_seconds: Positive = 5.0
    """Limit for each compilation of one solution, in seconds of processor time."""
    test_seconds: Positive = 15.0
    """Limit for running the tests, in seconds of processor time; by the clock twice as many."""
    seconds: Positive = 120.0
    """Limit for all of one solution, in seconds by the clock. The reward's deadline is later, whatever
    --reward-deadline-s says."""


@dataclass(frozen=True)
class Package:
    """What a row decides about its package: allowed lints, features (which are off) and other files of src/. One whose
    callers are not known is `private`: what nothing calls is no warning.
    """

    crate: str
    edition: str = "2024"
    allowed_lints: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    private: bool = False

    def sources(self, solution: str, own_tests: bool = False) -> dict[str, str]:
        """The files of the package. With `own_tests` the solution's own tests are built."""
        manifest = [
            f'[package]\nname = "solution"\nversion = "0.1.0"\nedition = {json.dumps(self.edition)}',
            f"[lib]\nname = {json.dumps(self.crate)}\ntest = {json.dumps(own_tests)}\ndoctest = false",
            "[workspace]\n[profile.dev]\ndebug = false\nincremental = false",
            "[features]",
            *(f"{json.dumps(name)} = []" for name in self.features),
            *(['[lints.rust]\ndead_code = "allow"'] if self.private else []),
            "[lints.clippy]",
            *(f'{json.dumps(name)} = "allow"' for name in self.allowed_lints),
        ]
        return {**self.files, "Cargo.toml": "\n".join(manifest) + "\n", LIBRARY: solution}


@cache
def toolchain() -> Path:
    """The folder of cargo, rustc and clippy, after an empty package was built, tested and linted there. `UserError` if
    that does not work here: every right solution would earn nothing.
    """
    missing = [name for name in ("rustc", "cargo", "cc") if shutil.which(name) is None]
    require(
        not missing, f"the rust task needs {' and '.join(missing)}: install Rust from https://rustup.rs and a C linker"
    )
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    require(found.returncode == 0, f"rustc does not work ({first_line(found.stderr)}): run `rustup default stable`")
    programs = Path(found.stdout.strip()) / "bin"
    if not (programs / "cargo").exists():  # a distribution's own: all programs lie in one folder
        programs = Path(shutil.which("cargo") or "").resolve().parent
    require((programs / "clippy-driver").exists(), "the rust task needs clippy: run `rustup component add clippy`")
    empty = Cargo(Package("empty"), BuildLimits(build_seconds=60.0), programs)
    try:
        passed = empty.passed("//! Nothing.\n", {"tests/t.rs": "#[test] fn runs() {}\n"})
        if not passed or not empty.lints("//! Nothing.\n"):
            raise SandboxError("an empty package is not built, tested and linted")
    except SandboxError as error:
        raise UserError(
            f"Rust in {programs} does not run in the sandbox ({error}): install Rust where every user may read it "
            "(RUSTUP_HOME=/opt/rustup)"
        ) from error
    return programs


def first_line(said: str) -> str:
    """The first line, to stand within a sentence."""
    return said.strip().partition("\n")[0].rstrip(".")


def renamed(source: str) -> tuple[str, dict[str, bool]]:
    """A file with other names for the tests that are compiled without features: a test can read its own. The names,
    each with whether its test must panic.
    """
    names: dict[str, bool] = {}
    data, pieces, written, pending = source.encode(), list[bytes](), 0, [parse(source)]
    while pending:
        node = pending.pop()
        said = ["".join(mark.split()) for mark in marks(node)] if node.type in ("mod_item", "function_item") else []
        if any(mark.startswith("#[cfg(") and mark != "#[cfg(test)]" for mark in said):
            continue
        if "#[test]" in said:
            old, new = node.child_by_field_name("name"), f"t{secrets.token_hex(8)}"
            names[new] = any(mark.startswith("#[should_panic") for mark in said)
            pieces += [data[written : old.start_byte], new.encode()]
            written = old.end_byte
        pending += reversed(node.children)
    return b"".join([*pieces, data[written:]]).decode(), names


class Cargo:
    """cargo for one solution, within its limits, which begin now."""

    def __init__(self, package: Package, limits: BuildLimits, programs: Path | None = None) -> None:
        self.package, self.limits, self.programs = package, limits, programs or toolchain()
        self._ends = time.monotonic() + limits.seconds

    def builds(self, solution: str) -> dict[str, float]:
        """Build the solution alone: the part `build`, and how many errors and warnings the compiler has."""
        ran = self._in_sandbox(f"{self._limited('build')} --message-format=short", self.package.sources(solution))
        built = ran.status == "ok"
        if not built:
            self._require_verdict(ran)
        said = MESSAGE.findall(ran.stderr)
        errors = max(said.count(b"error"), int(not built))
        return {"build": float(built), "num_errors": errors, "num_warnings": said.count(b"warning")}

    def hidden_tests(self, solution: str, tests: Mapping[str, str]) -> dict[str, float]:
        """Build the solution with the row's tests, files by path, and run them: the parts `build` and `tests`. A test
        that wants a panic counts only if an ordinary one passed: `todo!()` panics too.
        """
        drawn = {path: renamed(source) for path, source in tests.items()}
        names = {name: panics for _, found in drawn.values() for name, panics in found.items()}
        passed = self.passed(solution, {path: source for path, (source, _) in drawn.items()})
        if passed is None:
            return {"build": 0.0, "tests": 0.0}
        good = passed & names.keys()
        return {"build": 1.0, "tests": len(good) / len(names) if any(not names[name] for name in good) else 0.0}

    def passed(self, solution: str, tests: Mapping[str, str], own: bool = False) -> set[str] | None:
        """The names of the tests that passed, each with one verdict; None if the build failed. If the program dies, the
        tests before count. With `own` they are the solution's own.
        """
        limits, mark, inside = self.limits, secrets.token_hex(16), tests.get(LIBRARY, "")
        targets = "--lib" if own or inside else " ".join(f"--test {Path(path).stem}" for path in tests)
        test = (
            f"ulimit -t {math.ceil(limits.test_seconds)}; ulimit -v {1024 * TEST_MEMORY_MIB}; "
            f"exec timeout -s KILL {math.ceil(2 * limits.test_seconds)} cargo test --offline --no-fail-fast {targets} "
            "-- --include-ignored --test-threads=1"
        )
        build = f"{self._limited('test')} --no-run {targets}"
        files = {**tests, **self.package.sources(f"{solution}\n{inside}", bool(own or inside))}
        ran = self._in_sandbox(f"({build}) || exit 1\necho {mark}\n({test}); s=$?; echo; echo {mark} $s", files)
        _, built, tested = ran.stdout.decode(errors="replace").partition(f"{mark}\n")
        if not built:
            self._require_verdict(ran)
            return None
        output, _, status = tested.partition(f"\n{mark} ")
        said: dict[str, list[str]] = defaultdict(list)
        for name, verdict in VERDICT.findall(output):
            said[name].append(verdict)
        good = {name for name, verdicts in said.items() if verdicts == ["ok"]}
        return set() if status == "0\n" and len(good) < len(said) else good  # cargo says that none failed

    def lints(self, solution: str) -> bool:
        """Whether clippy reports nothing."""
        ran = self._in_sandbox(f"{self._limited('clippy')} --quiet -- -D warnings", self.package.sources(solution))
        if ran.status != "ok":
            self._require_verdict(ran)
        return ran.status == "ok"

    def _limited(self, command: str) -> str:
        return f"ulimit -t {math.ceil(self.limits.build_seconds)}; exec cargo {command} --offline"

    def _in_sandbox(self, script: str, files: Mapping[str, str]) -> Outcome:
        linker, limits = Path(shutil.which("cc") or "cc").resolve(), self.limits
        allowed = Limits(
            wall_s=max(1.0, self._ends - time.monotonic()),
            cpu_s=max(limits.build_seconds, limits.test_seconds),
            memory_mib=BUILD_MEMORY_MIB,
            processes=128,
            file_mib=512,
            output_bytes=2**22,
        )
        return run(
            ["sh", "-c", script],
            {name: content.encode("utf-8", "replace") for name, content in files.items()},
            allowed,
            readable=[self.programs.parent, linker.parent],
            environment={"PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin", "RUST_BACKTRACE": "0"},
        )

    def _require_verdict(self, ran: Outcome) -> None:
        """Refuse to blame a solution for a build that failed for another reason than its source or its limits."""
        if ran.status == "timeout" and ran.processor_s < self.limits.build_seconds / 2:
            raise SandboxError("the compiler got too little of the processor: raise --rust.seconds")
        if ran.status == "error" and b"could not compile" not in ran.stderr and b"(signal: " not in ran.stderr:
            raise SandboxError(f"the compiler could not run: {first_line(ran.stderr.decode(errors='replace'))}")
