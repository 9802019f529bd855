"""The syntax tree of Rust source, by tree-sitter."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from minrl.types import UserError

Node = Any
"""A node of tree-sitter's syntax tree."""


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


def walk(node: Node, skip: Callable[[Node], bool] = lambda _: False) -> Iterator[Node]:
    """The node and everything below it in the order of the source, except skipped nodes and what is below them."""
    pending = [node]
    while pending:
        node = pending.pop()
        if not skip(node):
            yield node
            pending += reversed(node.children)


def text(node: Node) -> str:
    """The source of the node; empty for None."""
    return "" if node is None else node.text.decode("utf-8", "replace")


def field(node: Node, name: str) -> str:
    """The source of the node's field of that name; empty if it has none."""
    return text(node.child_by_field_name(name))


def attributes(item: Node) -> list[str]:
    """The attributes before an item, without `#[` and `]`: `["test", "should_panic(expected = \\"x\\")"]`."""
    found = []
    before = item.prev_named_sibling
    while before is not None and before.type in ("attribute_item", "line_comment", "block_comment"):
        if before.type == "attribute_item":
            found.append(text(before)[2:-1].strip())
        before = before.prev_named_sibling
    return found[::-1]


def is_public(item: Node) -> bool:
    """Whether the item is `pub` without a restriction."""
    return any(child.type == "visibility_modifier" and text(child) == "pub" for child in item.children)
