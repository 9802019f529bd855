r"""One notation for answers: `2√3` and `2sqrt(3)` become `2\sqrt{3}`.

Nothing here computes: `minrl/tasks/math/agreement.py` compares what this file reads.
"""

# ruff: noqa: RUF001
import functools
import re
import unicodedata
from itertools import accumulate

from minrl.tasks.boxed import boxes_together

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_SIGNS = {
    "−": "-", "–": "-", "⁄": "/", "÷": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "€": r"\text{euro}",
    "¢": r"\text{cent}",
    "£": r"\text{pound}", "…": r"\ldots ", "≈": r"\approx ",
}  # fmt: skip
_UNICODE = re.compile("|".join(map(re.escape, _SIGNS)))
FORMULA = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+)\$|(?<!\\)\\\((.+?)\\\)|(?<!\\)\\\[(.+?)\\\]", re.DOTALL
)
"""What stands between mathematical delimiters; one group of each match has it."""
TEXT_COMMANDS = "text|textbf|textit|textnormal|textrm|mbox|hbox|mathrm|mathbf|mathit"
TEXT = re.compile(rf"\\(?:{TEXT_COMMANDS}|operatorname)\s*\{{([^{{}}]*)\}}")
NUMERALS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12
}  # fmt: skip
_OPENED = rf"\\(?:{TEXT_COMMANDS})\s*\{{\s*"
_BASE = rf"\s*([0-9]+|{'|'.join(NUMERALS)})\s*"
_SUBSCRIPT = re.compile(
    rf"_\s*(?:\{{\s*{_OPENED}\(?{_BASE}\)?\s*\}}\s*\}}|{_OPENED}{_BASE}\}}|\{{\s*\({_BASE}\)\s*\}}|\({_BASE}\)|\{{{_BASE}\}})"
)
_USUAL = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*(\*\*|__|`)([^*`_]+)\1\s*$", r"\2"),
        (rf"({_OPENED}[^{{}}²³]*[A-Za-z])([²³])\s*\}}", r"\1}\2"),
        (rf"\\(?:text|math)dollar(?![a-z])|{_OPENED}\\?\$\s*\}}", r"\\$"),
        (rf"(?:{_OPENED})?(?:USD|US\\?\$)\s*\}}?\s*(?=[0-9])", r"\\$"),
        (rf"{_OPENED}(-?[0-9]+(?:[.,/:][0-9]+)*)\s*\}}", r"\1"),
        (rf"{_OPENED}(-?[0-9]+(?:[.,/:][0-9]+)*)(\s+[^{{}}0-9]+)\}}", r"\1\\text{\2}"),
        (r"(?<=[0-9]\.)([0-9]*)\(([0-9]+)\)(?![0-9(])", r"\1\\overline{\2}"),
        (r"(?<=\.)([0-9]*)\\dot *\{?([0-9])\}?(?:([0-9]*)\\dot *\{?([0-9])\}?)?", r"\1\\overline{\2\3\4}"),
        (r"\\(?:overline|bar) *\{? *([0-9]+) *\}?", r"\\overline{\1}"),
        (r"(?i)\bper[ -]cent\b", "percent"),
        (r"\\(?:lor|vee)(?![A-Za-z])", " or "),
        (r"^\s*[A-Za-z]\s*(?:\\in(?![a-z])|∈)\s*(?=\\\{)", ""),
        (
            rf"(?i)^\s*([a-z]\s*(?:\\in|∈|=|:)\s*)?(?:{_OPENED})?(?:for )?(?:all|any|every) real(?:s| numbers?)"
            r"(?: [a-z])?\s*\}?[.\s]*$",
            r"\1\\mathbb{R}",
        ),
        (
            rf"(?:^|(?<=[,;] )|(?<=,))(?:{_OPENED})?([A-Z])\s*\}}?(?=\s*(?:\\left)?\([^()A-Z]*,[^()A-Z]*\)"
            r"\s*(?:$|[,;.]))",
            r"\1=",
        ),
    )
]
"""Ways to write that are read as their usual form, before anything else."""
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|sqrt|log|ln|exp|pi|infinity|infty|theta|alpha|beta"
_BARE_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\.?", ""),
        (r"\\([dtc])(?=frac|binom)", "\\\\"),
        (r"(?<=[0-9]),?(?:\\,|\\ |\\!|~|\{,\}) *(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=\\\\) *\[-?[0-9.]+ *(?:pt|mm|cm|em|ex)\]|\\checkmark(?![a-z])|\\ *$", ""),
        (r"\\cr(?![a-z])", r"\\\\"),
        (r"\\(?:text)?color *\{[a-z]+\} *|\\(?:underline|boldsymbol|bf|large|Large)(?![a-z]) *", ""),
        (r"\^ *\{? *(?:\\text\{ *o *\}|o) *\}?$", r"^\\circ "),
        (r"\\log *_ *([0-9]) *", r"\\log_{\1} "),
        (r"\\(?:displaystyle|limits)(?![a-z])|(?<!\\)\\!|\{,\}(?=[0-9]{3})", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-z])|\s+", " "),
        (r"  +", " "),
        (r"\\(?:lbrace|lbrack)(?![a-z])", r"\{"),
        (r"\\(?:rbrace|rbrack)(?![a-z])", r"\}"),
        (r"\\(?:leq|leqslant)(?![a-z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "),
        (r"\\neq?(?![A-Za-z])|\\not *=|(?<![0-9)])!=", r"\\ne "),
        (r"\\pmod *\{? *([0-9a-z]+) *\}?", r"\\pmod{\1}"),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\varnothing(?![a-z])|\\\{ *\\\}", r"\\emptyset "),
        (r"\\in(?![A-Za-z]) *", r"\\in "),
        (r"\\mathbb *\{? *R *\}?|\\R(?![a-z])", r"(-\\infty,\\infty)"),
        (r"\^ *\{? *(?:\\circ|\\degree) *\}?|\\degree(?![a-z])", r"^\\circ "),
        (r"\*\*", "^"),
        (r"\{ *([^{}]*?) *\\choose *([^{}]*?) *\}", r"\\binom{\1}{\2}"),
        (r"\*", r"\\cdot "),
        (r"\^ *(-? *[0-9]{2,}|- *[0-9a-zA-Z])", r"^{\1}"),
        (r"\\sqrt *([0-9]{2,})", r"\\sqrt{\1}"),
        (r"\\frac *([0-9a-zA-Z]|\\pi) *(?=[0-9a-zA-Z{\\])", r"\\frac{\1}"),
        (r"(\\frac *\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}) *([0-9a-zA-Z]|\\pi)", r"\1{\2}"),
        (r"\\infinity(?![a-z])", r"\\infty "),
        (r"\^ *\{? *\\text\{ *(?:st|nd|rd|th) *\} *\}?|(?<=[0-9])(?:st|nd|rd|th)\b", ""),
        (
            r",? *\\text\{ *(?:and|or|,) *\}|,? *(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|(?<=[0-9)}])(?:and|or)(?=[A-Z])",
            ", ",
        ),
        (r"\\(?:c|l)?dots[bc]?(?![a-z])|\.\.\.", r"\\ldots "),
    )
]


def formulas(text: str) -> list[str]:
    r"""What stands between mathematical delimiters.

    >>> formulas(r"If $x=1$ or \(x=2\), it costs \$3.")
    ['x=1', 'x=2']
    """
    return [found[found.lastindex or 0] for found in FORMULA.finditer(text)]


_SENTENCE = re.compile(r"\W*[A-Z][a-z]*,? [^$]*[a-z] [^$]*[0-9]")
"""A sentence that begins behind the last formula and has a number."""
_OPENER = re.compile(r"\A\W*(?:[A-Z][a-z]*, )?")


def ending(text: str) -> str:
    r"""The last formula of a text, or the sentence with a number behind it, or all of it if there is no formula.

    >>> ending("So $x = 2$."), ending("So $x = 2$. Therefore, it is 4."), ending("4")
    ('x = 2', 'it is 4', '4')
    """
    found = list(FORMULA.finditer(text))
    if not found:
        return text
    after = text[found[-1].end() :].rstrip(". ")
    return _OPENER.sub("", after) if _SENTENCE.match(after) else found[-1][found[-1].lastindex or 0]


_BETWEEN = re.compile(r"\s*,?\s*(?:and|or)?\s*")


def undelimited(text: str) -> str:
    r"""What stands in boxes, or else between mathematical delimiters, at the end of the text.

    >>> undelimited(r"so it is $x=3$ or $x=4$."), undelimited("$125$ miles"), undelimited(r"\boxed{1} and \boxed{2}")
    ('x=3, x=4', '125\\text{ miles}', '1, 2')
    """
    if boxes := boxes_together(text):
        return ", ".join(map(undelimited, boxes))
    text = re.sub(r"\\+boxed\s*\{", "", text)  # never closed
    found = list(FORMULA.finditer(text))
    if not found:
        return text.strip("$ ") if text.count("$") - text.count("\\$") == 1 and text.strip()[-1] == "$" else text
    first = len(found) - 1
    while first and _BETWEEN.fullmatch(text, found[first - 1].end(), found[first].start()):
        first -= 1
    before, after = text[: found[first].start()], text[found[-1].end() :].rstrip(". ")
    if _SENTENCE.match(after):
        return after
    if re.search(r"[0-9]\W*(?:or|and)?\W*$", before):
        return re.sub(r"(?<!\\)\$|\\[()\[\]]", "", text)
    joined = ", ".join(one[one.lastindex or 0].strip() for one in found[first:])
    return rf"{joined}\text{{{after}}}" if not before.strip() and re.fullmatch(r"[A-Za-z ./]+", after) else joined


def usual(text: str) -> str:
    r"""The text with the usual form of what is also written in others.

    >>> [usual(text) for text in (r"\text{56 ways}", "0.1(6)", "204_{five}", r"\text{\$}5", "P(3,-4)", "All reals")]
    ['56\\text{ ways}', '0.1\\overline{6}', '204_{5}', '\\$5', 'P=(3,-4)', '\\mathbb{R}']
    """
    text = _SUBSCRIPT.sub(lambda found: f"_{{{NUMERALS.get(base := found[found.lastindex or 0], base)}}}", text)
    for pattern, replacement in _USUAL:
        text = pattern.sub(replacement, text)
    return text


@functools.lru_cache(maxsize=1024)
def normal(text: str) -> str:
    r"""The text in LaTeX of one kind.

    >>> normal("2√3 × x**2"), normal(r"\left(\dfrac{1}{2},\; 3\right)"), normal("½π"), normal("sqrt(x+1)^(2y)")
    ('2\\sqrt{3} \\times x^2', '(\\frac{1}{2}, 3)', '\\frac{1}{2}\\pi', '\\sqrt{x+1}^{2y}')
    """
    text = usual(text)
    text = _RAISED.sub(lambda found: "^{" + found.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _VULGAR.sub(
        lambda found: r" \frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", found[0]).split("⁄")), text
    )
    text = _UNICODE.sub(lambda found: _SIGNS[found[0]], unicodedata.normalize("NFKC", text))
    text = TEXT.sub(lambda found: _letter_or_text(text, found), text)
    text = _outside_text(text, _BARE_FUNCTION, r"\\\1 ")
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    for command in (r"\sqrt", "^"):
        text = _braced(text, command)
    built = re.fullmatch(r"\\\{ *[a-z](?: *\\in *[^|:]*?)? *(?:\\mid|\||:)(.*)\\\}", text)
    return (built[1] if built else text).strip().strip("*").rstrip(".,;").strip()


def _letter_or_text(text: str, found: re.Match[str]) -> str:
    """One letter in a text command is that letter, unless it is a unit: behind a value."""
    is_unit = found[1].strip() in "mgshlL" and re.search(r"[0-9}] *(?:\\[,; ])? *$", text[: found.start()])
    return found[1] if len(found[1].strip()) == 1 and not is_unit else rf"\text{{{found[1]}}}"


def _outside_text(text: str, pattern: re.Pattern[str], replacement: str) -> str:
    pieces = re.split(r"(\\text\{[^{}]*\})", text)
    return "".join(piece if piece.startswith(r"\text{") else pattern.sub(replacement, piece) for piece in pieces)


def _braced(text: str, command: str) -> str:
    """The text with braces for the round brackets of an argument: `^(2x)` -> `^{2x}`."""
    at = 0
    while (found := re.compile(re.escape(command) + r" *\(").search(text, at)) is not None:
        end = closing(text, found.end() - 1)
        if end < 0:
            break
        text = f"{text[: found.start()]}{command}{{{text[found.end() : end]}}}{text[end + 1 :]}"
        at = found.start() + len(command)
    return re.sub(r"\\sqrt +(?=[{\[])", r"\\sqrt", re.sub(r"\\sqrt *([0-9a-zA-Z])", r"\\sqrt{\1}", text))


_OPENS, _CLOSES = ("(", "[", "{", r"\{", r"\langle", r"\begin"), (")", "]", "}", r"\}", r"\rangle", r"\end")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


def nesting(text: str) -> int:
    """How many brackets are open at once at most."""
    return max(accumulate((one in "([{") - (one in ")]}") for one in text), default=0)


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; -1 if it does not. Kinds of brackets may mix: `[0, 1)`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] in _OPENS) - (token[0] in _CLOSES)
        if depth == 0:
            return token.start()
    return -1


def split(text: str, *separators: str) -> list[str]:
    r"""The parts between separators that stand in no bracket.

    >>> split(r"(1,2), \{3,4\}, 5", ","), split(r"[0,1) \cup (2,3)", r"\cup")
    (['(1,2)', '\\{3,4\\}', '5'], ['[0,1)', '(2,3)'])
    """
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in _OPENS) - (token[0] in _CLOSES)
        if token[0] in separators and depth == 0:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    return [*parts, text[start:].strip()]


_THOUSANDS = re.compile(r"(?<![0-9.,])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])|^([1-9][0-9]{0,2}(?: [0-9]{3})+)$")


def without_thousands(text: str) -> str:
    """The text without the marks of thousands that stand in no bracket."""
    pieces, start = [], 0
    for found in _THOUSANDS.finditer(text):
        if len(split(text[: found.start()] + "\x00", "\x00")) == 2:
            pieces += [text[start : found.start()], re.sub("[, ]", "", found[0])]
            start = found.end()
    return "".join(pieces) + text[start:]
