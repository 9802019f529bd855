r"""How answers are put together: lists, tuples, sets, matrices, and the intervals that inequalities mean.

Everything here reads normal texts (minrl/tasks/math/notation.py) and hands out their parts as texts.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from minrl.tasks.math.notation import closing, split

COMPARED = ("<", ">", r"\le", r"\ge")
NAME = re.compile(
    r"(?:[A-Za-z]|\\mathbb\{[A-Z]\}|\\[a-zA-Z]+|\\text\{[^{}]*\})(?:_ *(?:\{[^{}]*\}|[0-9a-zA-Z]))?'*(?:\^\{-1\})?"
    r"(?: *\( *[^()]* *\))?|\( *[a-zA-Z](?: *, *[a-zA-Z])+ *\)|\|?[A-Z]{2,3}\|?|\\[a-z]+ *[A-Z]{1,3}"
    r"|[A-Za-z] */ *[A-Za-z]"
)
_MATRIX = re.compile(
    r"[(\[]? *\\begin\{([bp]?matrix|array)\}(?:\{[^{}]*\})?((?:(?!\\begin).)*)\\end\{\1\} *[)\]]?", re.DOTALL
)
_RANGE_OPENS = {"(": False, "[": True}
_RANGE_CLOSES = {")": False, "]": True}


class Form(NamedTuple):
    """How an answer is put together: `one` value, or `bare`, `tuple`, `set`, `interval`, `matrix` of parts."""

    kind: str
    parts: Sequence[str]
    brackets: str = ""


def unbraced(text: str) -> str:
    """The text without braces around the whole of it."""
    while text.startswith("{") and text.endswith("}") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def form_of(text: str) -> Form:
    """How a normal text is put together."""
    if found := _MATRIX.fullmatch(text):
        rows = [split(row, "&") for row in split(found[2], r"\\") if row.strip()]
        kind = "vector" if len(rows) == 1 or all(len(row) == 1 for row in rows) else "matrix"
        return Form(kind, [cell for row in rows for cell in row], f"{len(rows)} by {len(rows[0])}" if rows else "")
    for opens, closes, kind in (("(", ")", "tuple"), (r"\{", r"\}", "set"), (r"\langle", r"\rangle", "tuple")):
        if text.startswith(opens) and closing(text, 0) == len(text) - len(closes) and text.endswith(closes):
            inner = [sign for part in split(text[len(opens) : -len(closes)], ",", ";") for sign in _signs(part)]
            return Form(kind, inner, opens + closes) if len(inner) > 1 or kind == "set" else form_of(inner[0])
    if text and text[0] in "([" and text[-1] in ")]" and closing(text, 0) == len(text) - 1:
        inner = split(text[1:-1], ",", ";")
        if len(inner) > 1:
            return Form("interval" if len(inner) == 2 else "tuple", inner, text[0] + text[-1])
    parts = [sign for part in split(text, ",", ";") if part for sign in _signs(part)]
    if len(parts) > 1:
        return Form("bare", parts)
    return Form("one", [text])


def _signs(text: str) -> list[str]:
    r"""`1 \pm x` as `1 + x` and `1 - x`."""
    if not has_sign(text, r"\pm", r"\mp"):
        return [text]
    plus, minus = (
        re.sub(r"\\pm(?![A-Za-z])", one, re.sub(r"\\mp(?![A-Za-z])", other, text)) for one, other in ("+-", "-+")
    )
    return [plus, minus]


def has_sign(text: str, *signs: str) -> bool:
    """Whether one of the signs stands in the text."""
    return any(re.search(re.escape(sign) + ("(?![A-Za-z])" if sign[-1].isalpha() else ""), text) for sign in signs)


class Range(NamedTuple):
    """An interval: where it begins and ends and whether these belong to it."""

    closed: tuple[bool, bool]
    ends: tuple[str, str]


def ranges_of(text: str) -> tuple[str, list[Range] | None]:
    r"""The name and the intervals of `x<3`, `1\le x<2`, `x\in[1,2)\cup(3,4)`; None if it is no union of intervals."""
    name, member, rest = text.partition(r"\in ")
    if not member:
        name, equals, rest = text.partition("=")
        if not equals or not has_sign(rest, r"\cup", r"\infty"):
            name, rest = "", text
    names, ranges = {name.strip()} - {""}, []
    other, unequal, point = text.partition(r"\ne ")
    if unequal and NAME.fullmatch(other.strip()):
        point = point.strip()
        return other.strip(), [Range((False, False), ends) for ends in ((r"-\infty", point), (point, r"\infty"))]
    for part in (piece for whole in split(rest, ",", ";") for piece in split(whole, r"\cup")):
        found_name, found = _range(part)
        if found is None:
            return "", None
        names |= {found_name} - {""}
        ranges.append(found)
    return (next(iter(names), ""), ranges) if len(names) < 2 else ("", None)


def _range(text: str) -> tuple[str, Range | None]:
    sides = [side.strip() for side in split(text, *COMPARED)]
    signs = re.findall(r"<|>|\\le(?![a-z])|\\ge(?![a-z])", text)
    if len(sides) == 1:
        form = form_of(text)
        if form.kind in ("interval", "tuple") and len(form.parts) == 2 and form.brackets[0] in _RANGE_OPENS:
            low, high = form.parts
            return "", Range((_RANGE_OPENS[form.brackets[0]], _RANGE_CLOSES[form.brackets[1]]), (low, high))
        return "", None
    if len(signs) != len(sides) - 1 or len({sign in (">", r"\ge") for sign in signs}) > 1:
        return "", None
    if signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], signs[::-1]
    closed = [sign in (r"\le", r"\ge") for sign in signs]
    if len(sides) == 3 and NAME.fullmatch(sides[1]):
        return sides[1], Range((closed[0], closed[1]), (sides[0], sides[2]))
    if len(sides) == 2 and NAME.fullmatch(sides[0]) and sides[0] != r"\pi":
        return sides[0], Range((False, closed[0]), (r"-\infty", sides[1]))
    if len(sides) == 2 and NAME.fullmatch(sides[1]) and sides[1] != r"\pi":
        return sides[1], Range((closed[0], False), (sides[0], r"\infty"))
    return "", None
