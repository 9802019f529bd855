r"""What is left to compute in an expression as it is written: `\sqrt{40}`, `2+4x-x`, `\frac{6}{16}`, `3^2\pi`.

    LIKE terms not joined, a FRACTION not in lowest terms, a ROOT of what has a root, a POWER of a number, a PRODUCT of
    numbers, a root in a DENOMINATOR, a COMMON factor in the terms of a sum, brackets to
    OPEN, an IMAGINARY unit in a denominator or before a sum with another

Nothing is evaluated: the text is read into a tree, and what cannot be read leaves nothing.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

_TOKEN = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+|\\[A-Za-z]+|\S)")
_SEPARATORS = {*",;=<>&≤≥", r"\le", r"\leq", r"\ge", r"\geq", r"\lt", r"\gt", r"\ne", r"\neq", r"\in", r"\cup"}
_NAMES = re.compile(
    r"\\(?:pi|infty|alpha|beta|gamma|delta|theta|lambda|mu|sigma|omega|(?:var)?phi|[lc]?dots|emptyset|%)"
)
_CLOSING = {"(": ")", "[": "])", "{": "}"}
LONGEST, DEEPEST, LARGEST = 400, 30, 10**9
"""Longer and deeper texts and roots of larger numbers are not looked into."""


@dataclass(frozen=True)
class Node:
    """A number, a name, or an operation on others."""

    kind: str
    parts: tuple["Node", ...] = ()
    text: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it is a number as it is written, or a fraction of two."""
        return self.kind == "number" or (self.kind == "over" and all(one.is_number for one in self.parts))

    @property
    def integer(self) -> int:
        """The integer that it is; 0 if it is none."""
        return int(self.text) if self.kind == "number" and self.text.isdecimal() and len(self.text) < 100 else 0


_I = Node("name", text="i")


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens, self.at = _TOKEN.findall(text), 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def taken(self, *wanted: str) -> str:
        """The next token, if it is one of these."""
        found = self.next if self.next in wanted else ""
        self.at += bool(found)
        return found

    def listed(self) -> Node:
        parts = [self.total()]
        while self.taken(*_SEPARATORS):
            parts.append(self.total())
        return parts[0] if len(parts) == 1 else Node("list", tuple(parts))

    def total(self) -> Node:
        terms: list[Node] = []
        if self.next in _SEPARATORS or self.next in {"", *")]}"}:
            return Node("name")
        while True:
            while self.taken("+", "-", r"\pm", r"\mp"):
                pass
            term = self.product()
            terms += term.parts if term.kind == "sum" else (term,)
            if self.next not in ("+", "-", r"\pm", r"\mp"):
                return terms[0] if len(terms) == 1 else Node("sum", tuple(terms))

    def product(self) -> Node:
        factors = [self.power()]
        while self.next not in _SEPARATORS and self.next not in {"", *")]}+-|", r"\pm", r"\mp"}:
            if self.taken("/"):
                below = self.power()
                factors = [Node("over", (_product(factors), below))]
                continue
            stated = bool(self.taken("*"))
            factor = self.power()
            if not stated and factors[-1].integer and factor.kind == "over" and factor.is_number:
                factors[-1] = Node("number", text="mixed")
            else:
                factors += factor.parts if factor.kind == "product" else (factor,)
        return _product(factors)

    def power(self) -> Node:
        while self.taken("+", "-"):
            pass
        base = self.atom()
        while sign := self.taken("^", "_", "!"):
            if sign == "!":
                base = Node("call", (base,), sign)
            elif sign == "_":
                base = Node("name", text=f"{base}_{self.argument()}")
            else:
                base = Node("power", (base, self.argument()))
        return base

    def argument(self) -> Node:
        self.taken("-")
        if len(self.next) > 1 and self.next.isdecimal():  # of `\frac12` and `x^23` only the first digit
            digits = self.next
            self.tokens[self.at : self.at + 1] = [digits[0], digits[1:]]
        return self.atom()

    def atom(self) -> Node:
        token = self.next
        self.at += 1
        if token in ("(", "[", "{"):
            inside = self.listed()
            if not (self.next and self.next in _CLOSING[token]) and not (token == "(" and self.next == "]"):
                raise ValueError(token)
            self.at += 1
            return inside
        if token[:1].isdigit() or token[:1] == ".":
            return Node("number", text=token)
        if token == r"\frac":
            return Node("over", (self.argument(), self.argument()))
        if token == r"\binom":
            return Node("call", (self.argument(), self.argument()), token)
        if token == r"\sqrt":
            index = self.atom() if self.next == "[" else Node("number", text="2")
            return Node("root", (self.argument(), index))
        if token.isalpha() or _NAMES.fullmatch(token):
            return Node("name", text=token)
        if token[:1] == "\\":
            while self.taken("^", "_"):
                token += str(self.argument())
            return Node("call", (self.power(),), token)
        raise ValueError(token)


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Node("product", tuple(factors))


def read(text: str) -> Node | None:
    """The tree of an expression in the one spelling of written.py; None for what cannot be read."""
    if len(text) > LONGEST or max(map(text.count, "([{")) > DEEPEST or len(re.findall(r"[\^_\\]", text)) > LONGEST // 4:
        return None
    reader = _Reader(text)
    try:
        found = reader.listed()
    except ValueError:
        return None
    return found if not reader.next else None


def leftovers(tree: Node | None) -> Counter[str]:
    r"""How often each kind of work is left.

    >>> [dict(leftovers(read(text))) for text in (r"\sqrt{40}", "2+4x-x", r"\frac{6}{16}", r"3^2\pi", r"\frac{\sqrt{3}}{2}")]
    [{'root': 1}, {'like': 1}, {'fraction': 1}, {'power': 1}, {}]
    """  # noqa: E501
    found: Counter[str] = Counter()
    if tree is not None:
        _count(tree, found)
    return +found


def _count(node: Node, found: Counter[str]) -> None:
    if node.kind == "sum":
        like = Counter(map(_bare, node.parts))
        found["like"] += sum(like.values()) - len(like)
        found["common"] += _content(node) > 1
        found["open"] += any(_has_a_sum(one) for one in node.parts)
    elif node.kind == "product":
        found["product"] += sum(one.is_number for one in node.parts) > 1
        found["open"] += sum(one.kind == "sum" for one in node.parts) > 1
        found["product"] += sum(one.kind == "root" for one in node.parts) > 1
        found["imaginary"] += _I in node.parts and any(one.kind == "sum" and _has_i(one) for one in node.parts)
    elif node.kind == "power" and node.parts[1].is_number:
        found["power"] += node.parts[0].is_number or node.parts[0].kind == "root" or node.parts[1].text == "0"
    elif node.kind == "over":
        above, below = node.parts
        found["fraction"] += below.text != "1" and (
            math.gcd(_content(above), _content(below)) > 1 or not _factors(above).isdisjoint(_factors(below))
        )
        found["denominator"] += _has_a_root(below)
        found["imaginary"] += _has_i(below)
    elif node.kind == "root":
        inside, index = node.parts
        found["root"] += _has_a_factor(inside.integer, index.integer)
        found["denominator"] += inside.kind == "over" and inside.is_number
        found["nested"] += inside.kind == "sum" and any(map(_has_a_root, inside.parts))
    for one in node.parts:
        _count(one, found)


def _bare(term: Node) -> str:
    """A term without its numbers, its factors in order."""
    if term.is_number:
        return ""
    if term.kind == "product":
        return "*".join(sorted(filter(None, map(_bare, term.parts))))
    if term.kind == "over":
        below = _bare(term.parts[1])
        return _bare(term.parts[0]) + (f"/{below}" if below else "")
    return str(term)


def _content(node: Node) -> int:
    """The greatest integer that is a factor of every term."""
    if node.kind == "sum":
        return math.gcd(*map(_content, node.parts))
    if node.kind == "product":
        return math.prod(one.integer or 1 for one in node.parts)
    return node.integer or 1


def _factors(node: Node) -> set[Node]:
    """The factors that are no numbers, without their exponents."""
    factors = node.parts if node.kind == "product" else (node,)
    return {one.parts[0] if one.kind == "power" else one for one in factors if not one.is_number}


def _has_a_sum(node: Node) -> bool:
    """Whether a sum is one of the factors."""
    return node.kind == "product" and any(one.kind == "sum" for one in node.parts)


def _has_a_root(node: Node) -> bool:
    return node.kind == "root" or any(map(_has_a_root, node.parts))


def _has_i(node: Node) -> bool:
    return node == _I or any(map(_has_i, node.parts))


def _has_a_factor(number: int, index: int) -> bool:
    """Whether something comes out of the root of a number."""
    if not (0 < number <= LARGEST and index > 1):
        return False
    import sympy

    exponents = sympy.factorint(number).values()
    return max(exponents, default=index) >= index or math.gcd(index, *exponents) > 1
