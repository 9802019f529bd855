"""Rust tests that leave evidence: they are found in their source, and they passed if they report it.

The body of each test is wrapped so that it writes a secret and the test's name to stdout after its last assertion (for
`#[should_panic]`: after the panic). The secret is new in each call and compiled into the tests alone. The program's
other output, its exit status and libtest's lines do not count.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from minrl.tasks.rust.syntax import Node, attributes, field, parse, text, walk

MACROS = (
    "assert assert_eq assert_ne debug_assert debug_assert_eq debug_assert_ne matches panic todo unimplemented "
    "unreachable vec format print println eprint eprintln write writeln"
)
PRELUDE = (
    "AsMut AsRef Box Clone Copy Default Drop Eq Err Extend From FromIterator Into IntoIterator Iterator None Ok Option "
    "Ord PartialEq PartialOrd Result Some String ToOwned ToString TryFrom TryInto Vec drop"
)
ITEMS = "function struct enum union type trait mod const static"


@dataclass(frozen=True)
class RustTest:
    """A `#[test]` function: its name as libtest gives it, whether it must panic, its function_item."""

    name: str
    wants_panic: bool
    node: Node


@dataclass(frozen=True)
class Secret:
    """A text that tests write when they pass, and the name of a type that only they know."""

    nonce: str
    mark: str

    @classmethod
    def new(cls) -> "Secret":
        """Sixteen random bytes each."""
        return cls(secrets.token_hex(16), f"Completed{secrets.token_hex(16)}")

    def passed(self, output: bytes) -> set[str]:
        """The names of the tests that reported the nonce."""
        start = f"{self.nonce} ".encode()
        lines = (line for line in output.split(b"\n") if line.startswith(start))
        return {line[len(start) :].decode("utf-8", "replace") for line in lines}


def find_tests(root: Node) -> list[RustTest]:
    """The tests that are compiled without features, in order."""
    found = []
    for node in walk(root):
        marks = attributes(node) if node.type == "function_item" else []
        if "test" in marks:
            scopes = list(_above(node, "mod_item"))
            conditions = [mark for item in [node, *scopes] for mark in attributes(item) if mark.startswith("cfg")]
            if all(condition.replace(" ", "") == "cfg(test)" for condition in conditions):
                name = "::".join(field(item, "name") for item in [*reversed(scopes), node])
                found.append(RustTest(name, any(mark.startswith("should_panic") for mark in marks), node))
    return found


def _above(node: Node, kind: str) -> Iterator[Node]:
    """The nodes of that type around the node, inner ones first."""
    while (node := node.parent) is not None:
        if node.type == kind:
            yield node


def instrumented(source: str, secret: Secret, own_names: set[str]) -> str:
    """The tests' source with evidence at the end of each test, in which the names of std mean std.

    An explicit `use` has precedence over a glob import of the solution, so that its `assert_eq!` is not called.
    `own_names` are those that the row's stub defines.
    """
    root, edits = parse(source), []
    for test in find_tests(root):
        body = test.node.child_by_field_name("body")
        edits.append((body.start_byte, body.end_byte, _wrapped(test, text(body), secret)))
    modules = [node for node in walk(root) if node.type == "mod_item" and not any(_above(node, "function_item"))]
    bodies = [(module.child_by_field_name("body"), 1) for module in modules]
    for body, brace in [(root, 0), *bodies]:
        if body is not None:
            end = body.end_byte - brace
            edits.append((end, end, f"\n{_imports(body, own_names)}\n"))
    return replace(source, edits)


def replace(source: str, edits: list[tuple[int, int, str]]) -> str:
    """The source with each range of bytes replaced; ranges may not overlap."""
    data, pieces, position = source.encode("utf-8", "replace"), [], 0
    for start, end, new in sorted(edits):
        pieces += [data[position:start], new.encode()]
        position = end
    return b"".join([*pieces, data[position:]]).decode("utf-8", "replace")


def _wrapped(test: RustTest, body: str, secret: Secret) -> str:
    line = f'b"\\n{secret.nonce} {test.name}\\n"'
    report = f"::std::io::Write::write_all(&mut ::std::io::stdout(), {line}).unwrap();"
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
    return f"{{ struct {secret.mark}; fn body() -> {secret.mark} {{ {body}; {secret.mark} }} body(); {report} }}"


def _expected(test: RustTest) -> str:
    """A check of the panic's message, if the test names one."""
    mark = next(mark for mark in attributes(test.node) if mark.startswith("should_panic"))
    _, named, rest = mark.partition("=")
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
    return (
        f"#[allow(unused_imports)] use ::std::{{{macros}}};"
        f"#[allow(unused_imports)] use ::std::prelude::rust_2021::{{{prelude}}};"
    )


def defined_names(body: Node) -> set[str]:
    """The names of the items directly in a file or a module's body."""
    kinds = [*ITEMS.split(), "macro_definition"]
    return {field(child, "name") for child in body.children if child.type.removesuffix("_item") in kinds}


def own_tests(solution: str) -> tuple[list[RustTest], list[RustTest]]:
    """The solution's own tests, and those with a real assertion: one that calls a function of the solution, holds no
    lone `true` or `false`, and does not compare a thing with itself.
    """
    root = parse(solution)
    tests = find_tests(root)
    inside = {test.node.id for test in tests}
    functions = {
        field(node, "name")
        for node in walk(root)
        if node.type == "function_item" and node.id not in inside and _statements(node)
    }
    return tests, [test for test in tests if not test.wants_panic and any(_real(test.node, functions))]


def _statements(function: Node) -> list[Node]:
    body = function.child_by_field_name("body")
    return [] if body is None else body.named_children


def _real(test: Node, functions: set[str]) -> Iterator[bool]:
    for node in walk(test):
        if node.type != "macro_invocation" or field(node, "macro") not in ("assert", "assert_eq", "assert_ne"):
            continue
        tree = node.named_children[-1]
        parts = groupby(tree.children[1:-1], key=lambda child: child.type == ",")
        compared = ["".join(map(text, part)) for is_comma, part in parts if not is_comma]
        names = {text(leaf) for leaf in walk(tree) if not leaf.children or leaf.type == "boolean_literal"}
        if field(node, "macro") == "assert":
            yield bool(functions & names) and not {"true", "false", "||"} & names
        else:
            yield bool(functions & names) and len(compared) > 1 and compared[0] != compared[1]


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
