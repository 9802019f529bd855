r"""Rewrites of reference answers: EQUAL have kinds that mean the same, UNEQUAL near misses. A kind is a function from a
reference to its rewrite, or to None if it does not apply. Each verdict follows from how the rewrite is made, not from a
grader.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

Rewrite = Callable[[str], str | None]

INTEGER = re.compile(r"-?[0-9]+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
WORD = re.compile(r"\\text\{([A-Za-z]{2,})\}")
CHOICE = re.compile(r"\\text\{\(?([A-Z])\)?\}")
UNIT = re.compile(r"(.*[^ ]) ?\\(?:text|mbox)\{ ?([a-z ]+)\}(\^[23])?")
BASE = re.compile(r"([0-9A-F]+)_\{?([0-9]+)\}?")
ENDS = re.compile(r"(?:x \\in )?(?:\\left)?([(\[])([^,()\[\]]+),([^,()\[\]]+?)(?:\\right)?([)\]])")
INEQUALITY = re.compile(r"([a-z]) (<|>|\\le|\\ge) (-?[0-9]+)")
EQUATION = re.compile(r"([^=<>]+) = ([^=<>]+)")


def swap(pattern: str, replacement: str, unless: str = r"(?!)") -> Rewrite:
    """Replaces a pattern everywhere, where it occurs."""

    def rewrite(gold: str) -> str | None:
        return re.sub(pattern, replacement, gold) if re.search(pattern, gold) and not re.search(unless, gold) else None

    return rewrite


def of_match(pattern: re.Pattern, change: Callable[[re.Match], str | None]) -> Rewrite:
    """Rewrites what a pattern matches as a whole."""
    return lambda gold: change(match) if (match := pattern.fullmatch(gold)) else None


def of_value(change: Callable[[str, Fraction], str | None], pattern: str = "") -> Rewrite:
    """Rewrites a number of that form."""
    return lambda gold: change(gold, value(gold)) if value(gold) is not None and re.match(pattern, gold) else None


def of_scalar(change: Callable[[str], str | None], unless: str = r"(?!)") -> Rewrite:
    """Rewrites a number or an expression."""
    return lambda gold: change(gold) if is_scalar(gold) and not re.search(unless, gold) else None


def of_items(change: Callable[[list[str]], list[str]], opens: str, unless: str = r"(?!)") -> Rewrite:
    """Changes the parts of a list whose opening bracket matches."""

    def rewrite(gold: str) -> str | None:
        found = items(gold)
        if not found or not re.fullmatch(opens, found[0]) or re.search(unless, gold):
            return None
        return found[0] + ", ".join(change(found[1])) + found[2]

    return rewrite


def shifted(change: Callable[[Fraction], Fraction]) -> Rewrite:
    """Another number."""
    return of_value(lambda gold, number: latex(change(number)) if change(number) != number else None)


def pairs(kinds: Mapping[str, Rewrite], golds: list[str]) -> Iterator[tuple[str, str, str]]:
    """Kind, reference and rewrite of every kind and every reference that it applies to."""
    for name, rewrite in kinds.items():
        for gold in golds:
            if (made := rewrite(gold)) and made != gold:
                yield name, gold, made


def value(gold: str) -> Fraction | None:
    """The number that an integer, a fraction or a decimal is."""
    if INTEGER.fullmatch(gold) or DECIMAL.fullmatch(gold):
        return Fraction(gold)
    if match := FRACTION.fullmatch(gold):
        return Fraction(int(match[1] + match[2]), int(match[3]))
    return None


def latex(number: Fraction) -> str:
    sign = "-" if number < 0 else ""
    over, under = abs(number.numerator), number.denominator
    return f"{sign}{over}" if under == 1 else rf"{sign}\frac{{{over}}}{{{under}}}"


def is_scalar(gold: str) -> bool:
    """A number or an expression: no list, relation, unit, text or bracket around it."""
    return not re.search(r",|=|<|>|\\l?g?e |\\text|\\mbox|\\in |_|\\%|\\\$|\\circ|:|matrix|\\cup|\\pm", gold) and not (
        re.match(r"[0-9]+\\frac", gold)
    )


def items(gold: str) -> tuple[str, list[str], str] | None:
    r"""What opens, the parts and what closes a tuple, a set or a bare list."""
    if "matrix" in gold or r"\pm" in gold or "text" in gold or r"\cup" in gold or r"\in " in gold or "infty" in gold:
        return None
    for opens, closes in ((r"\left(", r"\right)"), ("(", ")"), (r"\{", r"\}"), ("", "")):
        if gold.startswith(opens) and gold.endswith(closes):
            inner = gold[len(opens) : len(gold) - len(closes)]
            parts = [part.strip() for part in inner.split(",")]
            thousands = not opens and re.search(r",[0-9]{3}|\{,\}|\\!", gold)
            return (
                (opens, parts, closes)
                if len(parts) > 1 and not re.search(r"[\[\]()]", inner) and not thousands
                else None
            )
    return None


SAME = (
    ("dfrac", r"\\frac", r"\\dfrac"),
    ("dollar signs", r"^(?!\\\$)(.*)$", r"$\1$"),
    ("a full stop", r"(?<!\.)$", ".", r"p\.m|a\.m"),
    ("unicode minus", "-(?=[0-9x\\\\])", "−", r"text|\{-|\\!"),
    ("root as a power", r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}", r"[0-9] ?\\sqrt|\\text"),
    ("unicode power", r"(?<=[a-z)])\^2(?![0-9])", "²", "text|mbox|\\\\[a-z]+\\^"),
    ("star for nothing", r"(?<![a-z}^])([0-9])([a-z])", r"\1*\2", r"text|mbox|\^\{|\(x|i$"),
    ("unit in words alone", r"\\(?:text|mbox)\{ ?(cm|km|kg|miles|hours|minutes|seconds|inches|feet|mph)\}", r" \1"),
    ("degree sign", r"\^\\circ", "°"),
    ("plain percent sign", r"\\%", "%"),
    ("currency dropped", r"\\\$", ""),
    ("base dropped", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1"),
    ("text without the command", WORD.pattern + "$", r"\1"),
    ("choice without brackets", rf"^{CHOICE.pattern}$", r"\1"),
    ("or between two", r"^([^,({\[]+), ([^,]+)$", r"\1 or \2", r"circ"),
)

OTHER = (
    ("a digit more", r"^(-?[0-9]+)$", r"\g<1>3"),
    ("pi dropped", r"(?<=[0-9])\\pi(?![a-z])", "", r"pi\^"),
    ("another variable", r"(?<![a-z\\])[xymtrhcn](?![a-z])", "g", r"text|mbox|matrix"),
    ("the last sign turned", r" \+ ((?:(?! [+-] ).)+)$", r" - \1", r"text|=|i$|\(.*\+.*\)|frac"),
    ("tuple as a set", r"^(?:\\left)?\(([^()\[\]]*,[^()\[\]]*?)(?:\\right)?\)$", r"\\{\1\\}"),
    ("tuple as a closed interval", r"^\(([^(),\[\]]*,[^,()\[\]]*)\)$", r"[\1]"),
    ("bracket closed", r"(?<!\\infty)\)$", "]", r"^\(-?[^,]*\)$|[^,]*\(.*\(|infty.*infty|^[^(]|^\((?:[^,]*,){2}"),
    ("strict for not strict", r"\\le |\\ge ", "< ", r"\\ge "),
    ("not strict for strict", r"< ", r"\\le "),
    ("percent where none is named", r"^([1-9][0-9]*|[0-9]+\.[0-9]+)$", r"\1\\%"),
    ("thousand where none is named", r"^([1-9][0-9]*)$", r"\1\\text{ thousand}"),
    ("another word", WORD.pattern + "$", r"\\text{un\1}"),
    ("another right side", r"^([^=<>]*) = (.*)$", r"\1 = \2 + 1"),
    ("two of them", r"^(-?[1-9][0-9]*)$", r"\1 \\text{ or } 1\1"),
    ("a word", r"^(?!.*text).*$", r"\\text{unknown}"),
)


def repeating(gold: str, number: Fraction) -> str | None:
    length = next((n for n in range(1, 9) if (10**n - 1) % number.denominator == 0), None)
    if length is None or number.denominator == 1:
        return None
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}.\overline{{{int(rest * (10**length - 1)):0{length}d}}}"


def mixed(gold: str, number: Fraction) -> str | None:
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}" if whole else None


def scientific(gold: str, number: Fraction) -> str | None:
    digits = gold.lstrip("-")
    return rf"{'-' if number < 0 else ''}{digits[0]}.{digits[1:]} \times 10^{{{len(digits) - 1}}}"


def as_inequality(match: re.Match) -> str | None:
    low, high = match[2].strip(), match[3].strip()
    left, right = (r"\le" if bracket in "[]" else "<" for bracket in (match[1], match[4]))
    if match[1] + match[4] == "()":
        return None
    if "infty" in low:
        return f"x {right} {high}"
    return rf"x \ge {low}" if "infty" in high else f"{low} {left} x {right} {high}"


def as_interval(match: re.Match) -> str:
    if match[2] in ("<", r"\le"):
        return rf"(-\infty, {match[3]}" + (")" if match[2] == "<" else "]")
    return ("(" if match[2] == ">" else "[") + rf"{match[3]}, \infty)"


def rough(gold: str, number: Fraction) -> str | None:
    near = Fraction(f"{float(number):.2e}") if number else number
    return f"{float(near):.15f}".rstrip("0") if near != number else None


NUMERIC = r"-?\\[dt]?frac\{[0-9]+\}\{[0-9]+\}$"
WHOLE = r"-?[0-9]+$"
TUPLE, ANY = r"(?:\\left)?\(", r".*"

EQUAL: dict[str, Rewrite] = {name: swap(*rule) for name, *rule in SAME} | {
    "a slash": of_match(FRACTION, lambda m: f"{m[1]}{m[2]}/{m[3]}"),
    "fraction not reduced": of_value(lambda _, n: rf"\frac{{{6 * n.numerator}}}{{{6 * n.denominator}}}"),
    "mixed number": of_value(mixed, NUMERIC),
    "decimal of eight digits": of_value(
        lambda _, n: f"{float(n):.{8 - len(str(int(abs(n))))}f}" if abs(n) > 1 / 10 else None, NUMERIC
    ),
    "repeating decimal": of_value(repeating, NUMERIC),
    "thousands with commas": of_value(lambda _, n: f"{int(n):,}", WHOLE),
    "scientific notation": of_value(scientific, r"-?[0-9]{4,}$"),
    "a name before it": of_scalar(lambda g: None if re.search("[a-z]$|z", re.sub(r"\\[a-z]+", "", g)) else f"z = {g}"),
    "a unit where none is named": of_value(lambda g, _: rf"{g}\text{{ apples}}"),
    "unit dropped": of_match(UNIT, lambda m: None if re.match("thous|mill|and|[ap]\\.m", m[2]) else m[1]),
    "brackets around it": of_scalar(lambda g: f"({g})"),
    "another order of a list or a set": of_items(lambda parts: parts[::-1], r"|\\\{"),
    "set without braces": of_match(re.compile(r"\\\{([^()]*)\\\}"), lambda m: m[1]),
    "interval as an inequality": of_match(ENDS, as_inequality),
    "inequality as an interval": of_match(INEQUALITY, as_interval),
    "equation brought to zero": of_match(
        EQUATION, lambda m: None if re.search(r"\\in|f\(x", m[0]) or m[2] == "0" else f"{m[1]} - ({m[2]}) = 0"
    ),
}

UNEQUAL: dict[str, Rewrite] = {name: swap(*rule) for name, *rule in OTHER} | {
    "one more": shifted(lambda n: n + 1),
    "the other sign": shifted(lambda n: -n),
    "reciprocal": shifted(lambda n: 1 / n if n else n),
    "a billionth more": shifted(lambda n: n * (1 + Fraction(1, 10**9))),
    "rounded to three digits": of_value(rough, NUMERIC),
    "numerator and denominator changed": of_match(FRACTION, lambda m: rf"{m[1]}\frac{{{int(m[2]) + 1}}}{{{m[3]}}}"),
    "tuple in another order": of_items(lambda parts: parts[::-1], TUPLE),
    "a part dropped": of_items(lambda parts: parts[:-1], ANY),
    "a part more": of_items(lambda parts: [*parts, "77"], ANY),
    "a part changed": of_items(lambda parts: [*parts[:-1], f"{parts[-1]} + 1"], ANY, r"\^"),
    "another base": of_match(BASE, lambda m: f"{m[1]}_{{{int(m[2]) + 1}}}"),
    "another choice": of_match(CHOICE, lambda m: rf"\text{{({'D' if m[1] != 'D' else 'A'})}}"),
}
