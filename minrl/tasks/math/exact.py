r"""Numbers as answers write them, exactly: `3\frac{1}{2}`, `1.2 \times 10^{-5}`, `0.\overline{3}`; and equal values.

A decimal stands for what rounds to it: it equals another value that it is the rounding of, if it has six significant
digits or more, however small or large it is.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

Value = Any
"""An expression of sympy, which has no types, or a `Number`."""

MIN_DIGITS = 6
"""Significant digits below which a decimal is no rounding, but only the number it writes."""
_DIGITS = 60
"""Two values without symbols that differ by less than a part in ten to this power, less ten, are equal."""
_DECIMAL = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]*)(?:\\overline\{([0-9]+)\}|(\\ldots))?)?")
_POWER = re.compile(r"(?:(.*?)(?:\\times|\\cdot)|(?=10\^))10\^\{?([-+]?[0-9]{1,4})\}?|(.*[0-9.])[eE]([-+]?[0-9]{1,3})")
_RATIO = re.compile(
    r"(?P<sign>[-+]?)(?P<whole>[0-9]+)?(?: *\\frac *\{(?P<over>[^{}]+)\} *\{(?P<under>[^{}]+)\}|"
    r"(?(whole) +| *)(?P<a>[0-9.]+) */ *(?P<b>[0-9.]+))"
)
_TIME = re.compile(r"([0-9]{1,2})(?::([0-5][0-9]))? *(?:\\text\{)? *(?:([ap])\.? *m\.?)? *\}?", re.IGNORECASE)
POINTS = (("3/7", 1), ("11/5", 1), ("23/9", 1), ("-13/8", -1), ("5/11", -1), ("-31/13", 1))
"""Where expressions with symbols are compared: each symbol takes its own value, and every other one the sign behind."""


class Number(NamedTuple):
    """A number and, for a decimal, the places behind the point: `1.20` has 2, `1.2e5` has -4, a fraction none."""

    value: Fraction
    places: int | None = None

    @property
    def digits(self) -> int:
        """Significant digits that the decimal writes."""
        return len(str(abs(round(self.value * Fraction(10) ** (self.places or 0))))) if self.value else 0


def number(text: str, tens: int = 0) -> Number | None:
    r"""The number that a text in LaTeX is, times a power of ten; None if it is none.

    >>> [str(number(text).value) for text in (r"-3\frac{1}{2}", "1 2/3", r"2 \times 10^{-3}", r"0.1\overline{6}")]
    ['-7/2', '5/3', '1/500', '1/6']
    """
    if len(text) > 400:
        return None
    found = _decimal(text) or _scientific(text) or _ratio(text)
    if found is None or not tens:
        return found
    return Number(found.value * Fraction(10) ** tens, None if found.places is None else found.places - tens)


def _decimal(text: str) -> Number | None:
    text = text.replace(" ", "") if not re.search("[0-9] +[0-9]", text) else text
    match = _DECIMAL.fullmatch(text.strip("{}") if "overline" not in text else text)
    if match is None or not (match[2] or match[3] or match[4]):
        return None
    whole, after, again, going = match[2] or "0", match[3] or "", match[4], match[5]
    if going and after[-2:-1] == after[-1:] and after:
        again = after[-1]
    value = Fraction(int(whole + after), 10 ** len(after))
    if again:
        value += Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(after))
    exact = again or not after
    return Number(-value if match[1] == "-" else value, None if exact else len(after))


def _scientific(text: str) -> Number | None:
    match = _POWER.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    factor = _decimal(match[1] or match[3] or "1")
    exponent = int(match[2] or match[4])
    if factor is None or abs(exponent) > 1000:
        return None
    places = None if factor.places is None else factor.places - exponent
    return Number(factor.value * Fraction(10) ** exponent, places)


def _ratio(text: str) -> Number | None:
    match = _RATIO.fullmatch(text.strip())
    if match is None:
        return None
    over, under = (_decimal(match[one] or match[other] or "") for one, other in (("over", "a"), ("under", "b")))
    if over is None or under is None or not under.value:
        return None
    part = over.value / under.value
    if match["whole"]:
        if over.value < 0 or under.value < 0:
            return None
        part = part + int(match["whole"]) if part < 1 else part * int(match["whole"])
    return Number(-part if match["sign"] == "-" else part)


def same_number(one: Number, other: Number) -> bool:
    """Whether two numbers are equal, or one is a decimal of at least `MIN_DIGITS` digits that the other rounds to.

    >>> third, tiny = number("1/3"), number("1/270725")
    >>> same_number(third, number("0.333333")), same_number(third, number("0.33"))
    (True, False)
    >>> same_number(tiny, number("0.000004")), same_number(tiny, number("0.00000369379"))
    (False, True)
    """
    if one.value == other.value:
        return True
    if one.places is None and other.places is None:
        return False
    coarse, fine = sorted((one, other), key=lambda n: (n.places is None, n.places or 0))
    return coarse.places != fine.places and _rounds_to(fine.value, coarse)


def _rounds_to(value: Value, decimal: Number) -> bool:
    if decimal.places is None or decimal.digits < MIN_DIGITS:
        return False
    return bool(2 * abs(value - decimal.value) * Fraction(10) ** decimal.places <= 1)


def same_time(gold: str, answer: str) -> bool | None:
    """Whether two times of the day are the same; None unless both are times and one names its half of the day.

    >>> same_time("4:30 p.m.", "16:30"), same_time("4:30 p.m.", "4:30 a.m."), same_time("4:30", "4:30")
    (True, False, None)
    """
    one, other = _TIME.fullmatch(gold), _TIME.fullmatch(answer)
    if one is None or other is None or not ((one[3] or other[3]) and (one[2] or one[3]) and (other[2] or other[3])):
        return None
    halves = [match[3].lower() if match[3] else "" for match in (one, other)]
    clocks = [(int(match[1]) % 12, match[2] or "00") for match in (one, other)]
    afternoons = [half or ("p" if int(match[1]) > 12 else "") for half, match in zip(halves, (one, other), strict=True)]
    return clocks[0] == clocks[1] and (not all(afternoons) or afternoons[0] == afternoons[1])


def same_value(gold: Value, answer: Value, verify: Callable[..., bool]) -> bool:
    """Whether two values of sympy are equal; one of them may be a `Number`. What has no value is for math-verify."""
    import sympy

    if isinstance(gold, Number) or isinstance(answer, Number):
        decimal, other = (gold, answer) if isinstance(gold, Number) else (answer, gold)
        if not isinstance(other, sympy.Expr):
            return bool(verify(_symbolic(gold), _symbolic(answer), timeout_seconds=None))
        return _same_closed(_done(other), _symbolic(decimal)) or _is_rounding(_done(other), decimal)
    if isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq):
        return _proportional(_done(gold.lhs - gold.rhs), _done(answer.lhs - answer.rhs))
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _same_everywhere(_done(gold), _done(answer))
    if gold is None or answer is None:
        return False
    return bool(verify(gold, answer, timeout_seconds=None))


def _symbolic(value: Value) -> Value:
    import sympy

    return sympy.Rational(value.value.numerator, value.value.denominator) if isinstance(value, Number) else value


def _done(value: Value) -> Value:
    """The expression computed, its decimals exact and its unknown functions as symbols."""
    import sympy
    from sympy.core.function import AppliedUndef

    value = value.replace(lambda part: isinstance(part, sympy.Float), lambda part: sympy.Rational(str(part)))
    value = value.doit()
    value = value.xreplace({symbol: sympy.I for symbol in value.free_symbols if symbol.name == "i"})
    unknown = value.atoms(AppliedUndef)
    return value.xreplace({part: sympy.Symbol(str(part), real=True) for part in unknown}) if unknown else value


def _is_rounding(value: Value, decimal: Number) -> bool:
    if value.free_symbols or decimal.places is None or decimal.digits < MIN_DIGITS:
        return False
    numeric = value.evalf(decimal.digits + 20)
    return bool(numeric.is_Float) and _rounds_to(Fraction(str(numeric)), decimal)


def _same_closed(one: Value, other: Value) -> bool:
    """Whether two values without symbols are equal: exactly for rationals, else to `_DIGITS` digits."""
    if one == other:
        return True
    if one.free_symbols or other.free_symbols or (one.is_Rational and other.is_Rational):
        return False
    size = max(abs(complex(0)), *(abs(value.evalf(_DIGITS)) for value in (one, other)))
    gap = abs((one - other).evalf(_DIGITS))
    if not (size.is_Number and gap.is_Number and size.is_finite and gap.is_finite):
        return False
    if size > 10 ** (20 - _DIGITS):
        return bool(gap <= size * 10 ** -(_DIGITS - 10))
    return bool((one - other).equals(0))


def _same_everywhere(one: Value, other: Value) -> bool:
    """Whether two expressions have the same value at each of `POINTS`. One with a negative symbol counts only if both
    are real there: a root or a logarithm has several conventions for the others."""
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if one == other:
        return True
    if not symbols:
        return _same_closed(one, other)
    for point in _points(symbols):
        values = one.subs(point), other.subs(point)
        outside = min(point.values()) < 0 and any(value.is_real is not True for value in values)
        if not outside and not _same_closed(*values):
            return False
    return True


def _points(symbols: list[Value]) -> list[dict[Value, Value]]:
    import sympy

    return [
        {
            symbol: sympy.Rational(start) * (sign**place) + sympy.Rational(place, 17)
            for place, symbol in enumerate(symbols)
        }
        for start, sign in POINTS
    ]


def _proportional(one: Value, other: Value) -> bool:
    """Whether two equations `one = 0` and `other = 0` differ by a constant factor."""
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols or one.free_symbols != other.free_symbols:
        return False
    (first, *rest) = [(one.subs(point), other.subs(point)) for point in _points(symbols)]
    if any(value.is_zero for value in first):
        return False
    return all(_same_closed(first[0] * theirs, first[1] * mine) for mine, theirs in rest)
