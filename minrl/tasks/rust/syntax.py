"""The syntax tree of Rust source, by tree-sitter. Every pass over a tree takes time linear in its size."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from minrl.types import UserError

Node = Any
"""A node of tree-sitter's syntax tree."""
Before = dict[int, list[Node]]
"""The attributes and comments directly before items, in order, by the id of the item's node."""

TEXTS = frozenset(("string_literal", "raw_string_literal", "char_literal"))
COMMENTS = frozenset(("line_comment", "block_comment"))
SPACES = re.compile("[\v\f\x85\u200e\u200f\u2028\u2029]")
"""White space of Rust that tree-sitter takes for letters."""
BOUND = re.compile(r"\bdyn\s+'\w+\s*\+")
"""A lifetime before a trait, which tree-sitter does not know."""
ESCAPED = re.compile(r"\\u\{([0-9a-fA-F_]*)\}")


@cache
def _parser() -> Any:  # noqa: ANN401 - tree-sitter comes with an extra
    try:
        import tree_sitter
        import tree_sitter_rust
    except ImportError as error:
        raise UserError(
            f"Rust is read by tree-sitter, which is missing ({error}): pip install 'minrl[rust]'"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))


def parse(source: str) -> Node:
    """The root of the tree. Source that is not Rust gives nodes of the type ERROR."""
    return _parser().parse(source.encode("utf-8", "replace")).root_node


def plain(source: str) -> str:
    """The source so that tree-sitter reads what rustc reads: white space as blanks, escapes without underscores."""
    unescaped = ESCAPED.sub(lambda escape: "\\u{" + (escape[1].replace("_", "") or "0") + "}", source)
    return BOUND.sub("dyn ", SPACES.sub(" ", unescaped))


def walk(node: Node, skip: Callable[[Node], bool] = lambda _: False) -> Iterator[Node]:
    """The node and everything below it in the order of the source, except skipped nodes and what is below them."""
    pending = [node]
    while pending:
        node = pending.pop()
        if not skip(node):
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


def field(node: Node, name: str) -> str:
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
