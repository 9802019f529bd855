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

`points` are what nanochat-rl counts (crates/nanochat-rl/src/reward.rs), each without its weight:

    structure      functions / 2 up to 2, structs and enums 0.3 each up to 1 each, traits / 2 up to 1
    patterns       a function returns a Result 1, an Option 0.5, `?` 0.5
    documentation  a documented function 1, share of documented functions
    idioms         iterators 1, `match` 0.8, closures 0.7, chained methods 0.6, destructuring `let` 0.5, turbofish 0.3
    length         0.5 for 10 to 100 lines, -1 below 5, -2 above 200
    excess         2 for each tenfold of branches above 10 of the whole file, 1 for each level of nesting above 3
    num_panics     those of `panics`
    has_unsafe     1 with an unsafe block
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
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
BRANCHING = frozenset(("if", "while", "in", "loop", "?", "&&", "||"))
"""Tokens that stand for a branch. `in` is that of a `for`, which also stands in `impl ... for`."""
LOOPING = frozenset(("while", "in", "loop"))
ITERATING = frozenset(("map", "filter", "fold", "collect", "iter", "into_iter"))
"""The methods that nanochat-rl counts as iterators."""
PANICS = frozenset(("unwrap", "expect", "panic", "todo", "unimplemented", "unreachable"))
DOCUMENTED = frozenset(("function_item", "struct_item", "enum_item", "trait_item", "type_item", "const_item"))
TEXTS = frozenset(("string_literal", "raw_string_literal", "char_literal"))
COMMENTS = frozenset(("line_comment", "block_comment"))
MOST_POINTS = {"structure": 5.0, "patterns": 2.0, "documentation": 2.0, "idioms": 3.9, "length": 0.5}
"""The most of each of the `points` that code can have; the others only take away."""
Weight = Annotated[float, Bound(least=0)]
Node = Any
"""A node of tree-sitter's syntax tree."""


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


def walk(node: Node, tests: bool = True) -> Iterator[Node]:
    """The node and everything below it in the order of the source, without what is compiled for tests alone or with."""
    pending = [node]
    while pending:
        node = pending.pop()
        if tests or not (node.type in ("mod_item", "function_item") and _is_test(node)):
            yield node
            pending += reversed(node.children)


def tokens(root: Node) -> list[str]:
    """The tokens below the node without comments; strings and characters as `""`, raw identifiers as plain ones.

    >>> tokens(parse('let r#x = "// no"; /* a /* b */ c */ std::io;'))
    ['let', 'x', '=', '""', ';', 'std', '::', 'io', ';']
    """
    found, pending = [], [root]
    while pending:
        node = pending.pop()
        if node.type in TEXTS:
            found.append('""')
        elif node.type not in COMMENTS and node.children:
            pending += reversed(node.children)
        elif node.type not in COMMENTS:
            found.append(text(node).removeprefix("r#"))
    return found


def text(node: Node) -> str:
    """The source of the node; empty for None."""
    return "" if node is None else node.text.decode("utf-8", "replace")


def marks(item: Node) -> list[str]:
    """The attributes and comments directly before an item."""
    found, before = list[str](), item.prev_named_sibling
    while before is not None and (before.type == "attribute_item" or before.type in COMMENTS):
        found.append(text(before))
        before = before.prev_named_sibling
    return found


def _is_test(item: Node) -> bool:
    return any(mark.replace(" ", "") in ("#[test]", "#[cfg(test)]") for mark in marks(item))


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


def scores(source: str) -> dict[str, float]:
    """Each score of the module's docstring, by its name.

    >>> scores("pub fn f(x: i32) -> i32 { if x > 0 && x < 9 { 1 } else { 2 } }")["complexity"]
    1.0
    """
    root = parse(source)
    nodes = list(walk(root, tests=False))
    functions = [node for node in nodes if node.type == "function_item" and node.child_by_field_name("body")]
    if not functions:
        return dict.fromkeys(QualityWeights().of_scores(), 0.0)
    macros = [node for node in nodes if node.type == "macro_definition"]
    words = [text(node) for node in nodes if not node.children and node.type not in ("string_content", *COMMENTS)]
    loops, panics = (sum(word in kind for word in words) for kind in (LOOPING, PANICS))
    adapters = sum(node.type == "call_expression" and _called(node) in ADAPTERS for node in nodes)
    closures = sum(node.type == "closure_expression" for node in nodes)
    returned = [text(node.child_by_field_name("return_type")) for node in functions]
    fallible = any(kind.startswith(("Result", "Option")) for kind in returned) or any(
        node.type == "try_expression" for node in nodes
    )
    public = [node for node in nodes if node.type in DOCUMENTED and _is_public(node)]
    return {
        "complexity": _falling(max(map(complexity, [*functions, *macros])), 10, 30),
        "nesting": _falling(nesting(root), 3, 8),
        "errors": float(fallible or panics == 0),
        "docs": sum(map(_documented, public)) / len(public) if public else 0.0,
        "iterators": adapters / (adapters + loops) if adapters + loops else 1.0,
        "closures": float(closures > 0 or loops == 0),
        "panics": 1 / (1 + panics),
        "unsafe": 1 / (1 + words.count("unsafe")),
    }


def points(source: str) -> dict[str, float]:
    """Each of the points of the module's docstring, by its name.

    >>> counted = points("fn f(x: i32) -> Option<i32> {\\n    match x { 0 => None, _ => Some(g(x).unwrap()) }\\n}")
    >>> counted["patterns"], counted["idioms"], counted["num_panics"], counted["length"]
    (0.5, 0.8, 1.0, -1.0)
    """
    root = parse(source)
    nodes = list(walk(root, tests=False))
    kinds = Counter(node.type for node in nodes)
    functions = [node for node in nodes if node.type == "function_item" and not _is_method(node)]
    returned = " ".join(text(node.child_by_field_name("return_type")) for node in functions)
    documented = sum(map(_documented, functions))
    calls = [node for node in nodes if node.type == "call_expression"]
    bound = {node.child_by_field_name("pattern").type for node in nodes if node.type == "let_declaration"}
    idioms = (
        (1.0, not ITERATING.isdisjoint(map(_called, calls))),
        (0.8, kinds["match_expression"] > 0),
        (0.7, kinds["closure_expression"] > 0),
        (0.6, any(_is_method_of_a_result(call) for call in calls)),
        (0.5, not bound.isdisjoint(("tuple_pattern", "struct_pattern"))),
        (0.3, kinds["generic_function"] > 0),
    )
    lines = sum(bool(line) and not line.startswith("//") for line in map(str.strip, source.splitlines()))
    branches = 1 + kinds["match_arm"] + sum(kinds[kind] for kind in BLOCKS - {"match_expression"})
    return {
        "structure": min(0.5 * len(functions), 2.0)
        + min(0.3 * kinds["struct_item"], 1.0)
        + min(0.3 * kinds["enum_item"], 1.0)
        + min(0.5 * kinds["trait_item"], 1.0),
        "patterns": ("Result" in returned) + 0.5 * ("Option" in returned) + 0.5 * (kinds["try_expression"] > 0),
        "documentation": (documented > 0) + documented / max(1, len(functions)),
        "idioms": math.fsum(worth for worth, used in idioms if used),
        "length": -1.0 if lines < 5 else -2.0 if lines > 200 else 0.5 * (10 <= lines <= 100),
        "excess": 2 * max(0, branches - 10) / 10 + max(0, nesting(root) - 3),
        "num_panics": float(sum(text(node) in PANICS for node in nodes if "identifier" in node.type)),
        "has_unsafe": float(kinds["unsafe_block"] > 0),
    }


def quality(found: dict[str, float], weights: QualityWeights) -> float:
    """The mean of the scores by their weights."""
    return weighted(found, weights.of_scores()).value


def complexity(function: Node) -> int:
    """1, and one for each branch and each further arm of a `match`."""
    arms = [sum(one.type == "match_arm" for one in node.named_children) for node in walk(function, tests=False)]
    return 1 + sum(word in BRANCHING for word in tokens(function)) + sum(max(0, number - 1) for number in arms)


def nesting(root: Node) -> int:
    """The most blocks of control flow within each other; an `else if` is no deeper than its `if`."""
    deepest, pending = 0, [(root, 0, "")]
    while pending:
        node, depth, parent = pending.pop()
        if node.type in ("mod_item", "function_item") and _is_test(node):
            continue
        depth += node.type in BLOCKS and parent != "else_clause"
        deepest = max(deepest, depth)
        pending += [(child, depth, node.type) for child in node.children]
    return deepest


def _falling(value: int, best: int, worst: int) -> float:
    """1 up to `best`, 0 from `worst`, linear between."""
    return min(1.0, max(0.0, (worst - value) / (worst - best)))


def _is_public(item: Node) -> bool:
    return any(child.type == "visibility_modifier" and text(child) == "pub" for child in item.children)


def _called(call: Node) -> str:
    """The name of the called function or method, without path and type arguments."""
    name = re.match(r".*?(\w+)(?:::<.*>)?\Z", text(call.child_by_field_name("function")), re.DOTALL)
    return name[1] if name else ""


def _is_method(function: Node) -> bool:
    """Whether it stands in an `impl` or a `trait`."""
    return function.parent.parent is not None and function.parent.parent.type in ("impl_item", "trait_item")


def _is_method_of_a_result(call: Node) -> bool:
    """Whether a method is called on what another method returned."""
    function = call.child_by_field_name("function")
    inner = function.child_by_field_name("function") if function.type == "generic_function" else function
    value = inner.child_by_field_name("value") if inner.type == "field_expression" else None
    made_by = value.child_by_field_name("function").type if value and value.type == "call_expression" else ""
    return made_by in ("field_expression", "generic_function")


def _documented(item: Node) -> bool:
    """Whether a doc comment or attribute with words stands before the item."""
    said = [mark.removeprefix("#[doc") for mark in marks(item) if mark.startswith(("///", "/**", "#[doc"))]
    return any(re.search("[A-Za-z]{2}", mark) for mark in said)
