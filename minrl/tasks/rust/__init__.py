"""Rust: write a library that passes tests it has not seen.

    Return how many of the numbers are even.          ->    ```rust
    pub fn evens(numbers: &[i32]) -> usize {                pub fn evens(numbers: &[i32]) -> usize {
        todo!()                                                 numbers.iter().filter(|n| *n % 2 == 0).count()
    }                                                       }
                                                            ```

The last Rust block of the completion becomes `src/lib.rs`; `Cargo.toml`, tests and settings are ours. It is built,
hidden tests are compiled against it and run, and clippy reads it, all in the sandbox.

`build` is paid if the hidden tests compile against the solution, `tests` by the share of them that passes. `clippy`,
`own_tests` and `quality` are paid only if every hidden test passed, which is `solved`: no style makes up for a missing
solution. 1.0 is a solution that also leaves clippy nothing to report, has tests of its own and is well written.

A solution runs in one process with the tests, so these attacks are met:
- Its exit status, its output and libtest's lines do not count: a test passed if it wrote a secret after its last
  assertion. `std::process::exit(0)`, a faked `test result: ok` or another test harness gain nothing.
- Only the test program holds the secret. What could read it (unsafe, files, environment, processes, sockets,
  assembler, symbols at link time, `include!`) is refused by its tokens (rust_guard.py) and by
  `#![forbid(unsafe_code)]`. A refused solution earns 0. Rows whose reference needs `unsafe` are left out unless
  `unsafe_rows` allows them; there, a program that searches its own memory could find the secret.
- The tests call std's `assert_eq!`, whatever the solution exports. Results must have the types that the stub names. An
  `impl PartialEq` of its own is refused if the row's stub and reference have none.
- Expected values are compiled into the test program; only the same refusals keep them from being read.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from minrl.config import PATH
from minrl.model.thoughts import after_thoughts
from minrl.sandbox.calls import Limits, describe
from minrl.tasks.rows import Source, identity, load_rows
from minrl.tasks.rust.cargo import CargoLimits, Package, Workspace, cache_folder, own_workspace, toolchain
from minrl.tasks.rust.guard import refusal
from minrl.tasks.rust.quality import QualityWeights, quality, scores
from minrl.tasks.rust.rows import Problem, problems
from minrl.tasks.rust.signatures import signature_checks
from minrl.tasks.rust.syntax import parse, text, walk
from minrl.tasks.rust.tests import Secret, defined_names, find_tests, instrumented, own_tests, replace
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, split, weighted
from minrl.types import Example, Reward, require

SOURCE = Source("nuprl/MultiPL-E", ("tests",), {"all": "test"}, configuration="mbpp-rs")
BLOCK = re.compile(r"```(?:rust|rs)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
MAX_CHARACTERS = 200_000
SYSTEM = (
    "You write Rust. Answer with the whole of `src/lib.rs` in one ```rust block: no `main`, no other files, no crates, "
    "no unsafe. It is built with the current stable compiler, read by clippy with all warnings as errors, and tested "
    "by tests that you do not see. Everything that a caller needs is `pub`. Document public items, return errors "
    "instead of panicking, and add a `#[cfg(test)]` module with tests of your own."
)


@dataclass(frozen=True, kw_only=True)
class RustOptions(QualityWeights):
    """What is paid, and what building and testing may take."""

    build_weight: float = 0.05
    """Weight of a solution that builds and that the hidden tests compile against."""
    test_weight: float = 0.75
    """Weight of the share of hidden tests that pass."""
    clippy_weight: float = 0.1
    """Weight of no warning of clippy; paid only where every hidden test passed."""
    own_test_weight: float = 0.05
    """Weight of passing tests of the solution's own with real assertions; paid only where every hidden test passed."""
    quality_weight: float = 0.05
    """Weight of the mean of the quality scores; paid only where every hidden test passed."""
    own_tests_wanted: int = 3
    """How many own tests with real assertions make the part whole."""
    unsafe_rows: Literal["left out", "allowed"] = "left out"
    """Rows whose reference needs `unsafe`: left out, or kept, with solutions that may use it."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on, where the rows have no split of their own."""
    build_seconds: float = 60.0
    """Limit for each cargo command of one solution, in seconds."""
    test_seconds: float = 10.0
    """Limit for running all tests of one solution, in seconds of processor time; by the clock twice as many, for busy
    machines."""
    build_memory_mib: int = 4096
    """Memory (address space) for the compiler, in MiB."""
    test_memory_mib: int = 1024
    """Memory (address space) for the tests, in MiB."""
    cache: str = field(default="", metadata=PATH)
    """Folder of the workers' target directories; empty: one in the temporary directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (self.build_weight, self.clippy_weight, self.own_test_weight, self.quality_weight)
        require(min(weights) >= 0, f"rust weights must be at least 0, got {weights}")
        require(self.test_weight > sum(weights), f"rust.test_weight must outweigh the others, got {self.test_weight}")
        require(0 < self.held_out_share < 1, f"rust.held_out_share must be in (0, 1), got {self.held_out_share}")
        for name in ("own_tests_wanted", "build_seconds", "test_seconds", "build_memory_mib", "test_memory_mib"):
            require(getattr(self, name) > 0, f"rust.{name} must be above 0, got {getattr(self, name)}")

    def limits(self) -> CargoLimits:
        """The limits of one solution."""
        build_s, test_s, output = self.build_seconds, self.test_seconds, 8 * 2**20
        build = Limits(
            wall_s=build_s, cpu_s=build_s, memory_mib=self.build_memory_mib, processes=128, output_bytes=output
        )
        tests = Limits(wall_s=2 * test_s, cpu_s=test_s, memory_mib=self.test_memory_mib, output_bytes=output)
        return CargoLimits(build, tests)


def extract_code(completion: str) -> str | None:
    """The last closed ```rust block; None if there is none.

    >>> extract_code("first ```rust\\nfn a() {}\\n``` no:\\n```rust\\nfn b() {}\\n```")
    'fn b() {}\\n'
    """
    said = after_thoughts(completion)
    blocks = BLOCK.findall(said[: said.rfind("\n```") + 4])  # what is opened later has no end to look for
    return blocks[-1] if blocks else None


@dataclass(frozen=True)
class RustReward:
    """The reward of one completion, with the task's options. Picklable, for the workers."""

    options: RustOptions

    def __call__(self, completion: str, example: Example) -> Reward:
        """Build, test, lint and count; each only if the step before succeeded."""
        parts = dict.fromkeys(("build", "tests", "clippy", "own_tests", "quality", "refused"), 0.0)
        parts |= {f"quality_{name}": 0.0 for name in self.options.of_scores()}
        solution = extract_code(completion)
        if solution is None or len(solution) > MAX_CHARACTERS:
            return self.paid(parts)
        package = _package(example)
        reason = refusal(solution, example["given"], package.allow_unsafe)
        if reason is not None:
            return self.paid({**parts, "refused": 1.0, f"refused_{reason}": 1.0})
        workspace, limits = own_workspace(cache_folder(self.options.cache)), self.options.limits()
        workspace.put(package, solution)
        if workspace.cargo(["build"], limits).status != "ok":
            return self.paid(parts)
        parts["build"], parts["tests"] = _hidden_tests(workspace, example, solution, limits)
        parts["clippy"] = float(_clippy(workspace, example, solution, limits))
        if parts["tests"] == 1:
            parts["own_tests"] = _own_tests(workspace, package, solution, self.options.own_tests_wanted, limits)
        found = scores(solution)
        parts |= {f"quality_{name}": score for name, score in found.items()}
        parts["quality"] = quality(found, self.options)
        return self.paid(parts)

    def paid(self, parts: Mapping[str, float]) -> Reward:
        """The weighted parts. Style counts only beside a full solution, which is what `solved` means."""
        options = self.options
        weights = {
            "build": options.build_weight,
            "tests": options.test_weight,
            "clippy": options.clippy_weight,
            "own_tests": options.own_test_weight,
            "quality": options.quality_weight,
        }
        solves = parts["build"] == parts["tests"] == 1
        counted = {name: parts[name] if solves or name in ("build", "tests") else 0.0 for name in weights}
        return Reward(weighted(counted, weights).value, parts, full=solves)


def _hidden_tests(workspace: Workspace, example: Example, solution: str, limits: CargoLimits) -> tuple[float, float]:
    """Whether the hidden tests compile against the solution, and the share of them that passed. A test that wants a
    panic counts only if an ordinary one passed: `todo!()` panics too.
    """
    secret, own_names = Secret.new(), defined_names(parse(example["stub"]))
    checks = signature_checks(example["stub"], solution, example["package"]["crate"])
    files = {name: instrumented(source, secret, own_names) + checks for name, source in example["tests"].items()}
    workspace.write(files)
    programs = workspace.test_programs([flag for name in files for flag in ("--test", Path(name).stem)], limits)
    if programs is None:
        return 0.0, 0.0
    total, passed, ordinary = 0, 0, 0
    for name, source in example["tests"].items():
        tests = find_tests(parse(source))
        names = [test.name for test in tests]
        reported = workspace.run_tests(programs[Path(name).stem], names, secret.passed, limits) if names else set()
        total, passed = total + len(names), passed + len(reported)
        ordinary += sum(test.name in reported for test in tests if not test.wants_panic)
    return 1.0, passed / total if ordinary else 0.0


def _own_tests(workspace: Workspace, package: Package, solution: str, wanted: int, limits: CargoLimits) -> float:
    """The share of the wanted number of real own tests, times the share of all own tests that pass."""
    tests, real = own_tests(solution)
    if not real:
        return 0.0
    secret = Secret.new()
    library = package.library(instrumented(solution, secret, defined_names(parse(solution))))
    workspace.write({"src/lib.rs": library})
    programs = workspace.test_programs(["--lib"], limits)
    if programs is None:
        return 0.0
    (program,) = programs.values()
    passed = workspace.run_tests(program, [test.name for test in tests], secret.passed, limits)
    return min(1.0, sum(test.name in passed for test in real) / wanted) * len(passed) / len(tests)


def _clippy(workspace: Workspace, example: Example, solution: str, limits: CargoLimits) -> bool:
    """Whether clippy reports nothing, with blanks for each `allow`, `expect` and `warn` that the row does not have."""
    silenced = [
        (node.start_byte, node.end_byte, " " * (node.end_byte - node.start_byte))
        for node in walk(parse(solution))
        if node.type in ("attribute_item", "inner_attribute_item")
        and text(node).lstrip("#![ \n").startswith(("allow", "expect", "warn"))
        and text(node) not in example["given"]
    ]
    workspace.write({"src/lib.rs": _package(example).library(replace(solution, silenced))})
    return workspace.cargo(["clippy", "--lib", "--", "-D", "warnings"], limits).status == "ok"


def make(options: RustOptions, data_path: str) -> Task:
    """The problems of MultiPL-E's MBPP in Rust, or of a local file in the columns of `rust_rows`."""

    def load() -> Dataset:
        toolchain()
        (rows,) = load_rows(SOURCE, data_path).values()
        examples = (_example(problem) for problem in problems(rows, options.unsafe_rows == "allowed"))
        return split(examples, options.held_out_share, by=lambda example: identity(str(example.prompt)))

    return Task(DeferredDataset(load), RustReward(options), notes=lambda: [f"rust from {toolchain()}", describe()])


def _package(example: Example) -> Package:
    """The example's package, whose tuples became lists if the example was written as JSON."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in example["package"].items()}
    return Package(**fields)


def _example(problem: Problem) -> Example:
    shown = f"\n\n`src/lib.rs` begins as:\n\n```rust\n{problem.stub.strip()}\n```" if problem.stub.strip() else ""
    prompt = chat(SYSTEM, problem.instructions.strip() + shown)
    fields = {"stub": problem.stub, "tests": problem.tests, "package": asdict(problem.package), "given": problem.given}
    return Example(problem.id, prompt, fields, problem.category)


TASK = TaskDefinition(RustOptions, make)
