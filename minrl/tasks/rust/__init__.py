"""Rust: write a library that passes tests it has not seen.

    Return how many of the numbers are even.          ->    ```rust
    pub fn evens(numbers: &[i32]) -> usize {                pub fn evens(numbers: &[i32]) -> usize {
        todo!()                                                 numbers.iter().filter(|n| *n % 2 == 0).count()
    }                                                       }
                                                            ```

A Rust block of the completion becomes `src/lib.rs` (fences.py); `Cargo.toml`, tests and settings are ours. It is built,
hidden tests are compiled against it and run, and clippy reads it, all in the sandbox.

`build` is paid if the hidden tests compile against the solution, `tests` by the share of them that passes. `clippy`,
`own_tests` and `quality` are paid only if every hidden test passed, which is `solved`: no style makes up for a missing
solution. 1.0 is a solution that also leaves clippy nothing to report, has tests of its own and is well written.

A solution runs in one process with the tests, so these attacks are met:
- Its exit status, its output and libtest's lines do not count: a test passed if it wrote a mark to a descriptor that
  safe Rust cannot reach, after its last assertion. `std::process::exit(0)` or a faked `test result: ok` gain nothing.
- The program may be run and not be read, so the kernel shows a process neither its own file nor its memory (runner.py).
- Each test has a twin with a false assertion. Who claims both, by whatever means, earns 0 (claims.py).
- `unsafe` is the compiler's to refuse. The files that the compiler read and the object code that it made are looked at:
  no include of other files, no files, processes, arguments or sockets (objects.py).
- The tests call std's `assert_eq!`, whatever the solution exports. Results must have the types that the stub names. An
  `impl PartialEq` of its own is refused if the row's stub and reference have none (guard.py).
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minrl.sandbox.calls import describe
from minrl.tasks.rows import Source, identity, load_each
from minrl.tasks.rust import compiler
from minrl.tasks.rust.claims import Claim, contradictory, passed
from minrl.tasks.rust.compiler import Budget, Failed, Made, Package, TooSlow
from minrl.tasks.rust.fences import extract_code as extract_code
from minrl.tasks.rust.guard import REASONS, refusal
from minrl.tasks.rust.objects import foreign
from minrl.tasks.rust.options import RustOptions
from minrl.tasks.rust.quality import quality, scores, share_in_macros
from minrl.tasks.rust.rows import WHY, Problem, problems, read_problem
from minrl.tasks.rust.runner import program_folder, run_tests, working_toolchain
from minrl.tasks.rust.signatures import signature_checks
from minrl.tasks.rust.syntax import parse, text, tokens, walk
from minrl.tasks.rust.tests import defined_names, find_tests, instrumented, own_tests, replace
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, split, weighted
from minrl.types import Example, Reward, UserError

SOURCE = Source("nuprl/MultiPL-E", ("tests",), {"all": "test"}, configuration="mbpp-rs")
SILENCING = frozenset(("allow", "expect", "warn"))
MOST_IN_MACROS = 1 / 3
"""Share of a solution's tokens in macros of its own, beyond which clippy has not seen it."""
MAX_CHARACTERS = 50_000
AFTER_S = 30.0
"""Seconds by the clock for what follows the end of a solution's own: killing it, and reading its source."""
SYSTEM = (
    "You write Rust. Answer with the whole of `src/lib.rs` in one ```rust block: no `main`, no other files, no crates, "
    "no unsafe. It is built with the current stable compiler, read by clippy with all warnings as errors, and tested "
    "by tests that you do not see. Everything that a caller needs is `pub`. Document public items, return errors "
    "instead of panicking, and add a `#[cfg(test)]` module with tests of your own."
)


@dataclass(frozen=True)
class RustReward:
    """The reward of one completion, with the task's options. Picklable, for the workers."""

    options: RustOptions

    def __call__(self, completion: str, example: Example) -> Reward:
        """Build, test, lint and count; each only if the step before succeeded."""
        parts = dict.fromkeys(("build", "tests", "clippy", "own_tests", "quality", "refused", "build_limit"), 0.0)
        parts |= {f"quality_{name}": 0.0 for name in self.options.of_scores()}
        if "package" not in example.fields:  # a row of the data, as --completions gives it
            example = _of_row(example.fields, self.options.unsafe_rows == "allowed")
        solution = extract_code(completion, example["stub"])
        if solution is None or len(solution) > MAX_CHARACTERS:
            return self.paid(parts)
        package = _package(example)
        reason = refusal(solution, example["given"], package.allow_unsafe)
        if reason is not None:
            return self.refused(parts, reason)
        folder, budget = program_folder(self.options.cache), self.options.budget()
        verdict = _hidden_tests(package, example, solution, folder, budget)
        if verdict.refused:
            return self.refused(parts, verdict.refused)
        parts |= {"build": verdict.build, "tests": verdict.tests, "build_limit": verdict.build_limit}
        if parts["tests"] == 1:
            parts["clippy"] = float(_clippy(package, example, solution, budget))
            parts["own_tests"] = _own_tests(package, example, solution, self.options.own_tests_wanted, folder, budget)
        found = scores(solution) if verdict.build else {}
        parts |= {f"quality_{name}": score for name, score in found.items()}
        parts["quality"] = quality(found, self.options) if found else 0.0
        return self.paid(parts)

    def refused(self, parts: Mapping[str, float], reason: str) -> Reward:
        """Nothing, with the reason among the parts."""
        assert reason in REASONS, "the names of the parts are the task's own"
        return self.paid({**parts, "refused": 1.0, f"refused_{reason}": 1.0})

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


@dataclass(frozen=True)
class Verdict:
    """What the hidden tests say: whether they compiled against the solution, the share that passed, why the solution is
    refused, and whether it took more than a compiler may take.
    """

    build: float = 0.0
    tests: float = 0.0
    refused: str = ""
    build_limit: float = 0.0


def _hidden_tests(package: Package, example: Example, solution: str, folder: Path, budget: Budget) -> Verdict:
    """Compile the solution, then each file of tests against it, and run those. A test that wants a panic counts only
    if an ordinary one passed: `todo!()` panics too. Nothing runs before all is built: a solution that sleeps leaves a
    compiler no time, which is the machine's fault.
    """
    library = compiler.build_library(package, solution, budget)
    if isinstance(library, Failed):
        return Verdict(build_limit=float(library.limited))
    refused = _reaches_out(library, example)
    programs = []
    for name, source in example["tests"].items() if not refused else ():
        written, claims = instrumented(source, defined_names(parse(example["stub"])), descriptor=3)
        written += signature_checks(example["stub"], solution, package.crate)
        program = compiler.build_tests(package, name, {**example["tests"], name: written}, library, budget)
        if isinstance(program, Failed):
            return Verdict(build_limit=float(program.limited))
        refused = refused or _reaches_out(program, example, ("write",))
        programs.append((find_tests(parse(source)), claims, program.linked))
    total, ordinary, proved = 0, 0, 0
    for found, claims, linked in programs if not refused else ():
        heard, _ = run_tests(linked, _marks(claims), folder, budget) if claims else (set(), set())
        refused = refused or "forged" * contradictory(claims, heard)
        names = passed(claims, heard)
        total, proved = total + len(found), proved + len(names)
        ordinary += sum(test.name in names for test in found if not test.wants_panic)
    return Verdict(refused=refused) if refused else Verdict(1.0, proved / total if ordinary else 0.0)


def _marks(claims: list[Claim]) -> dict[str, str]:
    return {mark: name for claim in claims for mark, name in claim.marks().items()}


def _reaches_out(made: Made, example: Example, called: tuple[str, ...] = ()) -> str:
    """Why what the compiler made is refused; empty if it is not. Our own tests call `called`."""
    return "reads_files" if made.read else foreign(made.objects, example["given"], called)


def _own_tests(package: Package, example: Example, solution: str, wanted: int, folder: Path, budget: Budget) -> float:
    """The share of the wanted number of real own tests, times the share of all own tests that pass."""
    tests, real = own_tests(solution, "\n".join(example["tests"].values()))
    if not real or budget.left() < 1:
        return 0.0
    written, claims = instrumented(solution, defined_names(parse(solution)), descriptor=1)
    try:
        program = compiler.build_own_tests(package, written, budget)
    except TooSlow:
        return 0.0
    if isinstance(program, Failed):
        return 0.0
    _, said = run_tests(program.linked, _marks(claims), folder, budget)
    names = passed(claims, said)
    return min(1.0, sum(test.name in names for test in real) / wanted) * len(names) / len(tests)


def _clippy(package: Package, example: Example, solution: str, budget: Budget) -> bool:
    """Whether clippy reports nothing, with blanks for each `allow`, `expect` and `warn` that the row does not have.
    Clippy does not look into macros: a solution that is written in them leaves it nothing to see.
    """
    root = parse(solution)
    silenced = [
        (node.start_byte, node.end_byte, " " * (node.end_byte - node.start_byte))
        for node in walk(root)
        if node.type in ("attribute_item", "inner_attribute_item")
        and not SILENCING.isdisjoint(tokens(node))
        and text(node) not in example["given"]
    ]
    hidden = share_in_macros(root, example["given"]) > MOST_IN_MACROS
    return not hidden and budget.left() > 1 and compiler.lint(package, replace(solution, silenced), budget)


def make(options: RustOptions, data_path: str) -> Task:
    """The problems of MultiPL-E's MBPP in Rust, or of a local file in the columns of `rust_rows`."""

    def load() -> Dataset:
        working_toolchain(program_folder(options.cache))
        read = functools.partial(read_problem, allow_unsafe=options.unsafe_rows == "allowed")
        (found,) = load_each(SOURCE, data_path, read).values()
        examples = map(_example, problems(found))
        return split(examples, options.held_out_share, by=lambda example: identity(str(example.prompt)))

    return Task(
        DeferredDataset(load),
        RustReward(options),
        notes=lambda: [f"rust from {working_toolchain(program_folder(options.cache))}", describe()],
        seconds=options.seconds + AFTER_S,
    )


def _package(example: Example) -> Package:
    """The example's package, whose tuples became lists if the example was written as JSON."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in example["package"].items()}
    return Package(**fields)


def _example(problem: Problem) -> Example:
    shown = f"\n\n`src/lib.rs` begins as:\n\n```rust\n{problem.stub.strip()}\n```" if problem.stub.strip() else ""
    prompt = chat(SYSTEM, problem.instructions.strip() + shown)
    fields = {"stub": problem.stub, "tests": problem.tests, "package": asdict(problem.package), "given": problem.given}
    return Example(problem.id, prompt, fields, problem.category)


def _of_row(row: Mapping[str, Any], allow_unsafe: bool) -> Example:
    """The example of a row of the data. Raises UserError for one that is left out."""
    problem = read_problem(row, allow_unsafe)
    if isinstance(problem, Problem):
        return _example(problem)
    raise UserError(f"{problem.name} cannot be scored: {WHY[problem.reason]}")


TASK = TaskDefinition(RustOptions, make)
