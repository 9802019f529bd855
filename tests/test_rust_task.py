"""The rust task with real cargo: what each completion is paid, exploits first; rows, prompts, evidence."""

import json
import os
import pickle
import tempfile
from pathlib import Path

import pytest

from minrl.sandbox import calls as sandbox
from minrl.sandbox.calls import Limits
from minrl.system.json_text import json_text
from minrl.tasks import load_task, rust
from minrl.tasks.rust import RustOptions, RustReward, extract_code
from minrl.tasks.rust import cargo as cargo
from minrl.tasks.rust.guard import refusal, tokens
from minrl.tasks.rust.rows import problems
from minrl.tasks.rust.signatures import signature_checks
from minrl.tasks.rust.syntax import parse
from minrl.tasks.rust.tests import Secret, find_tests, instrumented, main_assertions, own_tests
from minrl.types import Example, UserError

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

#[test]
fn none() {
    assert_eq!(evens(&[]), vec![]);
}

#[test]
#[ignore]
fn some() {
    assert_eq!(evens(&[1, 2, 3, 4]), vec![2, 4]);
}

mod sums {
    use even_numbers::*;

    #[test]
    #[ignore]
    fn of_some() {
        assert_eq!(sum(&[1, 2, 4]), Ok(6));
    }

    #[test]
    #[ignore]
    fn of_none() {
        assert!(sum(&[1]).is_err());
    }
}

#[test]
fn with_a_module_inside() {
    mod inside {
        pub struct Counting;
        unsafe impl Sync for Counting {}
    }
    let _ = inside::Counting;
    assert_eq!(evens(&[6]), vec![6]);
}

#[test]
#[cfg(feature = "extra")]
fn not_compiled() {
    assert!(false);
}
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

    #[test]
    fn finds() {
        assert_eq!(evens(&[2, 3]), [2]);
    }

    #[test]
    fn adds() {
        assert_eq!(sum(&[2, 3, 4]), Ok(6));
    }

    #[test]
    fn refuses() {
        assert!(sum(&[3]).is_err());
    }
}
"""


def fenced(code):
    return f"I think.\n\n```rust\n{code}\n```\n"


def example_of(row, tmp_path, **options):
    path = tmp_path / "rows.jsonl"
    other = {**ROW, "slug": "other"}
    path.write_text("\n".join(json.dumps(r) for r in (row, other, *({**other, "slug": f"o{n}"} for n in range(20)))))
    task = load_task("rust", {"rust": RustOptions(**options)}, str(path))
    name = row.get("slug") or row.get("name")
    return next(e for e in [*task.dataset.train, *task.dataset.held_out] if name is None or e.id == name)


@pytest.fixture(scope="session")
def cargo_that_works():
    """Skips where the task itself would refuse: no Rust, or rustup without a toolchain."""
    try:
        cargo.toolchain()
    except UserError as refused:
        pytest.skip(str(refused))


@pytest.fixture(scope="module")
def folder():
    """The target directory, warm for all tests of the file. Not one of pytest's, which are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="minrl-rust-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def reward(folder):
    return RustReward(RustOptions(cache=folder, build_seconds=600.0, test_seconds=120.0))  # for slow machines


@pytest.fixture(scope="module")
def example(tmp_path_factory, cargo_that_works):
    return example_of(ROW, tmp_path_factory.mktemp("row"))


@needs_cargo
def test_a_full_solution_with_tests_of_its_own_earns_everything(reward, example):
    paid = reward(fenced(SOLUTION + OWN_TESTS), example)
    assert paid.value == 1.0, paid
    assert paid.solved
    assert {paid.parts[name] for name in ("build", "tests", "clippy", "own_tests", "quality")} == {1.0}


@needs_cargo
def test_solved_is_every_hidden_test_whatever_the_style(reward, example):
    ugly = SOLUTION.replace("/// ", "// ").replace("even.is_empty()", "even.len() == 0")
    paid = reward(fenced(ugly), example)
    assert paid.solved and paid.parts["tests"] == 1.0
    assert paid.parts["clippy"] == 0.0  # len_zero
    assert paid.value == pytest.approx(0.05 + 0.75 + 0.05 * paid.parts["quality"])
    assert paid.parts["quality_docs"] == 0.0 < paid.parts["quality"] < 1.0


@needs_cargo
def test_part_of_the_tests_is_a_part_of_their_weight_and_no_style_is_paid(reward, example):
    half = SOLUTION.replace("Ok(even.iter().sum())", "Ok(0)") + OWN_TESTS
    paid = reward(fenced(half), example)
    assert (paid.parts["build"], paid.parts["tests"]) == (1.0, 4 / 5)
    assert not paid.solved
    assert paid.value == pytest.approx(0.05 + 0.75 * 4 / 5)


VACUOUS = {
    "no code": "evens(numbers)",
    "an empty block": fenced(""),
    "a comment": fenced("// done"),
    "a vacuous function": fenced("fn f() {}\n#[test]\nfn t() { assert!(true); }"),
    "a main that prints": fenced('fn main() { println!("test result: ok. 4 passed; 0 failed"); }'),
    "a syntax error": fenced(SOLUTION + "}"),
    "files of its own": "tests/even_numbers.rs:\n" + fenced("#[test] fn some() { assert!(true); }"),
    "a manifest": '```toml\n[lib]\nproc-macro = true\n[package]\nbuild = "build.rs"\n```',
    "tests alone": fenced(OWN_TESTS),
}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize("completion", VACUOUS.values(), ids=VACUOUS)
def test_what_solves_nothing_earns_nothing(reward, example, completion):
    assert reward(completion, example).value == 0.0


STUBBED = "pub fn evens(_: &[i32]) -> Vec<i32> { BODY }\npub fn sum(_: &[i32]) -> Result<i32, String> { BODY }\n"
REFUSED = {
    "exit": (STUBBED.replace("BODY", "std::process::exit(0)"), "std_process"),
    "exit by an alias": ("use std as s;" + STUBBED.replace("BODY", "s::process::exit(0)"), "std_alias"),
    "exit by a group": ("use std::{fmt, process::exit};" + STUBBED.replace("BODY", "exit(0)"), "std_process"),
    "exit by a glob": ("use std::*;" + STUBBED.replace("BODY", "process::exit(0)"), "std_alias"),
    "exit by a raw name": (STUBBED.replace("BODY", "r#std::r#process::exit(0)"), "std_process"),
    "exit across lines": (STUBBED.replace("BODY", "std /* x */ :: // y\n process::exit(0)"), "std_process"),
    "exit by a macro": (
        "macro_rules! m {($p:ident) => {std::$p::exit(0)}}" + STUBBED.replace("BODY", "m!(process)"),
        None,
    ),
    "std by a macro": (
        "macro_rules! m {($s:ident) => {$s::process::exit(0)}}" + STUBBED.replace("BODY", "m!(std)"),
        "std_alias",
    ),
    "extern crate": ("extern crate std as s;" + STUBBED.replace("BODY", "s::process::exit(0)"), "extern"),
    "environment": (STUBBED.replace("BODY", "std::env::args(); todo!()"), "std_env"),
    "files": ("use std::{fs::File};" + STUBBED.replace("BODY", "todo!()"), "std_fs"),
    "symbols of the frames": (STUBBED.replace("BODY", "std::backtrace::Backtrace::force_capture(); todo!()"), None),
    "include of the tests": ('const T: &str = include_str!("../tests/even_numbers.rs");', "include_str"),
    "include by a macro": ('macro_rules! m {($i:ident) => {$i!("x")}} m!(include_bytes);', None),
    "unsafe": (STUBBED.replace("BODY", "unsafe { std::hint::unreachable_unchecked() }"), "unsafe"),
    "a static initialiser": ('#[unsafe(link_section = ".init_array")] static X: fn() = f; fn f() {}', None),
    "an old static initialiser": ('#[link_section = ".init_array"] static X: fn() = f; fn f() {}', None),
    "an initialiser by a macro": ("macro_rules! m {($a:meta) => {#[$a] static X: fn() = f;}}", "attribute"),
    "no main": ("#![no_main]" + SOLUTION, None),
    "a feature": ("#![feature(rustc_attrs)]" + SOLUTION, "attribute_feature"),
    "attributes under conditions": ("#[cfg_attr(all(), no_mangle)] fn f() {}", None),
    "a module elsewhere": ('#[path = "../tests/even_numbers.rs"] mod t;', "attribute_path"),
    "C": ('extern "C" { fn exit(s: i32) -> !; }', "extern"),
    "assembler": ('core::arch::asm!("")', "asm"),
    "an exported assert_eq": ("#[macro_export] macro_rules! assert_eq {($($t:tt)*) => {}}", "attribute_macro_export"),
    "a type that is equal to all": (
        "pub struct Any; impl PartialEq<Vec<i32>> for Any { fn eq(&self, _: &Vec<i32>) -> bool { true } }",
        "own_comparison",
    ),
    "a public type that is equal to all": (
        "pub struct Any; impl PartialEq for Any { fn eq(&self, _: &Self) -> bool { true } }",
        "own_comparison",
    ),
    "equality by a macro": ("macro_rules! m {($t:ty) => {impl PartialEq for $t {}}}", "own_comparison"),
    "a trait before std's methods": ("pub trait T { fn is_err(self) -> bool; }", "pub_trait"),
    "another bool": ("#[allow(non_camel_case_types)] pub struct bool;", "shadowed_name"),
}


@pytest.mark.parametrize(("code", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_could_forge_evidence_is_refused(code, reason):
    found = refusal(code, "", allow_unsafe=False)
    assert found is not None
    assert reason in (None, found)


INNOCENT = {
    "the solution": SOLUTION + OWN_TESTS,
    "strings and comments": '/// std::process::exit(0), unsafe\npub fn f() -> &\'static str { "unsafe std::fs" }',
    "lifetimes": "pub fn f<'a>(x: &'a str) -> Option<&'a str> { Some(x).filter(|_| 'u' != '\\'') }",
    "names that are modules elsewhere": "fn process(env: i32, include: bool) -> i32 { if include { env } else { 0 } }",
    "a macro": "macro_rules! m {($t:ty, $($x:expr),*) => {<$t>::from($($x),*)}} fn f() -> i64 { m!(i64, 1i32) }",
    "a private order": "struct S(u8); impl PartialEq for S { fn eq(&self, o: &Self) -> bool { self.0 == o.0 } }",
    "modules of std": "use std::{collections::HashMap, fmt::{self, Display}, io::{self, Read}};",
    "threads": "pub fn f() { std::thread::spawn(|| ()).join().ok(); }",
}


@pytest.mark.parametrize("code", INNOCENT.values(), ids=INNOCENT)
def test_ordinary_code_is_not_refused(code):
    assert refusal(code, "", allow_unsafe=False) is None


def test_what_the_row_does_itself_is_allowed():
    exported = "#[macro_export] macro_rules! hashmap {() => {}}"
    assert refusal(exported, exported, allow_unsafe=False) is None
    assert refusal("pub trait Luhn {}", "pub trait Luhn { fn valid(&self) -> bool; }", allow_unsafe=False) is None
    assert refusal("fn f() { unsafe {} }", "", allow_unsafe=True) is None


def test_raw_strings_and_nested_comments_end_where_rust_ends_them():
    assert tokens('r##"a"# unsafe "## x /* /* */ unsafe */ y') == ['""', "x", "y"]
    assert tokens('r#" r#" ' * 60_000) == ['"']  # no compiler takes it, and it is read once
    assert tokens("b'\\'' 'a 'a' '\"' std") == ['""', "'a", '""', '""', "std"]


# What would get past the tokens still leaves no evidence: here the guard is not asked.

FORGED = {
    "exit 0": STUBBED.replace("BODY", "std::process::exit(0)"),
    "printed verdicts": STUBBED.replace(
        "BODY", 'println!("test none ... ok\\ntest result: ok. 4 passed; 0 failed"); std::process::exit(0)'
    ),
    "an aborted process": STUBBED.replace("BODY", "std::process::abort()"),
    "the tests' own arguments": STUBBED.replace("BODY", 'for a in std::env::args() { println!("{a}") } panic!()'),
    "a hook that exits": STUBBED.replace("BODY", "std::panic::set_hook(Box::new(|_| std::process::exit(0))); panic!()"),
    "the stub": STUBBED.replace("BODY", "todo!()"),
    "another type": "#[derive(Debug)] pub struct Any; impl PartialEq<Vec<i32>> for Any { fn eq(&self, _: &Vec<i32>) -> "
    "bool { true } } pub fn evens(_: &[i32]) -> Any { Any } pub fn sum(_: &[i32]) -> Result<i32, String> { todo!() }",
}


@needs_cargo
@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
def test_a_process_that_ends_early_leaves_no_evidence(reward, example, code, monkeypatch):
    monkeypatch.setattr("minrl.tasks.rust.refusal", lambda *_: None)
    paid = reward(fenced(code), example)
    assert paid.parts["tests"] == 0.0, paid
    assert paid.value < 0.0501


@needs_cargo
@pytest.mark.slow
def test_tests_call_the_assertions_of_std(reward, example, monkeypatch):
    monkeypatch.setattr("minrl.tasks.rust.refusal", lambda *_: None)
    shadows = "#[macro_export] macro_rules! assert_eq {($($t:tt)*) => {}}\npub use std::stringify as assert;\n"
    wrong = "pub fn evens(_: &[i32]) -> Vec<i32> { vec![7] }\npub fn sum(_: &[i32]) -> Result<i32, String> { Ok(7) }\n"
    assert reward(fenced(shadows + wrong), example).parts["tests"] == 0.0


@needs_cargo
@pytest.mark.slow
def test_a_refused_solution_is_not_built(reward, example):
    paid = reward(fenced(SOLUTION + "fn f() { std::process::exit(0) }"), example)
    assert (paid.value, paid.parts["refused"], paid.parts["refused_std_process"]) == (0.0, 1.0, 1.0)


@needs_cargo
@pytest.mark.slow
def test_a_test_that_hangs_or_overflows_costs_itself_and_its_time(folder, reward, example):
    overflowing = SOLUTION.replace("let even", "if numbers.len() == 3 { return sum(numbers); } let even")
    assert reward(fenced(overflowing), example).parts["tests"] == 4 / 5
    endless = SOLUTION.replace("let even", "while numbers.len() == 3 {} let even")
    strict = RustReward(RustOptions(cache=folder, build_seconds=600.0, test_seconds=4.0))
    assert strict(fenced(endless), example).parts["tests"] < 1.0


@needs_cargo
@pytest.mark.slow
def test_the_compiler_works_under_limits(folder, example):
    tight = RustReward(RustOptions(cache=folder, build_seconds=5.0))
    endless = SOLUTION + "macro_rules! m {($($t:tt)*) => {m!($($t)* $($t)*);}} m!(a);"
    assert tight(fenced(endless), example).value == 0.0
    constant = (
        SOLUTION
        + "#[allow(long_running_const_eval)] pub const X: u64 = { let mut i = 0; while i < u64::MAX { i += 1 } i };"
    )
    assert tight(fenced(constant), example).value == 0.0


OWN = {
    "vacuous": ("#[test] fn t() { assert!(true); }", 0),
    "a tautology": ("#[test] fn t() { assert_eq!(evens(&[]), evens(&[])); }", 0),
    "always true": ("#[test] fn t() { assert!(true || evens(&[]).is_empty()); }", 0),
    "nothing of the solution": ("#[test] fn t() { assert_eq!(1 + 1, 2); }", 0),
    "no assertion": ("#[test] fn t() { evens(&[]); }", 0),
    "a panic": ("#[test] #[should_panic] fn t() { assert!(evens(&[]).is_empty()); panic!() }", 0),
    "real ones": (OWN_TESTS, 3),
}


@pytest.mark.parametrize(("tests", "real"), OWN.values(), ids=OWN)
def test_only_assertions_about_the_solution_are_real(tests, real):
    assert len(own_tests(SOLUTION + tests)[1]) == real


@needs_cargo
@pytest.mark.slow
def test_own_tests_that_fail_are_paid_less(reward, example):
    failing = OWN_TESTS.replace("Ok(6)", "Ok(7)")
    paid = reward(fenced(SOLUTION + failing), example)
    assert paid.solved
    assert paid.parts["own_tests"] == pytest.approx(2 / 3 * 2 / 3)  # two of three wanted, times two of three that pass


@needs_cargo
@pytest.mark.slow
def test_clippy_is_not_silenced(reward, example):
    silenced = "#![allow(clippy::all)]\n" + SOLUTION.replace("even.is_empty()", "even.len() == 0")
    assert reward(fenced(silenced), example).parts["clippy"] == 0.0


@pytest.mark.slow
@needs_cargo
def test_a_solution_that_wants_a_panic_needs_an_ordinary_test_too(reward, tmp_path):
    tests = (
        "use even_numbers::*;\n#[test]\nfn ordinary() { assert_eq!(half(4), 2); }\n"
        '#[test]\n#[should_panic(expected = "odd")]\nfn odd() { half(3); }\n'
        "#[test]\nfn result() -> Result<(), String> { if half(2) == 1 { Ok(()) } else { Err(String::new()) } }\n"
        "#[test]\nfn returns() { if half(2) == 1 { return; } panic!() }\n"
    )
    stub = "pub fn half(n: i32) -> i32 {\n    todo!()\n}\n"
    example = example_of({**ROW, "slug": "half", "stub": stub, "tests": {"tests/half.rs": tests}}, tmp_path)
    right = 'pub fn half(n: i32) -> i32 { if n % 2 == 1 { panic!("odd") } n / 2 }'
    assert reward(fenced(right), example).parts["tests"] == 1.0
    assert reward(fenced(right.replace("odd", "bad")), example).parts["tests"] == 3 / 4
    assert reward(fenced('pub fn half(_: i32) -> i32 { panic!("odd") }'), example).parts["tests"] == 0.0


@needs_cargo
@pytest.mark.slow
def test_an_exported_macro_cannot_return_from_a_test(reward, tmp_path):
    stub = "#[macro_export]\nmacro_rules! seven {\n    () => { todo!() };\n}\n"
    tests = "use even_numbers::seven;\n#[test]\nfn is_seven() { let n: i32 = seven!(); assert_eq!(n, 7); }\n"
    example = example_of({**ROW, "slug": "seven", "stub": stub, "tests": {"tests/seven.rs": tests}}, tmp_path)
    macro = "#[macro_export]\nmacro_rules! seven {\n    () => { BODY };\n}\n"
    assert reward(fenced(macro.replace("BODY", "7")), example).parts["tests"] == 1.0
    assert reward(fenced(macro.replace("BODY", "return")), example).parts["tests"] == 0.0


MULTIPLE = {
    "name": "mbpp_0_half",
    "prompt": "/// Half of a number.\nfn half(n: isize) -> isize {\n",
    "tests": "}\n\nfn main() {\n    let candidate = half;\n    assert_eq!(candidate(4), 2);\n"
    "    assert_eq!(candidate(7), 3);\n}\n",
}


@needs_cargo
def test_a_function_and_a_main_of_assertions_make_a_problem(reward, tmp_path):
    example = example_of(MULTIPLE, tmp_path)
    assert "pub fn half(n: isize) -> isize {" in example.prompt[1]["content"]
    assert "assert_eq" not in example.prompt[1]["content"]
    assert reward(fenced("pub fn half(n: isize) -> isize { n / 2 }"), example).solved
    assert reward(fenced("pub fn half(n: isize) -> isize { 2 }"), example).parts["tests"] == 0.5


def test_a_prompt_and_a_list_show_the_first_assertion_and_test_the_others():
    row = {"prompt": "Write half.", "tests": ["assert_eq!(half(4), 2);", "assert_eq!(half(6), 3);"]}
    (problem,) = problems([row], allow_unsafe=False)
    assert "half(4)" in problem.instructions
    (source,) = problem.tests.values()
    assert "half(4)" not in source and "half(6)" in source
    assert problem.id == problems([{**row, "difficulty": 3}], allow_unsafe=False)[0].id
    assert main_assertions(MULTIPLE["tests"])[1] == "let candidate = half; assert_eq!(candidate(7), 3);"


def test_rows_that_need_crates_or_unsafe_are_left_out():
    crates = {**ROW, "cargo_toml": ROW["cargo_toml"] + 'rand = "0.9"\n'}
    dev = {**ROW, "cargo_toml": ROW["cargo_toml"] + '[dev-dependencies]\npretty_assertions = "*"\n'}
    raw = {**ROW, "example": {".meta/example.rs": "fn f() { unsafe {} }"}}
    assert problems([crates, dev, raw], allow_unsafe=False) == []
    assert [p.package.allow_unsafe for p in problems([ROW, raw], allow_unsafe=True)] == [False, True]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"slug": "a", "tests": {}}, "neither instructions nor a prompt"),
        ({**ROW, "tests": {}}, "no test"),
        ({**ROW, "tests": {"tests/x.rs": "fn f() {}"}}, "no test"),
        ({**ROW, "cargo_toml": "[["}, "not TOML"),
    ],
)
def test_a_row_that_cannot_be_tested_is_refused_in_one_line(row, said):
    with pytest.raises(UserError, match=said) as caught:
        problems([row], allow_unsafe=False)
    assert "\n" not in str(caught.value)


def test_the_prompt_shows_instructions_and_stub_and_no_test(example):
    system, user = example.prompt
    assert (system["role"], user["role"]) == ("system", "user")
    assert ROW["instructions"] in user["content"] and "pub fn sum(numbers: &[i32])" in user["content"]
    assert "assert" not in user["content"] and "6" not in user["content"]
    assert example.category == {"difficulty": "1"}


def test_tests_are_found_by_module_and_only_where_they_are_compiled():
    (source,) = ROW["tests"].values()
    assert [test.name for test in find_tests(parse(source))] == [
        "none",
        "some",
        "sums::of_some",
        "sums::of_none",
        "with_a_module_inside",
    ]


def test_every_secret_is_new_and_only_lines_with_it_count():
    first, second = Secret.new(), Secret.new()
    assert first != second
    output = f"{first.nonce} a\ntest b ... ok\n{second.nonce} c\n x {first.nonce} d\n".encode()
    assert first.passed(output) == {"a"}
    wrapped = instrumented("#[test]\nfn a() { assert!(true); }", first, set())
    assert first.nonce in wrapped and second.nonce not in wrapped


def test_results_are_pinned_to_the_types_of_the_stub():
    stub = ROW["stub"]["src/lib.rs"]
    checks = signature_checks(stub, SOLUTION, "even_numbers")
    assert "(_: fn(A0) -> ::std::vec::Vec<N0>) {} pin(even_numbers::evens);" in checks
    assert "(_: fn(A0) -> ::std::result::Result<N0, ::std::string::String>) {} pin(even_numbers::sum);" in checks
    generic = SOLUTION.replace("evens(numbers: &[i32])", "evens<T: AsRef<[i32]>>(numbers: T)")
    assert "even_numbers::evens" not in signature_checks(stub, generic, "even_numbers")


def test_the_last_closed_block_is_the_solution():
    assert extract_code("```rust\na\n```\n```toml\nx\n```\n```rs\nb\n```") == "b\n"
    assert extract_code("```rust\nfn f() {}") is None
    assert extract_code('```rust\nlet s = "``` no";\n```') == 'let s = "``` no";\n'


def test_style_never_outweighs_the_tests():
    with pytest.raises(UserError, match="outweigh"):
        RustOptions(test_weight=0.2)
    with pytest.raises(UserError, match="at least 0"):
        RustOptions(clippy_weight=-0.1)
    parts = dict.fromkeys(("build", "clippy", "own_tests", "quality"), 1.0)
    for weights in ({}, {"clippy_weight": 0.4, "quality_weight": 0.2}, {"own_test_weight": 0.5}):
        paid = RustReward(RustOptions(**weights)).paid
        assert paid({**parts, "tests": 1.0}).value == 1.0
        assert paid({**parts, "tests": 1.0, "clippy": 0.0, "quality": 0.0, "own_tests": 0.0}).solved
        almost = paid({**parts, "tests": 0.99})
        assert not almost.solved
        assert almost.value < paid({**parts, "tests": 1.0, "clippy": 0.0, "quality": 0.0, "own_tests": 0.0}).value


def test_the_reward_and_its_example_go_to_workers(example):
    reward = RustReward(RustOptions())
    assert pickle.loads(pickle.dumps((reward, example))) == (reward, example)


def test_an_example_survives_being_written_as_json():
    row = {**ROW, "cargo_toml": ROW["cargo_toml"] + "[features]\nlarge = []\n[lints.clippy]\nall = 'allow'\n"}
    (problem,) = problems([row], allow_unsafe=False)
    made = rust._example(problem)
    read = Example(made.id, made.prompt, json.loads(json_text(dict(made.fields))))
    assert problem.package.allowed_lints == ("all",) and problem.package.features == ("large",)
    assert rust._package(read) == rust._package(made) == problem.package
    paid = RustReward(RustOptions())("```rust\npub fn evens() { unsafe {} }\n```", read)
    assert paid.parts["refused"] == 1  # the reward reads the package first


def test_one_problem_under_several_names_is_on_one_side(monkeypatch, tmp_path):
    monkeypatch.setattr(rust, "toolchain", lambda: None)
    rows = [
        {"name": f"{copy}{n}", "prompt": f"fn f{n}() -> i32 {{", "tests": [f"assert_eq!(f{n}(), {n})"] * 2}
        for n in range(30)
        for copy in "ab"
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = rust.make(RustOptions(), str(tmp_path / "rows.jsonl")).dataset
    train, held_out = ({str(example.prompt) for example in side} for side in (dataset.train, dataset.held_out))
    assert train and held_out and not train & held_out
    assert len(dataset.train) == 2 * len(train) and len(dataset.held_out) == 2 * len(held_out)


def test_two_workers_do_not_share_a_folder(folder):
    root = Path(folder) / "shared"
    first, second = cargo.Workspace(root), cargo.Workspace(root)
    assert first.folder != second.folder
    del first
    assert cargo.Workspace(root).folder.name == "worker-0"  # free again


def test_a_folder_that_the_sandboxs_user_cannot_enter_is_refused_in_one_line(tmp_path, monkeypatch):
    # Without walls, and as root, the sandbox's user is another one: pytest's folders are closed to it.
    monkeypatch.setattr(sandbox, "level", lambda: "limits")
    if os.geteuid():
        pytest.skip("needs root to become another user")
    with pytest.raises(UserError, match=r"cannot enter .*/target .*choose a --rust\.cache") as refused:
        cargo.Workspace(tmp_path / "rust")
    assert "\n" not in str(refused.value)


@needs_cargo
def test_nothing_of_the_manifest_runs_code(folder):
    manifest = cargo.Package("x").manifest()
    assert "build = false" in manifest and "proc-macro = false" in manifest and "dependencies" not in manifest
    work = cargo.Workspace(Path(folder))
    with pytest.raises(UserError, match="outside"):
        work.write({"../build.rs": ""})
    work.put(cargo.Package("x", files={"build.rs": "fn main() { panic!() }"}), "pub fn f() {}")
    limits = cargo.CargoLimits(Limits(memory_mib=4096, processes=128, wall_s=600.0, cpu_s=600.0), Limits())
    assert work.cargo(["build"], limits).status == "ok"


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Makes programs of these names, shell scripts, the only ones that there are."""
    cargo.toolchain.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(scripts, folder="bin"):
        (tmp_path / folder).mkdir(parents=True)
        for name, script in scripts.items():
            (tmp_path / folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / folder / name).chmod(0o755)

    yield put
    cargo.toolchain.cache_clear()


def assert_refused(message, tmp_path):
    for ask in (lambda: example_of(ROW, tmp_path), lambda: load_task("rust").notes()):
        with pytest.raises(UserError, match=message) as refused:
            ask()
        assert "\n" not in str(refused.value)


def test_without_cargo_the_task_says_how_to_get_it(install, tmp_path):
    install({})
    assert_refused(r"needs cargo and rustc and cc: install Rust from https://rustup\.rs", tmp_path)


def test_a_rustup_without_a_toolchain_is_refused_in_one_line(install, tmp_path):
    says = "echo 'error: no default is configured\nhelp: choose one' >&2; exit 1"
    install({"rustc": says, "cargo": says, "cc": "exit 0"})
    assert_refused(r"rustc does not work \(error: no default is configured\): run `rustup default stable`", tmp_path)


def test_a_cargo_that_does_not_run_in_the_sandbox_is_refused_in_one_line(install, tmp_path):
    install({"rustc": f"echo {tmp_path}/rust", "cargo": "exit 0", "cc": "exit 0"})
    install({"cargo": "echo 'no such library\nat all' >&2; exit 1", "cargo-clippy": "exit 0"}, "rust/bin")
    # Without walls the sandbox's user does not come as far as the script: pytest's folders are closed to others.
    reason = "(no such library|.*Permission denied)"
    assert_refused(rf"cargo in .*rust/bin does not run in the sandbox \({reason}.*\): install Rust where", tmp_path)


def test_a_cargo_that_cannot_be_started_is_refused_in_one_line(install, tmp_path):
    install({"rustc": f"echo {tmp_path}/rust", "cargo": "exit 0", "cc": "exit 0"})
    install({"cargo": "exit 0", "cargo-clippy": "exit 0"}, "rust/bin")
    (tmp_path / "rust/bin/cargo").chmod(0o644)
    assert_refused(r"does not run in the sandbox \(.*Permission denied.*\): install Rust where every", tmp_path)
