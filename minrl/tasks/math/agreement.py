r"""Do two mathematical answers agree? `\frac{1}{2}` and `0.5` do.

Lists, tuples, sets, intervals, matrices and relations are compared part by part; the parts as numbers
(exact.py) or as expressions that math-verify reads. Two exact values must be equal. A decimal equals an
exact value that rounds to it, if it has six significant digits or more; with fewer it must be that value.

Units, bases and percents: where both answers name one, they must be the same. Where only one names a unit, or only the
reference a base, the number decides, as in the graders of MATH, Minerva and math-verify. `50\%` in the reference is
paid as `50`, `0.5` or `\frac12`; a percent that only the answer names is a hundredth (`1440\%` is not 1440), unless
the problem asks in percent.

Brackets: `(1,2)` is ordered, `\{1,2\}` is not, and neither is paid for the other. `1,2` without brackets is paid for
both. `x < 3` is `(-\infty,3)`, a column vector is a tuple, `x = 3` is 3. Callers stop slow expressions.
"""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from minrl.tasks.math.claims import (
    asks_for_percent,
    claims_hold,
    is_decimal_comma,
    of_another_kind,
    ordered,
    says_otherwise,
)
from minrl.tasks.math.exact import Value, number, same_number, same_time, same_value
from minrl.tasks.math.forms import COMPARED, NAME, Form, Range, form_of, has_sign, ranges_of, unbraced
from minrl.tasks.math.notation import TEXT, nesting, normal, split, undelimited, usual, without_thousands
from minrl.tasks.math.prose import Prose, is_prose
from minrl.tasks.math.units import quantity

_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|\\displaystyle|(?<!^)~")
DEEPEST = 50
"""Brackets within each other in an answer; one with more is not read, unless the reference has as many."""
_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
"""White space is layout, but not between digits: `1 2` is not 12."""
_SET_SIGNS = (*COMPARED, r"\cup", r"\cap", r"\setminus", r"\backslash", r"\infty", r"\ne", r"\in", r"\{", r"\mathbb")
_IMPLIED = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow|therefore)(?![a-z])")
"""Of what follows from each other, the last is the answer."""
_PRODUCT = re.compile(
    r"(?<![\^_0-9.A-Za-z])[0-9]+(?:\.[0-9]+)?(?= *(?:[({\[]|\\\{|\\binom))|\)(?= *(?:[({]|\\frac|\\binom))|"
    r"\\(?:frac|binom) *\{[^{}]*\} *\{[^{}]*\}(?= *[({])"
)
"""Factors side by side, which math-verify would read as a mixed number: 2(4) as 6."""


def same_text(gold: str, answer: str) -> bool:
    """Whether two answers are written alike, except for layout and, in answers of letters alone, for case.

    >>> same_text(r"\\dfrac{1}{2}", r" \\frac{1}{2}. "), same_text("Even", r"\\text{even}"), same_text("E", "e")
    (True, True, False)
    """
    one, other = _plain(gold), _plain(answer)
    return bool(one) and one == other


def _plain(text: str) -> str:
    text = text.strip().strip("$").strip().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LAYOUT.sub("", TEXT.sub(r"\1", text))
    text = _SPACE.sub("", " ".join(text.split()))
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def answers_agree(gold: str, answer: str, problem: str = "") -> bool:
    """Whether an answer means the same as the reference. Not symmetric: the reference sets the form."""
    if not gold.strip() or not answer.strip() or nesting(answer) > max(DEEPEST, nesting(gold)):
        return False
    if same_text(gold, answer) or is_decimal_comma(gold.strip(), answer.strip(), problem):
        return True
    try:
        return _agree_as_read(gold, answer, problem)
    except RecursionError:  # nested deeper than an answer is, or than sympy reads
        return False


def _agree_as_read(gold: str, answer: str, problem: str) -> bool:
    meant, given = (unbraced(normal(undelimited(text))) for text in (gold, answer))
    if says_otherwise(gold, answer, problem) or of_another_kind(meant, given, problem):
        return False
    if "=" not in meant and not claims_hold(given, problem, _agree):
        return False
    prose = Prose(answer, given) if is_prose(usual(answer)) and not is_prose(meant) else None
    several = prose is not None and prose.says_several and form_of(meant).kind == "one"
    if several or (prose and prose.ends_in_words):
        return not several and _same_value(_expression(meant), _found(answer))
    given = ordered(meant, given, answer, problem) or ""
    if "%" not in meant and asks_for_percent(problem):
        given = re.sub(r"\\?%|\\text\{ *percent *\}|percent", "", given)
    return any(_agree(one, without_thousands(given)) for one in (without_thousands(meant), meant)) or bool(
        prose and prose.has_one_number and _same_value(_expression(meant), _found(answer))
    )


def _agree(gold: str, answer: str) -> bool:
    """Whether two normal texts agree: relations first, then what is put together, then values."""
    gold, answer = unbraced(gold), unbraced(answer)
    if any(has_sign(text, *COMPARED, r"\cup", r"\infty", r"\ne", r"\in") for text in (gold, answer)):
        return _same_ranges(gold, answer)
    one, other = form_of(gold), form_of(answer)
    if one.kind == other.kind == "one":
        return _same_relation(one.parts[0], other.parts[0])
    if one.kind == "one" and other.kind == "bare" and len(set(other.parts)) == len(other.parts):
        return all(_agree(gold, part) for part in other.parts)  # the same value in several forms
    if {one.kind, other.kind} in ({"one", "matrix"}, {"one", "vector"}):
        return _same_value(_expression(gold), _expression(answer))
    if one.kind != "bare" and "=" in gold and len(split(gold, "=")) > 1:
        return _same_relation(gold, answer)
    if other.kind != "bare" and len(split(answer, "=")) > 1:
        return _same_relation(gold, answer)
    return _same_parts(one, other)


def _same_parts(one: Form, other: Form) -> bool:
    pair = (one.kind, other.kind)
    if pair in ORDERED:
        return len(one.parts) == len(other.parts) and all(map(_agree, one.parts, other.parts))
    if pair in UNORDERED:
        return _matched(one.parts, other.parts, _agree)
    if pair in ALIKE:
        return one.brackets == other.brackets and all(map(_agree, one.parts, other.parts))
    return False


ORDERED = {(one, other) for one in ("tuple", "vector") for other in ("tuple", "vector", "bare")} - {
    ("vector", "vector")
}
ORDERED |= {("bare", "tuple")}
UNORDERED = {("bare", "bare"), ("bare", "set"), ("set", "bare"), ("set", "set"), ("set", "one"), ("one", "set")}
ALIKE = {("interval", "interval"), ("matrix", "matrix"), ("vector", "vector")}
"""Which kinds of the reference and the answer compare in order, in any order, or with the same brackets or shape."""


def _matched(golds: Sequence[Any], answers: Sequence[Any], agree: Callable[[Any, Any], bool]) -> bool:
    """Whether each has a partner among the others, each once."""
    left = list(answers)
    for gold in golds:
        partner = next((answer for answer in left if agree(gold, answer)), None)
        if partner is None:
            return False
        left.remove(partner)
    return not left


def _same_ranges(gold: str, answer: str) -> bool:
    (gold_name, gold_ranges), (answer_name, answer_ranges) = ranges_of(gold), ranges_of(answer)
    unread = gold if gold_ranges is None else answer
    if (gold_ranges is None) != (answer_ranges is None) and not has_sign(unread, *_SET_SIGNS):
        return False
    if gold_ranges is None or answer_ranges is None:
        one, other = form_of(gold), form_of(answer)
        if {one.kind, other.kind} == {"one"}:
            return _same_relation(gold, answer)
        return _same_parts(one, other)
    if gold_name and answer_name and gold_name != answer_name:
        return False
    return _matched(gold_ranges, answer_ranges, _same_range)


def _same_range(gold: Range, answer: Range) -> bool:
    return gold.closed == answer.closed and all(map(_agree_ends, gold.ends, answer.ends))


def _agree_ends(gold: str, answer: str) -> bool:
    if r"\infty" in gold or r"\infty" in answer:
        return gold.replace(" ", "").lstrip("+") == answer.replace(" ", "").lstrip("+")
    return _agree(gold, answer)


def _same_relation(gold: str, answer: str) -> bool:
    """`x = 3` is 3, for the reference and for the answer; other equations are compared as they are."""
    answer = _IMPLIED.split(answer)[-1] if "=" in gold else answer
    gold_sides, answer_sides = split(_exact(gold), "="), split(_exact(answer), "=")
    if len(gold_sides) == 1 and len(answer_sides) == 1:
        return _same_single(gold_sides[0], answer_sides[0])
    gold_name, answer_name = (_name(sides) for sides in (gold_sides, answer_sides))
    if len(gold_sides) > 1 and len(answer_sides) > 1:
        if gold_name and answer_name and gold_name == answer_name:
            named = NAME.fullmatch(answer_sides[0])  # of `x = 5 + 5 = 10` the end is the answer, of `6 = x = 5` nothing
            others = [] if named else [side for side in answer_sides[:-1] if not NAME.fullmatch(side)]
            return _agree(gold_sides[-1], answer_sides[-1]) and all(_agree(gold_sides[-1], one) for one in others)
        return _same_value(_expression("=".join(gold_sides)), _expression("=".join(answer_sides)))
    return (len(gold_sides) == 1 or bool(gold_name)) and _agree(gold_sides[-1], answer_sides[-1])


def _exact(text: str) -> str:
    r"""`x=1/3 \approx 0.33` as `x=1/3`; `x \approx 11` as `x=11`."""
    exact, sign, rest = text.partition(r"\approx")
    return f"{exact}={rest}".strip() if sign and NAME.fullmatch(exact.strip()) else exact.strip()


def _name(sides: list[str]) -> str:
    """What an assignment names, without arguments: `f` for `f(x) = 3`."""
    found = next((side for side in sides[:-1] if NAME.fullmatch(side)), "")
    name = re.sub(r"[ {}|]|\\text", "", found)
    return name if name.startswith("(") else name.partition("(")[0]


def _same_single(gold: str, answer: str) -> bool:
    if (same := same_time(gold, answer)) is not None:
        return same
    if ":" in gold and ":" in answer:  # ratios
        ratios = split(gold, ":"), split(answer, ":")
        return len(set(map(len, ratios))) == 1 and all(map(_agree, *ratios))
    words = [_words(text) for text in (gold, answer)]
    if words[0] and words[1]:
        if words[0] == words[1] or len(words[0]) == len(words[1]) == 1:
            return words[0] == words[1]
        if r"\text" in gold and r"\text" in answer:
            return False
    one = quantity(gold)
    plain = number(gold) is not None
    other = quantity(answer, letters=bool(one.unit) or (plain and " " in answer))
    one = one if one.unit or not other.unit else quantity(gold, letters=not plain)
    if any(mine and yours and mine != yours for mine, yours in ((one.unit, other.unit), (one.base, other.base))):
        return False
    if one.base or other.base:
        return one.value.replace(" ", "").upper() == other.value.replace(" ", "").upper()
    scales = {(False, True): [-2], (True, False): [0, 2]}.get((one.percent, other.percent), [0])
    return any(_same(one.value, other.value, one.tens, other.tens + scale) for scale in scales)


def _words(text: str) -> str:
    """The words of a text without mathematics; empty for mathematics. Case counts for one letter alone."""
    bare = re.sub(r"[\"'`.*!{}() ]|(?<=[A-Za-z])-(?=[A-Za-z])", "", TEXT.sub(r"\1", text))
    return (bare if len(bare) == 1 else bare.casefold()) if bare.isalpha() else ""


def _same_value(gold: Value, answer: Value) -> bool:
    """Whether two values are equal. Those that sympy cannot compute with are not."""
    try:
        return same_value(gold, answer, math_verify()[1])
    except (MemoryError, RecursionError):
        raise  # for whoever bounds the comparison
    except Exception:  # sympy raises of every kind on what a model wrote
        return False


def _same(gold: str, answer: str, gold_tens: int, answer_tens: int) -> bool:
    one, other = number(gold, gold_tens), number(answer, answer_tens)
    if one is not None and other is not None:
        return same_number(one, other)
    if _SPACE.sub("", gold) == _SPACE.sub("", answer) and gold_tens == answer_tens:
        return True
    mine = one if one is not None else _expression(gold, gold_tens)
    yours = other if other is not None else _expression(answer, answer_tens)
    return mine is not None and yours is not None and _same_value(mine, yours)


@functools.lru_cache(maxsize=256)
def _expression(text: str, tens: int = 0) -> Value:
    """What math-verify reads in LaTeX without units; None if it is nothing."""
    if re.search("[0-9] +[0-9]", text):
        return None
    text = _PRODUCT.sub(r"\g<0> \\cdot ", text.replace(r"\times", r"\cdot "))
    text = re.sub(r"([0-9.]+) *\^\\circ", r"{\\frac{\1\\pi}{180}}", text)
    return _found(rf"$({text}) \cdot 10^{{{tens}}}$" if tens else f"${text}$")


def is_near(exact: str, decimal: str) -> bool:
    """Whether a decimal has the digits of a value, rounded or cut off; of what is no number this is not asked."""
    given = number(decimal)
    try:
        value = _expression(quantity(normal(undelimited(exact))).value)
        gap = abs(value.evalf(30) - given.value) if given and not value.free_symbols else 0
        return bool(gap < Fraction(1, 10 ** (given.places or 0) if given else 1))
    except MemoryError:
        raise
    except Exception:  # no number: sympy raises of every kind
        return True


def _found(text: str) -> Value:
    """What math-verify finds in a text, units included; None if it is nothing."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, LatexNormalizationConfig

    notation = LatexNormalizationConfig(units=False, malformed_operators=False, nits=True, boxed="none")
    kinds = [LatexExtractionConfig(normalization_config=notation), ExprExtractionConfig()]
    read = math_verify()[0](text, kinds[:1] if text[0] == text[-1] == "$" else kinds, parsing_timeout=None)
    return read[0] if read and not isinstance(read[0], str) else None


@functools.cache
def math_verify() -> tuple[Any, Any]:
    """math-verify's two functions, loaded when first needed: sympy takes a second. Never under an alarm, which would
    leave the modules half imported."""
    from math_verify import parse, verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn about what a model wrote
    return parse, verify
