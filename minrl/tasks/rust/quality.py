"""Scores of Rust code, counted in its syntax tree: each is in [0, 1], and 0 for code without a function.

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

import math
import re
from collections import Counter
from dataclasses import dataclass, replace

from minrl.tasks.rust.syntax import Before, Node, attributes, before_items, field, is_public, parse, text, tokens, walk
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
UNWRAPS = frozenset(("unwrap", "expect"))
BRANCHING = frozenset(("if", "while", "in", "loop", "?", "&&", "||"))
"""Tokens of macros that stand for a branch. `in` is that of a `for`, which also stands in `impl ... for`."""
LOOPING = frozenset(("while", "in", "loop"))
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
    tally = _Tally()
    root = parse(source)
    before = before_items(root)
    pending: list[tuple[Node, _Place]] = [(root, _Place())]
    while pending:
        node, place = pending.pop()
        if not _is_test(node, before):
            inside = tally.add(node, place, before)
            pending += [(child, inside) for child in node.children]
    return tally.counts()


@dataclass(frozen=True)
class _Place:
    """Where a node stands: in which function or macro, how deep in its control flow, after an `else`, in a macro."""

    function: int = -1
    depth: int = 0
    after_else: bool = False
    in_macro: bool = False


class _Tally:
    """The counts while a tree is read, each node once."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.complexities: list[int] = []
        self.nesting = 0

    def add(self, node: Node, place: _Place, before: Before) -> _Place:
        """Count a node; the place of what is in it."""
        kind = node.type
        if place.in_macro:
            return self._add_token(node, place)
        if kind == "token_tree":
            return replace(place, in_macro=True)
        if kind == "macro_definition" or (kind == "function_item" and node.child_by_field_name("body")):
            self.total["functions"] += kind == "function_item"
            self.total["fallible"] += field(node, "return_type").startswith(("Result", "Option"))
            self.complexities.append(1)
            place = _Place(len(self.complexities) - 1, in_macro=kind == "macro_definition")
        depth = place.depth + (kind in BLOCKS and not place.after_else)
        self.nesting = max(self.nesting, depth)
        self._branch(place, self._branches(node))
        self._count(node, before)
        return replace(place, depth=depth, after_else=kind == "else_clause")

    def _branches(self, node: Node) -> int:
        if node.type == "match_block":
            return max(0, sum(child.type == "match_arm" for child in node.named_children) - 1)
        return int(node.type in BRANCHES or node.type in ("&&", "||"))

    def _branch(self, place: _Place, more: int) -> None:
        if place.function >= 0:
            self.complexities[place.function] += more

    def _count(self, node: Node, before: Before) -> None:
        kind, called = node.type, _called(node) if node.type == "call_expression" else ""
        public = kind in DOCUMENTED and is_public(node)
        self.total["public"] += public
        self.total["documented"] += public and _documented(node, before)
        self.total["fallible"] += kind == "try_expression"
        self.total["adapters"] += called in ADAPTERS
        self.total["loops"] += kind in LOOPS
        self.total["closures"] += kind == "closure_expression"
        self.total["panics"] += called in UNWRAPS or (kind == "macro_invocation" and field(node, "macro") in PANICS)
        self.total["unsafe"] += kind == "unsafe"

    def _add_token(self, node: Node, place: _Place) -> _Place:
        """Macros hold no syntax: their tokens count as what they would be."""
        token = "" if node.children else text(node)
        self._branch(place, token in BRANCHING)
        self.total["loops"] += token in LOOPING
        self.total["panics"] += token in UNWRAPS or token in PANICS
        self.total["unsafe"] += token == "unsafe"
        return place

    def counts(self) -> Counts:
        """What was counted."""
        total = self.total
        return Counts(
            functions=total["functions"],
            complexity=max(self.complexities, default=0),
            nesting=self.nesting,
            fallible=total["fallible"],
            public_items=total["public"],
            documented_items=total["documented"],
            adapters=total["adapters"],
            loops=total["loops"],
            closures=total["closures"],
            panics=total["panics"],
            unsafe=total["unsafe"],
        )


def share_in_macros(root: Node, given: str) -> float:
    """Share of the tokens that stand in macros of the solution's own, in their definitions and where they are called.
    Tests and the macros that the row has are left out.
    """
    before, known = before_items(root), set(tokens(parse(given)))
    nodes = list(walk(root, skip=lambda node: _is_test(node, before)))
    own = {field(node, "name") for node in nodes if node.type == "macro_definition"} - known
    inside, all_tokens = 0, 0
    pending = [(root, False)]
    while pending:
        node, hidden = pending.pop()
        if _is_test(node, before):
            continue
        hidden = hidden or (node.type == "macro_definition" and field(node, "name") in own)
        hidden = hidden or (node.type == "macro_invocation" and field(node, "macro") in own)
        all_tokens += not node.children
        inside += hidden and not node.children
        pending += [(child, hidden) for child in node.children]
    return inside / max(1, all_tokens)


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
    said = [mark for mark in before.get(item.id, ()) if field(mark, "doc") or text(mark).startswith("#[doc")]
    return any(re.search("[A-Za-z]{2}", text(mark).removeprefix("#[doc")) for mark in said)
