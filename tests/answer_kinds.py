r"""How reference answers are rewritten: a kind is a function from a reference to its rewrite, or to None where it does
not apply. answer_equal.py has the kinds that mean the same, answer_unequal.py the near misses. Each verdict follows
from how the rewrite is made, not from a grader.
"""

import re
from collections.abc import Callable, Iterator
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


def kind(kinds: dict[str, Rewrite], name: str) -> Callable[[Rewrite], Rewrite]:
    """Enters a function under a name."""

    def enter(rewrite: Rewrite) -> Rewrite:
        kinds[name] = rewrite
        return rewrite

    return enter


def swap(kinds: dict[str, Rewrite], name: str, pattern: str, replacement: str, unless: str = r"(?!)") -> None:
    """A kind that replaces a pattern everywhere, where it occurs."""

    def rewrite(gold: str) -> str | None:
        return re.sub(pattern, replacement, gold) if re.search(pattern, gold) and not re.search(unless, gold) else None

    kinds[name] = rewrite


def pairs(kinds: dict[str, Rewrite], golds: list[str]) -> Iterator[tuple[str, str, str]]:
    """Kind, reference and rewrite of every kind and every reference that it applies to."""
    for name, rewrite in kinds.items():
        for gold in golds:
            made = rewrite(gold)
            if made is not None and made != gold:
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


def joined(parts: list[str]) -> str:
    return re.sub(r"\+ -", "- ", " + ".join(parts))


def rows(gold: str) -> list[list[str]] | None:
    match = MATRIX.fullmatch(gold)
    return [[cell.strip() for cell in row.split("&")] for row in match[2].split(r"\\")] if match else None


def matrix(cells: list[list[str]], kind: str = "p") -> str:
    body = r" \\ ".join(" & ".join(row) for row in cells)
    return rf"\begin{{{kind}matrix}} {body} \end{{{kind}matrix}}"
