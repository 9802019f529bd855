r"""Is an answer worked out, or is it what the problem shows, written otherwise?

    Compute $\binom{17}{9}.$    24310 is worked out;    0+\binom{17}{9}, \binom{17}{8} and \frac{48620}{2} are not

Where the reference is a number, or a list of numbers, so is the answer, or it is no longer than the reference (`2^{10}`
for 1024). Where the problem states an expression of the reference's value, the problem is to rewrite it: the answer
must be as short as the reference, or nearly, and have its form, where that is not the shorter one. Lengths and forms
are of what is written, for the library that compares values evaluates as it reads.

Only what the problem's mathematics say is an expression of it: whole formulas and their sides, no figures' code.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_PLAIN_FORMULA = re.compile(r"(?<![\w\\$.])(?=[^\s,;?]*[0-9])[\w.()]+(?:\s?[-+*/^!]\s?[\w.()]+)+|(?<!\w)\d+!")
_SIDES = re.compile(
    r"(?<![<>!:\\])=|[<>]|\\(?:leq?|geq?|neq?|lt|gt|approx|equiv|to|in|cup|quad|qquad)(?![a-z])|[,;&]|\\\\"
)
_WORDS = re.compile(
    r"\\(?:text|mbox|textbf|textit|textnormal|mathrm|mathbf|mathit)\s*\{([^{}\\0-9+*/^!=]*)\}(\^\{?[0-9]\}?)?"
)
_WRAPPER = re.compile(r"\\(?:text|mbox|textbf|textit|textnormal|mathrm|mathbf|mathit|mathbb)(?![a-z])")
_LAYOUT = re.compile(
    r"\\?\$|\\[()\[\],;:! ]|\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|boxed|q?quad)(?![a-z])|~|\{,\}"
    r"|\\(?:begin|end)\{[a-z]*\}|[\^_]?\{?\\circ\}?|°|[€£]"
)
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?=[{}])|\^\{\s*\}", ""),
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
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z])(?:\^\{?[0-9]\}?)?")
_TOKEN = re.compile(r"\\[A-Za-z]+|[^\s{}()\[\].,]")
_PRODUCT = re.compile(r"(?<=[0-9)])\*(?=[0-9(])|(?<=[0-9)])(?=\()|(?<=\))(?=[0-9])")
_NO_FUNCTION = re.compile(
    r"\\(?:frac|sqrt|pi|infty|pm|mp|alpha|beta|gamma|theta|lambda|omega|(?:var)?phi|leq?|geq?|lt|gt|neq?|in|cup|cap|mid"
    r"|setminus|overline|[lc]?dots|vec|hat|mathbb)"
)
_IDLE = set("01+-*/^")
_NEARLY = 3
"""An answer that is shorter than what is stated has at most so many symbols more than the reference, or a quarter."""


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


def is_longer_than_numbers(answer: str, gold: str) -> bool:
    r"""Whether the reference is numbers and the answer has what is no number and longer than they are.

    >>> [is_longer_than_numbers(answer, "1024") for answer in ("1024.0", "2^{10}", r"2 \cdot 512", "x = 1024")]
    [False, False, True, False]
    """
    golds = _parts(gold)
    if not golds or not all(map(number, golds)):
        return False
    longest = max(len(form(one).symbols) for one in golds)
    return any(number(one) is None and len(form(one).symbols) > longest for one in _parts(answer))


def is_worked_out(answer: str, gold: str, stated: Callable[[], Iterable[str]]) -> bool:
    """Whether an answer that has the reference's value is worked out. `stated` gives the problem's expressions of that
    value; it is asked only if they matter.
    """
    given, wanted = form(answer if "=" in gold else _last(answer)), form(gold)
    one, reference = number(_last(answer)), number(_last(gold))
    if reference and _is_an_equation(answer) and any(_repeats(answer, expression) for expression in stated()):
        return False
    if Counter(given.symbols) == Counter(wanted.symbols) or (one and one.reduced and one == reference):
        return True
    if reference is None and not wanted.functions and not any(map(str.isalpha, wanted.symbols)) and given.functions:
        return False  # a constant by its name in trigonometry and the like
    shown = [expression for expression in stated() if not _adds_nothing(wanted, form(expression))]
    if reference:
        return not any(_same_work(one, reference, expression) for expression in shown)
    forms = list(map(form, shown))
    if forms and not _has_the_form(answer, gold):
        return False
    return not any(_adds_nothing(given, one) for one in forms) and all(_is_simpler(given, wanted, one) for one in forms)


def _is_an_equation(text: str) -> bool:
    """Whether the text says that an expression, not a name, is something."""
    left, equals, _ = text.rpartition("=")
    return bool(equals) and len(form(left).symbols) > 1


def _repeats(answer: str, expression: str) -> bool:
    """Whether the answer has all symbols of an equation."""
    return _is_an_equation(expression) and _shows(form(answer), form(expression))


def _shows(answer: Form, stated: Form) -> bool:
    """Whether all of the stated expression's symbols stand in the answer."""
    return Counter(stated.symbols) <= Counter(answer.symbols)


def _has_the_form(answer: str, gold: str) -> bool:
    """Whether the answer is a product and is solved for a name where the reference is."""
    left, equals, _ = _spelled(gold).partition("=")
    other, also, _ = _spelled(answer).partition("=")
    if equals and also and len(form(left).symbols) == 1 and form(left) != form(other):
        return False
    return ")(" not in _squeezed(_spelled(gold)) or form(answer).terms <= form(gold).terms


def _same_work(answer: Number | None, gold: Number, expression: str) -> bool:
    """Whether the answer is no more of a number than the expression that the problem states."""
    stated = number(expression)
    if answer is None or not answer.reduced:
        return stated is None or not stated.reduced or answer is None
    return stated is not None and stated.kind != gold.kind and answer.kind == stated.kind


def _adds_nothing(answer: Form, stated: Form) -> bool:
    """Whether the answer has the symbols of the stated expression, in any order, and neutral ones beside them."""
    beside = Counter(answer.symbols) - Counter(stated.symbols)
    return _shows(answer, stated) and set(beside) <= _IDLE


def _is_simpler(answer: Form, gold: Form, stated: Form) -> bool:
    length, limit = len(answer.symbols), len(gold.symbols)
    enough = limit + max(_NEARLY, limit // 4)
    if stated.functions and not gold.functions:  # to be rid of them is what is asked for
        return not answer.functions and length <= enough
    if limit >= len(stated.symbols):  # what is asked for is no shorter: its form counts
        return length <= limit and answer.heads == gold.heads and answer.terms == gold.terms
    if answer.functions - gold.functions and not gold.functions:
        return False
    return length <= limit or length < min(len(stated.symbols), enough + 1)


def expressions(problem: str) -> Iterator[str]:
    r"""The formulas of a problem, and the sides of those that are relations or lists.

    >>> list(expressions(r"If $x=\sqrt{51}$, simplify 2/4. [asy] draw((0,0)--(sqrt(2),1)); [/asy]"))
    ['x=\\sqrt{51}', 'x', '\\sqrt{51}', '2/4']
    """
    text = _FIGURE.sub(" ", problem)
    found = [next(filter(None, match.groups())) for match in _FORMULA.finditer(text)]
    found += _PLAIN_FORMULA.findall(_FORMULA.sub(" ", text))
    sides = (side for one in found for side in (one, *_SIDES.split(one)))
    yield from dict.fromkeys(bare for side in sides if (bare := side.strip().rstrip(".,;:?! ").strip()))


def number(text: str) -> Number | None:
    r"""The number that a text is, perhaps with a sign, a currency or a unit.

    >>> [number(text).kind for text in (r"-\frac12", "1,000", r"\$10.50", r"5 \text{ cm}^2", "2 1/4", r"3\times 10^5")]
    ['fraction', 'digits', 'digits', 'digits', 'mixed', 'power']
    >>> [number(text) for text in ("x", r"\sqrt{2}", "2^4", r"5 \cdot 3", "1+1", r"\binom{5}{2}")]
    [None, None, None, None, None, None]
    """
    match = _NUMBER.fullmatch(_squeezed(_opened(_spelled(text))))
    if match is None:
        return None
    over, under = match["over"] or match["o"] or match["a"], match["under"] or match["u"] or match["b"]
    if over is None:
        return Number("percent" if match["percent"] else "power" if match["power"] else "digits", True)
    kind = "mixed" if match["whole"] or match["and"] else "fraction"
    return Number(kind, len(over + under) < 100 and math.gcd(int(over), int(under)) == 1)


def form(text: str) -> Form:
    """The symbols and terms of an expression; of an equation's, both sides."""
    spelled = _opened(_spelled(text))
    joined = re.sub(r"(?<![0-9)])\*|\*(?![0-9(])", "", _PRODUCT.sub("*", _squeezed(spelled)))
    depth, terms = 0, 1
    for before, sign in pairwise(joined):
        depth += (before in "({[") - (before in ")}]")
        terms += depth == 0 and sign in "+-" and before not in "+-*/^=({["
    symbols = [">" if one == "<" else one for one in _TOKEN.findall(joined)]
    return Form(tuple(symbols), terms)


def _parts(text: str) -> list[str]:
    """What a list, tuple or matrix consists of, each equation by what it ends with, and prose by its last formula."""
    if formulas := [next(filter(None, match.groups())) for match in _FORMULA.finditer(text)]:
        text = formulas[-1]
    sides = _LISTED.split(_spelled(text))
    return [last for side in sides if (last := _last(side).strip())]


def _last(text: str) -> str:
    """The last side of an equation, or what stands behind or before the words that it has."""
    side = _opened(re.split(r"=|\\approx|≈|\\in(?![a-z])|[:∈]", _spelled(text))[-1])
    pieces = [piece for piece in _WORD.split(side) if piece.strip(" .")]
    return pieces[-1] if pieces and number(side) is None and " " in side else side


def _spelled(text: str) -> str:
    """The text without layout and words, in one spelling."""
    text = _LAYOUT.sub(" ", _WRAPPER.sub("", _WORDS.sub(_kept, text.replace(r"\\", ";"))))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".")


def _squeezed(text: str) -> str:
    """The text without white space, but that between digits."""
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", r"\1{}", text)  # `\sin x` stays two symbols
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.split()))


def _kept(found: re.Match[str]) -> str:
    """A letter is a name, words are none."""
    letter = found[1].strip()
    return letter if len(letter) == 1 else " and " if letter in ("and", "or") else " "


def _opened(text: str) -> str:
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
