r"""Rewrites of a reference answer that mean the same, and near misses that do not: a function for each kind.

A function takes a reference and gives its rewrite, or None where the kind does not apply. `EQUAL` and `UNEQUAL` hold
them by name. Each verdict follows from how the rewrite is made, not from a grader.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

Rewrite = Callable[[str], str | None]
EQUAL: dict[str, Rewrite] = {}
UNEQUAL: dict[str, Rewrite] = {}

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


def equal(name: str) -> Callable[[Rewrite], Rewrite]:
    def add(rewrite: Rewrite) -> Rewrite:
        EQUAL[name] = rewrite
        return rewrite

    return add


def unequal(name: str) -> Callable[[Rewrite], Rewrite]:
    def add(rewrite: Rewrite) -> Rewrite:
        UNEQUAL[name] = rewrite
        return rewrite

    return add


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
    return [part.replace("+ ", "").replace("- ", "-") for part in parts] if len(parts) > 1 else None


def joined(parts: list[str]) -> str:
    return re.sub(r"\+ -", "- ", " + ".join(parts))


def rows(gold: str) -> list[list[str]] | None:
    match = MATRIX.fullmatch(gold)
    return [[cell.strip() for cell in row.split("&")] for row in match[2].split(r"\\")] if match else None


def matrix(cells: list[list[str]], kind: str = "p") -> str:
    body = r" \\ ".join(" & ".join(row) for row in cells)
    return rf"\begin{{{kind}matrix}} {body} \end{{{kind}matrix}}"


# Notation, the same for every reference.
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
swap(EQUAL, "plain root", r"\\sqrt\{([0-9]+)\}", r"sqrt(\1)")
swap(EQUAL, "root as a power", r"\\sqrt\{([0-9]+)\}", r"\1^{1/2}", r"[0-9]\\sqrt|\\text")
swap(EQUAL, "power without braces", r"\^\{([0-9])\}", r"^\1")
swap(EQUAL, "power with braces", r"\^([0-9])(?![0-9])", r"^{\1}", "text|mbox")
swap(EQUAL, "power with stars", r"(?<=[a-z])\^([0-9])(?![0-9])", r"**\1", r"text|mbox|\\[a-z]+\^")
swap(EQUAL, "unicode power", r"(?<=[a-z)])\^2(?![0-9])", "²", "text|mbox|\\\\[a-z]+\\^")
swap(EQUAL, "less or equal spelled out", r"\\le ", r"\\leq ")
swap(EQUAL, "unicode less or equal", r"\\le ", "≤ ")
swap(EQUAL, "unicode infinity", r"\\infty", "∞")
swap(EQUAL, "infinity with a plus", r", \\infty", r", +\\infty")
swap(EQUAL, "unicode union", r"\\cup", "∪")
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
swap(EQUAL, "dollars in words", r"\\\$([0-9.,]+)", r"\1 dollars")
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


@equal("case of words")
def _(gold: str) -> str | None:
    return rf"\text{{{match[1].swapcase()}}}" if (match := WORD.fullmatch(gold)) else None


@equal("a slash")
def _(gold: str) -> str | None:
    return f"{match[1]}{match[2]}/{match[3]}" if (match := FRACTION.fullmatch(gold)) else None


@equal("minus in the numerator")
def _(gold: str) -> str | None:
    match = FRACTION.fullmatch(gold)
    return rf"\frac{{-{match[2]}}}{{{match[3]}}}" if match and match[1] else None


@equal("fraction not reduced")
def _(gold: str) -> str | None:
    number = value(gold)
    return None if number is None else rf"\frac{{{6 * number.numerator}}}{{{6 * number.denominator}}}"


@equal("mixed number")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or abs(number) < 1:
        return None
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}"


@equal("mixed number as a fraction")
def _(gold: str) -> str | None:
    match = re.fullmatch(r"([0-9]+)\\frac\{([0-9]+)\}\{([0-9]+)\}", gold)
    return latex(int(match[1]) + Fraction(int(match[2]), int(match[3]))) if match else None


@equal("decimal that ends")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or 10**12 % number.denominator:
        return None
    return f"{float(number):.12f}".rstrip("0")


@equal("decimal of eight digits")
def _(gold: str) -> str | None:
    number = value(gold)
    return f"{float(number):.7e}".replace("e-0", "e-") if number and FRACTION.fullmatch(gold) else None


@equal("repeating decimal")
def _(gold: str) -> str | None:
    number = value(gold)
    if number is None or not FRACTION.fullmatch(gold) or number.denominator % 2 == 0 or number.denominator % 5 == 0:
        return None
    length = next((n for n in range(1, 9) if (10**n - 1) % number.denominator == 0), None)
    if length is None or number.denominator == 1:
        return None
    whole, rest = divmod(abs(number), 1)
    return rf"{'-' if number < 0 else ''}{whole}.\overline{{{int(rest * (10**length - 1)):0{length}d}}}"


@equal("zeros behind the point")
def _(gold: str) -> str | None:
    return gold + ".0" if INTEGER.fullmatch(gold) else gold + "00" if DECIMAL.fullmatch(gold) else None


@equal("decimal as a fraction")
def _(gold: str) -> str | None:
    number = value(gold)
    return latex(number) if number is not None and DECIMAL.fullmatch(gold) else None


@equal("thousands with commas")
def _(gold: str) -> str | None:
    return f"{int(gold):,}" if INTEGER.fullmatch(gold) else None


@equal("thousands with thin spaces")
def _(gold: str) -> str | None:
    return f"{int(gold):,}".replace(",", r"\,") if INTEGER.fullmatch(gold) else None


@equal("thousands without marks")
def _(gold: str) -> str | None:
    return re.sub(r"\{,\}|,\\!|,", "", gold) if re.fullmatch(r"[0-9,{}\\!]+", gold) and not items(gold) else None


@equal("scientific notation")
def _(gold: str) -> str | None:
    if not INTEGER.fullmatch(gold) or len(gold) < 4:
        return None
    digits = gold.lstrip("-")
    return rf"{'-' if gold[0] == '-' else ''}{digits[0]}.{digits[1:]} \times 10^{{{len(digits) - 1}}}"


@equal("a name before it")
def _(gold: str) -> str | None:
    return f"z = {gold}" if is_scalar(gold) and not re.search("[a-z]$|z", re.sub(r"\\[a-z]+", "", gold)) else None


@equal("a unit where none is named")
def _(gold: str) -> str | None:
    return rf"{gold}\text{{ apples}}" if value(gold) is not None else None


@equal("unit dropped")
def _(gold: str) -> str | None:
    match = UNIT.fullmatch(gold)
    return match[1] if match and match[2] not in ("thousand", "million", "and", "a.m.", "p.m.") else None


@equal("brackets around it")
def _(gold: str) -> str | None:
    return f"({gold})" if is_scalar(gold) else None


@equal("minus of its minus")
def _(gold: str) -> str | None:
    return f"-(-({gold}))" if is_scalar(gold) and value(gold) is None and "!" not in gold else None


@equal("terms in another order")
def _(gold: str) -> str | None:
    parts = terms(gold)
    return joined(parts[::-1]) if parts else None


@equal("half of the double")
def _(gold: str) -> str | None:
    return rf"\frac{{2({gold})}}{{2}}" if is_scalar(gold) and value(gold) is None and "e^" not in gold else None


@equal("another order of a list or a set")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join(found[1][::-1]) + found[2] if found and found[0] in ("", r"\{") else None


@equal("set without braces")
def _(gold: str) -> str | None:
    found = items(gold)
    return ", ".join(found[1]) if found and found[0] == r"\{" else None


@equal("tuple as a column")
def _(gold: str) -> str | None:
    found = items(gold)
    return matrix([[part] for part in found[1]]) if found and found[2].endswith(")") and len(found[1]) > 2 else None


@equal("column as a tuple")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return f"({', '.join(row[0] for row in cells)})" if cells and all(len(row) == 1 for row in cells) else None


@equal("matrix entries as sums")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix([[f"0 + {cell}" for cell in row] for row in cells]) if cells and "-" not in gold else None


@equal("both signs written out")
def _(gold: str) -> str | None:
    match = re.fullmatch(r"([^,{]+) \\pm ([^,]+)", gold)
    return f"{match[1]} - {match[2]}, {match[1]} + {match[2]}" if match else None


@equal("interval as an inequality")
def _(gold: str) -> str | None:
    match = ENDS.fullmatch(gold)
    if not match or match[1] + match[4] == "()":
        return None
    low, high = match[2].strip(), match[3].strip()
    left, right = (r"\le" if bracket in "[]" else "<" for bracket in (match[1], match[4]))
    if "infty" in low:
        return f"x {right} {high}"
    return rf"x \ge {low}" if "infty" in high else f"{low} {left} x {right} {high}"


@equal("inequality as an interval")
def _(gold: str) -> str | None:
    match = INEQUALITY.fullmatch(gold)
    if not match:
        return None
    closed = {r"\le": "]", r"\ge": "["}
    if match[2] in ("<", r"\le"):
        return rf"(-\infty, {match[3]}{closed.get(match[2], ')')}"
    return rf"{closed.get(match[2], '(')}{match[3]}, \infty)"


@equal("inequality from the other side")
def _(gold: str) -> str | None:
    match = INEQUALITY.fullmatch(gold)
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
    return f"{match[3]} {turned[match[2]]} {match[1]}" if match else None


@equal("union in another order")
def _(gold: str) -> str | None:
    return r" \cup ".join(gold.split(r" \cup ")[::-1]) if r" \cup " in gold else None


@equal("equation brought to zero")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    plain = match and r"\in" not in gold and "f(" not in gold and match[2] != "0"
    return f"{match[1]} - ({match[2]}) = 0" if match and plain else None


@equal("equation from the other side")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return f"{match[2]} = {match[1]}" if match and not re.fullmatch(r"[a-z]|f\(x\)", match[1]) else None


@equal("equation times two")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return f"2({match[1]}) = 2({match[2]})" if match and len(match[1]) > 4 and "(" not in match[1] else None


@equal("right side alone")
def _(gold: str) -> str | None:
    match = EQUATION.fullmatch(gold)
    return match[2] if match and re.fullmatch(r"[a-z]|f\(x\)", match[1]) else None


# Near misses.
def shifted(name: str, change: Callable[[Fraction], Fraction]) -> None:
    def rewrite(gold: str) -> str | None:
        number = value(gold)
        return latex(change(number)) if number is not None and change(number) != number else None

    UNEQUAL[name] = rewrite


shifted("one more", lambda number: number + 1)
shifted("one less", lambda number: number - 1)
shifted("the other sign", lambda number: -number)
shifted("twice", lambda number: 2 * number)
shifted("ten times", lambda number: 10 * number)
shifted("a tenth", lambda number: number / 10)
shifted("squared", lambda number: number**2 if abs(number) < 10**6 else number)
shifted("reciprocal", lambda number: 1 / number if number else number)
shifted("a billionth more", lambda number: number * (1 + Fraction(1, 10**9)))
shifted("10 to the -20 more", lambda number: number + Fraction(1, 10**20))
swap(UNEQUAL, "a letter behind", r"^([^=<>,]*[0-9}])$", r"\1 t", r"text|mbox|matrix|\\pm|_|\\cup|\\in |\$")
swap(UNEQUAL, "a letter glued to it", r"^([^=<>,]*[0-9}])$", r"\1m", r"text|mbox|matrix|\\pm|_|\\cup|\\in |\$|m$|mm")
swap(UNEQUAL, "a digit more", r"^(-?[0-9]+)$", r"\g<1>3")
swap(UNEQUAL, "pi dropped", r"(?<=[0-9])\\pi(?![a-z])", "", r"pi\^")
swap(UNEQUAL, "i dropped", r"(?<=[0-9])i$", "")
swap(UNEQUAL, "another radicand", r"\\sqrt\{([0-9]+)\}", r"\\sqrt{1\1}")
swap(UNEQUAL, "root dropped", r"\\sqrt\{([0-9]+)\}", r"\1", r"[0-9]\\sqrt|\\pm|\\pi")
swap(UNEQUAL, "another exponent", r"\^\{?([0-9]+)\}?(?![0-9])", r"^{1\1}", "text|mbox")
swap(UNEQUAL, "another variable", r"(?<![a-z\\])[xymtrhcn](?![a-z])", "g", r"text|mbox|matrix")
swap(UNEQUAL, "the last sign turned", r" \+ ((?:(?! [+-] ).)+)$", r" - \1", r"text|=|i$|\(.*\+.*\)|frac")
swap(UNEQUAL, "the last term dropped", r" [+-] ([^+ ()={}-]+)$", "", r"text|=|\(")
swap(UNEQUAL, "another coefficient", r"^([0-9])(?=[a-z\\](?!text))", r"1\1", r"text|mbox|matrix|%|circ|frac\{|!|pm")
swap(UNEQUAL, "another function", r"\\sin", r"\\cos", r"\\cos")
swap(UNEQUAL, "another logarithm", r"\\log_\{?([0-9]+)\}?", r"\\log_{5\1}")
swap(UNEQUAL, "conjugate", r"^(-?[0-9]+) \+ ([0-9]*i)$", r"\1 - \2")
swap(UNEQUAL, "tuple as a set", r"^(?:\\left)?\(([^()\[\]]*,[^()\[\]]*?)(?:\\right)?\)$", r"\\{\1\\}")
swap(UNEQUAL, "tuple as a closed interval", r"^\(([^(),\[\]]*,[^,()\[\]]*)\)$", r"[\1]")
swap(UNEQUAL, "set as a tuple", r"^\\\{(.*)\\\}$", r"(\1)")
swap(UNEQUAL, "infinity closed on the left", r"^\((?=-\\infty)", "[")
swap(UNEQUAL, "infinity closed on the right", r"(?<=\\infty)\)$", "]")
swap(UNEQUAL, "infinity with the other sign", r"\((-?)\\infty, (.*)([)\]])$", r"(\2, \\infty\3", "cup|, .?infty")
swap(UNEQUAL, "bracket opened", r"\[(?!\\)", "(", "matrix")
swap(
    UNEQUAL, "bracket closed", r"(?<!\\infty)\)$", "]", r"^\(-?[^,]*\)$|[^,]*\(.*\(|infty.*infty|^[^(]|^\((?:[^,]*,){2}"
)
swap(UNEQUAL, "part of a union dropped", r" \\cup .*", "")
swap(UNEQUAL, "strict for not strict", r"\\le |\\ge ", "< ", r"\\ge ")
swap(UNEQUAL, "not strict for strict", r"< ", r"\\le ")
swap(UNEQUAL, "inequality turned", r"^([a-z]) < ", r"\1 > ")
swap(UNEQUAL, "inequality of another letter", r"(?<![a-z\\])[xyk](?= (?:<|>|\\le|\\ge))", "w")
swap(UNEQUAL, "centimeters as meters", r"\{ ?cm\}", "{ m}")
swap(UNEQUAL, "kilometers as centimeters", r"\{ ?km\}", "{ cm}")
swap(UNEQUAL, "hours as minutes", r"\{ ?hours\}", "{ minutes}")
swap(UNEQUAL, "minutes as seconds", r"\{ ?minutes\}", "{ seconds}")
swap(UNEQUAL, "inches as feet", r"\{ ?inches\}", "{ feet}")
swap(UNEQUAL, "miles as kilometers", r"\{ ?miles\}", "{ kilometers}")
swap(UNEQUAL, "a square as a length", r"(text|mbox)\{ ?(cm|inches)\}\^2", r"\1{ \2}")
swap(UNEQUAL, "a length as a square", r"(text)\{ ?(cm|m|km|miles|feet)\}$", r"\1{ \2}^2")
swap(UNEQUAL, "degrees as radians", r"\^\\circ$|\{ degrees\}", r"\\text{ radians}", "text|,")
swap(UNEQUAL, "dollars as cents", r"^\\\$([0-9.,]+)$", r"\1\\text{ cents}")
swap(UNEQUAL, "percent of another number", r"^([0-9.]+)\\%$", r"1\1\\%")
swap(UNEQUAL, "percent where none is named", r"^([1-9][0-9]*|[0-9]+\.[0-9]+)$", r"\1\\%")
swap(UNEQUAL, "thousand where none is named", r"^([1-9][0-9]*)$", r"\1\\text{ thousand}")
swap(UNEQUAL, "thousand dropped", r"\\text\{ (?:thousand|million)\}", "")
swap(UNEQUAL, "another word", WORD.pattern + "$", r"\\text{un\1}")
swap(UNEQUAL, "morning for afternoon", r"p\.m", "a.m")
swap(UNEQUAL, "ratio turned", r"^([0-9]):([0-9])$", r"\2:\1")
swap(UNEQUAL, "another right side", r"^([^=<>]*) = (.*)$", r"\1 = \2 + 1")
swap(UNEQUAL, "another left side", r"^x = (.*)$", r"y = \1")
swap(UNEQUAL, "two of them", r"^(-?[1-9][0-9]*)$", r"\1 \\text{ or } 1\1")
swap(UNEQUAL, "both signs", r"^([1-9][0-9]*)$", r"\\pm \1")
swap(UNEQUAL, "a word", r"^(?!.*text).*$", r"\\text{unknown}")


@unequal("rounded to three digits")
def _(gold: str) -> str | None:
    number = value(gold)
    rough = None if not number else Fraction(f"{float(number):.2e}")
    return f"{float(rough):.15f}".rstrip("0") if rough and rough != number and FRACTION.fullmatch(gold) else None


@unequal("last digit of a long decimal")
def _(gold: str) -> str | None:
    number = value(gold)
    if not number or not FRACTION.fullmatch(gold) or abs(number) < Fraction(1, 100):
        return None
    return f"{float(number):.9f}"[:-1] + ("7" if f"{float(number):.9f}"[-1] < "5" else "1")


@unequal("numerator and denominator changed")
def _(gold: str) -> str | None:
    match = FRACTION.fullmatch(gold)
    return rf"{match[1]}\frac{{{int(match[2]) + 1}}}{{{match[3]}}}" if match else None


@unequal("tuple in another order")
def _(gold: str) -> str | None:
    found = items(gold)
    if not found or not found[2].endswith(")") or found[1] == found[1][::-1]:
        return None
    return found[0] + ", ".join(found[1][::-1]) + found[2]


@unequal("a part dropped")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join(found[1][:-1]) + found[2] if found else None


@unequal("a part more")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join([*found[1], "77"]) + found[2] if found else None


@unequal("a part changed")
def _(gold: str) -> str | None:
    found = items(gold)
    return (
        found[0] + ", ".join([*found[1][:-1], f"{found[1][-1]} + 1"]) + found[2] if found and "^" not in gold else None
    )


@unequal("a part twice in place of another")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join([found[1][0]] * len(found[1])) + found[2] if found else None


@unequal("end of an interval changed")
def _(gold: str) -> str | None:
    match = ENDS.fullmatch(gold)
    return f"{match[1]}{match[2]} - 1,{match[3]}{match[4]}" if match and "infty" not in match[2] else None


@unequal("matrix transposed")
def _(gold: str) -> str | None:
    cells = rows(gold)
    turned = [list(row) for row in zip(*cells, strict=True)] if cells else None
    return matrix(turned) if turned and turned != cells else None


@unequal("matrix rows swapped")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix(cells[::-1]) if cells and cells != cells[::-1] else None


@unequal("matrix entry changed")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix([[f"{cells[0][0]} + 1", *cells[0][1:]], *cells[1:]]) if cells else None


@unequal("another base")
def _(gold: str) -> str | None:
    match = BASE.fullmatch(gold)
    return f"{match[1]}_{{{int(match[2]) + 1}}}" if match else None


@unequal("another digit in a base")
def _(gold: str) -> str | None:
    match = BASE.fullmatch(gold)
    return f"1{match[1]}_{{{match[2]}}}" if match else None


@unequal("another choice")
def _(gold: str) -> str | None:
    match = CHOICE.fullmatch(gold)
    return rf"\text{{({'D' if match[1] != 'D' else 'A'})}}" if match else None


@unequal("another minute")
def _(gold: str) -> str | None:
    match = TIME.fullmatch(gold)
    return rf"{match[1]}:{(int(match[2]) + 1) % 60:02d}\text{{ {match[3]}.m.}}" if match else None
