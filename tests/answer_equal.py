"""Kinds of rewrites of a reference answer that mean the same, by name."""

import re
from fractions import Fraction

from answer_kinds import (
    CHOICE,
    DECIMAL,
    ENDS,
    EQUATION,
    FRACTION,
    INEQUALITY,
    INTEGER,
    UNIT,
    WORD,
    Rewrite,
    is_scalar,
    items,
    joined,
    kind,
    latex,
    matrix,
    rows,
    swap,
    terms,
    value,
)

EQUAL: dict[str, Rewrite] = {}
swap(EQUAL, "dfrac", r"\\frac", r"\\dfrac")
swap(EQUAL, "tfrac", r"\\frac", r"\\tfrac")
swap(EQUAL, "fraction without braces", r"\\frac\{([0-9])\}\{([0-9])\}", r"\\frac\1\2", r"\\frac\{[^{}]\}\{.\}[0-9]")
swap(EQUAL, "dollar signs", r"^(?!\\\$)(.*)$", r"$\1$")
swap(EQUAL, "round delimiters", r"^(.*)$", r"\\(\1\\)")
swap(EQUAL, "square delimiters", r"^(.*)$", r"\\[ \1 \\]")
swap(EQUAL, "a full stop", r"(?<!\.)$", ".", r"p\.m|a\.m")
swap(EQUAL, "a box", r"^(.*)$", r"\\boxed{\1}")
swap(EQUAL, "white space around", r"^(.*)$", r"  \1  ")
swap(EQUAL, "display style", r"^(.*)$", r"\\displaystyle \1")
swap(EQUAL, "thin space after commas", r", ?(?![0-9]{3}|\\!)", r",\\, ", r"\{,\}")
swap(EQUAL, "no space", r"(?<=[0-9a-z}]) ([+-]) (?=[0-9a-z\\(])", r"\1", "text|mbox")
swap(
    EQUAL,
    "left and right",
    r"(?<!\\left)\(([^()]*)(?<!\\right)\)",
    r"\\left(\1\\right)",
    r"text|[\[\]]|\^|\(.*\(.*\)\)",
)
swap(EQUAL, "braces", r"^([^{}]*)$", r"{\1}", r"text|,|:")
swap(EQUAL, "unicode minus", "-(?=[0-9x\\\\])", "−", r"text|\{-|\\!")
swap(EQUAL, "unicode pi", r"\\pi(?![a-z])", "π")
swap(EQUAL, "plain pi", r"\\pi(?![a-z])", "pi", r"pi [a-z]|\\pi\\|frac")
swap(EQUAL, "unicode root", r"\\sqrt\{([0-9]+)\}", r"√\1", r"\\frac")
swap(EQUAL, "plain root", r"\\sqrt\{([0-9]+)\}", r" sqrt(\1)")
swap(EQUAL, "root as a power", r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}", r"[0-9] ?\\sqrt|\\text")
swap(EQUAL, "power without braces", r"\^\{(-?[0-9]+)\}", r"^\1")
swap(EQUAL, "power with braces", r"\^([0-9])(?![0-9])", r"^{\1}", "text|mbox")
swap(EQUAL, "power with stars", r"(?<=[a-z])\^([0-9])(?![0-9])", r"**\1", r"text|mbox|\\[a-z]+\^")
swap(EQUAL, "unicode power", r"(?<=[a-z)])\^2(?![0-9])", "²", "text|mbox|\\\\[a-z]+\\^")
swap(EQUAL, "less or equal spelled out", r"\\le ", r"\\leq ")
swap(EQUAL, "unicode less or equal", r"\\le ", "≤ ")
swap(EQUAL, "unicode infinity", r"\\infty", "∞")
swap(EQUAL, "infinity with a plus", r", \\infty", r", +\\infty")
swap(EQUAL, "unicode union", r"\\cup", "∪")  # noqa: RUF001
swap(EQUAL, "times for nothing", r"([0-9])\\(pi|sqrt)", r"\1 \\cdot \\\2", "text")
swap(EQUAL, "star for nothing", r"(?<![a-z}^])([0-9])([a-z])", r"\1*\2", r"text|mbox|\^\{|\(x|i$")
swap(EQUAL, "natural name of a unit", r"\\(?:text|mbox)\{ ?cm\}", r"\\text{ centimeters}")
swap(EQUAL, "unit in roman type", r"\\text\{ ?(cm|m|km|kg|mph)\}", r"\\mathrm{\1}")
swap(
    EQUAL, "unit in words alone", r"\\(?:text|mbox)\{ ?(cm|km|kg|miles|hours|minutes|seconds|inches|feet|mph)\}", r" \1"
)
swap(EQUAL, "degree sign", r"\^\\circ", "°")
swap(EQUAL, "degree with braces", r"\^\\circ", r"^{\\circ}")
swap(EQUAL, "degrees in words", r"\^\\circ", r"\\text{ degrees}")
swap(EQUAL, "degree dropped", r"\^\\circ|\\text\{ degrees\}", "")
swap(EQUAL, "plain percent sign", r"\\%", "%")
swap(EQUAL, "percent in words", r"\\%", r"\\text{ percent}")
swap(EQUAL, "percent dropped", r"\\%", "")
swap(EQUAL, "currency dropped", r"\\\$", "")
swap(EQUAL, "dollars in words", r"\\\$([0-9.,]+)$", r"\1 dollars")
swap(EQUAL, "base with braces", r"_([0-9]+)$", r"_{\1}", "log")
swap(EQUAL, "base in text", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1_{\\text{\2}}")
swap(EQUAL, "base in words", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1\\text{ base }\2")
swap(EQUAL, "base dropped", r"^([0-9]+)_\{?([0-9]+)\}?$", r"\1")
swap(EQUAL, "text without the command", WORD.pattern + "$", r"\1")
swap(EQUAL, "bold text", WORD.pattern + "$", r"\\textbf{\1}")
swap(EQUAL, "roman text", WORD.pattern + "$", r"\\mathrm{\1}")
swap(EQUAL, "choice without brackets", rf"^{CHOICE.pattern}$", r"\1")
swap(EQUAL, "choice in brackets", rf"^{CHOICE.pattern}$", r"(\1)")
swap(EQUAL, "afternoon without points", r"([ap])\.m\.", r"\1m")
swap(EQUAL, "afternoon in capitals", r"(?:\\text\{)? p\.m\.\}?", " PM")
swap(EQUAL, "member sign dropped", r"x \\in ", "")
swap(EQUAL, "square and round matrix brackets", r"(begin|end)\{pmatrix\}", r"\1{bmatrix}")
swap(EQUAL, "natural thousands", r"\\text\{ thousand\}", "{,}000")
swap(EQUAL, "and between two", r"^([^,({\[]+), ([^,]+)$", r"\1 \\text{ and } \2", r"[0-9],\\!")
swap(EQUAL, "or between two", r"^([^,({\[]+), ([^,]+)$", r"\1 or \2", r"circ")


@kind(EQUAL, "case of words")
def _(gold: str) -> str | None:
    return rf"\text{{{match[1].swapcase()}}}" if (match := WORD.fullmatch(gold)) else None


@kind(EQUAL, "a slash")
def _(gold: str) -> str | None:
    return f"{match[1]}{match[2]}/{match[3]}" if (match := FRACTION.fullmatch(gold)) else None


@kind(EQUAL, "minus in the numerator")
def _(gold: str) -> str | None:
    match = FRACTION.fullmatch(gold)
    return rf"\frac{{-{match[2]}}}{{{match[3]}}}" if match and match[1] else None


@kind(EQUAL, "fraction not reduced")
def _(gold: str) -> str | None:
    number = value(gold)
    return None if number is None else rf"\frac{{{6 * number.numerator}}}{{{6 * number.denominator}}}"


@kind(EQUAL, "mixed number")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or abs(number) < 1:
        return None
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}"


@kind(EQUAL, "mixed number as a fraction")
def _(gold: str) -> str | None:
    match = re.fullmatch(r"([0-9]+)\\frac\{([0-9]+)\}\{([0-9]+)\}", gold)
    return latex(int(match[1]) + Fraction(int(match[2]), int(match[3]))) if match else None


@kind(EQUAL, "decimal that ends")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or 10**12 % number.denominator:
        return None
    return f"{float(number):.12f}".rstrip("0")


@kind(EQUAL, "decimal of eight digits")
def _(gold: str) -> str | None:
    number = value(gold) if FRACTION.fullmatch(gold) else None
    return f"{float(number):.{8 - len(str(int(abs(number))))}f}" if number and abs(number) > 1 / 10 else None


@kind(EQUAL, "repeating decimal")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or number.denominator % 2 == 0 or number.denominator % 5 == 0:
        return None
    length = next((n for n in range(1, 9) if (10**n - 1) % number.denominator == 0), None)
    if length is None or number.denominator == 1:
        return None
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}.\overline{{{int(rest * (10**length - 1)):0{length}d}}}"


@kind(EQUAL, "zeros behind the point")
def _(gold: str) -> str | None:
    return gold + ".0" if INTEGER.fullmatch(gold) else gold + "00" if DECIMAL.fullmatch(gold) else None


@kind(EQUAL, "decimal as a fraction")
def _(gold: str) -> str | None:
    number = value(gold)
    return latex(number) if number is not None and DECIMAL.fullmatch(gold) else None


@kind(EQUAL, "thousands with commas")
def _(gold: str) -> str | None:
    return f"{int(gold):,}" if INTEGER.fullmatch(gold) else None


@kind(EQUAL, "thousands with thin spaces")
def _(gold: str) -> str | None:
    return f"{int(gold):,}".replace(",", r"\,") if INTEGER.fullmatch(gold) else None


@kind(EQUAL, "thousands without marks")
def _(gold: str) -> str | None:
    return re.sub(r"\{,\}|,\\!|,", "", gold) if re.fullmatch(r"[0-9,{}\\!]+", gold) and not items(gold) else None


@kind(EQUAL, "scientific notation")
def _(gold: str) -> str | None:
    if not INTEGER.fullmatch(gold) or len(gold) < 4:
        return None
    digits = gold.lstrip("-")
    return rf"{'-' if gold[0] == '-' else ''}{digits[0]}.{digits[1:]} \times 10^{{{len(digits) - 1}}}"


@kind(EQUAL, "a name before it")
def _(gold: str) -> str | None:
    return f"z = {gold}" if is_scalar(gold) and not re.search("[a-z]$|z", re.sub(r"\\[a-z]+", "", gold)) else None


@kind(EQUAL, "a unit where none is named")
def _(gold: str) -> str | None:
    return rf"{gold}\text{{ apples}}" if value(gold) is not None else None


@kind(EQUAL, "unit dropped")
def _(gold: str) -> str | None:
    match = UNIT.fullmatch(gold)
    return match[1] if match and match[2] not in ("thousand", "million", "and", "a.m.", "p.m.") else None


@kind(EQUAL, "brackets around it")
def _(gold: str) -> str | None:
    return f"({gold})" if is_scalar(gold) else None


@kind(EQUAL, "minus of its minus")
def _(gold: str) -> str | None:
    return f"-(-({gold}))" if is_scalar(gold) and value(gold) is None and "!" not in gold else None


@kind(EQUAL, "terms in another order")
def _(gold: str) -> str | None:
    parts = terms(gold)
    return joined(parts[::-1]) if parts else None


@kind(EQUAL, "half of the double")
def _(gold: str) -> str | None:
    return rf"\frac{{2({gold})}}{{2}}" if is_scalar(gold) and value(gold) is None and "e^" not in gold else None


@kind(EQUAL, "another order of a list or a set")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join(found[1][::-1]) + found[2] if found and found[0] in ("", r"\{") else None


@kind(EQUAL, "set without braces")
def _(gold: str) -> str | None:
    found = items(gold)
    return ", ".join(found[1]) if found and found[0] == r"\{" else None


@kind(EQUAL, "tuple as a column")
def _(gold: str) -> str | None:
    found = items(gold)
    return matrix([[part] for part in found[1]]) if found and found[2].endswith(")") and len(found[1]) > 2 else None


@kind(EQUAL, "column as a tuple")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return f"({', '.join(row[0] for row in cells)})" if cells and all(len(row) == 1 for row in cells) else None


@kind(EQUAL, "matrix entries as sums")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix([[f"0 + {cell}" for cell in row] for row in cells]) if cells and "-" not in gold else None


@kind(EQUAL, "both signs written out")
def _(gold: str) -> str | None:
    match = re.fullmatch(r"([^,{]+) \\pm ([^,]+)", gold)
    return f"{match[1]} - {match[2]}, {match[1]} + {match[2]}" if match else None


@kind(EQUAL, "interval as an inequality")
def _(gold: str) -> str | None:
    match = ENDS.fullmatch(gold)
    if not match or match[1] + match[4] == "()":
        return None
    low, high = match[2].strip(), match[3].strip()
    left, right = (r"\le" if bracket in "[]" else "<" for bracket in (match[1], match[4]))
    if "infty" in low:
        return f"x {right} {high}"
    return rf"x \ge {low}" if "infty" in high else f"{low} {left} x {right} {high}"


@kind(EQUAL, "inequality as an interval")
def _(gold: str) -> str | None:
    match = INEQUALITY.fullmatch(gold)
    if not match:
        return None
    closed = {r"\le": "]", r"\ge": "["}
    if match[2] in ("<", r"\le"):
        return rf"(-\infty, {match[3]}{closed.get(match[2], ')')}"
    return rf"{closed.get(match[2], '(')}{match[3]}, \infty)"


@kind(EQUAL, "inequality from the other side")
def _(gold: str) -> str | None:
    match = INEQUALITY.fullmatch(gold)
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
    return f"{match[3]} {turned[match[2]]} {match[1]}" if match else None


@kind(EQUAL, "union in another order")
def _(gold: str) -> str | None:
    return r" \cup ".join(gold.split(r" \cup ")[::-1]) if r" \cup " in gold else None


@kind(EQUAL, "equation brought to zero")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    plain = match and r"\in" not in gold and "f(" not in gold and match[2] != "0"
    return f"{match[1]} - ({match[2]}) = 0" if match and plain else None


@kind(EQUAL, "equation from the other side")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return f"{match[2]} = {match[1]}" if match and not re.fullmatch(r"[a-z]|f\(x\)", match[1]) else None


@kind(EQUAL, "equation times two")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return f"2({match[1]}) = 2({match[2]})" if match and len(match[1]) > 4 and "(" not in match[1] else None


@kind(EQUAL, "right side alone")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return match[2] if match and re.fullmatch(r"[a-z]|f\(x\)", match[1]) else None
