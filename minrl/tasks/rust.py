"""Rust: write a library that passes tests it has not seen.

    Return how many of the numbers are even.          ->    ```rust
    pub fn evens(numbers: &[i32]) -> usize {                pub fn evens(numbers: &[i32]) -> usize {
        todo!()                                                 numbers.iter().filter(|n| *n % 2 == 0).count()
    }                                                       }
                                                            ```

A Rust block of the completion becomes `src/lib.rs` of a package whose other files are ours. cargo builds it, runs the
hidden tests and clippy, all in the sandbox. Each of the parts below has a weight, an option; the reward is their sum,
and its maximum the sum of what can be earned.

    build                     the hidden tests compile against the solution; without them, it builds
    tests                     share of the hidden tests that pass
    clippy                    clippy reports nothing
    own_tests                 share of the wanted number of own tests that pass, assert, and call what is tested
    quality                   mean of rust_quality.scores
    no_errors, no_warnings    of the compiler; num_errors, num_warnings: how many
    code_block, test_block    a Rust block with a function; a module of tests
    asserts, non_empty        different assertions, a quarter each; both blocks and three lines that say something
    parses                    the syntax is right, and then what rust_quality.points counts

Where hidden tests are paid for, `clippy`, `own_tests` and `quality` are paid only if every one of them passed, which is
`solved`. A solution runs in one process with them: words by which it could reach the verdict (processes, files, raw
output, `unsafe`, macros of its own, cells, its own `PartialEq`) are refused then, unless the row's own stub or
reference uses them. A soundness hole of the compiler is outside of what this can stop.

Where a row has no tests, or `test_weight` is 0, every part is paid for itself, nothing is refused, a completion without
a block counts as a solution, and `solved` is a build with whole `clippy` and `own_tests`, where they have a weight.

Rows have one of these forms:

    slug, instructions, stub, tests, example, extra_files, cargo_toml     as exercism's: files by path, or one text
    prompt, tests (a program whose main asserts, a list of assertions, or none)   as MultiPL-E's
    rust_prompt, rust_test_list, task_id                                  as rust-rl's

Of an exercism's row and of a head of a function, callers see what is `pub`. Other rows have no signature to keep: their
tests stand in the solution's own module.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Annotated, Any

from loguru import logger

from minrl.dataflow import Example, Reward, UserError, require
from minrl.sandbox import describe
from minrl.tasks.answers import fenced_blocks
from minrl.tasks.data import Row, Source, identity, load_each
from minrl.tasks.rust_build import LIBRARY, BuildLimits, Cargo, Package, renamed, toolchain
from minrl.tasks.rust_quality import (
    MOST_POINTS,
    QualityWeights,
    Weight,
    marks,
    parse,
    points,
    quality,
    scores,
    text,
    tokens,
    walk,
)
from minrl.tasks.task import Dataset, DeferredDataset, HeldOut, TaskOptions, chat, split
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, Count, Settings

LIST_CRATE = "solution"
MAX_CHARACTERS = 50_000
AFTER_S = 30.0
"""Seconds by the clock for what follows the end of a solution's own: killing it, and reading its source."""
SYSTEM = (
    "You write Rust. Answer with the whole of `src/lib.rs` in one ```rust block: no `main`, no other files, no crates, "
    "no unsafe, no macros of your own. It is built with the current stable compiler, read by clippy with all warnings "
    "as errors, and tested by tests that you do not see. Everything that a caller needs is `pub`. Document public "
    "items, return errors instead of panicking, and add a `#[cfg(test)]` module with tests of your own."
)

WORDS = frozenset([
    "unsafe", "extern", "macro_rules!", "macro_rules", "macro_export", "include_str", "include_bytes", "option_env",
    "link_section", "no_mangle", "export_name", "global_allocator", "automatically_derived", "no_main", "set_hook",
    "take_hook", "catch_unwind", "stdout", "track_caller", "Location", "type_name", "type_name_of_val",
    "long_running_const_eval", "panic_any", "resume_unwind", "thread_local", "Cell", "RefCell", "OnceCell", "OnceLock",
    "LazyLock", "Mutex", "RwLock",
])  # fmt: skip
"""Words that a solution may not hold: code that no compiler checks, other files, the verdict and who asks for it, and
values that change while they are compared. The value of a panic and of a thread is dropped after libtest has stopped
capturing what a test prints.
"""
MODULES = frozenset(("process", "fs", "net", "env", "os", "backtrace"))
"""Modules of std that may not stand in a path."""
MACROS = frozenset(("include", "env", "asm"))
SHADOWED = frozenset([
    "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
    "f32", "f64", "String", "Vec", "Option", "Result", "Box", "Some", "None", "Ok", "Err", "ToString", "std", "core",
    "assert", "assert_eq", "assert_ne", "is_some", "is_none", "is_ok", "is_err",
])  # fmt: skip
"""Names that mean std's in the tests."""
DEFINING = frozenset(("struct", "enum", "union", "trait", "mod", "fn"))
COMPARING = frozenset(("PartialEq", "PartialOrd"))
"""Traits that a solution derives, and does not write."""
SILENCING = frozenset(("allow", "expect", "warn"))
ODD_SPACES = re.compile("[\v\f\x85\u200e\u200f\u2028\u2029]")
"""White space of Rust that tree-sitter takes for letters."""
DEFINED = re.compile(r"\b(?:fn|struct|enum|union|type|trait|mod|const|static|macro_rules!)\s+(?:r#)?(\w+)")
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*mod\s+\w+\s*\{")
ASSERTIONS = frozenset(("assert", "assert_eq", "assert_ne"))
NEEDS_TESTS = ("clippy", "own_tests", "quality")
"""Parts that are paid only if every hidden test passed."""
REPORTED = ("build", "tests", *NEEDS_TESTS, "refused", "num_errors", "num_warnings")
"""Parts that are curves whatever their weight is; others are if they have one."""
UNTESTED = "it builds, and clippy and its own tests are whole where they have a weight"
"""When a solution is solved without hidden tests."""
Penalty = Annotated[float, Bound(most=0)]


@dataclass(frozen=True, kw_only=True)
class PartWeights(Settings):
    """What each part counts for."""

    build_weight: Weight = 0.05
    """Weight of a solution that builds and that the hidden tests compile against."""
    test_weight: Weight = 0.75
    """Weight of the share of hidden tests that pass. 0: they are not run, and every other part is paid for itself."""
    clippy_weight: Weight = 0.1
    """Weight of no warning of clippy; beside hidden tests paid only where all of them passed."""
    own_test_weight: Weight = 0.05
    """Weight of passing tests of the solution's own; beside hidden tests paid only where all of them passed."""
    quality_weight: Weight = 0.05
    """Weight of the mean of the quality scores; beside hidden tests paid only where all of them passed."""
    code_block_weight: Weight = 0.0
    """Weight of a Rust block with a function."""
    test_block_weight: Weight = 0.0
    """Weight of a module of tests in the solution."""
    asserts_weight: Weight = 0.0
    """Weight of four different assertions in it; a quarter for each."""
    non_empty_weight: Weight = 0.0
    """Weight of both blocks with three lines of code."""
    no_errors_weight: Weight = 0.0
    """Weight of a solution without an error of the compiler."""
    no_warnings_weight: Weight = 0.0
    """Weight of a solution that builds without a warning of the compiler."""
    num_errors_weight: Penalty = 0.0
    """Added for each error of the compiler."""
    num_warnings_weight: Penalty = 0.0
    """Added for each warning of the compiler."""
    parses_weight: Weight = 0.0
    """Weight of right syntax."""
    structure_weight: Weight = 0.0
    """Weight of a point for functions, structs, enums and traits; at most 5."""
    patterns_weight: Weight = 0.0
    """Weight of a point for Result, Option and `?`; at most 2."""
    documentation_weight: Weight = 0.0
    """Weight of a point for documented functions; at most 2."""
    idioms_weight: Weight = 0.0
    """Weight of a point for iterators, `match`, closures, chaining, destructuring, turbofish; at most 3.9."""
    length_weight: Weight = 0.0
    """Weight of 0.5 points for 10 to 100 lines, -1 below 5, -2 above 200."""
    excess_weight: Penalty = 0.0
    """Added for each point of complexity above 10 and of nesting above 3."""
    num_panics_weight: Penalty = 0.0
    """Added for each unwrap, expect and panic."""
    has_unsafe_weight: Penalty = 0.0
    """Added for unsafe code."""

    def of_parts(self) -> dict[str, float]:
        """The weights that are not 0, by the names of the parts."""
        names = {"test_weight": "tests", "own_test_weight": "own_tests"}
        found = {names.get(one.name, one.name.removesuffix("_weight")): one.name for one in fields(PartWeights)}
        return {part: weight for part, name in found.items() if (weight := getattr(self, name))}


@dataclass(frozen=True, kw_only=True)
class RustOptions(TaskOptions, PartWeights, QualityWeights, BuildLimits):
    """What is paid, and what building and testing may take."""

    prefix = "rust."
    own_tests_wanted: Count = 3
    """How many own tests with real assertions make the part whole."""
    dataset: str = "nuprl/MultiPL-E"
    """Dataset of the hub, where no local file is named."""
    configuration: str = "mbpp-rs"
    """Its configuration, such as humaneval-rs. Empty: it has none."""
    split: str = "test"
    """Its split, of which `held_out_share` is held out."""
    system_prompt: str = SYSTEM
    """The system message. Empty: none."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on, where the rows have no split of their own."""


@dataclass(frozen=True)
class RustReward:
    """The reward of one completion, with the task's options. Picklable, for the workers."""

    options: RustOptions

    def __call__(self, completion: str, example: Example) -> Reward:
        """Build, test, lint and count; each only if the step before succeeded and somebody wants to know."""
        if "package" not in example.fields:  # a row of the data, as --completions gives it
            read = read_row(example.fields, self.options)
            require(isinstance(read, Example), f"the row cannot be scored: {read}")
            example = read  # type: ignore[assignment]
        tests = example["tests"] if self.options.test_weight else {}
        block = extract_code(completion, example["stub"])
        solution = block if block is not None or tests else after_thoughts(completion)
        if solution is None or len(solution) > MAX_CHARACTERS or not (tests or "fn" in tokens(parse(solution))):
            return self.paid({"num_errors": 1.0}, bool(tests))
        parts = blocks(solution, block is not None)
        if tests and refusal(solution, example["given"]):
            return self.paid({**parts, "refused": 1.0, "num_errors": 1.0}, True)
        parts |= self.measured(solution, example, tests)
        parts["no_errors"] = float(not parts["num_errors"])
        parts["no_warnings"] = float(parts["build"] and not parts["num_warnings"])
        parts["parses"] = float(not parse(solution).has_error)
        if parts["parses"]:
            parts |= points(solution)
        found = scores(solution) if parts["build"] else {}
        parts |= {f"quality_{name}": score for name, score in found.items()}
        parts["quality"] = quality(found, self.options) if found else 0.0
        return self.paid(parts, bool(tests))

    def measured(self, solution: str, example: Example, tests: Mapping[str, str]) -> dict[str, float]:
        """What cargo says."""
        package: dict[str, Any] = dict(example["package"])
        cargo, weights = Cargo(Package(**package), self.options), self.options.of_parts()
        parts = cargo.builds(solution)
        if parts["build"] and tests:
            parts |= cargo.hidden_tests(solution, tests)
        if parts["build"] and (not tests or parts["tests"] == 1):
            if "clippy" in weights:
                parts["clippy"] = float(not silences(solution, example["given"]) and cargo.lints(solution))
            if "own_tests" in weights:
                hidden = "\n".join(tests.values())
                parts["own_tests"] = own_tests(cargo, solution, hidden, self.options.own_tests_wanted)
        return parts

    def paid(self, parts: Mapping[str, float], hidden: bool) -> Reward:
        """The sum of the weighted parts. Beside hidden tests style counts only with a full solution."""
        weights = self.options.of_parts()
        names = [*REPORTED, *(f"quality_{name}" for name in self.options.of_scores()), *weights]
        parts = {name: parts.get(name, 0.0) for name in names}
        whole = ["tests"] if hidden else [name for name in ("clippy", "own_tests") if name in weights]
        solved = all(parts[name] == 1 for name in ("build", *whole))
        counted = {name: 0.0 if hidden and not solved and name in NEEDS_TESTS else parts[name] for name in weights}
        most = {name: 0.0 if weight < 0 else MOST_POINTS.get(name, 1.0) for name, weight in weights.items()}
        if not hidden:
            most["tests"] = 0.0
        maximum, value = (math.fsum(weights[name] * of[name] for name in weights) for of in (most, counted))
        return Reward(value, parts, maximum, solved)


def extract_code(completion: str, stub: str = "") -> str | None:
    """The last block of Rust among those that define most of what the stub does; None if there is none. Blocks without
    a tag are Rust if none is tagged so.

    >>> extract_code("```rust\\nfn a() {}\\n```\\nno:\\n~~~ Rust\\nfn b() {}\\n~~~")
    'fn b() {}\\n'
    >>> extract_code("```rs\\nfn a() {}\\n```\\nso:\\n```rs\\nassert!(a())\\n```", "fn a() { todo!() }")
    'fn a() {}\\n'
    """
    found = fenced_blocks(after_thoughts(completion))
    codes = [code for tag, code in found if tag in ("rust", "rs")] or [code for tag, code in found if not tag]
    names = set(DEFINED.findall(stub))
    best = max(reversed(codes), key=lambda code: len(names & set(DEFINED.findall(code))), default=None)
    return None if best is None else ODD_SPACES.sub(" ", best)


def blocks(solution: str, fenced: bool) -> dict[str, float]:
    """The parts that the text alone decides.

    >>> blocks("fn f() {}\\n#[cfg(test)]\\nmod tests {\\n    assert_eq!(f(), ());\\n    assert!(true);\\n}", True)
    {'code_block': 1.0, 'test_block': 1.0, 'asserts': 0.5, 'non_empty': 1.0}
    """
    module = TEST_MODULE.search(solution)
    asserts = set(re.findall(r"\bassert(?:_eq|_ne)?!.*", solution[module.end() :])) if module else set()
    lines = [line for line in map(str.strip, solution.splitlines()) if len(line) > 1 and not line.startswith("//")]
    return {
        "code_block": float(fenced),
        "test_block": float(module is not None),
        "asserts": min(1.0, len(asserts) / 4),
        "non_empty": float(fenced and module is not None and len(lines) >= 3),
    }


def own_tests(cargo: Cargo, solution: str, hidden: str, wanted: int) -> float:
    """The share of the wanted number of own tests that pass, assert, and name a function of the solution's, which is
    one that the hidden tests name if there are any; times the share of all own tests that pass.
    """
    functions = [node for node in walk(parse(solution)) if node.type == "function_item"]
    named = {text(node.child_by_field_name("name")): node for node in functions}
    tests = {name: set(tokens(node)) for name, node in named.items() if "#[test]" in marks(node)}
    called = (named.keys() - tests.keys()) & (set(tokens(parse(hidden))) if hidden else named.keys())
    good = (cargo.passed(solution, {}, own=True) or set()) & tests.keys() if tests else set()
    real = [name for name in good if not ASSERTIONS.isdisjoint(tests[name]) and not called.isdisjoint(tests[name])]
    return min(1.0, len(real) / wanted) * len(good) / max(1, len(tests))


def refusal(solution: str, given: str) -> str:
    """The word for which the solution is refused; empty if it is not. `given` is the row's own stub and reference,
    which may use anything.

    >>> refusal("pub fn f() { std::process::exit(0) }", ""), refusal("fn process(env: u8) -> u8 { env }", "")
    ('process', '')
    """
    allowed = set(_suspicious(given))
    return next((word for word in _suspicious(solution) if word not in allowed), "")


def _suspicious(source: str) -> Iterator[str]:
    """Words of which a solution has no need, where they stand. Source that tree-sitter does not understand is read word
    by word, strings and comments too.
    """
    root = parse(source)
    words = re.findall(r"\w+!?|::|\S", source) if root.has_error else tokens(root)
    uses = [tokens(node) for node in walk(root) if node.type == "use_declaration"]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if (
            word in WORDS
            or (word in MODULES and "::" in (before, after))
            or (word in MACROS and after == "!")
            or (word in COMPARING and after in ("for", "<", "as"))
            or (word == "clippy" and after != "::")
            or (word == "path" and before in ("[", ",") and after == "=")
            or (before in DEFINING and word.removeprefix("r#") in SHADOWED)
        ):
            yield word
    for use in uses:
        yield from (word for word in use if word in MODULES | MACROS)
        yield from (after for word, after in pairwise(use) if word == "as" and after in SHADOWED)


def silences(solution: str, given: str) -> bool:
    """Whether an `allow`, `expect` or `warn` of the solution is not the row's."""
    found = [node for node in walk(parse(solution)) if node.type in ("attribute_item", "inner_attribute_item")]
    return any(not SILENCING.isdisjoint(tokens(mark)) and text(mark) not in given for mark in found)


def read_row(row: Row, options: RustOptions) -> Example | str:
    """The example of a row, or why it is left out. Raises UserError for one that cannot be used."""
    if any(_manifest(row).get(table) for table in ("dependencies", "dev-dependencies")):
        return f"{_name(row)} needs crates"
    if "unsafe" in tokens(parse(reference(row))):
        return f"the reference of {_name(row)} is unsafe"
    if not any(row.get(column) for column in ("instructions", "prompt", "rust_prompt")):
        raise UserError(
            f"a row of Rust problems has neither instructions nor a prompt (it has {', '.join(row)}): give "
            "instructions, stub, tests, or prompt and tests, or rust_prompt and rust_test_list"
        )
    instructions, stub, tests, package = _exercise(row) if "instructions" in row else _prompted(row, options)
    if tests and not any(renamed(source)[1] for source in tests.values()):
        raise UserError(f"{_name(row)} has no test that could be run in `tests`")
    given = "\n".join([stub, reference(row), *package.files.values()])
    shown = f"\n\n`src/lib.rs` begins as:\n\n```rust\n{stub.strip()}\n```" if stub.strip() else ""
    category = {"difficulty": str(row["difficulty"])} if row.get("difficulty") else {}
    fields = {"stub": stub, "tests": tests, "package": asdict(package), "given": given}
    prompt = chat(options.system_prompt, instructions.strip() + shown)
    return Example(_name(row), prompt if options.system_prompt else prompt[1:], fields, category)


def reference(row: Row) -> str:
    """The Rust of the row's own solution as one text; empty if it has none."""
    files = _files(row.get("example"), "lib.rs")
    return "\n".join(content for path, content in files.items() if path.endswith(".rs"))


def _exercise(row: Row) -> tuple[str, str, dict[str, str], Package]:
    """Instructions, stub, tests by path and package of a row as exercism's."""
    manifest = _manifest(row)
    called = manifest.get("package", {}).get("name") or _name(row)
    crate = str(manifest.get("lib", {}).get("name") or called).replace("-", "_")
    files = {**_files(row.get("extra_files"), "src/extra.rs"), **_files(row.get("tests"), f"tests/{crate}.rs")}
    package = Package(
        crate,
        str(manifest.get("package", {}).get("edition", "2024")),
        tuple(name for name, level in manifest.get("lints", {}).get("clippy", {}).items() if level == "allow"),
        tuple(name for name in manifest.get("features", {}) if name != "default"),
        {name: content for name, content in files.items() if name.startswith("src/")},
    )
    tests = {name: content for name, content in files.items() if name.startswith("tests/")}
    return row["instructions"], _files(row.get("stub"), "src/lib.rs").get("src/lib.rs", ""), tests, package


def _prompted(row: Row, options: RustOptions) -> tuple[str, str, dict[str, str], Package]:
    """The same of a row as MultiPL-E's or rust-rl's."""
    prompt, given = str(row.get("prompt") or row["rust_prompt"]).rstrip(), row.get("tests") or row.get("rust_test_list")
    if isinstance(given, str):
        statements = json.loads(given) if given.lstrip().startswith("[") else main_assertions(given)
    else:
        statements = [str(test) for test in given or []]
    instructions, stub, path = prompt, "", LIBRARY
    opening, imports = "#[cfg(test)]\nmod tests_of_the_row {", "super::*;"
    if prompt.endswith("{"):  # the head of a function
        instructions, path, opening = "Complete the function.", f"tests/{LIST_CRATE}_list.rs", ""
        stub = re.sub(r"^(?=fn )", "pub ", f"{prompt}\n    todo!()\n}}\n", flags=re.MULTILINE)
        used = "".join(text(node) for node in parse(stub).children if node.type == "use_declaration")
        imports = f"{LIST_CRATE}::*;{used}"
    elif statements and options.test_weight:  # the first assertion shows the name, and does not count
        instructions = f"{prompt}\n\nThis must hold:\n\n```rust\n{statements.pop(0)}\n```"
    cases = [f"#[test] fn test_{index}() {{ {statement} }}" for index, statement in enumerate(statements)]
    source = "\n".join([opening, f"#[allow(unused_imports)] use {imports}", *cases, "}" * bool(opening)])
    return instructions, stub, {path: source} if cases else {}, Package(LIST_CRATE, "2021", private=not stub)


def main_assertions(source: str) -> list[str]:
    """The assertions in a program's `main`, one a line, each with the statements before it (`let candidate = f;`)."""
    lines = [line.strip() for line in source.partition("fn main() {")[2].rpartition("}")[0].splitlines()]
    setup = " ".join(line for line in lines if not line.startswith(("assert", "//")))
    return [f"{setup} {line}".strip() for line in lines if line.startswith("assert")]


def _name(row: Row) -> str:
    """The identity: slug or name, else a hash of the question."""
    found = next((row[column] for column in ("slug", "name", "task_id", "id") if row.get(column)), None)
    return str(found or identity(str(row.get("instructions") or row.get("prompt") or row.get("rust_prompt"))))


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


def dataset(options: RustOptions) -> Dataset:
    """The problems of MultiPL-E in Rust, or of a local file in the columns above."""

    def load() -> Dataset:
        toolchain()
        source = Source(options.dataset, (), {"all": options.split}, configuration=options.configuration or None)
        (found,) = load_each(source, options.data_path, lambda row: read_row(row, options)).values()
        examples = [each for each in found if isinstance(each, Example)]
        out = [each for each in found if isinstance(each, str)]
        if out:
            logger.info("rust: {} rows left out: {}", len(out), "; ".join(out))
        untested = sum(not example["tests"] for example in examples)
        if untested and options.test_weight:
            logger.warning("rust: {} of {} problems have no hidden tests: {}", untested, len(examples), UNTESTED)
        return split(examples, options.held_out_share, by=lambda example: identity(str(example.prompt)))

    return DeferredDataset(load)


def more(options: RustOptions) -> dict[str, Any]:
    """What else the task has."""
    weights = options.of_parts()
    others = math.fsum(weight for name, weight in weights.items() if weight > 0 and name != "tests")
    solved = "every hidden test passes" if options.test_weight else UNTESTED
    lines = [f"a rust solution is solved if {solved}"]
    if 0 < options.test_weight <= others:
        lines.append(f"warning: rust.test_weight {options.test_weight:g} does not outweigh the others ({others:g})")
    return {
        "notes": lambda: [f"rust from {toolchain()}", describe(), *lines],
        "seconds": options.seconds + AFTER_S,
        "worst": options.num_errors_weight,
    }
