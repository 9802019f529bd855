r"""Do two mathematical answers agree? `\frac{1}{2}` and `0.5` do.

The verdict is math-verify's on texts in LaTeX of one kind, with these differences:

- Rational numbers are compared exactly, a decimal of fewer than six digits among them. `50\%` in the reference is 50
  or 0.5; an answer names a percent only where the problem asks for one.
- Bases and the brackets of lists must be the same where both are named.
- An answer that denies or changes its value in words is wrong: `HEDGES`.
- So is one that holds an expression of the problem which is not in the reference: `restates`.

Nothing here bounds the time that sympy takes; callers do (minrl/tasks/grader.py).
"""

# ruff: noqa: RUF001
import functools
import logging
import re
from fractions import Fraction
from typing import Any

SIGNS = str.maketrans({
    "−": "-", "–": "-", "⁄": "/", "÷": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "°": r"^\circ ", "±": r"\pm ", "√": r"\sqrt ",
    **{one: f"^{n}" for n, one in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}, **{one: f"_{n}" for n, one in enumerate("₀₁₂₃₄₅₆₇₈₉")},
})  # fmt: skip
ROUNDED = 6
"""Significant digits from which a decimal may be a rounding."""
TENS = {"thousand": 3, "million": 6, "billion": 9}


def exact(found: re.Match[str]) -> str:
    """A decimal as a fraction, if it repeats, has a power of ten, or is too short to be a rounding."""
    digits, again, tens = found["digits"], found["again"] or "", int(found["tens"] or 0)
    places = len(digits.partition(".")[2])
    if not (again or tens) and len(digits.replace(".", "").lstrip("0")) >= ROUNDED:
        return found[0]
    value = Fraction(digits) + (Fraction(int(again), (10 ** len(again) - 1) * 10**places) if again else 0)
    value *= Fraction(10) ** tens
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:left|right|displaystyle)(?![a-z])|(?<!\\)(?:\$|\\[()\[\]])", ""),
        (r"(?<=[0-9])(?:,\\! ?|\{,\}|\\[,!])(?=[0-9]{3}(?![0-9]))", ""),
        (r"^(-?(?:\\\$)?[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])", lambda found: found[1].replace(",", "")),
        (r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![a-z])", " "),
        (r"\\[dt](?=frac)", r"\\"),
        (r"\\(?:text(?:normal|bf|it|rm)?|mbox|math(?:rm|bf)) *\{ *([^{}]*?) *\}", r"\\text{\1}"),
        (r"(?i)^\s*(?:(?:so|thus|therefore),? )?(?:the )?(?:final )?answer(?: is)?:? ", ""),
        (r"\*\*", "^"),
        (r"(?<=[0-9})])\*(?=[a-z(])", " "),
        (r"(?<=[0-9])[eE](?=[-+]?[0-9])", r"\\times 10^"),
        (r"(?<![\w^.{])([0-9]+) *(?=\(|\\binom)", r"\1 \\cdot "),  # math-verify reads 2(4) as 2 + 4
        (r"(?<![\\A-Za-z])(sqrt|pi)(?![A-Za-z])", r"\\\1 "),
        (
            rf"(?<=[0-9}}]) *(?:\\text\{{)?({'|'.join(TENS)})(?:\}}|\b)",
            lambda found: rf"\times 10^{{{TENS[found[1]]}}}",
        ),
        (
            r"(?<=[0-9A-Za-z})]) *\\text\{(?!and\}|or\})[a-z][^{}]*\}(?: *\^\{?[23]\}?)?"
            r"|(?:(?<=[0-9})]) +(?!and\b|or\b)[a-z]{2,}(?: [a-z]+)*| +[ck]?m)(?:\^\{?[23]\}?)?$"
            r"| *\^ *\{?\\circ\}?|\\\$",
            "",
        ),
        (
            r"(?<![\w.{\\])(?P<digits>[0-9]+\.?[0-9]*)(?:\\overline\{(?P<again>[0-9]+)\})?"
            r"(?: *\\(?:times|cdot) *10 *\^ *\{?(?P<tens>[-+]?[0-9]{1,3})\}?)?",
            exact,
        ),
        (r",? *(?:\\text\{(?:and|or)\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))", ","),
        (r"  +", " "),
    )
]
HEDGES = re.compile(
    r"(?<![\\A-Za-z])(?:either|or|maybe|perhaps|possibly|not|never|wrong|false|unless|except|instead|undefined|dozen|twice"
    r"|half|times|least|most|about|roughly|between|percent|(?:more|less|fewer) than)(?![A-Za-z])|%",
    re.IGNORECASE,
)
"""What denies an answer, offers another, or makes another of it; not where the problem or the reference says so."""
BASE = re.compile(r"\(?([0-9A-F]+)\)?_\{?([0-9]+)\}?")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
RELATION = re.compile(r"[<>]|\\[lg](?:eq?|t)(?![a-z])")
FORMULA = re.compile(r"(?<!\\)\$\$?((?:[^$\\]|\\.)+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
SIDES = re.compile(r"[=<>,]|\\(?:[lg]eq?|in|to)(?![a-z])")


def answers_agree(gold: str, answer: str, problem: str = "") -> bool:
    """Whether an answer means the same as the reference. Not symmetric: the reference sets the form."""
    meant, given = normal(gold), normal(answer)
    if hedges(answer, gold, problem) or restates(given, meant, problem):
        return False
    if meant == given:
        return bool(meant)
    if "inf" in given and not re.search(r"inf|[<>]|\\[lg]e", meant):  # sympy finds 12/7 - oo/7 to be 0 at times
        return False
    if is_list(meant) and RELATION.search(given) and not RELATION.search(meant):  # math-verify reads -2<x<1 as -2, 1
        return False
    if (one := BASE.fullmatch(meant)) and (two := BASE.fullmatch(given)):
        return one.groups() == two.groups()
    sides = {side.strip() for side in given.split("=")[-2:] if re.fullmatch(r" *-?[0-9/.]+ *", side)}
    brackets = {text[: 1 + text.startswith("\\")] for text in (meant, given) if "," in text} & {"(", "[", r"\{"}
    if len(brackets) > 1 or ("=" not in meant and len(sides) > 1):
        return False
    return _verified(meant, f"${given}$") or (WORD.search(given) is not None and _verified(meant, answer))


def hedges(answer: str, gold: str, problem: str) -> bool:
    """Whether an answer has one of `HEDGES` that neither the reference nor the problem has. A list may have an `or`; a
    percentage may have its sign if the reference has it or the last sentence of the problem asks for percent.
    """
    is_percentage = "%" in gold or "percent" in re.split(r"[.?!]\s", problem.strip())[-1]
    known = {found.casefold() for found in HEDGES.findall(f"{gold} {problem}")} - {"%", "percent"}
    known |= {"%", "percent"} if is_percentage else set()
    known |= {"or"} if "," in gold else set()
    return not {found.casefold() for found in HEDGES.findall(answer)} <= known


def is_list(text: str) -> bool:
    """Whether a comma stands outside of all brackets."""
    return "," in re.sub(r"[(\[{].*[)\]}]", "", text)


def restates(answer: str, gold: str, problem: str) -> bool:
    r"""Whether an answer holds an expression of the problem that is not in the reference.

    >>> [restates(text, "24310", r"Compute $\binom{17}{9}$.") for text in ("24310", r"0+\binom{17}{9}")]
    [False, True]
    """
    given, meant = _bare(answer), _bare(gold)
    formulas = (side for found in FORMULA.finditer(problem) for side in SIDES.split(found[found.lastindex or 0]))
    stated = (_bare(normal(side.strip(" .?"))) for side in formulas)
    return sorted(given) != sorted(meant) and any(
        one in given and one not in meant for one in stated if re.search(r".[-+*/^!]|\\[a-z]", one)
    )


def _bare(text: str) -> str:
    return re.sub(r"\\cdot|\\times|[ {}()]", "", text)


@functools.lru_cache(maxsize=1024)
def normal(text: str) -> str:
    r"""The text in LaTeX of one kind, without delimiters, units and layout.

    >>> normal("2√3 × x**2"), normal(r"$\left(\dfrac{1}{2},\; 0.5\right)$.")
    ('2\\sqrt 3 \\times x^2', '(\\frac{1}{2}, \\frac{1}{2})')
    """
    text = text.translate(SIGNS)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    return text.strip().rstrip(".;,").strip()


@functools.cache
def math_verify() -> Any:  # noqa: ANN401 - the library has no types
    """The library, loaded when first needed: sympy takes a second. Never under an alarm, which would leave it half
    imported.
    """
    import math_verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they warn about what a model wrote
    return math_verify


def _verified(gold: str, answer: str) -> bool:
    """math-verify's verdict, but two rational numbers must be equal: its tolerance is absolute, and 1/2^99 would be
    1/2^98. In prose it finds the answer itself.
    """
    library = math_verify()
    plain = library.LatexNormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    latex = [library.LatexExtractionConfig(normalization_config=plain)]
    meant = library.parse(f"${gold}$", latex, parsing_timeout=None)
    given = library.parse(
        answer, latex if answer[:1] == "$" else [*latex, library.ExprExtractionConfig()], parsing_timeout=None
    )
    if not library.verify(meant, given, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    numbers = {value for one in (meant, given) if (value := _rational(one[0])) is not None}
    return len(numbers) < 2 or "%" in gold + answer  # which it reads as a hundredth, or leaves out


def _rational(found: Any) -> Any:  # noqa: ANN401 - sympy has no types
    """The rational number that an expression of sympy is, or a variable is equal to in it; None of any other."""
    value = found.rhs if getattr(getattr(found, "lhs", None), "is_Symbol", False) else found
    value = value.doit() if getattr(value, "is_number", False) else None
    return value if value is not None and value.is_Rational else None
