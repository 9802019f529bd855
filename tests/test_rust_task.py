"""The rust task with real cargo: what completions are paid, what is refused, rows, and what failures are no verdict."""

import json
from pathlib import Path

import pytest
import yaml
from test_documents import ROOT

from minrl.dataflow import Example, UserError
from minrl.sandbox import Outcome, SandboxError
from minrl.tasks import load_task, rust_build
from minrl.tasks.rust import RustOptions, RustReward, extract_code, main_assertions, own_tests, read_row, refusal
from minrl.tasks.rust_build import BuildLimits, Cargo, Package, renamed
from tests.runs import write_rows

pytest.importorskip("tree_sitter_rust", reason="needs the rust extra (tree-sitter-rust)")
needs_cargo = pytest.mark.usefixtures("cargo_that_works")

ROW = {
    "slug": "even-numbers",
    "instructions": "Return the even numbers, and their sum. The sum of none is an error.",
    "stub": {
        "src/lib.rs": "pub fn evens(numbers: &[i32]) -> Vec<i32> { todo!() }\n"
        "pub fn sum(numbers: &[i32]) -> Result<i32, String> { todo!() }\n",
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
#[test] #[cfg(feature = "extra")] fn not_compiled() { assert!(false); }
"""
    },
    "example": {".meta/example.rs": "pub fn evens() {}"},
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
    #[test] fn adds() { assert_eq!(sum(&[2, 3, 4]).unwrap(), 6); }
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
    half = REWARD(fenced(SOLUTION.replace("Ok(even.iter().sum())", "Ok(0)")), EXAMPLE)
    assert (half.solved, half.value) == (False, pytest.approx(0.05 + 0.75 * 3 / 4))  # no style beside a part
    vacuous = "#[test] fn truth() { assert!(true); }\n#[test] fn no_assertion() { evens(&[2]); }"
    for tests, value in ((vacuous, 0.0), (OWN_TESTS.replace("6)", "7)"), 2 / 3 * 2 / 3)):  # two of three, twice
        assert own_tests(Cargo(Package("x"), REWARD.options), SOLUTION + tests, "evens sum", 3) == pytest.approx(value)


REFUSED = {
    "pub fn f() { unsafe { std::hint::unreachable_unchecked() } }": "unsafe",
    "macro_rules! m {($($t:tt)*) => {$($t)*}}": "macro_rules!",
    "use std::{self as s, process as p}; fn f() { p::exit(0) }": "process",
    "fn f() { if cfg!(clippy) {} }": "clippy",
    '#[path = "../tests/even_numbers.rs"] mod t;': "path",
    "pub trait T { fn is_err(self) -> bool; }": "is_err",
    "impl PartialEq for S { fn eq(&self, _: &S) -> bool { true } }": "PartialEq",
}
INNOCENT = [
    SOLUTION + OWN_TESTS,
    '/// std::process::exit(0), unsafe\npub fn f() -> &\'static str { "unsafe std::fs" }',
]


def test_what_a_solution_has_no_need_of_is_refused_unless_the_row_has_it_and_ordinary_code_is_not():
    assert {code: refusal(code, "") for code in REFUSED} == REFUSED
    assert [refusal(code, code) for code in REFUSED] == [""] * len(REFUSED)
    assert refusal(extract_code("```rust\nfn f() {\u2028unsafe\u2028{} }\n```"), "") == "unsafe"  # read as a letter
    assert [refusal(code, "") for code in INNOCENT] == [""] * len(INNOCENT)


def test_names_of_tests_are_new_in_each_call_and_those_of_features_stay():
    source = "#[test]\nfn b() {}\n#[test]\n#[should_panic]\nfn a() {}\nfn d() {}\n"
    source += '#[cfg(feature = "x")] mod m { #[test] fn c() {} }'
    (written, found), (_, others) = renamed(source), renamed(source)
    assert len({*found, *others}) == 4
    assert [*found.values()] == [False, True] and all(name in written for name in (*found, "fn c()", "fn d()"))
    assert "fn a" not in written and "fn b" not in written


OUTPUTS = [
    ("test a ... ok\ntest m::b - should panic ... ok\n", 0, {"a", "b"}),
    ("test a ... ok\ntest b ... ok\ntest b ... FAILED\n", 101, {"a"}),  # a printed verdict
    ("test a ... ok\ntest b ... FAILED\n", 0, set()),  # an exit status that disagrees
]


@pytest.mark.parametrize(("output", "status", "passed"), OUTPUTS)
def test_a_test_passed_if_it_has_one_verdict_and_the_exit_status_agrees(output, status, passed, monkeypatch):
    def ran(cargo, script, files):
        mark = script.partition("echo ")[2].partition("\n")[0]
        return Outcome("ok", 0, f"{mark}\nrunning\n{output}\n{mark} {status}\n".encode(), b"", 0.1)

    monkeypatch.setattr(Cargo, "_in_sandbox", ran)
    assert Cargo(Package("x"), BuildLimits(), Path()).passed("", {}) == passed


FAILURES = {
    "the machine is busy": (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.4), "too little of the processor"),
    "cargo cannot run": (Outcome("error", 127, b"", b"sh: cargo: not found\n", 0.1), "could not run: sh: cargo: not"),
}


@pytest.mark.parametrize(("outcome", "said"), FAILURES.values(), ids=FAILURES)
def test_what_the_machine_causes_is_no_verdict(outcome, said, monkeypatch):
    monkeypatch.setattr(Cargo, "_in_sandbox", lambda *_: outcome)
    cargo = Cargo(Package("x"), BuildLimits(), Path())
    for ask in (cargo.builds, cargo.lints, lambda solution: cargo.passed(solution, {})):
        with pytest.raises(SandboxError, match=said):
            ask(SOLUTION)


@pytest.mark.slow
@needs_cargo
def test_a_solution_that_wants_a_panic_needs_an_ordinary_test_too():
    tests = "use even_numbers::*;\n#[test]\nfn ordinary() { assert_eq!(half(4), 2); }\n"
    tests += '#[test]\n#[should_panic(expected = "odd")]\nfn odd() { half(3); }\n'
    example = Example("", "", {**ROW, "slug": "half", "tests": {"tests/half.rs": tests}})
    for halved, said, share in (("n / 2", "odd", 1.0), ("n / 2", "bad", 1 / 2), ("n", "odd", 0.0)):
        program = f'pub fn half(n: i32) -> i32 {{ if n % 2 == 1 {{ panic!("{said}") }} {halved} }}'
        assert REWARD(fenced(program), example).parts["tests"] == share


MULTIPLE = {
    "name": "mbpp_0_half",
    "prompt": "/// Half of a number.\nfn half(n: isize) -> isize {\n",
    "tests": "}\n\nfn main() {\n    let candidate = half;\n    assert_eq!(candidate(4), 2);\n"
    "    assert_eq!(candidate(7), 3);\n}\n",
}


@needs_cargo
@pytest.mark.slow
def test_a_function_and_a_main_of_assertions_make_a_problem_and_so_does_a_list_without_a_signature():
    example = read_row(MULTIPLE, RustOptions())
    assert "pub fn half(n: isize) -> isize {" in example.prompt[1]["content"]
    assert "assert_eq" not in example.prompt[1]["content"]
    assert REWARD(fenced("pub fn half(n: isize) -> isize { n / 2 }"), example).solved
    assert REWARD(fenced("pub fn half(n: isize) -> isize { 2 }"), example).parts["tests"] == 1 / 2
    private = "fn half(n: u32) -> u32 { n / 2 }\n"
    assert REWARD(fenced(private), example).parts["build"] == 0.0  # callers need `pub`
    row = {"prompt": "Write half.", "tests": [f"assert_eq!(half({2 * n}), {n});" for n in range(4)]}
    assert REWARD(fenced(private), read_row(row, RustOptions())).solved


def test_rows_that_need_crates_or_unsafe_are_left_out_and_one_that_cannot_be_tested_is_refused():
    crates = {**ROW, "cargo_toml": ROW["cargo_toml"] + 'rand = "0.9"\n'}
    raw = {**ROW, "example": {".meta/example.rs": "fn f() { unsafe {} }"}}
    left = [read_row(row, RustOptions()) for row in (crates, raw)]
    assert left == ["even-numbers needs crates", "the reference of even-numbers is unsafe"]
    with pytest.raises(UserError, match="cannot be scored: even-numbers needs crates"):
        RustReward(RustOptions())(fenced(""), Example("", "", crates))
    for row, said in (({"slug": "a"}, "neither instructions nor a prompt"), ({**ROW, "tests": "fn a() {}"}, "no test")):
        with pytest.raises(UserError, match=said):
            read_row(row, RustOptions())


def test_the_prompt_shows_instructions_and_stub_and_no_test():
    user = read_row(ROW, RustOptions()).prompt[1]["content"]
    assert ROW["instructions"] in user and "pub fn sum(numbers: &[i32])" in user and "assert" not in user


def test_a_solution_is_found_in_any_fence_and_nowhere_else():
    untagged, open_end = "```toml\n[package]\n```\n```\nfn f() {}\n```", "So:\n```rust\nfn f() {}"
    for completion in (untagged, open_end):
        assert extract_code(completion, "pub fn f() { todo!() }").rstrip("\n") == "fn f() {}"
    assert extract_code("```toml\nfn f() {}\n```") is None


def test_style_pays_nothing_beside_a_part_of_the_tests():
    parts = dict.fromkeys(("build", "tests", "clippy", "own_tests", "quality"), 1.0)
    whole, almost = (REWARD.paid(given, True) for given in (parts, {**parts, "tests": 0.5}))
    assert whole.value == whole.maximum == pytest.approx(1.0) and whole.solved
    assert not almost.solved and almost.value == pytest.approx(0.05 + 0.75 * 0.5)


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
        assert_eq!(add_nums(4, 2), 6);
        assert_eq!(add_nums(4, -2), 2);
        assert_eq!(add_nums(-12, -1), -13);
    }
}"""
RUST_RL = {
    ADDS: 1 + 1 + 2 + 1 + 0.5 + 0.5 + 0.75,  # the project's own example
    ADDS.replace("x + y", "x + z"): 0 + 0 + 0 + 1 + 0.5 + 0.5 + 0.75,
}
RUST_RL_ROW = {"task_id": "t1", "rust_prompt": "Add two numbers.", "rust_test_list": ["assert_eq!(add_nums(1, 2), 3);"]}
HALF = "/// Halves.\nfn half(n: u32) -> Option<u32> {\n    if n % 2 == 0 { Some(n / 2) } else { None }\n}"
COMPILED = 10 + 5 + 1 + 8
# a warning -1 and a half, structure 0.5 x 2, patterns 0.5 x 3, documentation 2 x 3, a short program -1
NANOCHAT = {HALF.replace("    if", "    let unused = 1;\n    if"): COMPILED - 1 - 0.5 + 1 + 1.5 + 6 - 1}
MAXIMA = {"rust_rl": 7.0, "nanochat_rl": COMPILED + 5 * 2 + 2 * 3 + 2 * 3 + 3.9 * 2 + 0.5}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize(("name", "paid_for"), [("rust_rl", RUST_RL), ("nanochat_rl", NANOCHAT)])
def test_a_recipe_pays_as_published(name, paid_for):
    options = recipe(name)
    example, score = read_row(RUST_RL_ROW, options), RustReward(options)
    for code, value in paid_for.items():
        paid = score(fenced(code), example)
        assert (paid.value, paid.maximum) == (pytest.approx(value), pytest.approx(MAXIMA[name])), paid
        assert paid.solved == (paid.parts["build"] == 1)
    # without a block: code only where no hidden tests are paid
    assert score(HALF, example).parts["build"] == 1.0 and REWARD(HALF, EXAMPLE).value == 0.0


def test_a_list_of_assertions_shows_the_first_and_tests_the_others_where_hidden_tests_are_paid():
    plain, hidden = (read_row(RUST_RL_ROW, options) for options in (recipe("rust_rl"), RustOptions()))
    assert plain.id == "t1" and plain.prompt[1]["content"] == "Add two numbers."
    assert "assert_eq!(add_nums(1, 2), 3);" in hidden.prompt[1]["content"] and hidden["tests"] == {}
    tests = ["assert!(f());", "assert!(g());"]
    example = read_row({**RUST_RL_ROW, "rust_test_list": json.dumps(tests)}, RustOptions())
    (source,) = example["tests"].values()
    assert "f()" in example.prompt[1]["content"] and "g()" in source and "f()" not in source
    assert main_assertions(MULTIPLE["tests"])[1] == "let candidate = half; assert_eq!(candidate(7), 3);"


def test_where_rust_is_not_installed_the_task_is_refused_in_one_line(tmp_path, monkeypatch):
    rust_build.toolchain.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    said = r"needs rustc and cargo and cc: install Rust from https://rustup\.rs[^\n]*$"
    with pytest.raises(UserError, match=said):
        load_task("rust", data_path=str(write_rows(tmp_path / "rows.jsonl", ROW))).dataset.sizes()
    rust_build.toolchain.cache_clear()
