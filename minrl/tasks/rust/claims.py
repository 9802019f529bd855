"""What a test program says is worth something: each test has a false twin, and whoever claims both has proved nothing.

A test writes a mark of its own after its last assertion (for `#[should_panic]`: after the panic). Its twin is the same
test with one assertion made false: another expected value, or the opposite. A program holds both, and nothing in it
says which is which; that is known here alone. A solution that passes the test fails the twin. A solution that writes
marks without having earned them, by whatever means, writes those of twins too.

    assert_eq!(half(4), 2);    ->    twin: assert_eq!(half(4), 1);
    assert!(half(3).is_err()); ->    twin: the assertion that it is not
"""

import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from minrl.tasks.rust.syntax import Node, field, text, tokens, walk

ASSERTIONS = ("assert", "assert_eq", "assert_ne")
LITERAL = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*") | (?P<truth>\btrue\b|\bfalse\b) | (?P<letter>'[A-Za-z0-9]')
    | (?<![\w.])(?P<number>\d[\d_]*(?:\.\d+)?)(?![\w.])""",
    re.VERBOSE,
)
AROUND = re.compile(
    r"(?:[-&\[\](),\s]|\bvec!|\b(?:Some|Ok|Err|None|String::from)\b|\.(?:to_string|to_owned|to_vec|into)\(\))*"
)
"""What may stand around the literals of a value that is equal to no other spelled like it."""


@dataclass(frozen=True)
class Claim:
    """A test by its name, with the marks that it and its twin write, and what they are called in the program. A twin
    that cannot be made has none.
    """

    test: str
    mark: str
    twin: str = ""
    names: tuple[str, ...] = ()

    def marks(self) -> dict[str, str]:
        """The names in the program by the marks."""
        return dict(zip((self.mark, self.twin), self.names, strict=False))


def new_mark() -> str:
    """Sixteen random bytes."""
    return secrets.token_hex(16)


def passed(claims: Collection[Claim], heard: Collection[str]) -> set[str]:
    """The tests that passed, and whose twins did not."""
    return {claim.test for claim in claims if claim.mark in heard and claim.twin not in heard}


def contradictory(claims: Collection[Claim], heard: Collection[str]) -> bool:
    """Whether a test and its twin both claim to have passed."""
    return any(claim.mark in heard and claim.twin in heard for claim in claims if claim.twin)


def falsified(body: Node) -> str | None:
    """The body of a test with one assertion made false; None if no assertion is sure to be reached."""
    if any(node.type == "return_expression" for node in walk(body)):
        return None
    asserted = list(_assertions(body))
    edits = [edit for macro in asserted for edit in _other_value(macro, body)]
    edits = edits or [_opposite(macro) for macro in asserted]
    if not edits:
        return None
    start, end, new = edits[0]
    data = body.text
    return b"".join([data[: start - body.start_byte], new.encode(), data[end - body.start_byte :]]).decode(
        "utf-8", "replace"
    )


def _assertions(body: Node) -> Iterator[Node]:
    """The assertions among the body's own statements: a test that ends has passed each of them."""
    for statement in body.named_children:
        inner = statement.named_children[0] if statement.type == "expression_statement" else statement
        if inner.type == "macro_invocation" and field(inner, "macro") in ASSERTIONS:
            yield inner


def _other_value(macro: Node, body: Node) -> Iterator[tuple[int, int, str]]:
    """The edit that changes an expected value: a literal of the assertion, or of the `let` that only it uses."""
    if field(macro, "macro") != "assert_eq":
        return
    for argument in reversed(arguments(macro)[:2]):
        place = _value_of(argument[0], body) if len(argument) == 1 and argument[0].type == "identifier" else None
        start, end = (place.start_byte, place.end_byte) if place else (argument[0].start_byte, argument[-1].end_byte)
        value = body.text[start - body.start_byte : end - body.start_byte].decode("utf-8", "replace")
        changed = other_value(value)
        if changed is not None:
            yield start, end, changed


def arguments(macro: Node) -> list[list[Node]]:
    """The tokens of a macro's arguments, split at its commas."""
    parts = groupby(macro.named_children[-1].children[1:-1], key=lambda token: token.type == ",")
    return [list(part) for is_comma, part in parts if not is_comma]


def _value_of(name: Node, body: Node) -> Node | None:
    """The value of the variable's `let`, if nothing but one assertion uses it."""
    uses = sum(node.type == "identifier" and node.text == name.text for node in walk(body))
    declared = [
        node for node in body.named_children if node.type == "let_declaration" and field(node, "pattern") == text(name)
    ]
    return declared[0].child_by_field_name("value") if len(declared) == 1 and uses == 2 else None


def other_value(value: str) -> str | None:
    """The value with its last literal changed; None if it is made of anything but literals.

    >>> other_value('Ok(vec![1, 20])'), other_value('Some("a".to_string())'), other_value("f(1)")
    ('Ok(vec![1, 10])', 'Some("~a".to_string())', None)
    """
    literals = list(LITERAL.finditer(value))
    if not literals or not AROUND.fullmatch(LITERAL.sub(" ", value)):
        return None
    last = literals[-1]
    return value[: last.start()] + _changed(last) + value[last.end() :]


def _changed(literal: re.Match[str]) -> str:
    """Another literal of the same type. A number becomes smaller, so that it fits its type, or 1 in place of 0."""
    if literal["text"]:
        return '"~' + literal[0][1:]
    if literal["truth"]:
        return "false" if literal[0] == "true" else "true"
    if literal["letter"]:
        return "'b'" if literal[0] == "'a'" else "'a'"
    digit = re.search("[1-9]", literal[0])
    if digit is None:
        return "1" + literal[0][1:]
    return literal[0][: digit.start()] + str(int(digit[0]) - 1) + literal[0][digit.end() :]


def _opposite(macro: Node) -> tuple[int, int, str]:
    """The edit that turns an assertion into its opposite."""
    name, tree = field(macro, "macro"), text(macro.named_children[-1])
    if name == "assert":
        rules = (
            "($held:expr $(,)?) => { ::std::assert!(!$held) }; ($held:expr, $($said:tt)+) => { ::std::assert!(!$held) }"
        )
        new = f"{{ macro_rules! denied {{ {rules} }} denied!({tree[1:-1]}); }}"
    else:
        new = f"::std::assert_{'ne' if name == 'assert_eq' else 'eq'}!{tree}"
    return macro.start_byte, macro.end_byte, new


def real_assertions(body: Node, functions: Collection[str]) -> Iterator[str]:
    """The assertions of a test that could fail: one side calls a function of the solution, the other none. Of a lone
    condition, that it calls one and says nothing that is so by itself.
    """
    if falsified(body) is None:
        return
    given = {field(node, "pattern"): node for node in body.named_children if node.type == "let_declaration"}
    for macro in _assertions(body):
        sides = arguments(macro)
        calls = [_calls(side, functions, given) for side in sides[:2]]
        if field(macro, "macro") == "assert":
            words = {token for node in sides[0] for token in tokens(node)} if sides else set()
            if calls and calls[0] and words.isdisjoint(VACUOUS):
                yield "".join(text(macro).split())
        elif len(sides) > 1 and sorted(calls) == [False, True]:
            yield "".join(text(macro).split())


VACUOUS = frozenset(("true", "false", "||", ">=", "<=", "==", "!=", "|", "matches", "let"))
"""What can make a condition hold by itself. `assert_eq!` compares."""


def _calls(side: list[Node], functions: Collection[str], given: Mapping[str, Node]) -> bool:
    """Whether a function of the solution is called, here or in the `let` of a variable that stands here."""
    pending = list(side)
    seen: set[str] = set()
    while pending:
        words = set(tokens(pending.pop())) - seen
        if not words.isdisjoint(functions):
            return True
        seen |= words
        pending += [given[word] for word in words if word in given]
    return False
