"""The rust task with real cargo: what each completion is paid, exploits first; rows, prompts, evidence."""

import json
import os
import pickle
import socket
import tempfile
from pathlib import Path

import pytest

from minrl.rewards.workers import Workers
from minrl.sandbox.calls import Outcome, SandboxError
from minrl.sandbox.walls import has_unreadable
from minrl.tasks import load_task, rust
from minrl.tasks.rust import RustOptions, RustReward, compiler, extract_code, runner
from minrl.tasks.rust.claims import Claim, contradictory, falsified, other_value, passed
from minrl.tasks.rust.guard import REASONS, refusal
from minrl.tasks.rust.rows import LeftOut, read_problem
from minrl.tasks.rust.signatures import signature_checks
from minrl.tasks.rust.syntax import parse, plain, tokens
from minrl.tasks.rust.tests import find_tests, instrumented, main_assertions, own_tests
from minrl.types import Example, UserError
from minrl.utils.text import json_text

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
        runner.working_toolchain(runner.program_folder(""))
    except UserError as refused:
        pytest.skip(str(refused))


@pytest.fixture(scope="module")
def folder():
    """Where the test programs lie. Not one of pytest's folders, which are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="minrl-rust-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def reward(folder):
    return RustReward(
        RustOptions(cache=folder, build_seconds=600.0, test_seconds=120.0, seconds=900.0)
    )  # for slow machines


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
@pytest.mark.slow
def test_solved_is_every_hidden_test_whatever_the_style(reward, example):
    ugly = SOLUTION.replace("/// ", "// ").replace("even.is_empty()", "even.len() == 0")
    paid = reward(fenced(ugly), example)
    assert paid.solved and paid.parts["tests"] == 1.0
    assert paid.parts["clippy"] == 0.0  # len_zero
    assert paid.value == pytest.approx(0.05 + 0.75 + 0.05 * paid.parts["quality"])
    assert paid.parts["quality_docs"] == 0.0 < paid.parts["quality"] < 1.0


@needs_cargo
@pytest.mark.slow
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
    "extern crate": ("extern crate std as s;", "word"),
    "C": ('extern "C" { fn exit(s: i32) -> !; }', "word"),
    "unsafe": (STUBBED.replace("BODY", "unsafe { std::hint::unreachable_unchecked() }"), "word"),
    "include of the tests": ('const T: &str = include_str!("../tests/even_numbers.rs");', "word"),
    "include by a macro": ('macro_rules! m {($i:ident) => {$i!("x")}} m!(include_bytes);', "word"),
    "include by another name": ('use std::include as given; given!("x");', "word"),
    "a raw name": ('const X: &str = r#include_str!("x");', "word"),
    "assembler": ('core::arch::asm!("")', "word"),
    "a constant without end": ("#[allow(long_running_const_eval)] pub const X: u64 = f();", "word"),
    "other code for clippy": ("#[cfg(clippy)] fn f() {} #[cfg(not(clippy))] fn f() { g() }", "condition"),
    "other code for clippy by cfg!": ("fn f() { if cfg!(clippy) {} }", "word"),
    "attributes with other code for clippy": ("#[cfg_attr(clippy, allow(warnings))] fn f() {}", "condition"),
    "an attribute under a condition": ('#[cfg_attr(all(), path = "../x.rs")] mod m;', "attribute"),
    "a condition without end": ("#[cfg(" + "all(" * 99 + ")" * 99 + ")] fn f() {}", "condition"),
    "a macro's condition": ("macro_rules! m {($($c:tt)*) => {#[cfg($($c)*)] fn f() {}}} m!(clippy);", "condition"),
    "an attribute of two kinds": ("macro_rules! m {(#[$a:meta]) => {}; ($a:ident) => {#[$a] mod m {}}}", "attribute"),
    "other code with features": ('#[cfg(feature = "x")] fn f() {}', "condition"),
    "a static initialiser": ('#[unsafe(link_section = ".init_array")] static X: fn() = f; fn f() {}', "word"),
    "an initialiser by a macro": ("macro_rules! m {($a:meta) => {#[$a] static X: fn() = f;}}", "attribute"),
    "no main": ("#![no_main]" + SOLUTION, "attribute"),
    "a feature": ("#![feature(rustc_attrs)]" + SOLUTION, "attribute"),
    "attributes under conditions": ("#[cfg_attr(all(), no_mangle)] fn f() {}", "word"),
    "a derived mark": ("#[automatically_derived] impl X for Y {}", "attribute"),
    "a module elsewhere": ('#[path = "../tests/even_numbers.rs"] mod t;', "attribute"),
    "an exported assert_eq": ("#[macro_export] macro_rules! assert_eq {($($t:tt)*) => {}}", "attribute"),
    "an assert_eq of its own": ("macro_rules! assert_eq {($($t:tt)*) => {}}", "macro"),
    "a module by a macro": ("macro_rules! m {() => {mod std { pub fn f() {} }}}", "macro"),
    "a use by a macro": ("macro_rules! m {($($a:tt)*) => {use $($a)*::x;}}", "macro"),
    "a named macro": ('macro_rules! m {($i:ident) => {$i!("x")}} m!(y);', "macro"),
    "a type that is equal to all": (
        "pub struct Any; impl PartialEq<Vec<i32>> for Any { fn eq(&self, _: &Vec<i32>) -> bool { true } }",
        "own_comparison",
    ),
    "a public type that is equal to all": (
        "pub struct Clock; impl PartialEq for Clock { fn eq(&self, _: &Self) -> bool { true } }",
        "own_comparison",
    ),
    "one with braces in its head": ("pub struct A; impl PartialEq<B<{ 1 }>> for A { }", "own_comparison"),
    "one after a parenthesis": ("fn f() { (impl_it()) } pub struct A; mod m { impl PartialEq for super::A {} }", None),
    "one under another name": ("use std::cmp::PartialEq as P; pub struct A; impl P for A {}", "own_comparison"),
    "one by an alias": ("pub struct A; type B = A; impl PartialEq for B {}", "own_comparison"),
    "one in a type of the row": (
        "#[derive(PartialEq)] pub struct Clock(In); struct In; impl PartialEq for In {}",
        "own_comparison",
    ),
    "one in a type of the row by another": (
        "pub struct Clock { of: Vec<Mid> } pub enum Mid { A(In) } pub struct In; impl PartialEq for In {}",
        "own_comparison",
    ),
    "one under the row's name": ("pub struct In; pub type Clock = In; impl PartialEq for In {}", "own_comparison"),
    "one exported under the row's name": (
        "mod m { pub struct In; impl PartialEq for In {} } pub use m::In as Clock;",
        "own_comparison",
    ),
    "one that the row's type is made of": (
        "pub struct Clock<T>(T); pub struct In; impl PartialEq for In {} impl Clock<In> { pub fn new() -> Self {} }",
        "own_comparison",
    ),
    "one of a trait's": (
        "pub struct In; impl PartialEq for In {} trait H { type A; } impl H for u8 { type A = In; } "
        "pub struct Clock(<u8 as H>::A);",
        "own_comparison",
    ),
    "one that a macro puts anywhere": (
        "macro_rules! m {($a:ident, $b:ty) => {pub struct $a($b);}} m!(Clock, In); struct In; impl PartialEq for In {}",
        "own_comparison",
    ),
    "one with all types": ("pub struct In; impl<In> PartialEq<In> for Out {} pub struct Out;", "own_comparison"),
    "one with another type": ("pub struct In; impl PartialEq<Option<u32>> for In {}", "own_comparison"),
    "one of a trait's objects": ("trait T {} impl PartialEq for dyn T {}", "own_comparison"),
    "a helper that is a bool": ("pub struct In; impl Not for In { type Output = bool; }", "own_comparison"),
    "a helper that is a bool and itself": (
        "impl Not for In { type Output = bool; fn not() { impl A for B { type Output = Self; } } } struct In;",
        "own_comparison",
    ),
    "a bool that is what it must be": ("pub struct A; impl std::ops::Not for A {}", "own_comparison"),
    "equality by a macro": ("macro_rules! m {($t:ty) => {impl PartialEq for $t {}}}", "own_comparison"),
    "any trait by a macro": ("macro_rules! m {($i:path, $t:ty) => {impl $i for $t {}}}", "own_comparison"),
    "a trait before std's methods": ("pub trait T { fn is_err(self) -> bool; }", "pub_trait"),
    "a trait whose methods a macro makes": ("pub trait T { m!(); }", "pub_trait"),
    "a Result that is not std's": (
        "mod std { pub mod result { pub struct Result<T>(T); } } pub type Result<T> = std::result::Result<T>;",
        "shadowed_name",
    ),
    "a trait that a macro passes on": (
        "macro_rules! m {($($t:tt)*) => {$($t)*}} m!{pub trait T { fn is_err(self) -> bool; }}",
        "macro",
    ),
    "another bool": ("#[allow(non_camel_case_types)] pub struct bool;", "shadowed_name"),
    "another Option of a private module": ("mod m { pub enum Option { A } } pub use m::*;", "shadowed_name"),
    "another Option by its name": ("mod m { pub enum Option { A } } pub use m::{self, Option};", "shadowed_name"),
    "another Option of a public module": ("pub mod m { pub enum Option { A } }", "shadowed_name"),
    "another Vec": ("mod m { pub struct Liar; } pub use m::Liar as Vec;", "shadowed_name"),
    "hidden by an escape": ("const C: char = '\\u{2_________2}'; fn f() { unsafe { g() } } // '", "word"),
    "hidden by a mark of direction": ("uns\u200eafe fn f() {}\u200eunsafe fn g() {}", None),
    "hidden by a line separator": ("fn f() {\u2028unsafe\u2028{} }", "word"),
    "hidden in a comment that ends": ("/* /* */ */ fn f() { unsafe {} } /* */", "word"),
    "not Rust": ("fn f( { unsafe", "syntax"),
}


@pytest.mark.parametrize(("code", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_syntax_shows_is_refused(code, reason):
    found = refusal(code, "fn t(_: Clock) { assert!(f().is_err()); }", allow_unsafe=False)
    assert found in REASONS
    assert reason in (None, found)


def test_a_refusals_name_never_comes_from_the_completion():
    names = "x" * 1000
    paid = RustReward(RustOptions())(f"```rust\n#[{names}] fn f() {{}}\n```", Example("", "", FIELDS))
    assert paid.parts["refused_attribute"] == 1 and not any(names in part for part in paid.parts)


FIELDS = {"stub": "", "tests": {}, "package": {"crate": "x"}, "given": ""}


INNOCENT = {
    "the solution": SOLUTION + OWN_TESTS,
    "strings and comments": '/// std::process::exit(0), unsafe\npub fn f() -> &\'static str { "unsafe std::fs" }',
    "lifetimes": "pub fn f<'a>(x: &'a str) -> Option<&'a str> { Some(x).filter(|_| 'u' != '\\'') }",
    "names that are modules elsewhere": "fn process(env: i32, include: bool) -> i32 { if include { env } else { 0 } }",
    "a macro": "macro_rules! m {($t:ty, $($x:expr),*) => {<$t>::from($($x),*)}} fn f() -> i64 { m!(i64, 1i32) }",
    "a private order": "struct S(u8); impl PartialEq for S { fn eq(&self, o: &Self) -> bool { self.0 == o.0 } }",
    "a public order": "pub struct S(u8); impl PartialEq for S { fn eq(&self, o: &Self) -> bool { self.0 == o.0 } }",
    "an order with another helper": "pub enum A { X } struct B; impl PartialEq<B> for A {} impl PartialEq<A> for A {}",
    "a helper beside the row's type": "pub struct Clock(u8); struct Key<'a>(&'a u8); impl PartialEq for Key<'_> {}",
    "the other player": "pub enum P { X, O } impl std::ops::Not for P { type Output = Self; fn not(self) -> Self {} }",
    "an Option of a private module": "mod parse { pub enum Option { Verbose } pub struct String; }",
    "impl in arguments": "fn f(x: impl Fn(i32) -> i32, y: &dyn for<'a> Fn(&'a str)) { for _ in 0..x(1) {} }",
    "a macro that makes types": "macro_rules! m {($n:ident) => {pub struct $n; impl Planet for $n {}}} m!(Earth);",
    "modules of std": "use std::{collections::HashMap, fmt::{self, Display}, io::{self, Read}};",
    "a Result of its own": "pub type Result<T> = std::result::Result<T, u8>; type Option<T> = std::option::Option<T>;",
    "a private name": "mod m { struct Vec; enum Option { A } } impl std::str::FromStr for X { type Err = String; }",
    "a trait with methods of its own": "pub trait Square { const N: u8; fn sq(&self) -> i64; fn new() -> Self; }",
    "a trait for itself": "pub(crate) trait T { fn is_err(self) -> bool; }",
    "conditions": '#[cfg(not(test))] fn f() {} #[cfg(debug_assertions)] fn g() {} #[cfg(target_pointer_width = "64")] '
    "fn h() {}",
    "an attribute for tests": '#![recursion_limit = "256"] #[cfg_attr(test, derive(Debug, Clone))] struct S;',
    "a macro that keeps attributes": "macro_rules! m {($(#[$m:meta])* $n:ident) => {$(#[$m])* struct $n;}} "
    "m!(#[derive(Debug)] S);",
    "a check by a macro": "macro_rules! assert_pos {($x:expr) => {if $x < 0 { panic!() }}}",
    "alloc": "extern crate alloc; use alloc::vec::Vec;",
    "a name that is assembler elsewhere": "fn f(asm: i64) -> i64 { asm * asm }",
    "threads": "pub fn f() { std::thread::spawn(|| ()).join().ok(); }",
}


@pytest.mark.parametrize("code", INNOCENT.values(), ids=INNOCENT)
def test_ordinary_code_is_not_refused(code):
    assert refusal(code, "fn t(_: Clock) { assert!(f().is_err()); new(); }", allow_unsafe=False) is None


def test_names_of_types_mean_those_of_std_in_tests():
    written, _ = instrumented("use own::*; #[test] fn a() { let b: bool = f(); }", {"char"}, 3)
    imported = written.partition("::std::primitive::{")[2].partition("}")[0].split(", ")
    assert {"bool", "str", "i64"} <= {*imported} and "char" not in imported


def test_what_the_row_does_itself_is_allowed():
    exported = "#[macro_export] macro_rules! hashmap {() => {}}"
    assert refusal(exported, exported, allow_unsafe=False) is None
    assert refusal("pub trait Luhn {}", "pub trait Luhn { fn valid(&self) -> bool; }", allow_unsafe=False) is None
    assert refusal("fn f() { unsafe {} }", "", allow_unsafe=True) is None


def test_raw_strings_and_nested_comments_end_where_rust_ends_them():
    assert tokens(parse('r##"a"# unsafe "##; /* /* */ unsafe */ y;')) == ['""', ";", "y", ";"]
    escaped = "const C: [char; 2] = ['\\u{2__2}', 'x'];"
    assert tokens(parse(plain(escaped)))[-6:] == ["[", '""', ",", '""', "]", ";"]


# What would get past the guard still leaves no evidence: here neither the syntax nor the object code is asked.


@pytest.fixture
def unguarded(monkeypatch):
    monkeypatch.setattr("minrl.tasks.rust.refusal", lambda *_: None)
    monkeypatch.setattr("minrl.tasks.rust._reaches_out", lambda *_: "")


FORGED = {
    "printed verdicts": STUBBED.replace(
        "BODY", 'println!("test none ... ok\\ntest result: ok. 4 passed; 0 failed"); std::process::exit(0)'
    ),
    "an aborted process": STUBBED.replace("BODY", "std::process::abort()"),
    "the tests' own arguments": STUBBED.replace("BODY", 'for a in std::env::args() { println!("{a}") } panic!()'),
    "a hook that exits": STUBBED.replace("BODY", "std::panic::set_hook(Box::new(|_| std::process::exit(0))); panic!()"),
    "another type": "#[derive(Debug)] pub struct Any; impl PartialEq<Vec<i32>> for Any { fn eq(&self, _: &Vec<i32>) -> "
    "bool { true } } pub fn evens(_: &[i32]) -> Any { Any } pub fn sum(_: &[i32]) -> Result<i32, String> { todo!() }",
}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
def test_a_process_that_ends_early_leaves_no_evidence(reward, example, code, unguarded):
    paid = reward(fenced(code), example)
    assert paid.parts["tests"] == 0.0, paid
    assert paid.value < 0.0501


@needs_cargo
@pytest.mark.slow
def test_tests_call_the_assertions_of_std(reward, example, unguarded):
    shadows = "#[macro_export] macro_rules! assert_eq {($($t:tt)*) => {}}\npub use std::stringify as assert;\n"
    wrong = "pub fn evens(_: &[i32]) -> Vec<i32> { vec![7] }\npub fn sum(_: &[i32]) -> Result<i32, String> { Ok(7) }\n"
    assert reward(fenced(shadows + wrong), example).parts["tests"] == 0.0


EVERYTHING = """
use std::io::Write;
fn report(found: &[u8]) {
    let marks = found.split(|b| *b == 10).filter(|m| m.len() == 32 && m.iter().all(u8::is_ascii_hexdigit));
    for mark in marks {
        unsafe extern "C" { fn write(to: i32, from: *const u8, size: usize) -> isize; }
        let line = [b"\\n", mark, b"\\n"].concat();
        for to in 1..256 { unsafe { write(to, line.as_ptr(), line.len()); } }
    }
}
fn forge() -> ! {
    HOW
    std::io::stdout().flush().ok();
    std::process::exit(0)
}
"""
MEANS = {
    "its own file": 'report(&std::fs::read("/proc/self/exe").unwrap_or_default());',
    "its file made readable": 'let me = std::env::args().next().unwrap(); std::process::Command::new("/bin/chmod")'
    '.args(["755", &me]).status().ok(); report(&std::fs::read(&me).unwrap_or_default());',
    "a child that reads": 'let pid = std::process::id(); let cat = std::process::Command::new("/bin/cat").arg(format!('
    '"/proc/{pid}/exe")).output().unwrap(); report(&cat.stdout);',
    "its memory": "use std::os::unix::fs::FileExt; let at = forge as *const () as usize as u64 & !0xfff; "
    'if let Ok(memory) = std::fs::File::open("/proc/self/mem") { for page in 0..4096 { let mut read = vec![0; 4096]; '
    "if memory.read_at(&mut read, at + page * 4096).is_ok() { report(&read); } } }",
}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize("how", MEANS.values(), ids=MEANS)
def test_a_program_cannot_read_itself(reward, example, how, unguarded):
    package = {**example["package"], "allow_unsafe": True}
    code = EVERYTHING.replace("HOW", how) + STUBBED.replace("BODY", "forge()")
    paid = reward(fenced(code), Example("", "", {**example.fields, "package": package}))
    assert (paid.parts["build"], paid.parts["tests"], paid.parts["refused"]) == (1.0, 0.0, 0.0), paid


@needs_cargo
@pytest.mark.slow
def test_who_finds_every_mark_in_memory_cannot_tell_a_test_from_its_twin(reward, example, unguarded):
    package = {**example["package"], "allow_unsafe": True}
    how = (
        'unsafe extern "C" { static __executable_start: u8; static edata: u8; } let (from, to) = (&raw const '
        "__executable_start, &raw const edata); report(unsafe { std::slice::from_raw_parts(from, to as usize - from as "
        "usize) });"
    )
    code = EVERYTHING.replace("HOW", how) + STUBBED.replace("BODY", "forge()")
    paid = reward(fenced(code), Example("", "", {**example.fields, "package": package}))
    assert (paid.value, paid.parts["refused_forged"]) == (0.0, 1.0), paid


CALLS = {
    "exit": ("std::process::exit(0)", "std_process"),
    "exit by an alias": ("use std as s; s::process::exit(0)", "std_process"),
    "exit by a nested group": ("use std::{{self as s}}; s::process::exit(0)", "std_process"),
    "exit by a group with itself last": ("use std::{fmt, self as s}; s::process::exit(0)", "std_process"),
    "exit by a glob": ("use std::*; process::exit(0)", "std_process"),
    "exit by a raw name": ("r#std::r#process::exit(0)", "std_process"),
    "exit as a value": ("let end: fn(i32) -> ! = std::process::exit; end(0)", "std_process"),
    "exit in a generic function": ("fn end<T>(_: T) -> ! { std::process::exit(0) } end(1)", "std_process"),
    "exit by a macro": ("macro_rules! m {($p:ident) => {std::$p::exit(0)}} m!(process)", "std_process"),
    "exit by pieces": (
        "macro_rules! m {($($a:ident)* | $($b:ident)*) => {$($a)*::$($b)*::exit(0)}} m!(std | process)",
        "std_process",
    ),
    "a program": ('std::process::Command::new("sh").status().ok(); todo!()', "std_process"),
    "files": ('std::fs::read("/proc/self/exe").ok(); todo!()', "std_fs"),
    "an opened file": ('std::fs::File::open("/proc/self/mem").ok(); todo!()', "std_fs"),
    "a file as a type": (
        "use std::io::Write; let f: Option<std::fs::File> = std::hint::black_box(None); f.unwrap().flush().ok(); "
        "todo!()",
        None,
    ),
    "arguments": ("std::env::args().count(); todo!()", "std_env"),
    "sockets": ('std::net::TcpStream::connect("127.0.0.1:1").ok(); todo!()', "std_net"),
    "a file of its path": ('std::path::Path::new("/proc/self/exe").read_dir().ok(); todo!()', None),
}


@needs_cargo
@pytest.mark.slow
@pytest.mark.parametrize(("body", "reason"), CALLS.values(), ids=CALLS)
def test_what_the_object_code_calls_is_refused_however_it_is_spelled(reward, example, body, reason):
    paid = reward(fenced(STUBBED.replace("BODY", body)), example)
    assert (paid.value, paid.parts["refused"]) == (0.0, 1.0), paid
    assert reason is None or f"refused_{reason}" in paid.parts, paid


@needs_cargo
@pytest.mark.slow
def test_a_test_that_hangs_or_overflows_costs_itself_and_its_time(folder, reward, example):
    overflowing = SOLUTION.replace(
        "let even", "if numbers.len() == 3 { return sum(numbers).map_err(|said| said.repeat(2)); } let even"
    )
    assert reward(fenced(overflowing), example).parts["tests"] == 4 / 5
    endless = SOLUTION.replace("let even", "while numbers.len() == 3 {} let even")
    strict = RustReward(RustOptions(cache=folder, build_seconds=600.0, test_seconds=2.0, seconds=600.0))
    assert strict(fenced(endless), example).parts["tests"] < 1.0


@pytest.mark.parametrize("status", [126, 127, 2, -126])
def test_a_compiler_that_could_not_run_is_no_verdict(status, monkeypatch):
    monkeypatch.setattr(compiler, "run", lambda *_, **__: Outcome("error", status, b"", b"sh: not allowed\n", 0.1))
    monkeypatch.setattr(compiler, "toolchain", lambda: Path("/rust/bin"))
    with pytest.raises(SandboxError, match="could not run: sh: not allowed"):
        compiler.build_library(compiler.Package("x"), SOLUTION, RustOptions().budget())


@pytest.mark.parametrize(
    ("outcome", "limited"),
    [
        (Outcome("error", 1, b"", b"error: no", 0.1), False),
        (Outcome("error", 101, b"", b"the compiler panicked", 0.1), False),
        (Outcome("timeout", -24, b"", b"", 5.0), True),
        (Outcome("error", 128 + 24, b"", b"", 5.0), True),
        (Outcome("error", -6, b"", b"memory allocation failed", 5.0), True),
        (Outcome("error", -11, b"", b"overflowed its stack", 5.0), True),
        (Outcome("memory", None, b"", b"", 5.0), True),
        (Outcome("timeout", None, b"", b"", 120.0, processor_s=2.5), True),  # half of --rust.build-seconds
        (Outcome("output", None, b"", b"", 5.0), True),
    ],
)
def test_what_the_source_causes_is_a_failure_with_a_reason(outcome, limited, monkeypatch):
    monkeypatch.setattr(compiler, "run", lambda *_, **__: outcome)
    monkeypatch.setattr(compiler, "toolchain", lambda: Path("/rust/bin"))
    monkeypatch.setattr(compiler, "try_out", lambda: b"")
    made = compiler.build_library(compiler.Package("x"), SOLUTION, RustOptions().budget())
    assert isinstance(made, compiler.Failed) and made.limited is limited


def test_a_compiler_that_the_clock_ended_is_no_verdict(monkeypatch):
    monkeypatch.setattr(compiler, "run", lambda *_, **__: Outcome("timeout", None, b"", b"", 25.0, processor_s=2.4))
    monkeypatch.setattr(compiler, "toolchain", lambda: Path("/rust/bin"))
    with pytest.raises(SandboxError, match=r"too little of the processor.*--rust\.seconds"):
        compiler.build_library(compiler.Package("x"), SOLUTION, RustOptions().budget())


def test_a_failure_counts_only_where_an_empty_package_builds(monkeypatch):
    compiler._still_works.cache_clear()
    monkeypatch.setattr(
        compiler, "run", lambda *_, **__: Outcome("error", 1, b"", b"error: linker `cc` not found", 0.1)
    )
    monkeypatch.setattr(compiler, "toolchain", lambda: Path("/rust/bin"))
    with pytest.raises(SandboxError, match="an empty package does not build: error: linker `cc` not found"):
        compiler.build_library(compiler.Package("x"), SOLUTION, RustOptions().budget())


OWN = {
    "vacuous": ("#[test] fn t() { assert!(true); }", 0),
    "a tautology": ("#[test] fn t() { assert_eq!(evens(&[]), evens(&[])); }", 0),
    "always true": ("#[test] fn t() { assert!(true || evens(&[]).is_empty()); }", 0),
    "nothing of the solution": ("#[test] fn t() { assert_eq!(1 + 1, 2); }", 0),
    "no assertion": ("#[test] fn t() { evens(&[]); }", 0),
    "a panic": ("#[test] #[should_panic] fn t() { assert!(evens(&[]).is_empty()); panic!() }", 0),
    "real ones": (OWN_TESTS, 3),
    "one thing three times": (
        "#[test] fn a() { assert_eq!(evens(&[2]), [2]); } " * 1 + "#[test] fn b() { assert_eq!(evens("
        "&[2]), [2]); } #[test] fn c() { assert_eq!( evens(&[2]), [ 2 ] ); }",
        1,
    ),
    "a call with itself by a variable": ("#[test] fn t() { let a = evens(&[2]); assert_eq!(a, evens(&[2])); }", 0),
    "two variables of one call": ("#[test] fn t() { let a = sum(&[2]); let b = sum(&[2]); assert_eq!(a, b); }", 0),
    "a variable with itself": ("#[test] fn t() { let a = sum(&[2]); assert_eq!(a, a); }", 0),
    "a call with itself and more": ("#[test] fn t() { assert_eq!(sum(&[2]), Ok(sum(&[2]).unwrap() + 0)); }", 0),
    "a condition of a call with itself": ("#[test] fn t() { assert!(evens(&[2]) == evens(&[2])); }", 0),
    "a length that is never negative": ("#[test] fn t() { assert!(evens(&[2]).len() >= 0); }", 0),
    "either": ("#[test] fn t() { assert!(sum(&[2]).is_ok() | sum(&[2]).is_err()); }", 0),
    "dead": ("#[test] fn t() { if false { assert_eq!(evens(&[2]), [1]); } }", 0),
    "after a return": ("#[test] fn t() { return; assert_eq!(evens(&[2]), [1]); }", 0),
    "an assert_eq of its own": (OWN_TESTS + "macro_rules! assert_eq {($($t:tt)*) => {}}", 0),
    "a helper of its own": ("fn one() -> i32 { 1 } #[test] fn t() { assert_eq!(one(), 1); }", 0),
    "by variables": ("#[test] fn t() { let found = evens(&[2, 3]); let wanted = [2]; assert_eq!(found, wanted); }", 1),
}


HIDDEN = "".join(ROW["tests"].values())


@pytest.mark.parametrize(("tests", "real"), OWN.values(), ids=OWN)
def test_only_assertions_about_the_solution_are_real(tests, real):
    assert len(own_tests(SOLUTION + tests, HIDDEN)[1]) == real


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
@pytest.mark.slow
def test_a_function_and_a_main_of_assertions_make_a_problem(reward, tmp_path):
    example = example_of(MULTIPLE, tmp_path)
    assert "pub fn half(n: isize) -> isize {" in example.prompt[1]["content"]
    assert "assert_eq" not in example.prompt[1]["content"]
    assert reward(fenced("pub fn half(n: isize) -> isize { n / 2 }"), example).solved
    assert reward(fenced("pub fn half(n: isize) -> isize { 2 }"), example).parts["tests"] == 0.5


def test_a_prompt_and_a_list_show_the_first_assertion_and_test_the_others():
    row = {"prompt": "Write half.", "tests": ["assert_eq!(half(4), 2);", "assert_eq!(half(6), 3);"]}
    problem = read_problem(row, allow_unsafe=False)
    assert "half(4)" in problem.instructions
    (source,) = problem.tests.values()
    assert "half(4)" not in source and "half(6)" in source
    assert problem.id == read_problem({**row, "difficulty": 3}, allow_unsafe=False).id
    assert main_assertions(MULTIPLE["tests"])[1] == "let candidate = half; assert_eq!(candidate(7), 3);"


def test_rows_that_need_crates_or_unsafe_are_left_out():
    crates = {**ROW, "cargo_toml": ROW["cargo_toml"] + 'rand = "0.9"\n'}
    dev = {**ROW, "cargo_toml": ROW["cargo_toml"] + '[dev-dependencies]\npretty_assertions = "*"\n'}
    raw = {**ROW, "example": {".meta/example.rs": "fn f() { unsafe {} }"}}
    left = [read_problem(row, allow_unsafe=False) for row in (crates, dev, raw)]
    assert left == [LeftOut("even-numbers", reason) for reason in ("crates", "crates", "unsafe")]
    assert [read_problem(row, allow_unsafe=True).package.allow_unsafe for row in (ROW, raw)] == [False, True]


def test_a_row_without_a_test_does_not_refuse_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(rust, "working_toolchain", lambda folder: None)
    rows = [{**ROW, "slug": f"s{n}", "instructions": f"Do {n}."} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {**ROW, "tests": {"a": "b"}}])
    )
    dataset = rust.make(RustOptions(), str(tmp_path / "rows.jsonl")).dataset
    assert len(dataset.train) + len(dataset.held_out) == 40


def test_a_row_of_the_data_is_scored_as_its_example_is():
    row = {**ROW, "completion": "not read"}
    paid = RustReward(RustOptions())(fenced('#[path = "x"] mod m;'), Example("", "", row))
    assert paid.parts["refused_attribute"] == 1  # the reward reads the package first
    with pytest.raises(UserError, match="even-numbers cannot be scored: they need crates"):
        RustReward(RustOptions())(fenced(""), Example("", "", {**row, "cargo_toml": '[dependencies]\nrand = "1"'}))


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
        read_problem(row, allow_unsafe=False)
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


def test_only_the_marks_of_this_call_count():
    source = "#[test]\nfn a() { assert!(f()); }\n#[test]\n#[should_panic]\nfn b() { f(); }"
    (first, claims), (_, others) = (instrumented(source, set(), 3) for _ in range(2))
    assert [claim.test for claim in claims] == ["a", "b"] and all(claim.mark in first for claim in claims)
    assert claims[0].twin in first and not claims[1].twin  # a panic has no twin
    assert not {claims[0].mark, claims[0].twin} & {others[0].mark, others[0].twin}
    assert passed(claims, {claims[0].mark, "a", others[1].mark}) == {"a"}


def test_who_claims_a_test_and_its_twin_is_paid_for_neither():
    claims = [Claim("a", "1", "2"), Claim("b", "3")]
    assert passed(claims, {"1", "3"}) == {"a", "b"} and not contradictory(claims, {"1", "3"})
    assert passed(claims, {"1", "2", "3"}) == {"b"} and contradictory(claims, {"1", "2", "3"})
    assert passed(claims, {"2"}) == set() and not contradictory(claims, {"2"})


TWINS = {
    "a number": ("{ assert_eq!(f(4), 20); }", "{ assert_eq!(f(4), 10); }"),
    "the other side": ("{ assert_eq!(0.0, f(4)); }", "{ assert_eq!(1.0, f(4)); }"),
    "a text": ('{ assert_eq!(f(), "a".to_string()); }', '{ assert_eq!(f(), "~a".to_string()); }'),
    "the last of several": ("{ assert_eq!(f(), Ok(vec![1, 2])); }", "{ assert_eq!(f(), Ok(vec![1, 1])); }"),
    "of a variable": ("{ let w = [7]; assert_eq!(f(), w); }", "{ let w = [6]; assert_eq!(f(), w); }"),
    "not of one that is used twice": (
        "{ let w = 7; assert_eq!(f(w), w); }",
        "{ let w = 7; ::std::assert_ne!(f(w), w); }",
    ),
    "not of what is computed": ("{ assert_eq!(f(), g(1)); }", "{ ::std::assert_ne!(f(), g(1)); }"),
    "not of hexadecimal digits": ("{ assert_eq!(f(), 0x1f); }", "{ ::std::assert_ne!(f(), 0x1f); }"),
    "a difference": ("{ assert_ne!(f(), 1); }", "{ ::std::assert_eq!(f(), 1); }"),
    "none that may not be reached": ("{ if g() { assert_eq!(f(), 1); } }", None),
    "none after a return": ("{ if g() { return; } assert_eq!(f(), 1); }", None),
    "none without an assertion": ("{ f(); }", None),
}


@pytest.mark.parametrize(("body", "false"), TWINS.values(), ids=TWINS)
def test_a_twin_has_one_false_assertion(body, false):
    (function,) = parse(f"fn t() {body}").children
    assert falsified(function.child_by_field_name("body")) == false


def test_a_condition_becomes_its_opposite():
    (function,) = parse('fn t() { assert!(a < b, "{}", c); }').children
    assert '::std::assert!(!$held) }} denied!(a < b, "{}", c); }}' in falsified(
        function.child_by_field_name("body")
    ).replace("} }", "}}").replace("; }", "; }") or "denied!(a < b" in falsified(function.child_by_field_name("body"))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("255u8", None),
        ("255", "155"),
        ("-128", "-028"),
        ("1_000.5", "0_000.5"),
        ("true", "false"),
        ("'a'", "'b'"),
        ("''", None),
    ],
)
def test_another_value_fits_the_same_type(value, other):
    assert other_value(value) == other


def test_results_are_pinned_to_the_types_of_the_stub():
    stub = ROW["stub"]["src/lib.rs"]
    checks = signature_checks(stub, SOLUTION, "even_numbers")
    assert "(_: fn(A0) -> ::std::vec::Vec<N0>) {} pin(even_numbers::evens);" in checks
    assert "(_: fn(A0) -> ::std::result::Result<N0, ::std::string::String>) {} pin(even_numbers::sum);" in checks
    generic = SOLUTION.replace("evens(numbers: &[i32])", "evens<T: AsRef<[i32]>>(numbers: T)")
    assert "even_numbers::evens" not in signature_checks(stub, generic, "even_numbers")


GENERIC = {
    "the type of an argument": ("<T: Copy>(numbers: &[T]) -> Vec<T>", False),
    "of two arguments": ("<T, U: From<T>>(a: Vec<T>, b: &U) -> Option<U>", False),
    "a type of its own": ("<T: Copy>(numbers: &[T]) -> Any", True),
    "a type of a trait's": ("<T: Mine>(numbers: &[T]) -> T::Out", True),
    "a variable that no argument has": ("<T, U: Mine<T>>(numbers: &[T]) -> U", True),
    "a variable of a type of its own": ("<T>(numbers: Own<T>) -> T", True),
    "a variable of a bound": ("<U, F: Fn() -> U>(f: F) -> U", True),
}


@pytest.mark.parametrize(("signature", "pinned"), GENERIC.values(), ids=GENERIC)
def test_a_generic_function_may_give_the_types_of_its_arguments(signature, pinned):
    checks = signature_checks(ROW["stub"]["src/lib.rs"], f"pub fn evens{signature} {{}}", "even_numbers")
    assert ("even_numbers::evens" in checks) == pinned


def test_the_last_closed_block_is_the_solution():
    assert extract_code("```rust\na\n```\n```toml\nx\n```\n```rs\nb\n```") == "b\n"
    assert extract_code('```rust\nlet s = "``` no";\n```') == 'let s = "``` no";\n'


FENCES = {
    "capitals": "```Rust\nfn f() {}\n```",
    "all capitals": "```RUST\nfn f() {}\n```",
    "a blank before the tag": "``` rust\nfn f() {}\n```",
    "more after the tag": "```rust,no_run title=x\nfn f() {}\n```",
    "no tag": "```toml\n[package]\n```\n```\nfn f() {}\n```",
    "in a list": "1. Here:\n\n   ```rust\n   fn f() {}\n   ```\n",
    "in an item": "10. ```rust\n    fn f() {}\n    ```\n",
    "tildes": "~~~rust\nfn f() {}\n~~~",
    "four marks": "````rust\nfn f() {}\n````",
    "no end": "So:\n```rust\nfn f() {}",
    "usage behind it": "```rust\nfn f() {}\n```\nUse it:\n```rust\nfn main() { f() }\n```",
    "output without a tag behind it": "```rust\nfn f() {}\n```\n```\nfn f() { running }\n```",
    "a draft before it": "```rust\nfn f() { draft }\n```\n```rust\nfn f() {}\n```",
    "inline code around it": "```fn f()```\n```rust\nfn f() {}\n```\nuses ```x```.",
}


@pytest.mark.parametrize("completion", FENCES.values(), ids=FENCES)
def test_a_solution_is_found_in_any_fence(completion):
    assert extract_code(completion, "pub fn f() { todo!() }").rstrip("\n") == "fn f() {}"


def test_what_is_no_block_of_rust_is_no_solution():
    assert extract_code("```toml\nfn f() {}\n```") is None and extract_code("fn f() {} ```x```") is None
    assert extract_code("```toml\nx\n```\n```rust\nfn f() {") is None  # cut off behind a closed block
    assert extract_code('```rust\nlet s = r"\n        ```\n";\n```') == 'let s = r"\n        ```\n";\n'


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
    problem = read_problem(row, allow_unsafe=False)
    made = rust._example(problem)
    read = Example(made.id, made.prompt, json.loads(json_text(dict(made.fields))))
    assert problem.package.allowed_lints == ("all",) and problem.package.features == ("large",)
    assert rust._package(read) == rust._package(made) == problem.package
    paid = RustReward(RustOptions())("```rust\npub fn evens() { unsafe {} }\n```", read)
    assert paid.parts["refused"] == 1  # the reward reads the package first


def test_one_problem_under_several_names_is_on_one_side(monkeypatch, tmp_path):
    monkeypatch.setattr(rust, "working_toolchain", lambda folder: None)
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


@needs_cargo
@pytest.mark.slow
def test_nothing_of_a_solution_is_left_and_leftovers_of_the_dead_are_removed(folder, reward, example, tmp_path):
    program = b"#!/bin/sh\n"
    (tmp_path / "minrl-rust-999999999-x").mkdir()
    (tmp_path / f"minrl-rust-{os.getppid()}-x").mkdir()
    with runner._unreadable(program, tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o111 and path.parent.stat().st_mode & 0o777 == 0o711
        assert [kept.name for kept in tmp_path.iterdir() if kept != path.parent] == [f"minrl-rust-{os.getppid()}-x"]
    assert not path.exists()
    reward(fenced(SOLUTION), example)
    assert not list(Path(folder).iterdir())


def test_the_sandbox_is_given_the_file_that_nobody_may_read_and_keeps_its_mode(tmp_path, monkeypatch):
    asked = []

    class Started:
        def __init__(self, call):
            asked.append(has_unreadable({"readable": call.readable}))

        def result(self):
            return Outcome("ok", 0, b"", b"", 0.1)

    monkeypatch.setattr(runner, "start", Started)
    runner.run_tests(b"", {}, tmp_path, RustOptions().budget())
    assert asked == [True]


@pytest.mark.parametrize(("count", "heard"), [(5_000, 5_000), (300_000, 2**23 // 35)])
def test_any_number_of_marks_is_heard_while_the_program_runs(count, heard, monkeypatch):
    class Started:
        def __init__(self, call):
            self.channel = socket.socket(fileno=os.dup(call.channel))

        def result(self):
            with self.channel:
                self.channel.settimeout(2.0)
                for line in range(0, count, 100):
                    self.channel.sendall(b"".join(b"\n%033d\n" % (line + more) for more in range(100)))
            return Outcome("ok", 0, b"", b"", 0.1)

    monkeypatch.setattr(runner, "start", Started)
    marks = runner._run_once(["program"], RustOptions().budget().tests)[1]
    assert abs(len(marks) - heard) <= 1


def test_a_toolchain_whose_tests_are_not_heard_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "toolchain", lambda: Path("/rust/bin"))
    monkeypatch.setattr(runner, "try_out", lambda: b"")
    monkeypatch.setattr(runner, "run_tests", lambda *_: (set(), set()))
    with pytest.raises(UserError, match="a test of nothing did not report itself"):
        runner.working_toolchain.__wrapped__(tmp_path)


def test_all_is_built_before_anything_runs(tmp_path, monkeypatch):
    order = []
    made = compiler.Made(b"", b"", frozenset())
    monkeypatch.setattr(compiler, "build_library", lambda *_: order.append("library") or made)
    monkeypatch.setattr(compiler, "build_tests", lambda *_: order.append("tests") or made)
    monkeypatch.setattr(rust, "run_tests", lambda *_: order.append("run") or (set(), set()))
    monkeypatch.setattr(rust, "_reaches_out", lambda *_: "")
    (source,) = ROW["tests"].values()
    row = {**ROW, "tests": {"tests/a.rs": source, "tests/b.rs": source}}
    RustReward(RustOptions(cache=str(tmp_path)))(fenced(SOLUTION), Example("", "", row))
    assert order == ["library", "tests", "tests", "run", "run"]


def test_the_deadline_of_a_reward_is_later_than_the_end_of_its_solution(monkeypatch):
    monkeypatch.setattr(rust, "working_toolchain", lambda folder: None)
    task = rust.make(RustOptions(seconds=500.0), "")
    assert Workers(1, 30.0)._deadline_s(task.paid("", Example("", "", {}))) > 500.0
    assert Workers(1, 900.0)._deadline_s(task.paid("", Example("", "", {}))) == 900.0


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Makes programs of these names, shell scripts, the only ones that there are."""
    compiler.toolchain.cache_clear()
    runner.working_toolchain.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(scripts, folder="bin"):
        (tmp_path / folder).mkdir(parents=True)
        for name, script in scripts.items():
            (tmp_path / folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / folder / name).chmod(0o755)

    yield put
    compiler.toolchain.cache_clear()
    runner.working_toolchain.cache_clear()


def assert_refused(message, tmp_path):
    for ask in (lambda: example_of(ROW, tmp_path), lambda: load_task("rust").notes()):
        with pytest.raises(UserError, match=message) as refused:
            ask()
        assert "\n" not in str(refused.value)


def test_without_rust_the_task_says_how_to_get_it(install, tmp_path):
    install({})
    assert_refused(r"needs rustc and cc: install Rust from https://rustup\.rs", tmp_path)


def test_a_rustup_without_a_toolchain_is_refused_in_one_line(install, tmp_path):
    says = "echo 'error: no default is configured\nhelp: choose one' >&2; exit 1"
    install({"rustc": says, "cc": "exit 0"})
    assert_refused(r"rustc does not work \(error: no default is configured\): run `rustup default stable`", tmp_path)


def test_a_compiler_that_does_not_run_in_the_sandbox_is_refused_in_one_line(install, tmp_path):
    install({"rustc": f"echo {tmp_path}/rust", "cc": "exit 0"})
    install({"rustc": "echo 'no such library\nat all' >&2; exit 127", "clippy-driver": "exit 0"}, "rust/bin")
    # Without walls the sandbox's user does not come as far as the script: pytest's folders are closed to others.
    reason = "(.*no such library|.*Permission denied)"
    assert_refused(rf"Rust in .*rust/bin does not run in the sandbox \({reason}.*\): install Rust where", tmp_path)


def test_a_compiler_that_cannot_be_started_is_refused_in_one_line(install, tmp_path):
    install({"rustc": f"echo {tmp_path}/rust", "cc": "exit 0"})
    install({"rustc": "exit 0", "clippy-driver": "exit 0"}, "rust/bin")
    (tmp_path / "rust/bin/rustc").chmod(0o644)
    assert_refused(r"does not run in the sandbox \(.*Permission denied.*\): install Rust where every", tmp_path)


def test_a_compiler_that_builds_nothing_is_refused_in_one_line(install, tmp_path, monkeypatch):
    install({"rustc": f"echo {tmp_path}/rust", "cc": "exit 0"})
    install({"rustc": "exit 0", "clippy-driver": "exit 0"}, "rust/bin")
    monkeypatch.setattr(compiler, "run", lambda *_, **__: Outcome("error", 1, b"", b"error: no core\nmore", 0.1))
    assert_refused(r"does not run in the sandbox \(an empty package does not build: error: no core\)", tmp_path)
