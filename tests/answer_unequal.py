"""Kinds of near misses of a reference answer, by name."""

from collections.abc import Callable
from fractions import Fraction

from answer_kinds import (
    BASE,
    CHOICE,
    ENDS,
    FRACTION,
    TIME,
    WORD,
    Rewrite,
    items,
    kind,
    latex,
    matrix,
    rows,
    swap,
    value,
)

UNEQUAL: dict[str, Rewrite] = {}


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
swap(UNEQUAL, "a letter behind", r"^([^=<>,]*[0-9}])$", r"\1 t", r"text|mbox|matrix|\\pm|_|\\cup|\\in |\$|^0$")
swap(UNEQUAL, "a letter glued to it", r"^([^=<>,]*[0-9}])$", r"\1m", r"text|mbox|matrix|\\pm|_|\\cup|\\in |\$|^0$")
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


@kind(UNEQUAL, "rounded to three digits")
def _(gold: str) -> str | None:
    number = value(gold)
    rough = None if not number else Fraction(f"{float(number):.2e}")
    return f"{float(rough):.15f}".rstrip("0") if rough and rough != number and FRACTION.fullmatch(gold) else None


@kind(UNEQUAL, "last digit of a long decimal")
def _(gold: str) -> str | None:
    number = value(gold)
    if not number or not FRACTION.fullmatch(gold) or abs(number) < Fraction(1, 100):
        return None
    return f"{float(number):.9f}"[:-1] + ("7" if f"{float(number):.9f}"[-1] < "5" else "1")


@kind(UNEQUAL, "numerator and denominator changed")
def _(gold: str) -> str | None:
    match = FRACTION.fullmatch(gold)
    return rf"{match[1]}\frac{{{int(match[2]) + 1}}}{{{match[3]}}}" if match else None


@kind(UNEQUAL, "tuple in another order")
def _(gold: str) -> str | None:
    found = items(gold)
    if not found or not found[2].endswith(")") or found[1] == found[1][::-1]:
        return None
    return found[0] + ", ".join(found[1][::-1]) + found[2]


@kind(UNEQUAL, "a part dropped")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join(found[1][:-1]) + found[2] if found else None


@kind(UNEQUAL, "a part more")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join([*found[1], "77"]) + found[2] if found else None


@kind(UNEQUAL, "a part changed")
def _(gold: str) -> str | None:
    found = items(gold)
    return (
        found[0] + ", ".join([*found[1][:-1], f"{found[1][-1]} + 1"]) + found[2] if found and "^" not in gold else None
    )


@kind(UNEQUAL, "a part twice in place of another")
def _(gold: str) -> str | None:
    found = items(gold)
    return found[0] + ", ".join([found[1][0]] * len(found[1])) + found[2] if found else None


@kind(UNEQUAL, "end of an interval changed")
def _(gold: str) -> str | None:
    match = ENDS.fullmatch(gold)
    return f"{match[1]}{match[2]} - 1,{match[3]}{match[4]}" if match and "infty" not in match[2] else None


@kind(UNEQUAL, "matrix transposed")
def _(gold: str) -> str | None:
    cells = rows(gold)
    turned = [list(row) for row in zip(*cells, strict=True)] if cells else None
    return matrix(turned) if turned and turned != cells else None


@kind(UNEQUAL, "matrix rows swapped")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix(cells[::-1]) if cells and cells != cells[::-1] else None


@kind(UNEQUAL, "matrix entry changed")
def _(gold: str) -> str | None:
    cells = rows(gold)
    return matrix([[f"{cells[0][0]} + 1", *cells[0][1:]], *cells[1:]]) if cells else None


@kind(UNEQUAL, "another base")
def _(gold: str) -> str | None:
    match = BASE.fullmatch(gold)
    return f"{match[1]}_{{{int(match[2]) + 1}}}" if match else None


@kind(UNEQUAL, "another digit in a base")
def _(gold: str) -> str | None:
    match = BASE.fullmatch(gold)
    return f"1{match[1]}_{{{match[2]}}}" if match else None


@kind(UNEQUAL, "another choice")
def _(gold: str) -> str | None:
    match = CHOICE.fullmatch(gold)
    return rf"\text{{({'D' if match[1] != 'D' else 'A'})}}" if match else None


@kind(UNEQUAL, "another minute")
def _(gold: str) -> str | None:
    match = TIME.fullmatch(gold)
    return rf"{match[1]}:{(int(match[2]) + 1) % 60:02d}\text{{ {match[3]}.m.}}" if match else None
