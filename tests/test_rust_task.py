"""The rust task with real cargo: what completions are paid, what is refused, rows, and what failures are no verdict."""

import json
import re
from pathlib import Path

import pytest
import yaml
from test_documents import ROOT

from minrl.dataflow import Example, UserError
from minrl.sandbox import Outcome, SandboxError
from minrl.tasks import load_task, rust, rust_build
from minrl.tasks.rust import RustOptions, RustReward, extract_code, main_assertions, more, own_tests, read_row, refusal
from minrl.tasks.rust_build import BuildLimits, Cargo, Package, renamed

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")
needs_cargo = pytest.mark.usefixtures("cargo_that_works")

ROW = {
    "slug": "even-numbers",
    "instructions": "Return the even numbers, and their sum. The sum of none is an error.",
    "stub": {
        "src/lib.rs": "pub fn evens(numbers: &[i32]) -> Vec<i32> {\n    todo!()\n}\n\n"
        "pub fn sum(numbers: &[i32]) -> Result<i32, String> {\n    todo!()\n}\n",
        "Cargo.toml": "",
    },
    "cargo_toml": '[package]\nname = "even_numbers"\nedition = "2024"\n[dependencies]\n',
    "tests": {
        "tests/even_numbers.rs": """use even_numbers::*;
#[test] fn none() { assert_eq!(evens(&[]), vec![]); }
#[test] #[ignore] fn some() { assert_eq!(evens(&[1, 2, 3, 4]), vec![2, 4]); }
mod sums {
    use even_numbers::*;
    #[test] #[ignore] fn of_some() { assert_eq!(sum(&[1, 2, 4]), Ok(6)); }
    #[test] #[ignore] fn of_none() { assert!(sum(&[1]).is_err()); }
}
#[test] fn with_a_module_inside() {
    mod inside {
        pub struct Counting;
        unsafe impl Sync for Counting {}
    }
    let _ = inside::Counting;
    assert_eq!(evens(&[6]), vec![6]);
}
#[test] #[cfg(feature = "extra")] fn not_compiled() { assert!(false); }
"""
    },
    "example": {".meta/example.rs": "pub fn evens() {}"},
    "extra_files": {},
    "difficulty": 1,
}
SOLUTION = """
/// The even ones among the numbers.
pub fn evens(numbers: &[i32]) -> Vec<i32> {
    numbers.iter().copied().filter(|n| n % 2 == 0).collect()
}

/// Their sum; an error where there is none.
pub fn sum(numbers: &[i32]) -> Result<i32, String> {
    let even = evens(numbers);
    if even.is_empty() { Err("no even number".into()) } else { Ok(even.iter().sum()) }
}
"""
OWN_TESTS = """
#[cfg(test)]
mod tests {
    use super::*;
    #[test] fn finds() { assert_eq!(evens(&[2, 3]), [2]); }
    #[test] fn adds() { assert_eq!(sum(&[2, 3, 4]), Ok(6)); }
    #[test] fn refuses() { assert!(sum(&[3]).is_err()); }
}
"""


def fenced(code):
    return f"I think.\n\n```rust\n{code}\n```\n"


@pytest.fixture(scope="session")
def cargo_that_works():
    """Skips where the task itself would refuse: no Rust, or rustup without a toolchain."""
    try:
        rust_build.toolchain()
    except UserError as refused:
        pytest.skip(str(refused))


SLOW_MACHINE = {"build_seconds": 600.0, "test_seconds": 120.0, "seconds": 900.0}
REWARD = RustReward(RustOptions(**SLOW_MACHINE))
EXAMPLE = Example("", "", ROW)


@needs_cargo
def test_a_full_solution_with_tests_of_its_own_earns_everything():
    paid = REWARD(fenced(SOLUTION + OWN_TESTS), EXAMPLE)
    assert paid.value == 1.0, paid
    assert paid.solved
    assert {paid.parts[name] for name in ("build", "tests", "clippy", "own_tests", "quality")} == {1.0}


@needs_cargo
@pytest.mark.slow
def test_the_share_of_tests_that_pass_is_paid_and_solved_is_every_one_whatever_the_style():
    ugly = SOLUTION.replace("/// ", "// ").replace("even.is_empty()", "even.len() == 0")
    paid = REWARD(fenced(f"#![allow(clippy::all)]\n{ugly}"), EXAMPLE)  # clippy is not silenced: len_zero
    assert (paid.solved, paid.parts["tests"], paid.parts["clippy"]) == (True, 1.0, 0.0)
    assert paid.value == pytest.approx(0.05 + 0.75 + 0.05 * paid.parts["quality"])
    half = REWARD(fenced(SOLUTION.replace("Ok(even.iter().sum())", "Ok(0)") + OWN_TESTS), EXAMPLE)
    assert (half.solved, half.parts["tests"], half.parts["clippy"]) == (False, 4 / 5, 0.0)
    assert half.value == pytest.approx(0.05 + 0.75 * 4 / 5)  # no style beside a part
    vacuous = "#[test] fn truth() { assert!(true); }\n#[test] fn no_assertion() { evens(&[2]); }"
    for tests, value in ((vacuous, 0.0), (OWN_TESTS.replace("Ok(6)", "Ok(7)"), 2 / 3 * 2 / 3)):  # two of three, twice
        found = own_tests(Cargo(Package("x"), REWARD.options), SOLUTION + tests, "evens sum", 3)
        assert found == pytest.approx(value)


REFUSED = {
    "unsafe": ("pub fn f() { unsafe { std::hint::unreachable_unchecked() } }", "unsafe"),
    "include of the tests": ('const T: &str = include_str!("../tests/even_numbers.rs");', "include_str"),
    "a macro": ("macro_rules! m {($($t:tt)*) => {$($t)*}}", "macro_rules!"),
    "hidden in a comment that ends": ("/* /* */ */ fn f() { unsafe {} } /* */", "unsafe"),
    "hidden by an escape": ("const C: char = '\\u{2_________2}'; fn f() { unsafe { g() } } // '", "unsafe"),
    "exit by another name": ("use std::{self as s, process as p}; fn f() { p::exit(0) }", "process"),
    "other code for clippy by cfg!": ("fn f() { if cfg!(clippy) {} }", "clippy"),
    "a module elsewhere": ('#[path = "../tests/even_numbers.rs"] mod t;', "path"),
    "another Option": ("pub mod m { pub enum Option { A } }", "Option"),
    "another assert": ("pub use std::stringify as assert;", "assert"),
    "a method before std's": ("pub trait T { fn is_err(self) -> bool; }", "is_err"),
    "a value that changes": ("struct S(std::cell::RefCell<u8>);", "RefCell"),
    "its own equality": ("impl PartialEq for S { fn eq(&self, _: &S) -> bool { true } }", "PartialEq"),
}


def test_what_a_solution_has_no_need_of_is_refused_unless_the_row_has_it():
    for code, word in REFUSED.values():
        assert refusal(code, "") == word
        assert refusal(code, code) == ""
    assert refusal(extract_code("```rust\nfn f() {\u2028unsafe\u2028{} }\n```"), "") == "unsafe"  # read as a letter


INNOCENT = {
    "the solution": SOLUTION + OWN_TESTS,
    "strings and comments": '/// std::process::exit(0), unsafe\npub fn f() -> &\'static str { "unsafe std::fs" }',
    "lifetimes": "pub fn f<'a>(x: &'a str) -> Option<&'a str> { Some(x).filter(|_| 'u' != '\\'') }",
    "modules of std": "use std::{collections::HashMap, fmt::{self, Display}, io::{self, Read}};",
}


def test_ordinary_code_is_not_refused():
    assert {name: refusal(code, "") for name, code in INNOCENT.items()} == dict.fromkeys(INNOCENT, "")


def test_names_of_tests_are_new_in_each_call_and_those_of_features_stay():
    source = "#[test]\n/// Says.\nfn b() {}\n#[test]\n#[should_panic]\nfn a() {}\nfn d() {}\n"
    source += '#[test] #[cfg(feature = "x")] fn c() {}\n#[cfg(feature = "x")] mod m { #[test] fn c() {} }'
    drawn = [renamed(source) for _ in range(40)]
    names = [name for _, found in drawn for name in found]
    assert len(set(names)) == len(names) == 2 * 40
    assert all(re.fullmatch("t[0-9a-f]{16}", name) for name in names)
    written, found = drawn[0]
    (ordinary, panics), stay = found.items(), ("fn c()", "fn d()")
    assert (ordinary[1], panics[1]) == (False, True) and all(name in written for name in (*found, *stay))
    assert "fn a" not in written and "fn b" not in written
    assert len({min(found) == next(iter(found)) for _, found in drawn}) == 2  # their order fails to vary once in 2^39


OUTPUTS = {
    "all pass": ("test a ... ok\ntest m::b - should panic ... ok\n", 0, {"a", "b"}),
    "a printed verdict": ("test a ... ok\ntest b ... ok\ntest b ... FAILED\n", 101, {"a"}),
    "an exit status that disagrees": ("test a ... ok\ntest b ... FAILED\n", 0, set()),
    "no verdict": ("test a ... \n a ... ok", 0, set()),
}


@pytest.mark.parametrize(("output", "status", "passed"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_test_passed_if_it_has_one_verdict_and_the_exit_status_agrees(output, status, passed, monkeypatch):
    cargo = Cargo(Package("x"), BuildLimits(), Path())

    def ran(script, files):
        mark = script.partition("echo ")[2].partition("\n")[0]
        return Outcome("ok", 0, f"{mark}\nrunning\n{output}\n{mark} {status}\n".encode(), b"", 0.1)

    monkeypatch.setattr(cargo, "_in_sandbox", ran)
    assert cargo.passed("", {}) == passed


ERROR = b"error: could not compile `x` (lib) due to 1 previous error"
FAILURES = {
    "an error in the source": (Outcome("error", 1, b"", ERROR, 0.1), ""),
    "no processor time left": (Outcome("error", 1, b"", ERROR + b" (signal: 24, SIGXCPU)", 5.0), ""),
    "half of the processor time": (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.5), ""),
    "the machine is busy": (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.4), "too little of the processor"),
    "cargo cannot run": (Outcome("error", 127, b"", b"sh: cargo: not found\n", 0.1), "could not run: sh: cargo: not"),
}


@pytest.mark.parametrize(("outcome", "said"), FAILURES.values(), ids=FAILURES)
def test_what_the_source_causes_is_a_failure_and_what_the_machine_causes_no_verdict(outcome, said, monkeypatch):
    monkeypatch.setattr(Cargo, "_in_sandbox", lambda *_: outcome)
    cargo = Cargo(Package("x"), BuildLimits(), Path())
    for ask in (cargo.builds, cargo.lints, lambda solution: cargo.passed(solution, {})):
        if said:
            with pytest.raises(SandboxError, match=said):
                ask(SOLUTION)
        else:
            assert not (found := ask(SOLUTION)) or found == {"build": 0.0, "num_errors": 1, "num_warnings": 0}


@pytest.mark.slow
@needs_cargo
def test_a_solution_that_wants_a_panic_needs_an_ordinary_test_too():
    tests = (
        "use even_numbers::*;\n#[test]\nfn ordinary() { assert_eq!(half(4), 2); }\n"
        '#[test]\n#[should_panic(expected = "odd")]\nfn odd() { half(3); }\n'
        "#[test]\nfn result() -> Result<(), String> { if half(2) == 1 { Ok(()) } else { Err(String::new()) } }\n"
    )
    stub = "pub fn half(n: i32) -> i32 {\n    todo!()\n}\n"
    example = Example("", "", {**ROW, "slug": "half", "stub": stub, "tests": {"tests/half.rs": tests}})
    right = 'pub fn half(n: i32) -> i32 { if n % 2 == 1 { panic!("odd") } n / 2 }'
    assert REWARD(fenced(right), example).parts["tests"] == 1.0
    assert REWARD(fenced(right.replace("odd", "bad")), example).parts["tests"] == pytest.approx(2 / 3)
    assert REWARD(fenced('pub fn half(_: i32) -> i32 { panic!("odd") }'), example).parts["tests"] == 0.0


MULTIPLE = {
    "name": "mbpp_0_half",
    "prompt": "/// Half of a number.\nfn half(n: isize) -> isize {\n",
    "tests": "}\n\nfn main() {\n    let candidate = half;\n    assert_eq!(candidate(4), 2);\n"
    "    assert_eq!(candidate(7), 3);\n}\n",
}


@needs_cargo
@pytest.mark.slow
def test_a_function_and_a_main_of_assertions_make_a_problem():
    example = read_row(MULTIPLE, RustOptions())
    assert "pub fn half(n: isize) -> isize {" in example.prompt[1]["content"]
    assert "assert_eq" not in example.prompt[1]["content"]
    assert REWARD(fenced("pub fn half(n: isize) -> isize { n / 2 }"), example).solved
    assert REWARD(fenced("pub fn half(n: isize) -> isize { 2 }"), example).parts["tests"] == 1 / 2


def test_rows_that_need_crates_or_unsafe_are_left_out():
    crates = {**ROW, "cargo_toml": ROW["cargo_toml"] + 'rand = "0.9"\n'}
    dev = {**ROW, "cargo_toml": ROW["cargo_toml"] + '[dev-dependencies]\npretty_assertions = "*"\n'}
    raw = {**ROW, "example": {".meta/example.rs": "fn f() { unsafe {} }"}}
    left = [read_row(row, RustOptions()) for row in (crates, dev, raw)]
    assert left == ["even-numbers needs crates"] * 2 + ["the reference of even-numbers is unsafe"]
    with pytest.raises(UserError, match="cannot be scored: even-numbers needs crates"):
        RustReward(RustOptions())(fenced(""), Example("", "", crates))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_row_that_cannot_be_tested_is_refused():
    for row, said in (({"slug": "a", "tests": {}}, "neither instructions nor a prompt"),
                      ({**ROW, "tests": {"tests/a.rs": "fn none() {}"}}, "no test")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            read_row(row, RustOptions())


def test_the_prompt_shows_instructions_and_stub_and_no_test():
    example = read_row(ROW, RustOptions())
    system, user = example.prompt
    assert (system["role"], user["role"]) == ("system", "user")
    assert ROW["instructions"] in user["content"] and "pub fn sum(numbers: &[i32])" in user["content"]
    assert "assert" not in user["content"] and "6" not in user["content"]
    assert example.category == {"difficulty": "1"}


FENCES = {
    "capitals": "```Rust\nfn f() {}\n```",
    "no tag": "```toml\n[package]\n```\n```\nfn f() {}\n```",
    "in a list": "1. Here:\n\n   ```rust\n   fn f() {}\n   ```\n",
    "no end": "So:\n```rust\nfn f() {}",
    "usage behind it": "```rust\nfn f() {}\n```\nUse it:\n```rust\nfn main() { f() }\n```",
    "a draft before it": "```rust\nfn f() { draft }\n```\n```rust\nfn f() {}\n```",
}


def test_a_solution_is_found_in_any_fence_and_nowhere_else():
    for completion in FENCES.values():
        assert extract_code(completion, "pub fn f() { todo!() }").rstrip("\n") == "fn f() {}"
    assert extract_code("```toml\nfn f() {}\n```") is None and extract_code("fn f() {} ```x```") is None
    assert extract_code('```rust\nlet s = r"\n        ```\n";\n```') == 'let s = r"\n        ```\n";\n'


def test_style_that_outweighs_the_tests_is_said_and_pays_nothing_beside_a_part(monkeypatch):
    monkeypatch.setattr(rust, "toolchain", lambda: Path())  # nothing is built
    said = ["\n".join(more(options)["notes"]()) for options in (RustOptions(), RustOptions(test_weight=0.0))]
    assert "outweigh" not in said[0] and "a rust solution is solved if every hidden test passes" in said[0]
    assert "a rust solution is solved if it builds, and clippy and its" in said[1]
    options = RustOptions(test_weight=0.2, clippy_weight=0.2, quality_weight=0.0)
    assert "warning: rust.test_weight 0.2 does not outweigh the others (0.3)" in more(options)["notes"]()
    parts = {**dict.fromkeys(("build", "clippy", "own_tests", "quality"), 1.0), "tests": 1.0}
    whole, almost = (RustReward(options).paid(given, True) for given in (parts, {**parts, "tests": 0.5}))
    assert whole.value == whole.maximum == pytest.approx(0.5)  # the sum of what can be earned
    assert whole.solved and not almost.solved and almost.value == pytest.approx(0.05 + 0.1)


def recipe(name):
    """The options of a recipe."""
    options = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())["tasks"]["rust"]
    return RustOptions(**{**options, "build_seconds": 600.0, "seconds": 900.0})


ADDS = """/// Adds.
fn add_nums(x: i32, y: i32) -> i32 {
  x + y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_add_nums() {
        // Test adding
        assert_eq!(add_nums(4, 2), 6);
        assert_eq!(add_nums(4, -2), 2);
        assert_eq!(add_nums(-12, -1), -13);
    }
}"""
RUST_RL = {
    "its own example": (ADDS, 1 + 1 + 2 + 1 + 0.5 + 0.5 + 0.75, True),
    "a test fails": (ADDS.replace("6)", "7)"), 1 + 1 + 0 + 1 + 0.5 + 0.5 + 0.75, False),
    "what it may use elsewhere": (
        ADDS.replace("  x + y", "  let sum = std::cell::Cell::new(x + y);\n  sum.get()"),
        6.75,
        True,
    ),
    "it does not build": (ADDS.replace("x + y", "x + z"), 0 + 0 + 0 + 1 + 0.5 + 0.5 + 0.75, False),
}
RUST_RL_ROW = {"task_id": "t1", "rust_prompt": "Add two numbers.", "rust_test_list": ["assert_eq!(add_nums(1, 2), 3);"]}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize("name", RUST_RL)
def test_rust_rl_is_paid_as_published(name):
    code, value, solved = RUST_RL[name]
    options = recipe("rust_rl")
    paid = RustReward(options)(fenced(code), read_row(RUST_RL_ROW, options))
    assert (paid.value, paid.maximum, paid.solved) == (pytest.approx(value), 7.0, solved), paid


def test_a_list_of_assertions_shows_the_first_and_tests_the_others_where_hidden_tests_are_paid():
    plain, hidden = (read_row(RUST_RL_ROW, options) for options in (recipe("rust_rl"), RustOptions()))
    assert plain.id == "t1" and plain.prompt[1]["content"] == "Add two numbers."
    assert "assert_eq!(add_nums(1, 2), 3);" in hidden.prompt[1]["content"] and hidden["tests"] == {}
    tests = ["assert!(f());", "assert!(g());"]
    for row in ({**RUST_RL_ROW, "rust_test_list": json.dumps(tests)}, {"prompt": "Write f.", "tests": tests}):
        example = read_row(row, RustOptions())
        (source,) = example["tests"].values()
        assert "f()" in example.prompt[1]["content"] and "g()" in source and "f()" not in source
    assert main_assertions(MULTIPLE["tests"])[1] == "let candidate = half; assert_eq!(candidate(7), 3);"


HALF = "/// Halves.\nfn half(n: u32) -> Option<u32> {\n    if n % 2 == 0 { Some(n / 2) } else { None }\n}"
IDIOMS = """/// A row.
pub struct Row(Vec<u8>);
impl Row {
    /// Its sum.
    pub fn sum(&self) -> u32 { self.0.iter().map(|n| u32::from(*n)).sum::<u32>() }
}
/// Splits.
pub fn split(pair: (u8, u8)) -> Result<u8, String> {
    let (a, b) = pair;
    match a.checked_add(b) {
        Some(sum) => Ok(sum),
        None => Err(String::from("too large")),
    }
}"""
COMPILED = 10 + 5 + 1 + 8
NANOCHAT = {
    # structure 0.5 x 2, patterns 0.5 x 3, documentation 2 x 3, a short program -1
    "a function": (HALF, COMPILED + 1 + 1.5 + 6 - 1),
    # structure (0.5 + 0.3) x 2, a Result 3, documentation 6, all idioms 3.9 x 2, 11 lines 0.5
    "idioms": (IDIOMS, COMPILED + 1.6 + 3 + 6 + 7.8 + 0.5),
    "a warning": (HALF.replace("    if", "    let unused = 1;\n    if"), COMPILED - 1 - 0.5 + 1 + 1.5 + 6 - 1),
    "a panic": ("/// Doc.\npub fn f(x: Option<u8>) -> u8 { x.unwrap() }", COMPILED + 1 + 6 - 1 - 6),
    "unsafe code": ("pub fn f() { unsafe { std::hint::unreachable_unchecked() } }", COMPILED + 1 - 1 - 3),
    "an error": ("pub fn f() -> u8 { g() }", 8 - 2 + 1 - 1),
    "no function": ("// fn", -2),
}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize("name", NANOCHAT)
def test_nanochat_rl_is_paid_as_published(name):
    code, value = NANOCHAT[name]
    options = recipe("nanochat_rl")
    paid = RustReward(options)(fenced(code), read_row({"prompt": "Write something."}, options))
    # maxima: structure 5 x 2, patterns 2 x 3, documentation 2 x 3, idioms 3.9 x 2, length 0.5
    assert (paid.value, paid.maximum) == (pytest.approx(value), pytest.approx(COMPILED + 10 + 6 + 6 + 7.8 + 0.5)), paid
    assert paid.solved == (paid.parts["build"] == 1) == (value > 10)
    assert more(options)["worst"] == -2.0
    if name == "a function":  # without a block: code only where no hidden tests are paid
        assert RustReward(options)(HALF, read_row({"prompt": "Halve."}, options)).parts["build"] == 1.0
        assert REWARD(HALF, EXAMPLE).value == 0.0


@needs_cargo
@pytest.mark.slow
def test_hidden_tests_see_private_functions_where_the_row_has_no_signature():
    row = {"prompt": "Write half.", "tests": [f"assert_eq!(half({2 * n}), {n});" for n in range(4)]}
    example, private = read_row(row, RustOptions()), "fn half(n: u32) -> u32 { n / 2 }\n#[cfg(test)]\nmod tests {}\n"
    paid = REWARD(fenced(private), example)
    assert paid.solved and paid.parts["clippy"] == 1.0  # though nothing calls it
    assert REWARD(fenced(private.replace("n / 2", "n")), example).parts["tests"] == 0.0
    assert REWARD(fenced(private), read_row(MULTIPLE, RustOptions())).parts["build"] == 0.0  # callers need `pub`


def test_problems_without_tests_are_said_and_pay_no_tests(monkeypatch, tmp_path, said):
    monkeypatch.setattr(rust, "toolchain", lambda: Path())
    rows = [{"prompt": f"Write {n}."} for n in range(20)]
    task = load_task("rust", data_path=written(tmp_path / "rows.jsonl", rows))
    assert sum(task.dataset.sizes()) == 20
    assert any("20 of 20 problems have no hidden tests: it builds, and" in line for line in said)
    paid = RustReward(RustOptions()).paid(dict.fromkeys(("build", "clippy", "own_tests", "quality"), 1.0), False)
    assert paid.value == paid.maximum == pytest.approx(0.25) and paid.solved


def test_where_rust_is_not_installed_the_task_is_refused_in_one_line(tmp_path, monkeypatch):
    rust_build.toolchain.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = [{**ROW, "slug": f"o{n}", "instructions": f"Do {n}."} for n in range(20)]
    task = load_task("rust", data_path=written(tmp_path / "rows.jsonl", rows))
    for ask in (lambda: task.dataset.train, task.notes):
        with pytest.raises(
            UserError, match=r"needs rustc and cargo and cc: install Rust from https://rustup\.rs"
        ) as no:
            ask()
        assert "\n" not in str(no.value)
    rust_build.toolchain.cache_clear()
