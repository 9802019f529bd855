r"""What a number is measured in: `12\text{ miles per hour}`, `\$5`, `52_{8}`, `50\%`, `18 thousand`."""

import re
from dataclasses import dataclass

from minrl.tasks.math.notation import NUMERALS, closing

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
TIMES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_PERCENT = re.compile(r"^(.*?[0-9}) ]) *(?:\\?%|\\text\{ *\\?(?:%|percent|per cent|pct) *\}|percent|per cent|pct)$")
_CURRENCY = re.compile(r"^([-+]?) *(?:\\\$|\$|\\text\{(euro|pound|rupee)\}) *([-+]?.*)$")
_BASE = re.compile(
    r"^\(?([-+]?[0-9A-Za-z.]*[0-9][0-9A-Za-z.]*)\)? *(?:_ *\{?(?:\\text\{)? *([a-z]+|[0-9]+) *\}*|"
    r"[(,]? *(?:\\text\{)?[( ]*(?:in )?base[ -]*\}? *([a-z]+|[0-9]+)[) }]*)$"
)
_VALUE = re.compile(r"((?:\\(?!text)(?:[A-Za-z]+|[^A-Za-z])|[^A-Za-z\\])+?)( *)((?:\\text\{|[A-Za-z]).*)$")
_UNIT_WORD = re.compile(r"([A-Za-z]+)\.?(?: *\^ *\{? *(-?[0-9]) *\}?)?|/")
_EMPTY = re.compile(r"\\text\{ *\} *\^")
"""A power behind a text without words is one of the value."""
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
        if base.isdigit() or base in NUMERALS:
            return Quantity(found[1], base=str(NUMERALS.get(base, base)))
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
    if not value or rest.strip(" ./") or _EMPTY.match(tail) or closing("{" + value + "}", 0) != len(value) + 1:
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


def _unit(tail: str) -> tuple[str, bool, int]:
    """The unit in one spelling, whether its first word is one that units have, and the power of ten."""
    named: list[str] = []
    power, tens, over, known = 1, 0, "", None
    for found in _UNIT_WORD.finditer(tail.replace("\\", " ")):
        word = (found[1] or "per").lower()
        base = found[1] if found[1] in ("C", "F") else word
        meant = "" if base in ("C", "F") else UNIT_OF.get(word, "")
        known = known if known is not None else bool(meant) or word in TIMES or word in _POWERS
        if word in TIMES:
            tens += TIMES[word]
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
