r"""Do two mathematical answers agree? `\frac{1}{2}` and `0.5` do.

math-verify compares. An answer without mathematical delimiters is one expression, not prose to look for a number in;
words are compared as words. Callers stop slow expressions.
"""

import functools
import logging
import re
from typing import Any

_DELIMITERS = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed|\\begin\{(?:align|equation)")
_WRAPPERS = re.compile(r"\\(?:text|textbf|textit|textnormal|mbox|mathrm|mathbf|mathit|operatorname)\s*\{([^{}]*)\}")
_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|\\displaystyle|~")
_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
"""White space is layout, but not between digits: `1 2` is not 12."""
_BASE = re.compile(r"^[-+]?[0-9A-Za-z.]*[0-9][0-9A-Za-z.]*_\{?([0-9]+)\}?$")
_UNIT = re.compile(r"(?<![A-Za-z\\])([A-Za-z]+)\s*(?:\^\s*\{?[0-9]\}?)?$")
UNITS = {
    "second": "s sec", "minute": "min", "hour": "h hr", "day": "", "week": "", "month": "", "year": "yr",
    "millimeter": "mm", "centimeter": "cm", "meter": "m", "kilometer": "km", "inch": "in inches", "foot": "ft feet",
    "yard": "yd", "mile": "mi", "gram": "g", "kilogram": "kg", "ounce": "oz", "pound": "lb lbs", "liter": "l litre",
    "milliliter": "ml", "cent": "", "dollar": "", "degree": "", "radian": "rad",
}  # fmt: skip
"""Units with their other names, beside the plural."""
_UNIT_OF = {name: unit for unit, names in UNITS.items() for name in (unit, f"{unit}s", *names.split())}
_SCIENTIFIC = re.compile(r"^(-?[0-9]{1,20}(?:\.[0-9]{1,20})?)[eE]([-+]?[0-9]{1,3})$")


def same_text(gold: str, answer: str) -> bool:
    """Whether two answers are written alike, except for layout and, in answers of letters alone, for case.

    >>> same_text(r"\\dfrac{1}{2}", r" \\frac{1}{2}. "), same_text("Even", r"\\text{even}"), same_text("E", "e")
    (True, True, False)
    """
    one, other = _plain(gold), _plain(answer)
    return bool(one) and one == other


def answers_agree(gold: str, answer: str) -> bool:
    """Whether an answer means the same as the reference. Not symmetric: the reference sets the form."""
    if not gold.strip() or not answer.strip():
        return False
    if same_text(gold, answer):
        return True
    if any(read(gold) and read(answer) and read(gold) != read(answer) for read in (_base, _unit)):
        return False  # the library compares neither
    _, verify = math_verify()
    return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))


def _base(text: str) -> str:
    """The base of a number that names one.

    >>> _base("4210_5"), _base(r"$4210_{\\text{6}}$."), _base("x_5"), _base("4210")
    ('5', '6', '', '')
    """
    match = _BASE.search(_plain(text.strip().rstrip(".")))
    return match[1] if match else ""


def _unit(text: str) -> str:
    """The unit of `UNITS` that a number ends with.

    >>> _unit(r"5\\text{ hours}"), _unit("5 min."), _unit(r"\\frac{1}{2}\\text{ cm}^2"), _unit("5 apples")
    ('hour', 'minute', 'centimeter', '')
    """
    bare = _LAYOUT.sub(" ", _WRAPPERS.sub(r" \1 ", text)).strip().strip("$").strip().rstrip(".")
    match = _UNIT.search(bare)
    return _UNIT_OF.get(match[1].lower(), "") if match and any(map(str.isdigit, bare[: match.start(1)])) else ""


def _parsed(text: str) -> list[Any]:
    if not _DELIMITERS.search(text):
        plain = _SCIENTIFIC.sub(lambda found: rf"{found[1]} \times 10^{{{int(found[2])}}}", text.strip())
        text = f"${plain}$"
    return math_verify()[0](text, parsing_timeout=None)


@functools.cache
def math_verify() -> tuple[Any, Any]:
    """math-verify's two functions, loaded when first needed: sympy takes a second. Never under an alarm, which would
    leave the modules half imported."""
    from math_verify import parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn about what a model wrote
    return parse, verify


def _plain(text: str) -> str:
    text = text.strip().strip("$").strip().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LAYOUT.sub("", _WRAPPERS.sub(r"\1", text))
    text = _SPACE.sub("", " ".join(text.split()))
    return text.casefold() if len(text) > 1 and text.isalpha() else text
