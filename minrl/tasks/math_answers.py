r"""Do two mathematical answers agree? `\frac{1}{2}` and `0.5` do.

The verdict is that of the math-verify library, with these differences:

- Numbers are compared exactly. A decimal equals what rounds to it if it has six digits or more. `50\%` in the reference
  is 50 or 0.5; only the answer may not name a percent.
- A base must be the reference's if both name one. Tuples, sets and intervals differ. A column vector is a tuple.
- An answer that names several different values, or denies its own, is wrong: `hedges`.
- So is an expression of the problem if the reference is its value in another form: `restates`.

Nothing here bounds the time that sympy takes; callers do (minrl/tasks/grader.py).
"""

# ruff: noqa: RUF001
import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate
from typing import Any

from minrl.tasks.answers import CHANGES, boxes_together, unwrapped

DEEPEST = 50
"""Brackets within each other in an answer; one with more is not read, unless the reference has as many."""
MIN_DIGITS = 6
"""Significant digits below which a decimal is no rounding of another value."""
_SIGNS = {
    "−": "-", "–": "-", "⁄": "/", "÷": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "°": r"^\circ ", "±": r"\pm ", "√": r"\sqrt ",
}  # fmt: skip
_SCRIPTS = re.compile("([⁰¹²³⁴-⁹⁻]+)|([₀-₉]+)")
_TEXT = r"\\(?:text(?:normal|bf|it|rm|sf|tt)?|mbox|math(?:rm|bf|it|sf)|operatorname) *"
FORMULA = re.compile(r"(?<!\\)\$\$?((?:[^$\\]|\\.)+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
"""What stands between mathematical delimiters; one group of each match has it."""
_LABEL = r"(?:(?:so|thus|therefore),? )?(?:(?:the )?(?:final )?answer(?: is)?:?|there (?:is|are)|so|thus|therefore)"
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-z])\.?|\\(?:display|text)style(?![a-z])", ""),
        (r"\\[dt](?=frac|binom)", r"\\"),
        (rf"{_TEXT}\{{([^{{}}]*)\}}", r"\\text{\1}"),
        (r"\\text\{ *(-?[0-9][0-9.,:/]*|\([A-Z]\)|[A-Z]) *\}", r"\1"),
        (r"^\(([A-J])\)(?:[:\\ ](?!.*\([A-J]\)).*|$)", r"\1"),
        (rf"(?i)^\s*(?:[-=]+>|=|{_LABEL}(?= )|\\text\{{ *{_LABEL} *\}}|[a-z] *\\in(?![a-z]))", ""),
        (r"(?<=[0-9])(?:,\\! ?|\{,\}|\\,|\\!)(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<!\\)\\[,;:!> ]|~|\\q?quad(?![a-z])|\s+", " "),
        (r"\*\*", "^"),
        (r"(?<![\w^.{])([0-9]+) *(?=\(|\\binom)", r"\1 \\cdot "),  # math-verify reads 2(4) as 2 + 4
        (r"\\frac *([0-9a-z]) *(?=[0-9a-z{\\])", r"\\frac{\1}"),
        (r"(\\frac *\{[^{}]*\}) *([0-9a-z])", r"\1{\2}"),
        (r"(?<![\\A-Za-z])(sqrt|pi|sin|cos|tan|log|ln|arctan)(?![A-Za-z])", r"\\\1 "),
        (r"\\sqrt *(?:\(([^()]*)\)|([0-9]+))", r"\\sqrt{\1\2}"),
        (r"\^ *(-?[0-9]{2,}|-[0-9])", r"^{\1}"),
        (r"\^ *\{? *(?:\\circ|\\degree) *\}?|\\degree(?![a-z])|\\text\{ *degrees?\}", r"^\\circ "),
        (r"(?:\\text)?\{? *\bbase *\}? *([0-9]+)\}?$|_ *\{? *(?:\\text\{)? *([0-9]+) *\}*$", r"_\1\2"),
        (r"^\(([0-9A-F]+)\)(?=_)", r"\1"),
        *(
            (rf"(?<=[0-9}}]) *(?:\\text\{{ *{word} *\}}|{word}\b)", rf" \\cdot 10^{{{tens}}}")
            for word, tens in (("thousand", 3), ("million", 6), ("billion", 9))
        ),
        (r",? *(?:\\text\{ *(?:and|or) *\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])) *", ", "),
        (r"\\(begin|end)\{(?:bmatrix|array)\}(?:\{[clr|]*\})?", r"\\\1{pmatrix}"),
        ("  +", " "),
    )
]
_COLUMN = re.compile(r"\\begin\{pmatrix\}([^&]*\\\\[^&]*)\\end\{pmatrix\}")
_THOUSANDS = re.compile(r"(-?(?:\\\$)?[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+$)(?![0-9,])")
_DECIMAL = r"[0-9]+\.?[0-9]*|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) *(?:(?P<whole>[0-9]+) +(?=[0-9]+/))?(?P<over>-?(?:{_DECIMAL}))"
    rf"(?:\\overline\{{(?P<again>[0-9]+)\}})?(?: */ *(?P<under>{_DECIMAL}))?"
    r"(?: *\\(?:times|cdot) *10 *\^ *\{?(?P<tens>[-+]?[0-9]{1,4})\}?)?"
)
_UNIT = re.compile(
    r"(?P<value>.*?[0-9A-Za-z})]) *(?:\\text\{[^{}]*[A-Za-z][^{}]*\}\.?|(?<=[0-9}) ])"
    r"(?P<words>(?:[a-z]{2,}|(?<= )[smhgl](?![a-z]))(?:[ /]+[a-z]+)*)|\\?%|\\text\{ *percent\})(?: *\^ *\{?[23]\}?)?"
)
_HEDGE = re.compile(
    r"(?<![\\A-Za-z])(?:either|maybe|perhaps|possibly|not|never|wrong|false|incorrect|unless|except|negative|instead"
    r"|percent|undefined|twice|(?:at )?(?:least|most)|(?:more|less|fewer) than|between|about|approximately|roughly)"
    r"(?![A-Za-z])|%|\\(?:neg|lnot|not(?:in)?)(?![a-z])",
    re.IGNORECASE,
)
"""What denies an answer, offers another, or makes another claim of it."""
_READ = {"thousand", "million", "billion", "pi", "π", "k"}
"""Words that change a number and are read as what they say."""
_BASE = re.compile(r"([0-9A-F]+)_\{?([0-9]+)\}?")
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+|\\text\{[^{}]*\})(?:_\{?\w+\}?)?(?:\([^()]*\))?")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\(?:[lg]eq?|[lg]t)(?![a-z])")


def same_text(gold: str, answer: str) -> bool:
    r"""Whether two answers are written alike but for layout and, in words, case.

    >>> same_text(r"\dfrac{1}{2}", r" \frac{1}{2}. "), same_text("Even", r"\text{even}"), same_text("E", "e")
    (True, True, False)
    """
    one, other = _plain(gold), _plain(answer)
    return bool(one) and one == other


def _plain(text: str) -> str:
    text = re.sub(rf"{_TEXT}\{{([^{{}}]*)\}}", r"\1", text.strip().strip("$").strip().rstrip("."))
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]|(?<=\\)[dt](?=frac)", "", text)
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.split()))  # `1 2` is not 12
    if re.match("[0-9]+:[0-9]{2}", text):  # a time of the day
        return text.casefold().replace(".", "")
    return text.casefold() if len(text) > 1 and re.fullmatch("[A-Za-z-]+", text) else text


def answers_agree(gold: str, answer: str, known: str = "") -> bool:
    """Whether an answer means the same as the reference. Not symmetric: the reference sets the form. Words that are
    `known` from the problem do not change an answer.
    """
    if not gold.strip() or not answer.strip() or max(depths(answer)) > max(DEEPEST, *depths(gold)):
        return False
    if same_text(gold, answer):
        return True
    meant, given = normal(gold), normal(answer)
    if hedges(meant, given, f"{gold} {known}", answer):
        return False
    if r"\approx" in given and r"\approx" not in meant and not _brackets(meant):
        exact, _, decimal = (side.strip() for side in given.partition(r"\approx"))
        given = decimal if "." in meant or _NAME.fullmatch(exact) else exact
    return _agree(meant, given) or (len(_WORD.findall(given)) > 1 and _verified(meant, answer, is_prose=True))


def hedges(gold: str, answer: str, known: str = "", written: str = "") -> bool:
    r"""Whether a normal answer names several different values, or denies its own or changes it in words that are not
    `known`, from the problem or the reference. `written` is the answer before it was made normal.

    >>> [hedges("12", text) for text in ("12, not 13", r"12\text{ dozen}", "x = 11 = 12", r"12\text{ apples}")]
    [True, True, True, False]
    """
    written = written or answer
    behind = re.split("[0-9}]", written)[-1] if re.search("[0-9]", written) else ""
    tail = " ".join(re.findall(r"[0-9})]\W*\\(?:text|math|mbox)\w*\{([^{}]*)\}", written)) + f" {behind}"
    said = {found[0].casefold() for found in (*_HEDGE.finditer(written), *CHANGES.finditer(tail))} - _READ
    known = known.casefold() + (" percent %" if "percent" in known or "%" in known else "")
    known += " or" if _is_list(gold) else ""
    if any(not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", known) for word in said):
        return True
    beside = " ".join(re.findall(r"[0-9}] *\\text\{([^{}]*)\}", answer))
    if any(other not in gold for other in re.findall("[0-9]+", beside)):
        return True
    sides = [value[0] for side in answer.split("=") if (value := number(side.strip()))]
    return len(set(sides)) > 1


def _agree(gold: str, answer: str) -> bool:
    words = gold.replace(r"\text", "")
    if re.match("[A-Z]$|[0-9]+:[0-9]{2}", gold) or (_WORD.search(words) and not re.search(r"[0-9\\+*/^=<>]", words)):
        return same_text(gold, answer)  # words, choices and times of the day are compared as texts
    is_percent, gold, answer = "%" in gold, amount(gold), amount(answer)
    one, two = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if one or two:
        digits = [found[1] if found else text for found, text in ((one, gold), (two, answer))]
        return digits[0] == digits[1] and not (one and two and one[2] != two[2])
    exact, given = number(gold), number(answer)
    if exact and given:
        return _same_number(exact, given) or (is_percent and exact[0] == 100 * given[0])
    if _is_list(gold) and _RELATION.search(answer) and not _RELATION.search(gold):  # math-verify reads -2<x<1 as 1, -2
        return False
    kinds = _brackets(gold), _brackets(answer)
    return gold == answer or (not (all(kinds) and kinds[0] != kinds[1]) and _verified(gold, answer))


def _brackets(text: str) -> str:
    """The brackets of a list, `{}` for a set, `pmatrix` for a matrix; empty for anything else."""
    if found := re.fullmatch(r"\\\{.*\\\}|\\begin\{(pmatrix)\}.*", text, re.DOTALL):
        return found[1] or "{}"
    inside = text[1:-1]
    is_whole = text[:1] in "([" and text[-1:] in ")]" and _is_list(inside) and min(depths(inside)) >= 0
    return text[0] + text[-1] if is_whole else ""


def _is_list(text: str) -> bool:
    """Whether a comma or semicolon stands outside of all brackets."""
    return any(sign in ",;" and not depth for sign, depth in zip(text, depths(text), strict=True))


def depths(text: str) -> list[int]:
    """How many brackets are open behind each character."""
    return list(accumulate((sign in "([{") - (sign in ")]}") for sign in text))


@functools.lru_cache(maxsize=1024)
def normal(text: str) -> str:
    r"""The text in LaTeX of one kind, without delimiters, labels and layout.

    >>> normal("2√3 × x**2"), normal(r"$\left(\dfrac{1}{2},\; 3\right)$."), normal(r"The answer is \text{even}")
    ('2\\sqrt{3} \\times x^2', '(\\frac{1}{2}, 3)', '\\text{even}')
    """
    text = _unbraced(unwrapped(", ".join(boxes_together(text)) or text))
    text = _SCRIPTS.sub(lambda found: f"^{{{found[1]}}}" if found[1] else f"_{{{found[2]}}}", text)
    text = "".join(_SIGNS.get(character, character) for character in unicodedata.normalize("NFKC", text))
    text = FORMULA.sub(lambda found: f" {found[found.lastindex or 0]} ", text).strip()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _COLUMN.sub(
        lambda found: "(" + re.sub(r" *\\\\ *(?=[^ ])", ", ", found[1]).strip().rstrip(" \\") + ")", text
    )
    text = _unbraced(text.strip().rstrip(".,; \\"))
    return _THOUSANDS.sub(lambda found: re.sub("[, ]", "", found[1]), text) if _THOUSANDS.match(text) else text


def _unbraced(text: str) -> str:
    return text[1:-1] if re.fullmatch(r"\{.*\}", text) and 0 not in depths(text)[:-1] else text


def amount(text: str) -> str:
    r"""A text without its unit, which math-verify ignores too.

    >>> amount(r"12\text{ miles per hour}"), amount(r"\$5"), amount(r"8\pi\text{ cm}^3"), amount("12-3m")
    ('12', '5', '8\\pi', '12-3m')
    """
    if not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = re.sub(r"\^\\circ ?|\\\$", "", text).strip()
    found = _UNIT.fullmatch(text)
    return found["value"].strip() if found and (not found["words"] or number(found["value"].strip())) else text


def number(text: str) -> tuple[Fraction, Fraction] | None:
    r"""The number that a text is, and the unit that a decimal of `MIN_DIGITS` digits or more is rounded to, else 0;
    None if it is no number.

    >>> [str(number(text)[0]) for text in (r"-3\frac{1}{2}", "1 2/3", r"2 \times 10^{-3}", r"0.1\overline{6}")]
    ['-7/2', '5/3', '1/500', '1/6']
    """
    text = re.sub(r"\\frac *\{ *(-?[0-9]+) *\} *\{ *([0-9]+) *\}", r" \1/\2", text)
    text = re.sub(r"^([-+]?)10 *\^", r"\1 1 \\cdot 10^", re.sub(r"(?<=[0-9])[eE](?=[-+]?[0-9])", r" \\cdot 10^", text))
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= 400 else None
    if found is None or (found["under"] and not Fraction(found["under"])):
        return None
    scale = Fraction(10) ** int(found["tens"] or 0)
    value, places = Fraction(found["over"]), len(found["over"].partition(".")[2])
    exact = bool(found["under"] or found["again"]) or not places
    if found["again"]:
        value += Fraction(int(found["again"]), (10 ** len(found["again"]) - 1) * 10**places)
    value = (value / Fraction(found["under"] or 1) + int(found["whole"] or 0)) * scale
    digits = len(found["over"].replace(".", "").lstrip("-0"))
    unit = Fraction(0) if exact or digits < MIN_DIGITS else scale / 10**places
    return (-value if found["sign"] == "-" else value), unit


def _same_number(one: tuple[Fraction, Fraction], other: tuple[Fraction, Fraction]) -> bool:
    """Whether two numbers are equal, or one is a decimal that the other, which is no integer, rounds to."""
    if one[0] == other[0]:
        return True
    (exact, none), (decimal, unit) = sorted((one, other), key=lambda each: each[1])
    return not none and exact.denominator > 1 and 2 * abs(exact - decimal) <= unit


def _verified(gold: str, answer: str, is_prose: bool = False) -> bool:
    """math-verify's verdict on two texts in LaTeX; of prose it finds the answer itself."""
    verify, meant, read = math_verify()[1], _parsed(gold), _parsed(answer, is_prose)
    if not any(map(_is_infinite, meant)):  # sympy finds 12/7 - oo/7 to be 0 in some orders of its hashes
        read = [one for one in read if not _is_infinite(one)]
    return bool(verify(meant, read, allow_set_relation_comp=True, timeout_seconds=None))


def _is_infinite(read: Any) -> bool:  # noqa: ANN401 - sympy has no types
    """Whether a value that math-verify read, no set or relation, has an infinity in it."""
    from sympy import Expr, oo, zoo

    return isinstance(read, Expr) and read.has(oo, -oo, zoo)


@functools.lru_cache(maxsize=256)
def _parsed(text: str, is_prose: bool = False) -> Any:  # noqa: ANN401 - sympy has no types
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, LatexNormalizationConfig

    if is_prose:
        return math_verify()[0](text, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None)
    notation = LatexNormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    return math_verify()[0](f"${text}$", [LatexExtractionConfig(normalization_config=notation)], parsing_timeout=None)


@functools.cache
def math_verify() -> tuple[Any, Any]:
    """math-verify's two functions, loaded when first needed: sympy takes a second. Never under an alarm, which would
    leave the modules half imported."""
    from math_verify import parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn about what a model wrote
    return parse, verify


_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_PLAIN_FORMULA = re.compile(r"(?<![\w\\$.])(?=[^\s,;?]*[0-9])[\w.()]+(?:\s?[-+*/^!]\s?[\w.()]+)+|(?<!\w)\d+!")
_SIDES = re.compile(r"(?<![<>!:\\])=|[<>]|\\(?:leq?|geq?|neq?|lt|gt|approx|equiv|to|in|quad|qquad)(?![a-z])|[,;&]|\\\\")


def expressions(problem: str) -> Iterator[str]:
    r"""The formulas of a problem, and the sides of those that are relations or lists.

    >>> list(expressions(r"If $x=\sqrt{51}$, simplify 2/4. [asy] draw((0,0)--(sqrt(2),1)); [/asy]"))
    ['x=\\sqrt{51}', 'x', '\\sqrt{51}', '2/4']
    """
    text = _FIGURE.sub(" ", problem)
    found = [one[one.lastindex or 0] for one in FORMULA.finditer(text)]
    found += _PLAIN_FORMULA.findall(FORMULA.sub(" ", text))
    sides = (side for one in found for side in (one, *_SIDES.split(one)))
    yield from dict.fromkeys(bare for side in sides if (bare := side.strip().rstrip(".,;:?! ").strip()))


def symbols(text: str) -> Counter[str]:
    r"""The symbols of an expression as it is written, without brackets, products and words.

    >>> sorted(symbols(r"2\cdot\frac{x}{10}").elements()), symbols(r"\dfrac{2x}{10}") == symbols("(x2)/10")
    (['/', '10', '2', 'x'], True)
    """
    bare = r"\\text\{[^{}]*\}|(?<![\\A-Za-z])[A-Za-z]{3,}|\\(?:cdot|times)(?![a-z])|[(){}\[\] ]"
    found = re.findall(r"\\[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|[^\s.,$]", re.sub(bare, " ", normal(text)))
    return Counter("/" if one == r"\frac" else one for one in found)


def restates(answer: str, gold: str, stated: tuple[str, ...]) -> bool:
    r"""Whether an answer is nearer to an expression of the problem that has the reference's value than to the
    reference, or, if that is a number, this expression itself or no number.

    >>> [restates(text, "24310", (r"\binom{17}{9}",)) for text in ("24310", r"0+\binom{17}{9}", r"\binom{17}{8}")]
    [False, True, True]
    """
    last = answer if "=" in gold else normal(answer).rpartition("=")[2]
    given, meant = symbols(last), symbols(gold)
    others = [one for one in map(symbols, stated) if one != meant]
    if not others or given == meant:
        return False
    if number(normal(gold)):
        return given in others or not number(amount(last.strip()))
    return any(_distance(given, one) < _distance(given, meant) for one in others)


def _distance(one: Counter[str], other: Counter[str]) -> int:
    return (one - other).total() + (other - one).total()
