r"""Expressions as they are written: numbers, symbols and terms, in one spelling, nothing of them evaluated."""

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from minrl.tasks.math.notation import TEXT_COMMANDS, ending, usual

_WORDS = re.compile(rf"\\(?:{TEXT_COMMANDS})\s*\{{([^{{}}\\0-9+*/^!=]*)\}}(\^\{{?[0-9]\}}?)?")
_WRAPPER = re.compile(rf"\\(?:{TEXT_COMMANDS}|mathbb)(?![a-z])")
_LAYOUT = re.compile(
    r"\\?\$|\\[()\[\],;:! ]|\\(?:left|right|[lr]angle|[bB]igg?[lr]?|displaystyle|limits|boxed|q?quad)(?![a-z])|~"
    r"|\\(?:begin|end)\{[a-z]*\}|[\^_]?\{?\\circ\}?|°|[€£]"
)
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?=[{}])|\^\{\s*\}|\{,\}", ""),
        (r"(?<![0-9)])!=", r"\\neq "),
        (r"\\operatorname\*?\{([a-z]+)\}", r"\\\1 "),
        (r"\\[dtc](frac|binom)", r"\\\1"),
        (r"\\(?:cdot|times|ast)(?![a-z])|[·×]|\*\*?(?=\*)", "*"),
        (r"\\sqrt ?([0-9])", r"\\sqrt{\1}"),
        (r"\*\*", "^"),
        (r"\\div(?![a-z])|÷", "/"),
        ("[\u2212\u2013]", "-"),
        (r"\((-?[0-9]+)\)/\(([0-9]+)\)", r"\1/\2"),
        (r"\^(?:1(?![0-9])|\{1\})", ""),
        (r"(\w{1,40}|\([^()]{0,80}\))\^\{(?:1/2|\\frac\{?1\}?\{?2\}?|0?\.5)\}", r"\\sqrt{\1}"),
        (r"√", r"\\sqrt "),
        (r"π", r"\\pi "),
        (r"(?<![\\A-Za-z])(sqrt|pi|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|ln|exp|binom|choose)(?![A-Za-z])", r"\\\1 "),
        (r"(?<![0-9])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9])", lambda found: found[1].replace(",", "")),
    )
]
_FRACTION = r"\\frac ?(?:\{(?P<over>-?[0-9]+)\}|(?P<o>[0-9]))(?:\{(?P<under>[0-9]+)\}|(?P<u>[0-9]))"
_NUMBER = re.compile(
    r"(?:[-+]|\\pm)*(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:\\overline\{[0-9]+\}|\.\.\.|\\l?dots)?"
    r"(?P<power>\*10\^\{?-?[0-9]{1,3}\}?|[eE]-?[0-9]{1,3})?"
    rf"|(?P<whole>[0-9]+ ?)?{_FRACTION}|(?P<and>[0-9]+ )?(?P<a>[0-9]+)/(?P<b>[0-9]+))"
    r"(?P<percent>\\?%|percent|pct)?(?:_\{?[0-9]+\}?)?"
    r"(?:[A-Za-z]|(?<=[A-Za-z}0-9])[./²³]|(?<=[A-Za-z])\^?\{?[0-9]\}?)*"
)
_LISTED = re.compile(r"[,;&<>≤≥\u222a]|\\(?:leq?|geq?|lt|gt|cup)(?![a-z])|(?<![A-Za-z])(?:and|or)(?![A-Za-z])")
_WORD = re.compile(r"(?<![\\A-Za-z])(?:(?<=[a-z] )an? +)?[A-Za-z]{2,}(?![A-Za-z])(?:\^\{?[0-9]\}?)?")
"""A word, with its article: the `a` of `as a fraction` is no name."""
_TOKEN = re.compile(r"\\[A-Za-z]+|[^\s{}()\[\].,]")
_PRODUCT = re.compile(r"(?<=[0-9)])\*(?=[0-9(])|(?<=[0-9)])(?=\()|(?<=\))(?=[0-9])")
_NO_FUNCTION = re.compile(
    r"\\(?:frac|sqrt|pi|infty|pm|mp|alpha|beta|gamma|theta|lambda|omega|(?:var)?phi|leq?|geq?|lt|gt|neq?|in|cup|cap|mid"
    r"|setminus|overline|[lc]?dots|vec|hat|mathbb)"
)
_SAME = {"<": ">", r"\frac": "/"}


@dataclass(frozen=True)
class Number:
    """How a number is written, and whether it is a fraction in lowest terms if it is one."""

    kind: str
    reduced: bool


@dataclass(frozen=True)
class Form:
    """What an answer consists of: its symbols without brackets, and how many terms its sum has."""

    symbols: tuple[str, ...]
    terms: int

    @property
    def functions(self) -> set[str]:
        """Its functions and the like, without roots and powers."""
        return {one for one in self.symbols if (one[0] == "\\" and not _NO_FUNCTION.fullmatch(one)) or one in "!|"}

    @property
    def heads(self) -> Counter[str]:
        """Its functions, roots and powers."""
        return Counter(one for one in self.symbols if one in self.functions or one in (r"\sqrt", "^"))


def number(text: str) -> Number | None:
    r"""The number that a text is, perhaps with a sign, a currency or a unit.

    >>> [number(text).kind for text in (r"-\frac12", "1,000", r"\$10.50", r"5 \text{ cm}^2", "2 1/4", r"3\times 10^5")]
    ['fraction', 'digits', 'digits', 'digits', 'mixed', 'power']
    >>> [number(text) for text in ("x", r"\sqrt{2}", "2^4", r"5 \cdot 3", "1+1", r"\binom{5}{2}")]
    [None, None, None, None, None, None]
    """
    match = _NUMBER.fullmatch(squeezed(opened(spelled(text))))
    if match is None:
        return None
    over, under = match["over"] or match["o"] or match["a"], match["under"] or match["u"] or match["b"]
    if over is None:
        return Number("percent" if match["percent"] else "power" if match["power"] else "digits", True)
    kind = "mixed" if match["whole"] or match["and"] else "fraction"
    return Number(kind, len(over + under) < 100 and math.gcd(int(over), int(under)) == 1)


@functools.lru_cache(maxsize=1024)
def form(text: str) -> Form:
    """The symbols and terms of an expression; of an equation's, both sides."""
    bare = opened(spelled(text))
    joined = re.sub(r"(?<![0-9)])\*|\*(?![0-9(])", "", _PRODUCT.sub("*", squeezed(bare)))
    depth, terms = 0, 1
    for before, sign in pairwise(joined):
        depth += (before in "({[") - (before in ")}]")
        terms += depth == 0 and sign in "+-" and before not in "+-*/^=({["
    symbols = [_SAME.get(one, one) for one in _TOKEN.findall(joined)]
    return Form(tuple(symbols), terms)


def parts(text: str) -> list[str]:
    """What a list, tuple or matrix consists of, each equation by what it ends with, and prose by what it ends with."""
    return [said for side in _LISTED.split(spelled(ending(text))) if (said := last(side).strip())]


def last(text: str) -> str:
    """The last side of an equation, or what stands behind or before the words that it has."""
    side = opened(re.split(r"=|\\approx|≈|\\in(?![a-z])|[:∈]", spelled(text))[-1])
    pieces = [piece for piece in _WORD.split(side) if piece.strip(" .")]
    whole = pieces and number(side) is None and " " in side and _opened_as_closed(pieces[-1])
    return pieces[-1] if whole else side


def _opened_as_closed(text: str) -> bool:
    return sum(map(text.count, "([{")) == sum(map(text.count, ")]}"))


@functools.lru_cache(maxsize=1024)
def spelled(text: str) -> str:
    """The text without layout and words, in one spelling."""
    text = _LAYOUT.sub(" ", _WRAPPER.sub("", _WORDS.sub(_kept, usual(text).replace(r"\\", ";"))))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".")


def squeezed(text: str) -> str:
    """The text without white space, but that between digits."""
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", r"\1{}", text)  # `\sin x` stays two symbols
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.split()))


def _kept(found: re.Match[str]) -> str:
    """A letter is a name, words are none."""
    letter = found[1].strip()
    return letter if len(letter) == 1 else " and " if letter in ("and", "or") else " "


def opened(text: str) -> str:
    """The text without brackets around all of it, and without those that the text only opens or closes."""
    for _ in range(20):
        text = text.strip()
        depth, partner = 0, -1
        for place, character in enumerate(text):
            depth += (character in "({[") - (character in ")}]")
            if depth <= 0:
                partner = place
                break
        if text[:1] and text[0] in "({[" and partner in (-1, len(text) - 1):
            text = text[1:-1] if partner > 0 else text[1:]
        elif text[:1] and text[0] in ")}]":
            text = text[1:]
        elif text[-1:] and text[-1] in ")}]" and sum(map(text.count, "({[")) < sum(map(text.count, ")}]")):
            text = text[:-1]
        else:
            break
    return text
