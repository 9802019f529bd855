"""The rust task with real cargo: what completions are paid, what is refused, rows, and what failures are no verdict."""

import json
import re
from pathlib import Path

import pytest

from minrl.dataflow import Example, Job, UserError
from minrl.rewards.worker import Failure, call
from minrl.sandbox import Outcome, SandboxError
from minrl.tasks import load_task, rust_build
from minrl.tasks.rust import REASONS, RustOptions, RustReward, extract_code, main_assertions, read_row, refusal
from minrl.tasks.rust_build import BuildLimits, Cargo, Package, constant_passes, draw, find_tests, other_value
from minrl.tasks.rust_quality import parse, text

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
        rust_build.working_toolchain()
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
def test_solved_is_every_hidden_test_whatever_the_style():
    ugly = SOLUTION.replace("/// ", "// ").replace("even.is_empty()", "even.len() == 0")
    paid = REWARD(fenced(f"#![allow(clippy::all)]\n{ugly}"), EXAMPLE)  # clippy is not silenced
    assert paid.solved and paid.parts["tests"] == 1.0
    assert paid.parts["clippy"] == 0.0  # len_zero
    assert paid.value == pytest.approx(0.05 + 0.75 + 0.05 * paid.parts["quality"])


@needs_cargo
@pytest.mark.slow
def test_tests_that_pass_are_paid_beyond_those_that_constants_pass():
    half = SOLUTION.replace("Ok(even.iter().sum())", "Ok(0)") + OWN_TESTS
    paid = REWARD(fenced(half), EXAMPLE)
    assert (paid.parts["build"], paid.parts["tests"]) == (1.0, (4 - 2) / (5 - 2))  # constants: one of each function
    assert not paid.solved
    assert paid.value == pytest.approx(0.05 + 0.75 * 2 / 3)  # no style


VACUOUS_TESTS = """
#[test] fn truth() { assert!(true); }
#[test] fn arithmetic() { assert_eq!(1 + 1, 2); }
#[test] fn no_assertion() { evens(&[2]); }
#[test] #[should_panic] fn panics() { assert!(evens(&[2]).is_empty()); }
#[test] fn dead() { if false { assert_eq!(evens(&[2]), [1]); } }
#[test] fn returns() { if evens(&[2]) == [2] { return; } assert_eq!(evens(&[2]), [1]); }
"""


@needs_cargo
@pytest.mark.slow
def test_own_tests_are_paid_by_how_many_pass_and_could_fail():
    paid = lambda tests: Cargo(Package("x"), REWARD.options).own_tests(SOLUTION + tests, "evens sum", 3)  # noqa: E731
    assert paid(VACUOUS_TESTS) == 0.0
    assert paid(OWN_TESTS.replace("Ok(6)", "Ok(7)")) == pytest.approx(2 / 3 * 2 / 3)  # two of three, twice


REFUSED = {
    "unsafe": ("pub fn f() { unsafe { std::hint::unreachable_unchecked() } }", "word"),
    "include of the tests": ('const T: &str = include_str!("../tests/even_numbers.rs");', "word"),
    "a raw name": ('const X: &str = r#include_str!("x");', "word"),
    "a macro": ("macro_rules! m {($($t:tt)*) => {$($t)*}}", "word"),
    "hidden in a comment that ends": ("/* /* */ */ fn f() { unsafe {} } /* */", "word"),
    "hidden by an escape": ("const C: char = '\\u{2_________2}'; fn f() { unsafe { g() } } // '", "word"),
    "no Rust": ("fn f( { unsafe", "word"),
    "exit by another name": ("use std::{self as s, process as p}; fn f() { p::exit(0) }", "path"),
    "files": ("use std::fs; fn f() {}", "path"),
    "include by another name": ('use std::include as given; given!("x");', "path"),
    "other code for clippy by cfg!": ("fn f() { if cfg!(clippy) {} }", "attribute"),
    "a module elsewhere": ('#[path = "../tests/even_numbers.rs"] mod t;', "attribute"),
    "a path under a condition": ('#[cfg_attr(all(), path = "../x.rs")] mod m;', "attribute"),
    "another Option": ("pub mod m { pub enum Option { A } }", "name"),
    "another Vec": ("mod m { pub struct Liar; } pub use m::Liar as Vec;", "name"),
    "another assert": ("pub use std::stringify as assert;", "name"),
    "a method before std's": ("pub trait T { fn is_err(self) -> bool; }", "name"),
}


def test_what_a_solution_has_no_need_of_is_refused_unless_the_row_has_it():
    for code, reason in REFUSED.values():
        assert refusal(code, "") == reason and reason in REASONS
        assert refusal(code, code) == ""
    assert refusal(extract_code("```rust\nfn f() {\u2028unsafe\u2028{} }\n```"), "") == "word"  # read as a letter


INNOCENT = {
    "the solution": SOLUTION + OWN_TESTS,
    "strings and comments": '/// std::process::exit(0), unsafe\npub fn f() -> &\'static str { "unsafe std::fs" }',
    "lifetimes": "pub fn f<'a>(x: &'a str) -> Option<&'a str> { Some(x).filter(|_| 'u' != '\\'') }",
    "modules of std": "use std::{collections::HashMap, fmt::{self, Display}, io::{self, Read}};",
    "a Result of its own": "pub type Result<T> = std::result::Result<T, u8>;",
    "conditions": '#[cfg(not(test))] fn f() {} #[cfg(target_pointer_width = "64")] fn h() {}',
    "a lint": "#[allow(clippy::too_many_arguments)] fn f() {}",
    "cells and threads": "fn f(x: &std::cell::RefCell<u8>) { std::thread::spawn(|| ()).join().ok(); }",
}


def test_ordinary_code_is_not_refused():
    assert {name: refusal(code, "") for name, code in INNOCENT.items()} == dict.fromkeys(INNOCENT, "")


TWINS = {
    "a text": ('{ assert_eq!(f(), "a".to_string()); }', '{ assert_eq!(f(), "~a".to_string()); }'),
    "a digit of a text": ('{ assert_eq!(f(), d("0.10")); }', '{ assert_eq!(f(), d("0.11")); }'),
    "through the solution's own type": ("{ assert_eq!(f(1), f(2)); }", "{ assert_eq!(f(1), f(1)); }"),
    "the last assertion": (
        "{ assert_eq!(f(), 1); assert_eq!(f(), 3); }",
        "{ assert_eq!(f(), 1); assert_eq!(f(), 2); }",
    ),
    "no literal": ("{ assert_eq!(f(4), None); }", None),
}


def body_of(source):
    (function,) = parse(f"fn t() {source}").children
    return function.child_by_field_name("body")


def changed(body, edit):
    start, end, new = edit
    return text(body)[: start - body.start_byte] + new + text(body)[end - body.start_byte :]


@pytest.mark.parametrize(("source", "twin"), TWINS.values(), ids=TWINS)
def test_a_twin_expects_another_value(source, twin):
    body = body_of(source)
    edit = other_value(body, {"f"})
    assert (edit and changed(body, edit)) == twin


def test_names_are_new_in_each_call_and_tell_nothing():
    source = "#[test]\nfn b() { assert_eq!(f(), 1); }\n#[test]\n#[should_panic]\nfn a() { f(); }"
    drawn = [draw(source, {"f"}) for _ in range(40)]
    names = [name for tests, twins, _ in drawn for name in (*tests, *twins.values())]
    assert len(set(names)) == len(names) == 3 * 40  # a panic has no twin
    assert all(re.fullmatch("t[0-9a-f]{16}", name) for name in names)
    assert all(name in written for tests, twins, written in drawn for name in (*tests, *twins.values()))
    orders = {tuple(source[slice(*tests[name].name_at)] for name in sorted(tests)) for tests, _, _ in drawn}
    firsts = {max(tests) < min(twins.values()) for tests, twins, _ in drawn}
    assert len(orders) == len(firsts) == 2  # each of them fails to occur in one of 2^38 or of 1.5^40 calls
    assert not any("fn a" in written or "fn b" in written for _, _, written in drawn)


LEAP = "assert!(leap(4))", "assert!(leap(8));", "assert!(!leap(7));", "assert!(!leap(9));", "assert!(!leap(100));"
CONSTANTS = {
    "a predicate": (LEAP, 3),
    "two functions": (("assert!(leap(1));", "assert!(is_odd(1));", "assert!(!is_odd(2));"), 2),
}


@pytest.mark.parametrize(("bodies", "passes"), CONSTANTS.values(), ids=CONSTANTS)
def test_constants_pass_tests_that_expect_the_same(bodies, passes):
    source = "\n".join(f"#[test] fn t{number}() {{ {body} }}" for number, body in enumerate(bodies))
    assert constant_passes(find_tests(parse(source)), {"leap", "is_odd"}) == passes


OUTPUTS = {
    "all pass": ("test a ... ok\ntest m::b - should panic ... ok\n", 0, {"a", "b"}),
    "a printed verdict": ("test a ... ok\ntest b ... ok\ntest b ... FAILED\n", 101, {"a"}),
    "an exit status that disagrees": ("test a ... ok\ntest b ... FAILED\n", 0, set()),
    "no verdict": ("test a ... \n a ... ok", 0, set()),
}


@pytest.mark.parametrize(("output", "status", "passed"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_test_passed_if_it_has_one_verdict_and_the_exit_status_agrees(output, status, passed, monkeypatch):
    cargo = Cargo(Package("x"), BuildLimits())

    def ran(script, files):
        mark = script.partition("echo ")[2].partition("\n")[0]
        return Outcome("ok", 0, f"{mark}\nrunning\n{output}\n{mark} {status}\n".encode(), b"", 0.1)

    monkeypatch.setattr(cargo, "_in_sandbox", ran)
    assert cargo._run({}, "")[1] == passed


ERROR = b"error: could not compile `x` (lib) due to 1 previous error"
FAILURES = {
    "an error in the source": (Outcome("error", 1, b"", ERROR, 0.1), 0.0),
    "no processor time left": (Outcome("error", 1, b"", ERROR + b" (signal: 24, SIGXCPU)", 5.0), 1.0),
    "half of the processor time": (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.5), 1.0),
    "the machine is busy": (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.4), "too little of the processor"),
    "cargo cannot run": (Outcome("error", 127, b"", b"sh: cargo: not found\n", 0.1), "could not run: sh: cargo: not"),
}


@pytest.mark.parametrize(("outcome", "limited"), FAILURES.values(), ids=FAILURES)
def test_what_the_source_causes_is_a_failure_and_what_the_machine_causes_no_verdict(outcome, limited, monkeypatch):
    monkeypatch.setattr(Cargo, "_in_sandbox", lambda *_: outcome)
    monkeypatch.setattr(rust_build, "working_toolchain", lambda *_: None)
    build = lambda: Cargo(Package("x"), BuildLimits()).hidden_tests(SOLUTION, {}, "")  # noqa: E731
    if isinstance(limited, str):
        with pytest.raises(SandboxError, match=limited):
            build()
    else:
        assert build() == {"build_limit": limited}


def test_a_failed_build_counts_only_where_an_empty_package_builds(monkeypatch):
    rust_build.working_toolchain.cache_clear()
    monkeypatch.setattr(rust_build, "toolchain", lambda: Path("/rust/bin"))
    monkeypatch.setattr(Cargo, "_in_sandbox", lambda *_: Outcome("error", 1, b"", ERROR, 0.1))
    with pytest.raises(UserError, match=r"does not run in the sandbox \(an empty package does not build\)"):
        Cargo(Package("x"), BuildLimits()).hidden_tests(SOLUTION, {}, "")
    failed = call(Job(Cargo(Package("x"), BuildLimits()).hidden_tests, (SOLUTION, {}, "")))  # in a worker
    assert isinstance(failed, Failure) and "does not run in the sandbox" in failed.reason  # unscorable and reported


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
    assert REWARD(fenced(right.replace("odd", "bad")), example).parts["tests"] == pytest.approx((2 - 1) / (3 - 1))
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
    example = read_row(MULTIPLE)
    assert "pub fn half(n: isize) -> isize {" in example.prompt[1]["content"]
    assert "assert_eq" not in example.prompt[1]["content"]
    assert REWARD(fenced("pub fn half(n: isize) -> isize { n / 2 }"), example).solved
    assert REWARD(fenced("pub fn half(n: isize) -> isize { 2 }"), example).parts["tests"] == 0.0


def test_a_prompt_and_a_list_show_the_first_assertion_and_test_the_others():
    row = {"prompt": "Write half.", "tests": ["assert_eq!(half(4), 2);", "assert_eq!(half(6), 3);"]}
    example = read_row(row)
    assert "half(4)" in example.prompt[1]["content"]
    (source,) = example["tests"].values()
    assert "half(4)" not in source and "half(6)" in source
    assert example.id == read_row({**row, "difficulty": 3}).id
    assert main_assertions(MULTIPLE["tests"])[1] == "let candidate = half; assert_eq!(candidate(7), 3);"


def test_rows_that_need_crates_or_unsafe_are_left_out():
    crates = {**ROW, "cargo_toml": ROW["cargo_toml"] + 'rand = "0.9"\n'}
    dev = {**ROW, "cargo_toml": ROW["cargo_toml"] + '[dev-dependencies]\npretty_assertions = "*"\n'}
    raw = {**ROW, "example": {".meta/example.rs": "fn f() { unsafe {} }"}}
    left = [read_row(row) for row in (crates, dev, raw)]
    assert left == ["even-numbers needs crates"] * 2 + ["the reference of even-numbers is unsafe"]
    with pytest.raises(UserError, match="cannot be scored: even-numbers needs crates"):
        RustReward(RustOptions())(fenced(""), Example("", "", crates))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"slug": "a", "tests": {}}, "neither instructions nor a prompt"),
        ({**ROW, "tests": {}}, "no test"),
        ({**ROW, "cargo_toml": "[["}, "not TOML"),
    ],
)
def test_a_row_that_cannot_be_tested_is_refused_in_one_line(row, said):
    with pytest.raises(UserError, match=said) as caught:
        read_row(row)
    assert "\n" not in str(caught.value)


def test_the_prompt_shows_instructions_and_stub_and_no_test():
    example = read_row(ROW)
    system, user = example.prompt
    assert (system["role"], user["role"]) == ("system", "user")
    assert ROW["instructions"] in user["content"] and "pub fn sum(numbers: &[i32])" in user["content"]
    assert "assert" not in user["content"] and "6" not in user["content"]
    assert example.category == {"difficulty": "1"}


FENCES = {
    "capitals": "```Rust\nfn f() {}\n```",
    "more after the tag": "```rust,no_run title=x\nfn f() {}\n```",
    "no tag": "```toml\n[package]\n```\n```\nfn f() {}\n```",
    "in a list": "1. Here:\n\n   ```rust\n   fn f() {}\n   ```\n",
    "tildes": "~~~rust\nfn f() {}\n~~~",
    "no end": "So:\n```rust\nfn f() {}",
    "usage behind it": "```rust\nfn f() {}\n```\nUse it:\n```rust\nfn main() { f() }\n```",
    "a draft before it": "```rust\nfn f() { draft }\n```\n```rust\nfn f() {}\n```",
}


def test_a_solution_is_found_in_any_fence_and_nowhere_else():
    for completion in FENCES.values():
        assert extract_code(completion, "pub fn f() { todo!() }").rstrip("\n") == "fn f() {}"
    assert extract_code("```toml\nfn f() {}\n```") is None and extract_code("fn f() {} ```x```") is None
    assert extract_code("```toml\nx\n```\n```rust\nfn f() {") is None  # cut off behind a closed block
    assert extract_code('```rust\nlet s = r"\n        ```\n";\n```') == 'let s = r"\n        ```\n";\n'


def test_style_never_outweighs_the_tests():
    with pytest.raises(UserError, match="outweigh"):
        RustOptions(test_weight=0.2)
    parts = dict.fromkeys(("build", "clippy", "own_tests", "quality"), 1.0)
    paid = RustReward(RustOptions(clippy_weight=0.4, quality_weight=0.2)).paid
    assert paid({**parts, "tests": 1.0}).value == 1.0
    plain = paid({**parts, "tests": 1.0, "clippy": 0.0, "quality": 0.0, "own_tests": 0.0})
    almost = paid({**parts, "tests": 0.99})
    assert plain.solved and not almost.solved and almost.value < plain.value


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Makes programs of these names, shell scripts, the only ones that there are."""
    caches = (rust_build.toolchain, rust_build.working_toolchain)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(scripts, folder):
        (tmp_path / folder).mkdir(parents=True)
        for name, script in scripts.items():
            (tmp_path / folder / name).write_text(f"#!/bin/sh\n{script.replace('FOLDER', str(tmp_path))}\n")
            (tmp_path / folder / name).chmod(0o755)

    yield put
    for cached in caches:
        cached.cache_clear()


BROKEN = {
    "nothing is installed": ({}, {}, r"needs rustc and cc: install Rust from https://rustup\.rs"),
    # Without walls the sandbox's user does not come as far as the script: pytest's folders are closed to others.
    "a cargo that does not run": (
        {"rustc": "echo FOLDER/rust", "cc": ""},
        {"rustc": "", "clippy-driver": "", "cargo": "echo 'no such library\nat all' >&2; exit 127"},
        r"Rust in .*rust/bin does not run in the sandbox \(.*\): install Rust where",
    ),
}


@pytest.mark.parametrize(("programs", "toolchain", "said"), BROKEN.values(), ids=BROKEN)
def test_a_rust_that_does_not_work_is_refused_in_one_line(programs, toolchain, said, install, tmp_path):
    install(programs, "bin")
    install(toolchain, "rust/bin")
    rows = [{**ROW, "slug": f"o{n}", "instructions": f"Do {n}."} for n in range(20)]
    task = load_task("rust", data_path=written(tmp_path / "rows.jsonl", rows))
    for ask in (lambda: task.dataset.train, task.notes):
        with pytest.raises(UserError, match=said) as refused:
            ask()
        assert "\n" not in str(refused.value)
