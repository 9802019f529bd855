r"""One notation for answers: `2√3` and `2sqrt(3)` become `2\sqrt{3}`; units, bases and percents stand apart.

Nothing here computes: `minrl/tasks/math/agreement.py` compares what this file reads.
"""

# ruff: noqa: RUF001
import re
import unicodedata
from dataclasses import dataclass

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_SIGNS = {
    "−": "-", "–": "-", "⁄": "/", "÷": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "€": r"\text{euro}",
    "¢": r"\text{cent}",
    "£": r"\text{pound}", "…": r"\ldots ", "≈": r"\approx ",
}  # fmt: skip
_UNICODE = re.compile("|".join(map(re.escape, _SIGNS)))
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textnormal|textrm|mbox|hbox|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}"
)
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sqrt|log|ln|exp|pi|infinity|infty|theta|alpha|beta"
_BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\.?", ""),
        (r"\\([dtc])(?=frac|binom)", "\\\\"),
        (r"(?<=[0-9]),?(?:\\,|\\ |\\!|~|\{,\}) *(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=\\\\) *\[-?[0-9.]+ *(?:pt|mm|cm|em|ex)\]|\\checkmark(?![a-z])|\\ *$", ""),
        (r"\\cr(?![a-z])", r"\\\\"),
        (r"\\textcolor *\{[a-z]+\} *|\\color *\{[a-z]+\} *|\\(?:underline|boldsymbol|bf|large|Large)(?![a-z]) *", ""),
        (r"\\leqslant(?![a-z])", r"\\le "),
        (r"\^ *\{? *(?:\\text\{ *o *\}|o) *\}?$", r"^\\circ "),
        (r"\\log *_ *([0-9]) *", r"\\log_{\1} "),
        (r"\\(?:displaystyle|boldsymbol|limits)(?![a-z])|(?<!\\)\\!|\{,\}(?=[0-9]{3})", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-z])|\s+", " "),
        (r"  +", " "),
        (r"\\(?:lbrace|lbrack)(?![a-z])", r"\{"),
        (r"\\(?:rbrace|rbrack)(?![a-z])", r"\}"),
        (r"\\(?:leq|leqslant)(?![a-z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "),
        (r"\\neq(?![a-z])|\\not *=|!=", r"\\ne "),
        (r"\\pmod *\{? *([0-9a-z]+) *\}?", r"\\pmod{\1}"),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\varnothing(?![a-z])|\\\{ *\\\}", r"\\emptyset "),
        (r"\\mathbb *\{? *R *\}?|\\R(?![a-z])", r"(-\\infty,\\infty)"),
        (r"\^ *\{? *(?:\\circ|\\degree) *\}?|\\degree(?![a-z])", r"^\\circ "),
        (r"^\*\*(.*)\*\*$", r"\1"),
        (r"\*\*", "^"),
        (r"\{ *([^{}]*?) *\\choose *([^{}]*?) *\}", r"\\binom{\1}{\2}"),
        (r"(?:\\text\{ *)?all real numbers *\}?", r"(-\\infty,\\infty)"),
        (r"\*", r"\\cdot "),
        (r"\^ *(-? *[0-9]{2,}|- *[0-9a-zA-Z])", r"^{\1}"),
        (r"\\sqrt *([0-9]{2,})", r"\\sqrt{\1}"),
        (r"\\frac *([0-9a-zA-Z]|\\pi) *(?=[0-9a-zA-Z{\\])", r"\\frac{\1}"),
        (r"(\\frac *\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}) *([0-9a-zA-Z]|\\pi)", r"\1{\2}"),
        (r"\\(?:infinity)(?![a-z])", r"\\infty "),
        (r"\^ *\{? *\\text\{ *(?:st|nd|rd|th) *\} *\}?|(?<=[0-9])(?:st|nd|rd|th)\b", ""),
        (
            r",? *\\text\{ *(?:and|or|,) *\}|,? *(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|(?<=[0-9)}])(?:and|or)(?=[A-Z])",
            ", ",
        ),
        (r"\\overline *\{? *([0-9]+) *\}?|\\bar *\{? *([0-9]+) *\}?", r"\\overline{\1\2}"),
        (r"\\(?:c|l)?dots[bc]?(?![a-z])|\.\.\.", r"\\ldots "),
    )
]


def normal(text: str) -> str:
    r"""The text in LaTeX of one kind.

    >>> normal("2√3 × x**2"), normal(r"\left(\dfrac{1}{2},\; 3\right)"), normal("½π"), normal("sqrt(x+1)^(2y)")
    ('2\\sqrt{3} \\times x^2', '(\\frac{1}{2}, 3)', '\\frac{1}{2}\\pi', '\\sqrt{x+1}^{2y}')
    """
    text = _RAISED.sub(lambda found: "^{" + found.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _VULGAR.sub(
        lambda found: r" \frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", found[0]).split("⁄")), text
    )
    text = _UNICODE.sub(lambda found: _SIGNS[found[0]], unicodedata.normalize("NFKC", text))
    text = _TEXT.sub(lambda found: _letter_or_text(text, found), text)
    text = _outside_text(text, _BARE_FUNCTION, r"\\\1 ")
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    for command in (r"\sqrt", "^"):
        text = _braced(text, command)
    built = re.fullmatch(r"\\\{ *[a-z](?: *\\in *[^|:]*?)? *(?:\\mid|\||:)(.*)\\\}", text)
    return (built[1] if built else text).strip().strip("*").rstrip(".,;").strip()


def _letter_or_text(text: str, found: re.Match[str]) -> str:
    """One letter in a text command is that letter, unless it is a unit: behind a value."""
    is_unit = found[1].strip() in "mgshlL" and re.search(r"[0-9}] *(?:\\[,; ])? *$", text[: found.start()])
    return found[1] if len(found[1].strip()) == 1 and not is_unit else rf"\text{{{found[1]}}}"


def _outside_text(text: str, pattern: re.Pattern[str], replacement: str) -> str:
    pieces = re.split(r"(\\text\{[^{}]*\})", text)
    return "".join(piece if piece.startswith(r"\text{") else pattern.sub(replacement, piece) for piece in pieces)


def _braced(text: str, command: str) -> str:
    """The text with braces for the round brackets of an argument: `^(2x)` -> `^{2x}`."""
    at = 0
    while (found := re.compile(re.escape(command) + r" *\(").search(text, at)) is not None:
        end = closing(text, found.end() - 1)
        if end < 0:
            break
        text = f"{text[: found.start()]}{command}{{{text[found.end() : end]}}}{text[end + 1 :]}"
        at = found.start() + len(command)
    return re.sub(r"\\sqrt +(?=[{\[])", r"\\sqrt", re.sub(r"\\sqrt *([0-9a-zA-Z])", r"\\sqrt{\1}", text))


_OPENS, _CLOSES = ("(", "[", "{", r"\{", r"\langle", r"\begin"), (")", "]", "}", r"\}", r"\rangle", r"\end")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; -1 if it does not. Kinds of brackets may mix: `[0, 1)`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] in _OPENS) - (token[0] in _CLOSES)
        if depth == 0:
            return token.start()
    return -1


def split(text: str, *separators: str) -> list[str]:
    r"""The parts between separators that stand in no bracket.

    >>> split(r"(1,2), \{3,4\}, 5", ","), split(r"[0,1) \cup (2,3)", r"\cup")
    (['(1,2)', '\\{3,4\\}', '5'], ['[0,1)', '(2,3)'])
    """
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in _OPENS) - (token[0] in _CLOSES)
        if token[0] in separators and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    return [*parts, text[start:].strip()]


UNITS = {
    "second": "s sec", "minute": "min", "hour": "h hr", "day": "", "week": "wk", "month": "", "year": "yr",
    "millimeter": "mm millimetre", "centimeter": "cm centimetre", "meter": "m metre", "kilometer": "km kilometre",
    "inch": "in inches", "foot": "ft feet", "yard": "yd", "mile": "mi", "milligram": "mg", "gram": "g",
    "kilogram": "kg kilo", "ounce": "oz", "pound": "lb", "ton": "tonne", "liter": "l litre", "gallon": "gal",
    "milliliter": "ml millilitre", "quart": "qt", "cent": "", "dollar": "usd buck", "euro": "eur", "rupee": "rs",
    "degree": "deg", "radian": "rad", "acre": "", "hectare": "", "mile/hour": "mph", "kilometer/hour": "kmh kph kmph",
    "joule": "", "watt": "", "newton": "", "volt": "", "hertz": "hz", "dozen": "", "celsius": "", "fahrenheit": "",
}  # fmt: skip
"""Units with their other names, beside the plural."""
UNIT_OF = {f"{name}{s}": unit for unit, names in UNITS.items() for name in (unit, *names.split()) for s in ("", "s")}
_TIMES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_PERCENT = re.compile(r"^(.*?[0-9}) ]) *(?:\\?%|\\text\{ *\\?(?:%|percent|per cent|pct) *\}|percent|per cent|pct)$")
_CURRENCY = re.compile(r"^([-+]?) *(?:\\\$|\$|\\text\{(euro|pound|rupee)\}) *([-+]?.*)$")
_BASE = re.compile(
    r"^\(?([-+]?[0-9A-Za-z.]*[0-9][0-9A-Za-z.]*)\)? *(?:_ *\{?(?:\\text\{)? *([a-z]+|[0-9]+) *\}*|"
    r"[(,]? *(?:\\text\{)?[( ]*(?:in )?base[ -]*\}? *([a-z]+|[0-9]+)[) }]*)$"
)
_NUMERALS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12
}  # fmt: skip
_VALUE = re.compile(r"((?:\\(?!text)(?:[A-Za-z]+|[^A-Za-z])|[^A-Za-z\\])+?)( *)((?:\\text\{|[A-Za-z]).*)$")
_UNIT_WORD = re.compile(r"([A-Za-z]+)\.?(?: *\^ *\{? *(-?[0-9]) *\}?)?|/")
_NUMERIC = re.compile(r"[-+0-9.,/{} ()]|\\(?:frac|pi|sqrt|cdot|times)(?![a-z])|\^")


@dataclass(frozen=True)
class Quantity:
    """A value with what it is measured in; what is not named is empty."""

    value: str
    unit: str = ""
    base: str = ""
    percent: bool = False
    tens: int = 0
    """The power of ten that a word names: 3 for `18 thousand`."""


def quantity(text: str, letters: bool = False) -> Quantity:
    r"""What a normal text measures. A last letter is a unit (`5 m`) only if `letters`, and else a factor.

    >>> quantity(r"12\text{ miles per hour}"), quantity(r"\$5"), quantity(r"52_{8}"), quantity("12-3m", letters=True)
    (Quantity(value='12', unit='mile/hour', base='', percent=False, tens=0), Quantity(value='5', unit='dollar', base='', percent=False, tens=0), Quantity(value='52', unit='', base='8', percent=False, tens=0), Quantity(value='12-3m', unit='', base='', percent=False, tens=0))
    """  # noqa: E501
    if found := _PERCENT.match(text):
        return Quantity(found[1].strip(), percent=True)
    if found := _BASE.match(text):
        base = found[2] or found[3]
        if base.isdigit() or base in _NUMERALS:
            return Quantity(found[1], base=str(_NUMERALS.get(base, base)))
    if (found := _CURRENCY.match(text)) and found[3]:
        amount = quantity(found[3])
        return Quantity(found[1] + amount.value, found[2] or "dollar", tens=amount.tens)
    value, degree, rest = text.partition(r"^\circ")
    if degree and value and not re.search(r"\\(?:sin|cos|tan|cot)|,", text) and len(rest.strip()) < 2:
        return Quantity(value.strip(), {"C": "celsius", "F": "fahrenheit"}.get(rest.strip(), "degree"))
    if text.endswith(r"\$"):
        return Quantity(text[:-2].strip(), "dollar")
    return _with_unit(text, letters)


def _with_unit(text: str, letters: bool) -> Quantity:
    found = _VALUE.match(text)
    if text.count(r"\text{") and (text.find(r"\text{") > 0):
        value, tail = text[: text.find(r"\text{")].strip(), text[text.find(r"\text{") :]
        wrapped, gap = True, True
    elif found is not None:
        value, tail, wrapped, gap = found[1].strip(), found[3], False, bool(found[2])
    else:
        return Quantity(text)
    rest = re.sub(r"\\text\{[^{}]*\}(?: *\^ *\{? *-?[0-9] *\}?)?", "", tail) if wrapped else ""
    if not value or rest.strip(" ./") or closing("{" + value + "}", 0) != len(value) + 1:
        return Quantity(text)
    unit, known, tens = _unit(tail.replace(r"\text{", " ").replace("}", " } ") if wrapped else tail)
    numeric = not _NUMERIC.sub("", value)
    if not wrapped and not (numeric and _is_bare_unit(tail, value, known, gap, letters)):
        return Quantity(text)
    return Quantity(value, unit, tens=tens)


def _is_bare_unit(tail: str, value: str, known: bool, gap: bool, letters: bool) -> bool:
    """Whether words without `\\text` after a number are a unit and not factors."""
    words = [found[1] for found in _UNIT_WORD.finditer(tail) if found[1]]
    if _UNIT_WORD.sub("", tail).strip(" {}"):
        return False
    if len(tail.strip()) == 1 or len(words[0]) == 1:
        return letters and known and re.fullmatch(r"-?[0-9][0-9.,/ ]*", value) is not None
    return known or (gap and all(len(word) > 3 for word in words[:1]))


MANY_WORDS = 20
"""With more different words a text is prose, also if there are words for numbers among them."""


def is_prose(text: str) -> bool:
    """Whether a text has words that are no units and no numerals: an answer stands somewhere in it."""
    words = {word.lower() for word in re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text)}
    spoken = words & {*_TIMES, *_NUMERALS, "percent", "base"}
    return bool(words - set(UNIT_OF) - {"and", "text"}) and (not spoken or len(words) > MANY_WORDS)


def _unit(tail: str) -> tuple[str, bool, int]:
    """The unit in one spelling, whether its first word is one that units have, and the power of ten."""
    named: list[str] = []
    power, tens, over, known = 1, 0, "", None
    for found in _UNIT_WORD.finditer(tail.replace("\\", " ")):
        word = (found[1] or "per").lower()
        base = found[1] if found[1] in ("C", "F") else word
        meant = "" if base in ("C", "F") else UNIT_OF.get(word, "")
        known = known if known is not None else bool(meant) or word in _TIMES or word in _POWERS
        if word in _TIMES:
            tens += _TIMES[word]
        elif word == "per":
            over = "/"
        elif word in ("squared", "cubed") and named:
            named[-1] += f"^{_POWERS[word]}"
        elif word in _POWERS:
            power = _POWERS[word]
        elif meant:
            exponent = int(found[2] or power)
            named.append(over + meant + (f"^{exponent}" if exponent != 1 else ""))
            power, over = 1, ""
    after = re.search(r"\} *\^ *\{? *([0-9])", tail)
    if after and named and "^" not in named[-1]:
        named[-1] += f"^{after[1]}"
    return "".join(named), bool(known), tens
