"""Rust tests that leave evidence: they are found in their source, and each is wrapped to write a mark when it passed.

Marks are new in each call. The program's other output, its exit status and libtest's lines do not count.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced

from minrl.tasks.rust.claims import Claim, falsified, new_mark, real_assertions
from minrl.tasks.rust.syntax import Node, attributes, before_items, field, parse, text, tokens, walk

MACROS = (
    "assert assert_eq assert_ne debug_assert debug_assert_eq debug_assert_ne matches panic todo unimplemented "
    "unreachable vec format print println eprint eprintln write writeln"
)
PRELUDE = (
    "AsMut AsRef Box Clone Copy Default Drop Eq Err Extend From FromIterator Into IntoIterator Iterator None Ok Option "
    "Ord PartialEq PartialOrd Result Some String ToOwned ToString TryFrom TryInto Vec drop"
)
PRIMITIVE = "bool char str u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64"
MOST_TWINS = 5
"""Tests of a file that have a twin, drawn anew in each call: a twin takes as long as its test, and one is enough."""
REPORT = {
    1: "fn REPORT(line: &[u8]) { ::std::io::Write::write_all(&mut ::std::io::stdout(), line).unwrap(); }",
    3: 'fn REPORT(line: &[u8]) { unsafe extern "C" { fn write(to: i32, line: *const u8, size: usize) -> isize; } '
    "unsafe { write(3, line.as_ptr(), line.len()); } }",
}
"""The function that writes a mark, by the descriptor that it writes to."""
ITEMS = "function struct enum union type trait mod const static"


@dataclass(frozen=True)
class RustTest:
    """A `#[test]` function: its name as libtest gives it, its `should_panic` if it has one, its function_item."""

    name: str
    should_panic: str
    node: Node

    @property
    def wants_panic(self) -> bool:
        """Whether it must panic."""
        return bool(self.should_panic)


def find_tests(root: Node) -> list[RustTest]:
    """The tests that are compiled without features, in order."""
    before, found = before_items(root), []
    pending: list[tuple[Node, Scope | None]] = [(root, None)]
    while pending:
        node, scope = pending.pop()
        if node.type == "mod_item":
            scope = Scope(field(node, "name"), _is_compiled(attributes(node, before)), scope)
        marks = attributes(node, before) if node.type == "function_item" else []
        if "test" in marks and _is_compiled(marks) and (scope is None or scope.is_compiled()):
            name = "::".join([*(scope.names() if scope else ()), field(node, "name")])
            found.append(RustTest(name, next((mark for mark in marks if mark.startswith("should_panic")), ""), node))
        pending += [(child, scope) for child in reversed(node.children)]
    return found


@dataclass(frozen=True)
class Scope:
    """A module, and the one around it."""

    name: str
    compiled: bool
    around: "Scope | None"

    def outwards(self) -> Iterator["Scope"]:
        """This one, and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.around

    def names(self) -> list[str]:
        """From the outermost on."""
        return [scope.name for scope in self.outwards()][::-1]

    def is_compiled(self) -> bool:
        """Whether no module here has another condition than `cfg(test)`."""
        return all(scope.compiled for scope in self.outwards())


def _is_compiled(marks: list[str]) -> bool:
    return all(mark.replace(" ", "") == "cfg(test)" for mark in marks if mark.startswith("cfg"))


def instrumented(source: str, own_names: set[str], descriptor: int) -> tuple[str, list[Claim]]:
    """The tests' source with a mark at the end of each test and with their twins, in which the names of std mean std.
    The marks go to descriptor 3, or to 1, standard output, where the source may not hold `unsafe`.

    An explicit `use` has precedence over a glob import of the solution, so that its `assert_eq!` is not called.
    `own_names` are those that the row's stub defines.
    """
    root, edits, claims, report = parse(source), [], [], f"report_{new_mark()}"
    tests = find_tests(root)
    twinned = secrets.SystemRandom().sample(range(len(tests)), min(MOST_TWINS, len(tests)))
    for index, test in enumerate(tests):
        claim, new = _claimed(test, report, index in twinned)
        claims.append(claim)
        edits += new
    modules = [node for node in walk(root, skip=lambda node: node.type == "function_item") if node.type == "mod_item"]
    bodies = [(module.child_by_field_name("body"), 1) for module in modules]
    for body, brace in [(root, 0), *bodies]:
        if body is not None:
            end = body.end_byte - brace
            edits.append((end, end, f"\n{_imports(body, own_names)}\n"))
    return replace(source, edits) + f"{REPORT[descriptor].replace('REPORT', report)}\n", claims


def _claimed(test: RustTest, report: str, twinned: bool) -> tuple[Claim, list[tuple[int, int, str]]]:
    """The test's claim, and the edits that make it report its mark and add its twin, in either order."""
    body = test.node.child_by_field_name("body")
    false_body = falsified(body) if twinned and not test.wants_panic else None
    if false_body is None:
        claim = Claim(test.name, new_mark(), names=(test.name,))
        return claim, [(body.start_byte, body.end_byte, _wrapped(test, text(body), claim.mark, report))]
    claim = Claim(test.name, new_mark(), new_mark(), (test.name, f"{test.name}_{new_mark()}"))
    bodies = [_wrapped(test, text(body), claim.mark, report), _wrapped(test, false_body, claim.twin, report)]
    if secrets.randbits(1):
        bodies.reverse()
        claim = replaced(claim, names=claim.names[::-1])
    second = next(name for name in claim.names if name != test.name).rpartition("::")[2]
    returned = field(test.node, "return_type")
    head = f"\n#[test] fn {second}() {f'-> {returned} ' if returned else ''}"
    end = test.node.end_byte
    return claim, [(body.start_byte, body.end_byte, bodies[0]), (end, end, head + bodies[1])]


def replace(source: str, edits: list[tuple[int, int, str]]) -> str:
    """The source with each range of bytes replaced; ranges may not overlap."""
    data, pieces, position = source.encode("utf-8", "replace"), [], 0
    for start, end, new in sorted(edits):
        pieces += [data[position:start], new.encode()]
        position = end
    return b"".join([*pieces, data[position:]]).decode("utf-8", "replace")


def _wrapped(test: RustTest, body: str, mark: str, function: str) -> str:
    report = f'crate::{function}(b"\\n{mark}\\n");'
    returned = field(test.node, "return_type")
    if test.wants_panic:
        return (
            f"{{ let outcome = ::std::panic::catch_unwind(::std::panic::AssertUnwindSafe(|| {body}));"
            f"if let ::std::result::Result::Err(payload) = outcome {{ {_expected(test)} {report}"
            "::std::panic::resume_unwind(payload) } }"
        )
    if returned:
        return (
            f"{{ fn body() -> {returned} {body} let outcome = body();"
            f"if ::std::result::Result::is_ok(&outcome) {{ {report} }} outcome }}"
        )
    if any(node.type == "return_expression" for node in walk(test.node)):
        return f"{{ fn body() {body} body(); {report} }}"
    # a macro of the solution may expand to `return`, which is then of the wrong type
    done = f"Done{new_mark()}"
    return f"{{ struct {done}; fn body() -> {done} {{ {body}; {done} }} body(); {report} }}"


def _expected(test: RustTest) -> str:
    """A check of the panic's message, if the test names one."""
    _, named, rest = test.should_panic.partition("=")
    if not named:
        return ""
    literal = rest.strip().removesuffix(")").strip()
    return (
        "let said = payload.downcast_ref::<::std::string::String>().map(|text| text.as_str())"
        ".or(payload.downcast_ref::<&str>().copied()).unwrap_or_default();"
        f"if !said.contains({literal}) {{ ::std::panic::resume_unwind(payload) }}"
    )


def _imports(body: Node, own_names: set[str]) -> str:
    taken = own_names | defined_names(body)
    for child in body.children:
        if child.type == "use_declaration":
            taken |= {text(node) for node in walk(child) if node.type in ("identifier", "type_identifier")}
    macros = ", ".join(name for name in MACROS.split() if name not in taken)
    prelude = ", ".join(name for name in PRELUDE.split() if name not in taken)
    primitive = ", ".join(name for name in PRIMITIVE.split() if name not in taken)
    return (
        f"#[allow(unused_imports)] use ::std::{{{macros}}};"
        f"#[allow(unused_imports)] use ::std::prelude::rust_2021::{{{prelude}}};"
        f"#[allow(unused_imports)] use ::std::primitive::{{{primitive}}};"
    )


def defined_names(body: Node) -> set[str]:
    """The names of the items directly in a file or a module's body."""
    kinds = [*ITEMS.split(), "macro_definition"]
    return {field(child, "name") for child in body.children if child.type.removesuffix("_item") in kinds}


def own_tests(solution: str, hidden: str) -> tuple[list[RustTest], list[RustTest]]:
    """The solution's own tests, and those with a real assertion: a statement of the test that sets what a function of
    the solution gives against what it must be. Only functions that the `hidden` tests name count, none twice with the
    same assertion.
    """
    root = parse(solution)
    tests = find_tests(root)
    inside = {test.node.id for test in tests}
    wanted = set(tokens(parse(hidden)))
    functions = {
        field(node, "name") for node in walk(root) if node.type == "function_item" and node.id not in inside
    } & wanted
    if any(node.type == "macro_definition" and field(node, "name") in MACROS.split() for node in walk(root)):
        return tests, []
    seen: set[str] = set()
    real = []
    for test in tests:
        new = {said for said in real_assertions(test.node.child_by_field_name("body"), functions) if said not in seen}
        seen |= new
        if new and not test.wants_panic:
            real.append(test)
    return tests, real


def listed_tests(statements: list[str], crate: str, imports: str = "") -> str:
    """A test file from a list of assertions (`assert_eq!(f(1), 2);`), one test for each.

    >>> print(listed_tests(["assert_eq!(f(1), 2);"], "solution"))
    #[allow(unused_imports)] use solution::*;
    #[test] fn test_0() { assert_eq!(f(1), 2); }
    """
    tests = [f"#[test] fn test_{index}() {{ {statement} }}" for index, statement in enumerate(statements)]
    return "\n".join([f"#[allow(unused_imports)] use {crate}::*;{imports}", *tests])


def main_assertions(source: str) -> list[str]:
    """The assertions in a program's `main`, each with the statements before it (`let candidate = f;`)."""
    main = next(n for n in walk(parse(source[source.index("fn main") :])) if n.type == "function_item")
    setup, found = "", []
    for statement in main.child_by_field_name("body").named_children:
        if text(statement).lstrip().startswith("assert"):
            found.append(setup + text(statement).rstrip(";") + ";")
        elif "comment" not in statement.type:
            setup += text(statement) + " "
    return found
