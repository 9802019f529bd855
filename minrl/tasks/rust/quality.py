"""Scores of Rust code, counted in its syntax tree: each is in [0, 1], and 0 for code without a function.

Tests of the solution's own (`#[cfg(test)]`) are not counted.

    complexity   1 up to cyclomatic complexity 10 (the worst function), 0 from 30
    nesting      1 up to 3 nested blocks of control flow, 0 from 8
    errors       1 if a function returns Result or Option, uses `?`, or nothing panics
    docs         share of the public items with a doc comment
    iterators    adapters / (adapters + loops)
    closures     1 if there is one, or no loop that one would replace
    panics       1 / (1 + unwrap, expect, panic!, todo!, unimplemented!, unreachable!)
    unsafe       1 / (1 + unsafe)
"""

import math
from dataclasses import dataclass

from minrl.tasks.rust.syntax import Node, attributes, field, is_public, parse, text, walk
from minrl.tasks.task import weighted
from minrl.types import require

BRANCHES = frozenset(("if_expression", "while_expression", "for_expression", "loop_expression", "try_expression"))
LOOPS = frozenset(("while_expression", "for_expression", "loop_expression"))
BLOCKS = LOOPS | {"if_expression", "match_expression"}
ADAPTERS = frozenset([
    "all", "any", "chain", "chunks", "collect", "copied", "cloned", "count", "cycle", "enumerate", "filter",
    "filter_map", "find", "find_map", "flat_map", "flatten", "fold", "for_each", "last", "map", "map_while", "max",
    "max_by", "max_by_key", "min", "min_by", "min_by_key", "nth", "partition", "peekable", "position", "product",
    "reduce", "rev", "scan", "skip", "skip_while", "sum", "step_by", "take", "take_while", "try_fold", "unzip",
    "windows", "zip",
])  # fmt: skip
INNER = {"generic_function": "function", "field_expression": "field", "scoped_identifier": "name"}
"""The field that leads to the name of the called function, by the type of the node."""
PANICS = frozenset(("panic", "todo", "unimplemented", "unreachable"))
DOCUMENTED = frozenset(("function_item", "struct_item", "enum_item", "trait_item", "type_item", "const_item"))


@dataclass(frozen=True, kw_only=True)
class QualityWeights:
    """What each score counts for in the part `quality`."""

    complexity_weight: float = 2.0
    """Weight of low cyclomatic complexity, within the quality."""
    nesting_weight: float = 1.0
    """Weight of shallow control flow, within the quality."""
    errors_weight: float = 1.0
    """Weight of Result, Option and `?`, within the quality."""
    docs_weight: float = 1.0
    """Weight of documented public items, within the quality."""
    iterators_weight: float = 1.0
    """Weight of iterators in place of loops, within the quality."""
    closures_weight: float = 0.5
    """Weight of closures, within the quality."""
    panics_weight: float = 2.0
    """Weight of code without unwrap, expect and panic, within the quality."""
    unsafe_weight: float = 1.0
    """Weight of code without unsafe, within the quality."""

    def __post_init__(self) -> None:
        weights = self.of_scores()
        valid = min(weights.values()) >= 0 and 0 < sum(weights.values()) < math.inf
        require(valid, f"weights of the quality of Rust must be at least 0 and not all 0, got {weights}")

    def of_scores(self) -> dict[str, float]:
        """The weight of each score, by its name."""
        return {
            "complexity": self.complexity_weight,
            "nesting": self.nesting_weight,
            "errors": self.errors_weight,
            "docs": self.docs_weight,
            "iterators": self.iterators_weight,
            "closures": self.closures_weight,
            "panics": self.panics_weight,
            "unsafe": self.unsafe_weight,
        }


@dataclass(frozen=True)
class Counts:
    """What was counted in the solution."""

    functions: int
    complexity: int
    nesting: int
    fallible: int
    public_items: int
    documented_items: int
    adapters: int
    loops: int
    closures: int
    panics: int
    unsafe: int


def count(source: str) -> Counts:
    """Count in Rust source.

    >>> counts = count("pub fn f(x: i32) -> i32 { if x > 0 && x < 9 { 1 } else { 2 } }")
    >>> counts.complexity, counts.nesting, counts.panics
    (3, 1, 0)
    """
    nodes = list(walk(parse(source), skip=_is_test))
    functions = [node for node in nodes if node.type == "function_item" and node.child_by_field_name("body")]
    calls = [_called(node) for node in nodes if node.type == "call_expression"]
    macros = [field(node, "macro") for node in nodes if node.type == "macro_invocation"]
    public = [node for node in nodes if node.type in DOCUMENTED and is_public(node)]
    fallible = [f for f in functions if field(f, "return_type").startswith(("Result", "Option"))]
    return Counts(
        functions=len(functions),
        complexity=max((_complexity(function) for function in functions), default=0),
        nesting=max((_nesting(function) for function in functions), default=0),
        fallible=len(fallible) + sum(node.type == "try_expression" for node in nodes),
        public_items=len(public),
        documented_items=sum(_documented(node) for node in public),
        adapters=sum(name in ADAPTERS for name in calls),
        loops=sum(node.type in LOOPS for node in nodes),
        closures=sum(node.type == "closure_expression" for node in nodes),
        panics=sum(name in ("unwrap", "expect") for name in calls) + sum(name in PANICS for name in macros),
        unsafe=sum(node.type == "unsafe" for node in nodes),
    )


def scores(source: str) -> dict[str, float]:
    """Each score of the module's docstring, by its name."""
    counts = count(source)
    if counts.functions == 0:
        return dict.fromkeys(QualityWeights().of_scores(), 0.0)
    idioms = counts.adapters + counts.loops
    return {
        "complexity": _falling(counts.complexity, 10, 30),
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


def _is_test(node: Node) -> bool:
    marks = attributes(node) if node.type in ("mod_item", "function_item") else []
    return any(mark == "test" or mark.replace(" ", "") == "cfg(test)" for mark in marks)


def _called(call: Node) -> str:
    """The name of the called function or method, without path and type arguments."""
    function = call.child_by_field_name("function")
    while function is not None and function.type in INNER:
        function = function.child_by_field_name(INNER[function.type])
    return text(function)


def _complexity(function: Node) -> int:
    """McCabe's: 1 + branches, further match arms, `?`, `&&` and `||`."""
    total = 1
    for node in walk(function):
        total += node.type in BRANCHES or node.type in ("&&", "||")
        if node.type == "match_block":
            total += max(0, sum(child.type == "match_arm" for child in node.named_children) - 1)
    return total


def _nesting(node: Node) -> int:
    """How deep blocks of control flow lie in each other; an `else if` lies beside its `if`."""
    deepest, pending = 0, [(node, 0)]
    while pending:
        node, depth = pending.pop()
        depth += node.type in BLOCKS and not (node.parent is not None and node.parent.type == "else_clause")
        deepest = max(deepest, depth)
        pending += [(child, depth) for child in node.children]
    return deepest


def _documented(item: Node) -> bool:
    before = item.prev_named_sibling
    while before is not None and before.type == "attribute_item" and not text(before).startswith("#[doc"):
        before = before.prev_named_sibling
    comments = ("line_comment", "block_comment")
    return before is not None and (
        before.type == "attribute_item" or (before.type in comments and field(before, "doc") != "")
    )
