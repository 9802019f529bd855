r"""Do two mathematical answers agree? `\frac{1}{2}` and `0.5` do.

The comparison is math-verify's. Around it: an answer without mathematical delimiters is one expression, not prose to
look for a number in; words are compared as words. Slow expressions are stopped by whoever calls.
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


def _power_of_ten(match: re.Match[str]) -> str:
    return rf"{match[1]} \times 10^{{{int(match[2])}}}"


def same_text(gold: str, answer: str) -> bool:
    """Whether two answers are written alike, but for layout and, in answers of letters alone, for case.

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
    if _other(_base(gold), _base(answer)) or _other(_unit(gold), _unit(answer)):
        return False  # the library compares neither
    _, verify = math_verify()
    return bool(verify(list(_parsed(gold)), list(_parsed(answer)), timeout_seconds=None))


def _other(gold: str, answer: str) -> bool:
    """Whether both are said and are not the same."""
    return bool(gold and answer) and gold != answer


def _base(text: str) -> str:
    """The base that a number is written in, where it says one.

    >>> _base("4210_5"), _base(r"$4210_{\\text{6}}$."), _base("x_5"), _base("4210")
    ('5', '6', '', '')
    """
    match = _BASE.search(_plain(text.strip().rstrip(".")))
    return match[1] if match else ""


def _unit(text: str) -> str:
    """The unit that a number ends with, where it is one of `UNITS`.

    >>> _unit(r"5\\text{ hours}"), _unit("5 min."), _unit(r"\\frac{1}{2}\\text{ cm}^2"), _unit("5 apples")
    ('hour', 'minute', 'centimeter', '')
    """
    bare = _LAYOUT.sub(" ", _WRAPPERS.sub(r" \1 ", text)).strip().strip("$").strip().rstrip(".")
    match = _UNIT.search(bare)
    return _UNIT_OF.get(match[1].lower(), "") if match and any(map(str.isdigit, bare[: match.start(1)])) else ""


def _parsed(text: str) -> tuple[Any, ...]:
    parse, _ = math_verify()
    if not _DELIMITERS.search(text):
        text = f"${_SCIENTIFIC.sub(_power_of_ten, text.strip())}$"
    return tuple(parse(text, parsing_timeout=None))


@functools.cache
def math_verify() -> tuple[Any, Any]:
    """math-verify's two functions, loaded when first needed: sympy takes a second. Never under an alarm, which would
    leave the modules half imported."""
    from math_verify import parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what a model writes is no news
    return parse, verify


def _plain(text: str) -> str:
    text = text.strip().strip("$").strip().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LAYOUT.sub("", _WRAPPERS.sub(r"\1", text))
    text = _SPACE.sub("", " ".join(text.split()))
    return text.casefold() if len(text) > 1 and text.isalpha() else text
