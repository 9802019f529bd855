"""The quality of Rust code, counted in its syntax tree: scores in [0, 1], 0 for code without a function.

Tests of the solution's own (`#[cfg(test)]`) are not counted.

    complexity   1 up to cyclomatic complexity 10 (the worst function or macro), 0 from 30
    nesting      1 up to 3 nested blocks of control flow, 0 from 8
    errors       1 if a function returns Result or Option, uses `?`, or nothing panics
    docs         share of the public items with a doc comment that says something
    iterators    adapters / (adapters + loops)
    closures     1 if there is one, or no loop that one would replace
    panics       1 / (1 + unwrap, expect, panic!, todo!, unimplemented!, unreachable!)
    unsafe       1 / (1 + unsafe)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any

from minrl.dataflow import UserError, require
from minrl.tasks.task import weighted
from minrl.utils.settings import Bound, Settings

BLOCKS = frozenset(("while_expression", "for_expression", "loop_expression", "if_expression", "match_expression"))
ADAPTERS = frozenset([
    "all", "any", "chain", "chunks", "collect", "copied", "cloned", "count", "cycle", "enumerate", "filter",
    "filter_map", "find", "find_map", "flat_map", "flatten", "fold", "for_each", "last", "map", "map_while", "max",
    "max_by", "max_by_key", "min", "min_by", "min_by_key", "nth", "partition", "peekable", "position", "product",
    "reduce", "rev", "scan", "skip", "skip_while", "sum", "step_by", "take", "take_while", "try_fold", "unzip",
    "windows", "zip",
])  # fmt: skip
INNER = {"generic_function": "function", "field_expression": "field", "scoped_identifier": "name"}
"""The field that leads to the name of the called function, by the type of the node."""
BRANCHING = frozenset(("if", "while", "in", "loop", "?", "&&", "||"))
"""Tokens that stand for a branch. `in` is that of a `for`, which also stands in `impl ... for`."""
LOOPING = frozenset(("while", "in", "loop"))
PANICS = frozenset(("unwrap", "expect", "panic", "todo", "unimplemented", "unreachable"))
DOCUMENTED = frozenset(("function_item", "struct_item", "enum_item", "trait_item", "type_item", "const_item"))
Node = Any
"""A node of tree-sitter's syntax tree."""
Before = dict[int, list[Node]]
"""The attributes and comments directly before items, in order, by the id of the item's node."""

TEXTS = frozenset(("string_literal", "raw_string_literal", "char_literal"))
Weight = Annotated[float, Bound(least=0)]
COMMENTS = frozenset(("line_comment", "block_comment"))


@cache
def _parser() -> Any:  # noqa: ANN401 - tree-sitter comes with an extra
    try:
        import tree_sitter
        import tree_sitter_rust
    except ImportError as error:
        raise UserError(f"the rust task needs tree-sitter ({error}): pip install 'minrl[rust]'") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))


def parse(source: str) -> Node:
    """The root of the tree. Source that is not Rust gives nodes of the type ERROR."""
    return _parser().parse(source.encode("utf-8", "replace")).root_node


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it in the order of the source."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def tokens(root: Node, *, texts: bool = False) -> list[str]:
    """The tokens below the node without comments; strings and characters as `""` unless `texts`, raw identifiers as
    plain ones.

    >>> tokens(parse('let r#x = "// no"; /* a /* b */ c */ std::io;'))
    ['let', 'x', '=', '""', ';', 'std', '::', 'io', ';']
    """
    found, pending = [], [root]
    while pending:
        node = pending.pop()
        if node.type in TEXTS:
            found.append(text(node) if texts else '""')
        elif node.type not in COMMENTS and node.children:
            pending += reversed(node.children)
        elif node.type not in COMMENTS:
            found.append(text(node).removeprefix("r#"))
    return found


def text(node: Node) -> str:
    """The source of the node; empty for None."""
    return "" if node is None else node.text.decode("utf-8", "replace")


def field_text(node: Node, name: str) -> str:
    """The source of the node's field of that name; empty if it has none."""
    return text(node.child_by_field_name(name))


def before_items(root: Node) -> Before:
    """What stands before each item below the node. A node's own siblings cannot be asked: that takes as long as there
    are siblings.
    """
    found: Before = {}
    for node in walk(root):
        pending: list[Node] = []
        for child in node.named_children:
            if child.type == "attribute_item" or child.type in COMMENTS:
                pending.append(child)
            elif pending:
                found[child.id] = pending
                pending = []
    return found


def attributes(item: Node, before: Before) -> list[str]:
    """The attributes before an item, without `#[` and `]`: `["test", "should_panic(expected = \\"x\\")"]`."""
    return [text(mark)[2:-1].strip() for mark in before.get(item.id, ()) if mark.type == "attribute_item"]


def is_public(item: Node) -> bool:
    """Whether the item is `pub` without a restriction."""
    return any(child.type == "visibility_modifier" and text(child) == "pub" for child in item.children)


@dataclass(frozen=True, kw_only=True)
class QualityWeights(Settings):
    """What each score counts for in the part `quality`."""

    complexity_weight: Weight = 2.0
    """Weight of low cyclomatic complexity, within the quality."""
    nesting_weight: Weight = 1.0
    """Weight of shallow control flow, within the quality."""
    errors_weight: Weight = 1.0
    """Weight of Result, Option and `?`, within the quality."""
    docs_weight: Weight = 1.0
    """Weight of documented public items, within the quality."""
    iterators_weight: Weight = 1.0
    """Weight of iterators in place of loops, within the quality."""
    closures_weight: Weight = 0.5
    """Weight of closures, within the quality."""
    panics_weight: Weight = 2.0
    """Weight of code without unwrap, expect and panic, within the quality."""
    unsafe_weight: Weight = 1.0
    """Weight of code without unsafe, within the quality."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(sum(self.of_scores().values()) > 0, "the weights of the quality of Rust must not all be 0")

    def of_scores(self) -> dict[str, float]:
        """The weight of each score, by its name."""
        return {one.name.removesuffix("_weight"): getattr(self, one.name) for one in fields(QualityWeights)}


@dataclass
class Counts:
    """What was counted in a solution."""

    functions: int = 0
    nesting: int = 0
    fallible: int = 0
    public_items: int = 0
    documented_items: int = 0
    adapters: int = 0
    loops: int = 0
    closures: int = 0
    panics: int = 0
    unsafe: int = 0
    complexities: list[int] = field(default_factory=list)

    def branch(self, function: int, more: int) -> None:
        """Add branches to a function or macro; those outside of any do not count."""
        if function >= 0:
            self.complexities[function] += more

    def add_token(self, token: str, function: int) -> None:
        """Tokens count in macros too, which hold no syntax."""
        self.branch(function, token in BRANCHING)
        self.loops += token in LOOPING
        self.panics += token in PANICS
        self.unsafe += token == "unsafe"

    def add(self, node: Node, before: Before) -> None:
        """Add what a node is by itself."""
        kind = node.type
        public = kind in DOCUMENTED and is_public(node)
        self.public_items += public
        self.documented_items += public and _documented(node, before)
        self.fallible += kind == "try_expression"
        self.adapters += kind == "call_expression" and _called(node) in ADAPTERS
        self.closures += kind == "closure_expression"


def count(source: str) -> Counts:
    """Count in Rust source.

    >>> counts = count("pub fn f(x: i32) -> i32 { if x > 0 && x < 9 { 1 } else { 2 } }")
    >>> max(counts.complexities), counts.nesting, counts.panics
    (3, 1, 0)
    """
    counts, root = Counts(), parse(source)
    before, pending = before_items(root), [(root, -1, 0, "")]
    while pending:
        node, function, depth, parent = pending.pop()
        kind = node.type
        if _is_test(node, before):
            continue
        if kind == "macro_definition" or (kind == "function_item" and node.child_by_field_name("body")):
            counts.functions += kind == "function_item"
            counts.fallible += field_text(node, "return_type").startswith(("Result", "Option"))
            counts.complexities.append(1)
            function = len(counts.complexities) - 1
        depth += kind in BLOCKS and parent != "else_clause"
        counts.nesting = max(counts.nesting, depth)
        counts.add(node, before)
        if kind == "match_block":
            counts.branch(function, max(0, sum(child.type == "match_arm" for child in node.named_children) - 1))
        if not node.children and kind != "string_content":
            counts.add_token(text(node), function)
        pending += [(child, function, depth, kind) for child in node.children]
    return counts


def scores(source: str) -> dict[str, float]:
    """Each score of the module's docstring, by its name."""
    counts = count(source)
    if counts.functions == 0:
        return dict.fromkeys(QualityWeights().of_scores(), 0.0)
    idioms = counts.adapters + counts.loops
    return {
        "complexity": _falling(max(counts.complexities), 10, 30),
        "nesting": _falling(counts.nesting, 3, 8),
        "errors": float(counts.fallible > 0 or counts.panics == 0),
        "docs": counts.documented_items / counts.public_items if counts.public_items else 0.0,
        "iterators": counts.adapters / idioms if idioms else 1.0,
        "closures": float(counts.closures > 0 or counts.loops == 0),
        "panics": 1 / (1 + counts.panics),
        "unsafe": 1 / (1 + counts.unsafe),
    }


def quality(found: dict[str, float], weights: QualityWeights) -> float:
    """The mean of the scores by their weights."""
    return weighted(found, weights.of_scores()).value


def _falling(value: int, best: int, worst: int) -> float:
    """1 up to `best`, 0 from `worst`, linear between."""
    return min(1.0, max(0.0, (worst - value) / (worst - best)))


def _is_test(node: Node, before: Before) -> bool:
    marks = attributes(node, before) if node.type in ("mod_item", "function_item") else []
    return any(mark == "test" or mark.replace(" ", "") == "cfg(test)" for mark in marks)


def _called(call: Node) -> str:
    """The name of the called function or method, without path and type arguments."""
    function = call.child_by_field_name("function")
    while function is not None and function.type in INNER:
        function = function.child_by_field_name(INNER[function.type])
    return text(function)


def _documented(item: Node, before: Before) -> bool:
    """Whether a doc comment or attribute with words stands before the item."""
    said = [mark for mark in before.get(item.id, ()) if field_text(mark, "doc") or text(mark).startswith("#[doc")]
    return any(re.search("[A-Za-z]{2}", text(mark).removeprefix("#[doc")) for mark in said)
