"""Finds the solution in a completion: a fenced block of Rust, in whatever way its fence is written."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from minrl.models.thoughts import after_thoughts

TAG = re.compile(r"[ \t]*([\w+#-]*)")
LISTED = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+")
DEFINED = re.compile(r"\b(?:fn|struct|enum|union|type|trait|mod|const|static|macro_rules!)\s+(?:r#)?(\w+)")
RUST = ("rust", "rs")


@dataclass(frozen=True)
class Fence:
    """What opens a block: its column, its marks and its tag."""

    column: int
    marks: str
    tag: str

    def ends(self, line: str) -> bool:
        """Whether the line closes the block: the same marks, hardly further to the right."""
        content = line.lstrip(" \t")
        return content.startswith(self.marks) and len(line) - len(content) <= self.column + 3


@dataclass
class Block:
    """A fenced block, closed or not."""

    tag: str
    text: str = ""
    closed: bool = False


def extract_code(completion: str, stub: str = "") -> str | None:
    """The last block of Rust among those that define most of what the stub does; None if there is none. Blocks without
    a tag are Rust if none is tagged so, and the last block needs no end if no other has one.

    >>> extract_code("first ```rust\\nfn a() {}\\n``` no:\\n~~~ Rust\\nfn b() {}\\n~~~")
    'fn b() {}\\n'
    >>> extract_code("```rs\\nfn a() {}\\n```\\nso:\\n```rs\\nassert!(a())\\n```", "fn a() { todo!() }")
    'fn a() {}\\n'
    """
    found = list(_blocks(after_thoughts(completion)))
    closed = [block for block in found if block.closed]
    candidates = [block for block in closed if block.tag in RUST] or [block for block in closed if not block.tag]
    if not closed:
        candidates = [block for block in found if block.tag in ("", *RUST)]
    wanted = set(DEFINED.findall(stub))
    last_first = reversed(candidates)
    best = max(last_first, key=lambda block: len(wanted & set(DEFINED.findall(block.text))), default=None)
    return best.text if best else None


def _blocks(completion: str) -> Iterator[Block]:
    """All blocks in order. Their lines lose the indentation that the fence has."""
    fence: Fence | None = None
    lines: list[str] = []
    for line in completion.split("\n"):
        if fence is None:
            fence, lines = _opening(line), []
        elif fence.ends(line):
            yield Block(fence.tag, "".join(lines), closed=True)
            fence = None
        else:
            indented = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(indented, fence.column) :] + "\n")
    if fence is not None:
        yield Block(fence.tag, "".join(lines))


def _opening(line: str) -> Fence | None:
    """The fence that the line opens a block with. Only one of Rust may have text before it."""
    content = line.lstrip(" \t")
    after = content.lstrip(content[:1])
    marks = content[: len(content) - len(after)]
    if marks.startswith(("```", "~~~")) and not (marks[0] == "`" and "`" in after):
        return Fence(len(line) - len(content), marks, _tag(after))
    before, mark, after = line.rpartition("```")
    column = len(before) if LISTED.fullmatch(before) else 0
    return Fence(column, mark, _tag(after)) if mark and _tag(after) in RUST else None


def _tag(after: str) -> str:
    found = TAG.match(after)
    return found[1].lower() if found else ""
