r"""An answer without what dresses it: `\text{The answer is } \color{blue}{52₈}` is `52_{8}`.

What is taken off says nothing of the value: size, colour and emphasis, labels such as `Answer:`, signs of an end. What
is rewritten is another spelling, for those that read the answer behind this file.
"""

import re
import unicodedata

from minrl.tasks.changing import CHANGES, SCALES, WORDS, spoken
from minrl.tasks.math.notation import TEXT_COMMANDS, closing, split
from minrl.tasks.math.written import last, number

_TEXT = rf"\\(?:{TEXT_COMMANDS}|operatorname|texttt)\s*\{{"
_SUBSCRIPTS = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
_LOWERED, _RAISED = re.compile("[\u2080-\u2089]+"), re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
_WIDE = re.compile("[\uff01-\uff5e]+")
_TURNED = r"\^\s*\{?\s*(?:T|\\top|\\intercal|\\(?:text|mathrm|mathsf)\s*\{T\})\s*\}?"
_CELLS = r"((?:(?!\\begin|\\end).)*)"
_SPELLINGS = [
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in (
        (r"\\(?:tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge)(?![A-Za-z])", ""),
        (r"\\(?:(?:display|text|scriptscript|script)style|rm|bf|sf|tt|thinspace|medspace|enspace)(?![A-Za-z])", " "),
        (r"\\[hv]space\*?\s*\{[^{}]*\}|\\tag\*?\s*\{[^{}]*\}|\\[hv]?phantom\s*\{[^{}]*\}", " "),
        (r"\\(?:text)?color\s*\{[A-Za-z0-9!]+\}", ""),
        (r"\\(?:leqslant|leqq)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geqslant|geqq)(?![A-Za-z])", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\lbrack(?![A-Za-z])\s*", "["),
        (r"\s*\\rbrack(?![A-Za-z])", "]"),
        (r"\\lparen(?![A-Za-z])\s*", "("),
        (r"\s*\\rparen(?![A-Za-z])", ")"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\middle\s*(?=\||\\mid|\\vert)", ""),
        (r"\\bigcup(?![A-Za-z_])|(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        (r"(?<=[,;(\[+-])(\s*)(?:inf|oo)(?=\s*[,;)\]\[])", r"\1\\infty "),
        (r"\\surd(?![A-Za-z])", r"\\sqrt "),
        (r"\\uppi(?![A-Za-z])", r"\\pi "),
        (r"(?<=[0-9])\\[ij]math(?![A-Za-z])", "i"),
        (rf"\\degree(?![A-Za-z])|(?<=[0-9])\u00ba|{_TEXT}\s*\u00b0\s*\}}", r"^\\circ "),
        (r"&\s*=", "="),
        (r"(?<![A-Za-z])\{-\}(?=[0-9\\])", "-"),
        (rf"^{_TEXT}([A-Za-z ,]+ (?:is|are|equals))[ :]*\}}\s*([^$]*[^$.\s])\.?$", r"\1 $\2$"),
        (r"\\(?:nice|s|flat)frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*?)\\over(?![A-Za-z])([^{}]*)\}|^([^{}]*?)\\over(?![A-Za-z])([^{}]*)$", r"\\frac{\1\3}{\2\4}"),
        (r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"(?<=[0-9}])\s*\\q?quad\s*(?=[a-z]\s*=)", ", "),
        (r"\\SI\s*\{([^{}]*)\}\s*\{([^{}\\]*)\}", r"\1\\text{ \2}"),
        (r"(?<=[A-Za-z])\s*\$\s*\^\s*\{?([23])\}?\s*\$\s*\}", r"}^\1"),
        (rf"{_TEXT}[~ ]*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*\}}", r"\\text{ \1 per \2}"),
        (
            rf"\\frac\s*\{{{_TEXT}\s*([A-Za-z]+)\s*\}}\s*\}}\s*\{{{_TEXT}\s*([A-Za-z]+)\s*\}}\s*\}}",
            r"\\text{ \1 per \2}",
        ),
        (r"(?<=[0-9}])\s*\\operatorname\s*\{([^{}]*)\}", r"\\text{\1}"),
        (rf"_\s*\{{\s*{_TEXT}\s*base\s*\}}\s*([0-9]+)\s*\}}", r"_{\1}"),
        (r"(?<![.0-9])\\overline\s*\{([0-9A-F]+)\}(?=\s*_)", r"\1"),
        (
            r"(?:\\left)?[(\[]\s*\\begin\{(array|matrix|smallmatrix)\}(?:\{[clr|]*\})?"
            + _CELLS
            + r"\\end\{\1\}\s*(?:\\right)?[)\]]",
            r"\\begin{pmatrix}\2\\end{pmatrix}",
        ),
        (r"^(-?[0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)$", r"\1\\frac{\2}{\3}"),
        (r"(?<=[0-9}])(?:\\ |\s)*\(\s*" + _TEXT + r"\s*([A-Za-z][A-Za-z ,]+)\}\s*\)$", r" (\1)"),
        (r"(?<=[0-9}])(?:\\ |\s)*" + _TEXT + r"\s*\(\s*([A-Za-z][A-Za-z ,]+)\)\s*\}$", r" (\1)"),
    )
]
_ROW_TURNED = re.compile(r"\\begin\{([pb]matrix)\}((?:(?!\\\\|\\begin|\\end).)*)\\end\{\1\}" + _TURNED, re.DOTALL)
_BUILT = re.compile(
    r"(?:\\left)?\\\{\s*([a-z])(?:\s*\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\,|\\;|\s)*(?:\\mid|\\vert|\||:|\\colon)(?![A-Za-z])"
    r"(?:\\,|\\;|\s)*([^{}]*(?:\{[^{}]*\}[^{}]*)*[<>=]?[^{}]*)(?:\\right)?\\\}"
)
_NESTED_LISTS = re.compile(r"\[\s*\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*\s*\]")
_ROWS = re.compile(
    r"\\begin\{(equation|aligned|align|gathered|gather|split|cases|math|displaymath)(\*?)\}"
    + _CELLS
    + r"\\end\{\1\2\}",
    re.DOTALL,
)
_FRENCH = re.compile(r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])")
_BOTH = re.compile(
    rf"([a-z])\s*(>|<|\\[gl]eq?)\s*([^<>=a-z]*(?:\\(?:frac|sqrt|pi)[^<>=]*?)?)\s*(?:{_TEXT}\s*and\s*\}}|\\land|\\wedge|and)"
    r"\s*\1\s*(>|<|\\[gl]eq?)(?![A-Za-z])\s*([^<>=]+)"
)
_ALL_OF_IT = re.compile(
    r"\\(?:bm|boldsymbol|pmb|mathsf|mathbf|mathit|mathrm|mathnormal|mathord|ensuremath|fbox|framebox|underline|uline"
    r"|textsf|texttt|text|textbf|textit|textrm|mbox)\s*\{"
)
_PLAIN_TEXT = re.compile(r"[^\\$]*")
_WRAPS = [("```", "```"), ("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ('"', '"'), ("\u201c", "\u201d")]
_HTML = re.compile(r"<(b|strong|i|em|u|code|span|p|div)>(.*)</\1>", re.DOTALL)
_FENCE_NAME = re.compile(r"\A[a-z]{1,10}[ \t]*\n")
_SO = r"(?:so|thus|hence|therefore|then|finally|in conclusion)"
_THE = r"(?:(?:the|our|my)\s+)?(?:(?:final|correct|required|desired|simplified|exact|numerical)\s+)*"
_SAYS = rf"{_THE}(?:answer|result|solution)s?(?:\s+(?:to|of) (?:the|this) (?:problem|question|equation))?"
_LABEL = (
    rf"(?:{_SO},?\s+)?{_SAYS}\s*"
    r"(?:\**\s*[:=]\s*\**|\s(?:is|are|equals)(?:\s+(?:thus|therefore|given by))?(?![A-Za-z])\s*:?)|"
    rf"{_SO}(?:,|(?![A-Za-z]))|there (?:are|is)(?: (?:exactly|only|a total of))?(?![A-Za-z])|either(?![A-Za-z])"
    r"|(?:point|range|domain|interval)s?:?(?=\s*\}?\s*(?:\\left)?[(\[])"
)
_LABELS = re.compile(
    rf"\s*(?:#+\s*|\*\*)?(?:{_TEXT}\s*(?:{_LABEL})\s*\}}|(?:{_LABEL})|#+\s|(?:final )?answer\**\s*\n|"
    r"\\(?:therefore|Rightarrow|implies|Longrightarrow)(?![A-Za-z])|[\u2234\u21d2]|[-=]+>|=(?!=)"
    rf"|{_TEXT}\s*(?:for )?all(?: real)?\s*\}}(?=\s*[a-z]\s*(?:[<>]|\\[gl]e)))(?:\\[ ,;:]|[~\s])*",
    re.IGNORECASE,
)
_LABEL_IN_TEXT = re.compile(rf"({_TEXT})\s*(?:{_LABEL})\s+(?=[^}}\s])", re.IGNORECASE)
_END = re.compile(
    rf"(?:\\[ ,;:]|\\q?quad|[~\s])*"
    rf"(?:\\(?:checkmark|blacksquare|square|Box|qed|QED)|{_TEXT}\s*is the (?:final )?answer\.?\s*\}}"
    r"|[\u2713\u2714\u2705\u220e\u25a0])(?:\\[ ,;:]|[~\s.])*$"
)
_CHOSEN = re.compile(
    rf"(?:{_TEXT}\s*)?(?:option|choice|graph|answer)\s*\}}?\s*:?\s*(\(?[A-J]\)?)\s*\}}?", re.IGNORECASE
)
_LETTER = re.compile(rf"(?:{_TEXT})?\(?[A-J]\)?\}}?")
_MINERVA = re.compile(r"the final answer is (?P<said>[^\n]{1,200})\. I hope it is correct\.?\s*\Z", re.IGNORECASE)
"""How the prompt of Minerva (arXiv:2206.14858) has an answer end."""
_EQUALS = re.compile(r"^([A-Za-z])\s+(?:equals|is equal to)\s+")
_MODULUS = r"\s*\{?\s*([0-9]+)\s*\}?"
_CONGRUENT = re.compile(
    r"(?:[A-Za-z0-9^{}()+* -]{1,40}\\equiv\s*)?(-?[0-9]+)\s*"
    rf"(?:\\pmod{_MODULUS}|\(?\s*\\(?:b?mod|text\s*\{{\s*mod\s*\}}){_MODULUS}\s*\)?)"
)
_IN_WORDS = re.compile(rf"(?:(?:{'|'.join([*WORDS, *SCALES])})(?:[ -]+(?:and )?|$))+", re.IGNORECASE)
_PARTS = ["half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_UNDER = {word: under for under, word in enumerate(_PARTS, 2)} | {"halve": 2, "fourth": 4}
_PARTED = re.compile(rf"(a|{'|'.join(WORDS)})[ -]({'|'.join(_UNDER)})s?", re.IGNORECASE)
_RATIO = re.compile(rf"(-?[0-9]+)\s*(?:{_TEXT}\s*to\s*\}}|to)\s*(-?[0-9]+)")
_BELOW = re.compile(r"^(?:minus|negative)\s+(?=[0-9]|\\frac|[a-z])", re.IGNORECASE)
_FUNCTION = re.compile(r"([fgh])\(x\)\s*=(?!=)")
_POSITIVE = re.compile(r"([A-Za-z]\s*=[^=<>]*[^=<>\s])\s*>\s*0\.?")
DEEPEST = 8
"""Labels, wrapping commands and the like within each other that are taken off."""
LONGEST = 200
"""Longer texts are no number in words and no pair of inequalities."""
_REPEATED = re.compile(r"([ \t~])[ \t~]+")
_GROUPED = re.compile(r"-?[1-9][0-9]{0,2}(?:'[0-9]{3})+")


def bare(answer: str, gold: str, problem: str = "") -> str:
    r"""The answer without what dresses it. A label is none where the reference has it too.

    >>> [bare(text, "9") for text in (r"\text{Answer: } 9", "= 9", r"\bm{9} \checkmark", "nine ways", "9 (nine)")]
    ['9', '9', '9', '9 ways', '9']
    >>> bare("52\u2088", "52_8"), bare(r"\text{Option C}", "C"), bare("]2, 3]", "(2,3]")
    ('52_{8}', 'C', '(2, 3]')
    """
    text, before = _REPEATED.sub(r"\1", answer).strip(), None
    if final := _MINERVA.search(text):
        text = final["said"]
    for _ in range(DEEPEST):
        if text == before:
            break
        before = text
        text = _spelled(_undressed(text)).strip()
        text = _LABEL_IN_TEXT.sub(r"\1", text, count=1) if _LABEL_IN_TEXT.match(text) else text
        label = _LABELS.match(text)
        if label and label.end() < len(text) and not gold.lstrip().startswith(label[0].strip()):
            text = text[label.end() :].strip()
    if chosen := _LETTER.fullmatch(gold.strip()) and _CHOSEN.fullmatch(text.rstrip(".")):
        return chosen[1]
    if congruent := _CONGRUENT.fullmatch(text):
        modulus = congruent[2] or congruent[3]
        if "mod" not in gold and re.search(rf"(?<![0-9]){modulus}(?![0-9])", problem):
            return congruent[1]
    text = _named(text, gold, problem)
    if ":" in gold and (ratio := _RATIO.fullmatch(text)):
        return f"{ratio[1]}:{ratio[2]}"
    return _in_digits(text) if len(text) < LONGEST and re.search("[0-9]", gold) else text


def _named(text: str, gold: str, problem: str) -> str:
    """`f(x) = x+1` as `y = x+1` where the problem has no f, and `x = 12 > 0` as `x = 12`."""
    function = re.match(r"\s*y\s*=", gold) and _FUNCTION.match(text)
    if function and not re.search(rf"(?<![A-Za-z\\]){function[1]}(?![A-Za-z])", problem):
        return "y=" + text[function.end() :]
    positive = re.search("[1-9]", gold) and "-" not in gold and number(last(gold)) and _POSITIVE.fullmatch(text)
    return positive[1] if positive else text


def _undressed(text: str) -> str:
    """Without emphasis, wrapping commands and signs of an end around the whole of it."""
    text = _END.sub("", text).strip() or text
    if found := _HTML.fullmatch(text):
        return found[2]
    for opens, closes in _WRAPS:
        if len(text) > len(opens + closes) and text.startswith(opens) and text.endswith(closes):
            inner = text[len(opens) : -len(closes)]
            if opens not in inner:
                return _FENCE_NAME.sub("", inner)
    found = _ALL_OF_IT.match(text)
    if found and closing(text, found.end() - 1) == len(text) - 1:
        inner = text[found.end() : -1]
        if not (found[0].startswith((r"\text", r"\mbox", r"\math")) and _PLAIN_TEXT.fullmatch(inner)):
            return inner
    if (found := _ROWS.fullmatch(text)) and "&" not in (inner := re.sub(r"&\s*=", "=", found[3])):
        rows = [row.strip() for row in inner.split(r"\\") if row.strip()]
        if len(rows) == 1 or all("=" in row for row in rows):
            return ", ".join(rows)
    return text


def _spelled(text: str) -> str:
    """In the spelling that is read."""
    if not text.isascii():
        text = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
        text = _LOWERED.sub(lambda found: f"_{{{found[0].translate(_SUBSCRIPTS)}}}", text)
        if r"\text" not in text and r"\mathrm" not in text:
            text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", text)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _ROW_TURNED.sub(
        lambda found: rf"\begin{{{found[1]}}}" + found[2].replace("&", r"\\") + rf"\end{{{found[1]}}}", text
    )
    if (built := len(text) < LONGEST and _BUILT.fullmatch(text)) and re.search(r"[<>]|\\[gl]e", built[2]):
        text = built[2].removesuffix(r"\right")
    if _NESTED_LISTS.fullmatch(text):
        rows = [row.replace(",", " & ") for row in re.findall(r"\[([^\[\]]*)\]", text[1:-1])]
        text = r"\begin{pmatrix}" + r" \\ ".join(rows) + r"\end{pmatrix}"
    if _GROUPED.fullmatch(text):
        text = text.replace("'", "")
    text = _EQUALS.sub(r"\1 = ", text)
    return _between(_rounded(text)) if len(text) < LONGEST else text


def _rounded(text: str) -> str:
    """French intervals, `]1, 2[`, with round brackets where an end is left out."""
    plain = re.sub(r"\\(?:left|right)(?=[\[\]])", "", text)
    pieces = split(plain.replace("]", "\x01").replace("[", "\x02"), r"\cup")
    found = [_FRENCH.fullmatch(piece.replace("\x01", "]").replace("\x02", "[")) for piece in pieces]
    ends = [(one[1], one[3]) for one in found if one]
    if len(ends) < len(found) or not any(start == "]" or end == "[" for start, end in ends):
        return text
    return r" \cup ".join(
        ("(" if one[1] == "]" else "[") + one[2] + (")" if one[3] == "[" else "]") for one in found if one
    )


def _between(text: str) -> str:
    """`x > 1 and x < 2` as `1 < x < 2`."""
    found = _BOTH.fullmatch(text)
    if found is None:
        return text
    name, first, low, second, high = (one.strip() for one in found.groups())
    if (first[-1] in ">" or "g" in first) == (second[-1] in ">" or "g" in second):
        return text
    if second[-1] == ">" or "g" in second:
        first, low, second, high = second, high, first, low
    below = "<" if first == ">" else r"\le"
    return f"{low} {below} {name} {second} {high}"


def _in_digits(text: str) -> str:
    """Numbers in words, alone or before a unit, in digits; without the same number again in brackets."""
    said = re.sub(rf"{_TEXT}([^{{}}]*)\}}", r"\1", text).strip().rstrip(".")
    negative = _BELOW.match(said)
    said = said[negative.end() :] if negative else said
    words = _IN_WORDS.match(said)
    sign = "-" if negative else ""
    if parted := _PARTED.fullmatch(said):
        over = WORDS.get(parted[1].casefold(), 1)
        return rf"{sign}\frac{{{over}}}{{{_UNDER[parted[2].casefold()]}}}"
    if twice := re.fullmatch(r"([A-Za-z -]+?)\s*\((-?[0-9,]+)\)|(-?[0-9,]+)\s*\(([A-Za-z -]+)\)", said):
        word, digit = twice[1] or twice[4], twice[2] or twice[3]
        return digit if not negative and spoken(word) == int("0" + re.sub("[^0-9]", "", digit)) else text
    if not words:
        return sign + said if negative and re.match(r"[0-9]|\\frac", said) else text
    value, rest = spoken(words[0]), said[words.end() :].strip()
    if value is None or not re.fullmatch("[A-Za-z ]*", rest) or CHANGES.search(rest):
        return text
    return f"{sign}{value} {rest}".strip()
