"""Rust: write a library that passes tests it has not seen.

    Return how many of the numbers are even.          ->    ```rust
    pub fn evens(numbers: &[i32]) -> usize {                pub fn evens(numbers: &[i32]) -> usize {
        todo!()                                                 numbers.iter().filter(|n| *n % 2 == 0).count()
    }                                                       }
                                                            ```

A Rust block of the completion becomes `src/lib.rs` of a package whose other files are ours. cargo builds it, runs the
hidden tests and clippy, all in the sandbox.

`build` is paid if the hidden tests compile against the solution, `tests` by the share of them that passes beyond what
constants pass. `clippy`, `own_tests` and `quality` are paid only if every hidden test passed, which is `solved`. 1.0 is
a solution that also leaves clippy nothing to report, has tests of its own and is well written.

A solution runs in one process with the tests. Words by which it could reach the verdict (processes, files, raw output,
`unsafe`, macros of its own, conditions for clippy) are refused unless the row's own stub or reference uses them, and
rust_build.py checks what the tests say. A soundness hole of the compiler is outside of what this can stop.

Rows have one of two forms:

    slug, instructions, stub, tests, example, extra_files, cargo_toml     as exercism's: files by path, or one text
    prompt, tests (a list of assertions, or a program whose main asserts)  as MultiPL-E's
"""

import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

from loguru import logger

from minrl.dataflow import Example, Reward, UserError, require
from minrl.models.thoughts import after_thoughts
from minrl.sandbox import describe
from minrl.tasks.data import Row, Source, identity, load_each
from minrl.tasks.rust_build import BuildLimits, Cargo, Package, find_tests, working_toolchain
from minrl.tasks.rust_quality import QualityWeights, Weight, parse, quality, scores, text, tokens, walk
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, split, weighted
from minrl.utils.settings import Bound, Count

SOURCE = Source("nuprl/MultiPL-E", ("tests",), {"all": "test"}, configuration="mbpp-rs")
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
    "long_running_const_eval", "panic_any", "resume_unwind", "thread_local",
])  # fmt: skip
"""Words that a solution may not hold: code that no compiler checks, other files, the verdict and who asks for it. The
value of a panic and of a thread is dropped after libtest has stopped capturing what a test prints.
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
REASONS = ("syntax", "word", "path", "name", "attribute", "forged")
"""Why a solution is refused."""
RAW, MOST_RAW, MOST_QUOTES = re.compile('r#+"'), 200, 6_000
"""Raw strings that may begin, and quotation marks: tree-sitter takes minutes for what is little else."""
SILENCING = frozenset(("allow", "expect", "warn"))
ODD_SPACES = re.compile("[\v\f\x85\u200e\u200f\u2028\u2029]")
"""White space of Rust that tree-sitter takes for letters."""
BLOCK = re.compile(
    r"^[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(?P<mark>`{3,}|~{3,})[ \t]*(?P<tag>[\w+#-]*)[^\n`]*\n"
    r"(?P<code>.*?)(?P<end>^[ \t]{0,7}(?P=mark)|\Z)",
    re.MULTILINE | re.DOTALL,
)
DEFINED = re.compile(r"\b(?:fn|struct|enum|union|type|trait|mod|const|static|macro_rules!)\s+(?:r#)?(\w+)")


@dataclass(frozen=True, kw_only=True)
class RustOptions(QualityWeights, BuildLimits):
    """What is paid, and what building and testing may take."""

    prefix = "rust."
    build_weight: Weight = 0.05
    """Weight of a solution that builds and that the hidden tests compile against."""
    test_weight: Weight = 0.75
    """Weight of the share of hidden tests that pass, beyond those that constants pass."""
    clippy_weight: Weight = 0.1
    """Weight of no warning of clippy; paid only where every hidden test passed."""
    own_test_weight: Weight = 0.05
    """Weight of passing tests of the solution's own with real assertions; paid only where every hidden test passed."""
    quality_weight: Weight = 0.05
    """Weight of the mean of the quality scores; paid only where every hidden test passed."""
    own_tests_wanted: Count = 3
    """How many own tests with real assertions make the part whole."""
    held_out_share: Annotated[float, Bound(above=0, below=1)] = 0.2
    """Share of the problems that is never trained on, where the rows have no split of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        others = self.build_weight + self.clippy_weight + self.own_test_weight + self.quality_weight
        require(self.test_weight > others, f"rust.test_weight must outweigh the others, got {self.test_weight}")


@dataclass(frozen=True)
class RustReward:
    """The reward of one completion, with the task's options. Picklable, for the workers."""

    options: RustOptions

    def __call__(self, completion: str, example: Example) -> Reward:
        """Build, test, lint and count; each only if the step before succeeded."""
        parts = dict.fromkeys(("build", "tests", "clippy", "own_tests", "quality", "refused", "build_limit"), 0.0)
        parts |= {f"quality_{name}": 0.0 for name in self.options.of_scores()}
        if "package" not in example.fields:  # a row of the data, as --completions gives it
            read = read_row(example.fields)
            if isinstance(read, str):
                raise UserError(f"the row cannot be scored: {read}")
            example = read
        solution = extract_code(completion, example["stub"])
        if solution is None or len(solution) > MAX_CHARACTERS:
            return self.paid(parts)
        reason = refusal(solution, example["given"])
        if reason:
            return self.paid({**parts, "refused": 1.0, f"refused_{reason}": 1.0})
        package: dict[str, Any] = dict(example["package"])
        cargo = Cargo(Package(**package), self.options)
        parts |= cargo.hidden_tests(solution, example["tests"], example["stub"])
        if parts["tests"] == 1:
            parts["clippy"] = float(not silences(solution, example["given"]) and cargo.lints(solution))
            hidden = "\n".join(example["tests"].values())
            parts["own_tests"] = cargo.own_tests(solution, hidden, self.options.own_tests_wanted)
        found = scores(solution) if parts["build"] else {}
        parts |= {f"quality_{name}": score for name, score in found.items()}
        parts["quality"] = quality(found, self.options) if found else 0.0
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


def extract_code(completion: str, stub: str = "") -> str | None:
    """The last block of Rust among those that define most of what the stub does; None if there is none. Blocks without
    a tag are Rust if none is tagged so, and the last block needs no end if no other has one.

    >>> extract_code("```rust\\nfn a() {}\\n```\\nno:\\n~~~ Rust\\nfn b() {}\\n~~~")
    'fn b() {}\\n'
    >>> extract_code("```rs\\nfn a() {}\\n```\\nso:\\n```rs\\nassert!(a())\\n```", "fn a() { todo!() }")
    'fn a() {}\\n'
    """
    found = list(BLOCK.finditer(after_thoughts(completion)))
    closed = [block for block in found if block["end"]]
    tagged = [block for block in closed or found if block["tag"].lower() in ("rust", "rs")]
    candidates = tagged or [block for block in closed or found if not block["tag"]]
    names = set(DEFINED.findall(stub))
    best = max(reversed(candidates), key=lambda block: len(names & set(DEFINED.findall(block["code"]))), default=None)
    return None if best is None else ODD_SPACES.sub(" ", textwrap.dedent(best["code"]))


def refusal(solution: str, given: str) -> str:
    """Why the solution is refused, one of `REASONS`; empty if it is not. `given` is the row's own stub and reference,
    which may use anything.

    >>> refusal("pub fn f() { std::process::exit(0) }", ""), refusal("fn process(env: u8) -> u8 { env }", "")
    ('path', '')
    """
    if len(RAW.findall(solution)) > MOST_RAW or solution.count('"') > MOST_QUOTES:
        return "syntax"
    allowed = set(_suspicious(given))
    return next((reason for reason, word in _suspicious(solution) if (reason, word) not in allowed), "")


def _suspicious(source: str) -> Iterator[tuple[str, str]]:
    """What a solution has no need of, each with its reason. Source that tree-sitter does not understand is read word by
    word, strings and comments too.
    """
    root = parse(source)
    words = re.findall(r"\w+!?|::|\S", source) if root.has_error else tokens(root)
    uses = [tokens(node) for node in walk(root) if node.type == "use_declaration"]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if word in WORDS:
            yield "word", word
        if (word in MODULES and "::" in (before, after)) or (word in MACROS and after == "!"):
            yield "path", word
        if (word == "clippy" and after != "::") or (word == "path" and before in ("[", ",") and after == "="):
            yield "attribute", word
        if before in DEFINING and word.removeprefix("r#") in SHADOWED:
            yield "name", word
    for use in uses:
        yield from (("path", word) for word in use if word in MODULES | MACROS)
        yield from (("name", after) for word, after in pairwise(use) if word == "as" and after in SHADOWED)


def silences(solution: str, given: str) -> bool:
    """Whether an `allow`, `expect` or `warn` of the solution is not the row's."""
    marks = [node for node in walk(parse(solution)) if node.type in ("attribute_item", "inner_attribute_item")]
    return any(not SILENCING.isdisjoint(tokens(mark)) and text(mark) not in given for mark in marks)


def read_row(row: Row) -> Example | str:
    """The example of a row, or why it is left out. Raises UserError for one that cannot be used."""
    if any(_manifest(row).get(table) for table in ("dependencies", "dev-dependencies")):
        return f"{_name(row)} needs crates"
    if "unsafe" in tokens(parse(reference(row))):
        return f"the reference of {_name(row)} is unsafe"
    if "instructions" not in row and "prompt" not in row:
        raise UserError(
            f"a row of Rust problems has neither instructions nor a prompt (it has {', '.join(row)}): give "
            "instructions, stub, tests, or prompt and tests"
        )
    instructions, stub, tests, package = _exercise(row) if "instructions" in row else _listed(row)
    if not any(find_tests(parse(source)) for source in tests.values()):
        raise UserError(f"{_name(row)} has no test that could be run in `tests`")
    given = "\n".join([stub, reference(row), *package.files.values()])
    shown = f"\n\n`src/lib.rs` begins as:\n\n```rust\n{stub.strip()}\n```" if stub.strip() else ""
    category = {"difficulty": str(row["difficulty"])} if row.get("difficulty") else {}
    fields = {"stub": stub, "tests": tests, "package": asdict(package), "given": given}
    return Example(_name(row), chat(SYSTEM, instructions.strip() + shown), fields, category)


def reference(row: Row) -> str:
    """The Rust of the row's own solution as one text; empty if it has none."""
    files = _files(row.get("example") or "", "lib.rs")
    return "\n".join(content for path, content in files.items() if path.endswith(".rs"))


def _exercise(row: Row) -> tuple[str, str, dict[str, str], Package]:
    """Instructions, stub, tests by path and package of a row as exercism's."""
    manifest = _manifest(row)
    called = manifest.get("package", {}).get("name") or _name(row)
    crate = str(manifest.get("lib", {}).get("name") or called).replace("-", "_")
    files = {**_files(row.get("extra_files") or {}, "src/extra.rs"), **_files(row["tests"], f"tests/{crate}.rs")}
    package = Package(
        crate,
        str(manifest.get("package", {}).get("edition", "2024")),
        tuple(name for name, level in manifest.get("lints", {}).get("clippy", {}).items() if level == "allow"),
        tuple(name for name in manifest.get("features", {}) if name != "default"),
        {name: content for name, content in files.items() if name.startswith("src/")},
    )
    tests = {name: content for name, content in files.items() if name.startswith("tests/")}
    return row["instructions"], _files(row.get("stub") or "", "src/lib.rs").get("src/lib.rs", ""), tests, package


def _listed(row: Row) -> tuple[str, str, dict[str, str], Package]:
    """The same of a row as MultiPL-E's."""
    prompt, tests = str(row["prompt"]).rstrip(), row["tests"]
    statements = main_assertions(tests) if isinstance(tests, str) else [str(test) for test in tests]
    stub, instructions = "", "Complete the function."
    if prompt.endswith("{"):  # the head of a function
        stub = re.sub(r"^(?=fn )", "pub ", f"{prompt}\n    todo!()\n}}\n", flags=re.MULTILINE)
    else:  # the name cannot be known from the prompt: the first assertion shows it, and does not count
        instructions = f"{prompt}\n\nThis must hold:\n\n```rust\n{statements.pop(0)}\n```"
    imports = "".join(text(node) for node in parse(stub).children if node.type == "use_declaration")
    cases = [f"#[test] fn test_{index}() {{ {statement} }}" for index, statement in enumerate(statements)]
    source = "\n".join([f"#[allow(unused_imports)] use {LIST_CRATE}::*;{imports}", *cases])
    return instructions, stub, {f"tests/{LIST_CRATE}_list.rs": source}, Package(LIST_CRATE, "2021")


def main_assertions(source: str) -> list[str]:
    """The assertions in a program's `main`, each with the statements before it (`let candidate = f;`)."""
    main = next(node for node in walk(parse(source[source.index("fn main") :])) if node.type == "function_item")
    setup, found = "", []
    for statement in main.child_by_field_name("body").named_children:
        if text(statement).lstrip().startswith("assert"):
            found.append(setup + text(statement).rstrip(";") + ";")
        elif "comment" not in statement.type:
            setup += text(statement) + " "
    return found


def _name(row: Row) -> str:
    """The identity: slug or name, else a hash of the question."""
    found = next((row[column] for column in ("slug", "name", "task_id", "id") if row.get(column)), None)
    return str(found or identity(str(row.get("prompt", row.get("instructions")))))


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


def make(options: RustOptions, data_path: str) -> Task:
    """The problems of MultiPL-E's MBPP in Rust, or of a local file in the columns above."""

    def load() -> Dataset:
        working_toolchain()
        (found,) = load_each(SOURCE, data_path, read_row).values()
        out = [each for each in found if isinstance(each, str)]
        if out:
            logger.info("rust: {} rows left out: {}", len(out), "; ".join(out))
        examples = [each for each in found if isinstance(each, Example)]
        return split(examples, options.held_out_share, by=lambda example: identity(str(example.prompt)))

    return Task(
        DeferredDataset(load),
        RustReward(options),
        notes=lambda: [f"rust from {working_toolchain()}", describe()],
        seconds=options.seconds + AFTER_S,
    )


TASK = TaskDefinition(RustOptions, make)
