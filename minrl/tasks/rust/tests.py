"""Rust tests that leave evidence: which there are is read from their source, which passed from what they report.

The body of each test is wrapped so that a secret and the test's name are written to stdout after its last assertion
(for `#[should_panic]`: after the panic). The secret is new in each call and is compiled into the tests alone. What a
program claims about itself, its exit status and libtest's own lines count for nothing.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    """What tests write when they pass, and the name of a type that only they know."""

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
        if node.type != "function_item":
            continue
        marks = attributes(node)
        if "test" not in marks:
            continue
        scopes = list(_modules(node))
        conditions = [mark for item in [node, *scopes] for mark in attributes(item) if mark.startswith("cfg")]
        if all(condition.replace(" ", "") == "cfg(test)" for condition in conditions):
            name = "::".join([*(field(scope, "name") for scope in reversed(scopes)), field(node, "name")])
            found.append(RustTest(name, any(mark.startswith("should_panic") for mark in marks), node))
    return found


def _modules(node: Node) -> Iterator[Node]:
    while (node := node.parent) is not None:
        if node.type == "mod_item":
            yield node


def instrumented(source: str, secret: Secret, own_names: set[str]) -> str:
    """The tests' source with evidence at the end of each test, in which the names of std mean std.

    An explicit `use` goes before what a glob import of the solution would bring, so that its `assert_eq!` is not
    called. `own_names` are those that the row's stub defines itself.
    """
    root = parse(source)
    edits = [(test.node.child_by_field_name("body"), _wrapped(test, secret)) for test in find_tests(root)]
    replaced = [(body.start_byte, body.end_byte, wrapped) for body, wrapped in edits]
    for module in walk(root):
        body = module if module.parent is None else module.child_by_field_name("body")
        if body is not None and (module.parent is None or (module.type == "mod_item" and not _in_function(module))):
            end = body.end_byte if module.parent is None else body.end_byte - 1
            replaced.append((end, end, "\n" + _imports(body, own_names) + "\n"))
    return replace(source, replaced)


def _in_function(node: Node) -> bool:
    while (node := node.parent) is not None:
        if node.type == "function_item":
            return True
    return False


def replace(source: str, edits: list[tuple[int, int, str]]) -> str:
    """The source with each range of bytes replaced; ranges may not overlap."""
    data, pieces, position = source.encode("utf-8", "replace"), [], 0
    for start, end, new in sorted(edits):
        pieces += [data[position:start], new.encode()]
        position = end
    return b"".join([*pieces, data[position:]]).decode("utf-8", "replace")


def _wrapped(test: RustTest, secret: Secret) -> str:
    body = text(test.node.child_by_field_name("body"))
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
    """A check of the panic's message, where the test names one."""
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
    """The solution's own tests, and those of them with a real assertion: one that calls a function of the solution,
    holds no literal `true` or `false` alone, and does not compare a thing with itself.
    """
    root = parse(solution)
    tests = find_tests(root)
    inside = {test.node.id for test in tests}
    functions = {
        field(node, "name")
        for node in walk(root)
        if node.type == "function_item" and node.id not in inside and not _is_trivial(node)
    }
    return tests, [test for test in tests if not test.wants_panic and any(_real(test.node, functions))]


def _is_trivial(function: Node) -> bool:
    body = function.child_by_field_name("body")
    return body is None or not body.named_children


def _real(test: Node, functions: set[str]) -> Iterator[bool]:
    for node in walk(test):
        if node.type != "macro_invocation" or field(node, "macro") not in ("assert", "assert_eq", "assert_ne"):
            continue
        arguments = _arguments(node.named_children[-1])
        names = {text(leaf) for argument in arguments for leaf in walk_all(argument)}
        compared = ["".join(map(text, argument)) for argument in arguments]
        if field(node, "macro") == "assert":
            yield bool(functions & names) and not {"true", "false", "||"} & names
        else:
            yield bool(functions & names) and len(compared) > 1 and compared[0] != compared[1]


def walk_all(nodes: list[Node]) -> Iterator[Node]:
    """Every leaf below the nodes."""
    for node in nodes:
        yield from (leaf for leaf in walk(node) if not leaf.children or leaf.type == "boolean_literal")


def _arguments(tree: Node) -> list[list[Node]]:
    """The children of a macro's token tree, split at its commas."""
    arguments: list[list[Node]] = [[]]
    for child in tree.children[1:-1]:
        if child.type == ",":
            arguments.append([])
        else:
            arguments[-1].append(child)
    return [argument for argument in arguments if argument]


def listed_tests(statements: list[str], crate: str, imports: str = "") -> str:
    """A test file from a list of assertions (`assert_eq!(f(1), 2);`), one test for each.

    >>> print(listed_tests(["assert_eq!(f(1), 2);"], "solution"))
    #[allow(unused_imports)] use solution::*;
    #[test] fn test_0() { assert_eq!(f(1), 2); }
    """
    tests = [f"#[test] fn test_{index}() {{ {statement} }}" for index, statement in enumerate(statements)]
    return "\n".join([f"#[allow(unused_imports)] use {crate}::*;{imports}", *tests])


def main_assertions(source: str) -> list[str]:
    """The assertions of a program's `main`, each after the other statements before it (`let candidate = f;`)."""
    root = parse(source[source.index("fn main") :])
    main = next(node for node in walk(root) if node.type == "function_item")
    setup, found = "", []
    for statement in main.child_by_field_name("body").named_children:
        if text(statement).lstrip().startswith("assert"):
            found.append(setup + text(statement).rstrip(";") + ";")
        elif "comment" not in statement.type:
            setup += text(statement) + " "
    return found


def count_tests(files: Mapping[str, str]) -> int:
    """How many tests the files hold."""
    return sum(len(find_tests(parse(source))) for source in files.values())
