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
TIME = re.compile(r"([0-9]+):([0-9]{2})(?:\\text\{)? ([ap])\.m\.\}?")
ENDS = re.compile(r"(?:x \\in )?(?:\\left)?([(\[])([^,()\[\]]+),([^,()\[\]]+?)(?:\\right)?([)\]])")
MATRIX = re.compile(r"\\begin\{([pb])matrix\}(.*)\\end\{.matrix\}")
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


def of_matrix(change: Callable[[list[list[str]]], list[list[str]]], unless: str = r"(?!)") -> Rewrite:
    """Changes the rows of a matrix."""
    return lambda gold: matrix(change(cells)) if (cells := rows(gold)) and not re.search(unless, gold) else None


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


def terms(gold: str) -> list[str] | None:
    """The terms of a sum without brackets, each with its sign."""
    if not is_scalar(gold) or "\\left" in gold or " " not in gold:
        return None
    found, depth, start = [], 0, 0
    for match in re.finditer(r"[({|]|[)}]| ([+-]) ", gold):
        depth += match[0] in "({"
        depth -= match[0] in ")}"
        if match[0] == "|":
            return None
        if match[1] and depth == 0:
            found.append(gold[start : match.start()])
            start = match.start() + 1
    parts = [*found, gold[start:]]
    return [re.sub(r"^([+-]) ", lambda sign: sign[1].strip("+"), part) for part in parts] if len(parts) > 1 else None


def rows(gold: str) -> list[list[str]] | None:
    match = MATRIX.fullmatch(gold)
    return [[cell.strip() for cell in row.split("&")] for row in match[2].split(r"\\")] if match else None


def matrix(cells: list[list[str]], kind: str = "p") -> str:
    body = r" \\ ".join(" & ".join(row) for row in cells)
    return rf"\begin{{{kind}matrix}} {body} \end{{{kind}matrix}}"


SAME = (
    ("dfrac", r"\\frac", r"\\dfrac"),
    ("fraction without braces", r"\\frac\{([0-9])\}\{([0-9])\}", r"\\frac\1\2", r"\\frac\{[^{}]\}\{.\}[0-9]"),
    ("dollar signs", r"^(?!\\\$)(.*)$", r"$\1$"),
    ("a full stop", r"(?<!\.)$", ".", r"p\.m|a\.m"),
    ("display style", r"^(.*)$", r"\\displaystyle \1"),
    ("thin space after commas", r", ?(?![0-9]{3}|\\!)", r",\\, ", r"\{,\}"),
    ("braces", r"^([^{}]*)$", r"{\1}", r"text|,|:"),
    ("unicode minus", "-(?=[0-9x\\\\])", "−", r"text|\{-|\\!"),
    ("plain pi", r"\\pi(?![a-z])", "pi", r"pi [a-z]|\\pi\\|frac"),
    ("plain root", r"\\sqrt\{([0-9]+)\}", r" sqrt(\1)"),
    ("root as a power", r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}", r"[0-9] ?\\sqrt|\\text"),
    ("power without braces", r"\^\{(-?[0-9]+)\}", r"^\1"),
    ("power with stars", r"(?<=[a-z])\^([0-9])(?![0-9])", r"**\1", r"text|mbox|\\[a-z]+\^"),
    ("unicode power", r"(?<=[a-z)])\^2(?![0-9])", "²", "text|mbox|\\\\[a-z]+\\^"),
    ("unicode less or equal", r"\\le ", "≤ "),
    ("star for nothing", r"(?<![a-z}^])([0-9])([a-z])", r"\1*\2", r"text|mbox|\^\{|\(x|i$"),
    ("unit in words alone", r"\\(?:text|mbox)\{ ?(cm|km|kg|miles|hours|minutes|seconds|inches|feet|mph)\}", r" \1"),
    ("degree sign", r"\^\\circ", "°"),
    ("degree dropped", r"\^\\circ|\\text\{ degrees\}", ""),
    ("plain percent sign", r"\\%", "%"),
    ("currency dropped", r"\\\$", ""),
    ("dollars in words", r"\\\$([0-9.,]+)$", r"\1 dollars"),
    ("base with braces", r"_([0-9]+)$", r"_{\1}", "log"),
    ("base in words", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1\\text{ base }\2"),
    ("base dropped", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1"),
    ("text without the command", WORD.pattern + "$", r"\1"),
    ("choice without brackets", rf"^{CHOICE.pattern}$", r"\1"),
    ("choice in brackets", rf"^{CHOICE.pattern}$", r"(\1)"),
    ("afternoon in capitals", r"(?:\\text\{)? p\.m\.\}?", " PM"),
    ("square and round matrix brackets", r"(begin|end)\{pmatrix\}", r"\1{bmatrix}"),
    ("and between two", r"^([^,({\[]+), ([^,]+)$", r"\1 \\text{ and } \2", r"[0-9],\\!"),
    ("or between two", r"^([^,({\[]+), ([^,]+)$", r"\1 or \2", r"circ"),
)

OTHER = (
    ("a letter behind", r"^([^=<>,]*[0-9}])$", r"\1 t", r"text|mbox|matrix|\\pm|_|\\cup|\\in |\$|^0$"),
    ("a digit more", r"^(-?[0-9]+)$", r"\g<1>3"),
    ("pi dropped", r"(?<=[0-9])\\pi(?![a-z])", "", r"pi\^"),
    ("another radicand", r"\\sqrt\{([0-9]+)\}", r"\\sqrt{1\1}"),
    ("root dropped", r"\\sqrt\{([0-9]+)\}", r"\1", r"[0-9]\\sqrt|\\pm|\\pi"),
    ("another exponent", r"\^\{?([0-9]+)\}?(?![0-9])", r"^{1\1}", "text|mbox"),
    ("another variable", r"(?<![a-z\\])[xymtrhcn](?![a-z])", "g", r"text|mbox|matrix"),
    ("the last sign turned", r" \+ ((?:(?! [+-] ).)+)$", r" - \1", r"text|=|i$|\(.*\+.*\)|frac"),
    ("another coefficient", r"^([0-9])(?=[a-z\\](?!text))", r"1\1", r"text|mbox|matrix|%|circ|frac\{|!|pm"),
    ("conjugate", r"^(-?[0-9]+) \+ ([0-9]*i)$", r"\1 - \2"),
    ("tuple as a set", r"^(?:\\left)?\(([^()\[\]]*,[^()\[\]]*?)(?:\\right)?\)$", r"\\{\1\\}"),
    ("tuple as a closed interval", r"^\(([^(),\[\]]*,[^,()\[\]]*)\)$", r"[\1]"),
    ("set as a tuple", r"^\\\{(.*)\\\}$", r"(\1)"),
    ("infinity closed on the left", r"^\((?=-\\infty)", "["),
    ("infinity closed on the right", r"(?<=\\infty)\)$", "]"),
    ("bracket closed", r"(?<!\\infty)\)$", "]", r"^\(-?[^,]*\)$|[^,]*\(.*\(|infty.*infty|^[^(]|^\((?:[^,]*,){2}"),
    ("strict for not strict", r"\\le |\\ge ", "< ", r"\\ge "),
    ("not strict for strict", r"< ", r"\\le "),
    ("inequality turned", r"^([a-z]) < ", r"\1 > "),
    ("percent of another number", r"^([0-9.]+)\\%$", r"1\1\\%"),
    ("percent where none is named", r"^([1-9][0-9]*|[0-9]+\.[0-9]+)$", r"\1\\%"),
    ("thousand where none is named", r"^([1-9][0-9]*)$", r"\1\\text{ thousand}"),
    ("thousand dropped", r"\\text\{ (?:thousand|million)\}", ""),
    ("another word", WORD.pattern + "$", r"\\text{un\1}"),
    ("morning for afternoon", r"p\.m", "a.m"),
    ("another right side", r"^([^=<>]*) = (.*)$", r"\1 = \2 + 1"),
    ("two of them", r"^(-?[1-9][0-9]*)$", r"\1 \\text{ or } 1\1"),
    ("both signs", r"^([1-9][0-9]*)$", r"\\pm \1"),
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


TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def rough(gold: str, number: Fraction) -> str | None:
    near = Fraction(f"{float(number):.2e}") if number else number
    return f"{float(near):.15f}".rstrip("0") if near != number else None


def last_digit(gold: str, number: Fraction) -> str | None:
    shown = f"{float(number):.9f}"
    return None if abs(number) < Fraction(1, 100) else shown[:-1] + ("7" if shown[-1] < "5" else "1")


NUMERIC = r"-?\\[dt]?frac\{[0-9]+\}\{[0-9]+\}$"
WHOLE = r"-?[0-9]+$"
TUPLE, ANY = r"(?:\\left)?\(", r".*"

EQUAL: dict[str, Rewrite] = {name: swap(*rule) for name, *rule in SAME} | {
    "a slash": of_match(FRACTION, lambda m: f"{m[1]}{m[2]}/{m[3]}"),
    "minus in the numerator": of_match(FRACTION, lambda m: rf"\frac{{-{m[2]}}}{{{m[3]}}}" if m[1] else None),
    "fraction not reduced": of_value(lambda _, n: rf"\frac{{{6 * n.numerator}}}{{{6 * n.denominator}}}"),
    "mixed number": of_value(mixed, NUMERIC),
    "mixed number as a fraction": of_match(
        re.compile(r"([0-9]+)\\frac\{([0-9]+)\}\{([0-9]+)\}"),
        lambda m: latex(int(m[1]) + Fraction(int(m[2]), int(m[3]))),
    ),
    "decimal that ends": of_value(
        lambda _, n: None if 10**12 % n.denominator else f"{float(n):.12f}".rstrip("0"), NUMERIC
    ),
    "decimal of eight digits": of_value(
        lambda _, n: f"{float(n):.{8 - len(str(int(abs(n))))}f}" if abs(n) > 1 / 10 else None, NUMERIC
    ),
    "repeating decimal": of_value(repeating, NUMERIC),
    "zeros behind the point": of_value(lambda g, _: g + ("00" if "." in g else ".0"), r"-?[0-9.]+$"),
    "thousands with commas": of_value(lambda _, n: f"{int(n):,}", WHOLE),
    "thousands without marks": lambda g: (
        re.sub(r"\{,\}|,\\!|,", "", g) if re.fullmatch(r"[0-9,{}\\!]+", g) and not items(g) else None
    ),
    "scientific notation": of_value(scientific, r"-?[0-9]{4,}$"),
    "a name before it": of_scalar(lambda g: None if re.search("[a-z]$|z", re.sub(r"\\[a-z]+", "", g)) else f"z = {g}"),
    "a unit where none is named": of_value(lambda g, _: rf"{g}\text{{ apples}}"),
    "unit dropped": of_match(UNIT, lambda m: None if re.match("thous|mill|and|[ap]\\.m", m[2]) else m[1]),
    "brackets around it": of_scalar(lambda g: f"({g})"),
    "terms in another order": lambda g: re.sub(r"\+ -", "- ", " + ".join(parts[::-1])) if (parts := terms(g)) else None,
    "half of the double": of_scalar(lambda g: rf"\frac{{2({g})}}{{2}}" if value(g) is None else None, r"e\^"),
    "another order of a list or a set": of_items(lambda parts: parts[::-1], r"|\\\{"),
    "set without braces": of_match(re.compile(r"\\\{([^()]*)\\\}"), lambda m: m[1]),
    "tuple as a column": lambda g: (
        matrix([[part] for part in found[1]])
        if (found := items(g)) and found[2].endswith(")") and len(found[1]) > 2
        else None
    ),
    "both signs written out": of_match(
        re.compile(r"([^,{]+) \\pm ([^,]+)"), lambda m: f"{m[1]} - {m[2]}, {m[1]} + {m[2]}"
    ),
    "interval as an inequality": of_match(ENDS, as_inequality),
    "inequality as an interval": of_match(INEQUALITY, as_interval),
    "inequality from the other side": of_match(INEQUALITY, lambda m: f"{m[3]} {TURNED[m[2]]} {m[1]}"),
    "union in another order": lambda g: r" \cup ".join(g.split(r" \cup ")[::-1]),
    "equation brought to zero": of_match(
        EQUATION, lambda m: None if re.search(r"\\in|f\(x", m[0]) or m[2] == "0" else f"{m[1]} - ({m[2]}) = 0"
    ),
    "equation from the other side": of_match(
        EQUATION, lambda m: None if re.fullmatch(r"[a-z]|f\(x\)", m[1]) else f"{m[2]} = {m[1]}"
    ),
    "right side alone": of_match(EQUATION, lambda m: m[2] if re.fullmatch(r"[a-z]|f\(x\)", m[1]) else None),
}

UNEQUAL: dict[str, Rewrite] = {name: swap(*rule) for name, *rule in OTHER} | {
    "one more": shifted(lambda n: n + 1),
    "one less": shifted(lambda n: n - 1),
    "the other sign": shifted(lambda n: -n),
    "twice": shifted(lambda n: 2 * n),
    "squared": shifted(lambda n: n**2 if abs(n) < 10**6 else n),
    "reciprocal": shifted(lambda n: 1 / n if n else n),
    "a billionth more": shifted(lambda n: n * (1 + Fraction(1, 10**9))),
    "10 to the -20 more": shifted(lambda n: n + Fraction(1, 10**20)),
    "rounded to three digits": of_value(rough, NUMERIC),
    "last digit of a long decimal": of_value(last_digit, NUMERIC),
    "numerator and denominator changed": of_match(FRACTION, lambda m: rf"{m[1]}\frac{{{int(m[2]) + 1}}}{{{m[3]}}}"),
    "tuple in another order": of_items(lambda parts: parts[::-1], TUPLE),
    "a part dropped": of_items(lambda parts: parts[:-1], ANY),
    "a part more": of_items(lambda parts: [*parts, "77"], ANY),
    "a part changed": of_items(lambda parts: [*parts[:-1], f"{parts[-1]} + 1"], ANY, r"\^"),
    "a part twice in place of another": of_items(lambda parts: [parts[0]] * len(parts), ANY),
    "end of an interval changed": of_match(
        ENDS, lambda m: None if "infty" in m[2] else f"{m[1]}{m[2]} - 1,{m[3]}{m[4]}"
    ),
    "matrix transposed": of_matrix(lambda cells: [list(row) for row in zip(*cells, strict=True)]),
    "matrix rows swapped": of_matrix(lambda cells: cells[::-1]),
    "another base": of_match(BASE, lambda m: f"{m[1]}_{{{int(m[2]) + 1}}}"),
    "another choice": of_match(CHOICE, lambda m: rf"\text{{({'D' if m[1] != 'D' else 'A'})}}"),
    "another minute": of_match(TIME, lambda m: rf"{m[1]}:{(int(m[2]) + 1) % 60:02d}\text{{ {m[3]}.m.}}"),
}
