"""Answers in text: what stands in LaTeX boxes, words behind a number that make it another one, characters that look
alike, and what surrounds an answer: `**7 × 5 − 3**.` is read as `7 * 5 - 3`.
"""

import re
import unicodedata

_NUMERALS = (
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen|(?:twen|thir|for|fif|six|seven"
    r"|eigh|nine)ty)"
)
_PARTS = r"(?:thir|four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]{3,5}teen|[a-z]{3,5}tie|hundred|thousand)"
CHANGES = re.compile(
    rf"\b(?:{_NUMERALS}|tens|lakhs?|crores?|hundreds?|thousands?|[a-z]*illi(?:on|ard)(?:s|en|ths?)?|dozens?|pairs?|couples?|scores?"
    rf"|gross|grand|k|bn|mil|pi|fold|half|halves|{_PARTS}(?:ds|ths)|{_PARTS}(?:d|th)(?!\s+[a-z])|(?:squar|cub|halv|doubl|tripl)ed"
    r"|factorial|negative|reciprocal|inverse|or|plus|minus|divided|multiplied|modulo|mod|not|never|wrong|false|incorrect"
    r"|times (?!an?\b|per|each|every)|at (?:the )?(?:very )?(?:most|least)|and (?:up|over|under|above|below|more|less)"
    r"|(?-i:[MB]))\b|[π万亿百十]",
    re.IGNORECASE,
)
"""Words behind a number that make it another one: `7 tenths`, `7 dozen`, `7 or 8`; not `7 third graders`."""

_BRACES = re.compile(
    r"\\boxed\s*(?:\{|(?P<number>(?>-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?))(?![\w^/(]|,[0-9]|\\[A-Za-z]))|\\.|[{}]",
    re.DOTALL,
)


def boxed(text: str) -> list[str]:
    r"""The contents of the closed `\boxed{...}`, in order, outermost boxes only. One pass, whatever is nested. A number
    needs no braces.

    >>> boxed(r"first \boxed{1}, then \boxed{ \{2, \frac{3}{4}\} } and \boxed 5, \boxed{6")
    ['1', '\\{2, \\frac{3}{4}\\}', '5']
    """
    return [text[start:end].strip() for _, start, end, _ in _boxes(text)]


def _boxes(text: str) -> list[tuple[int, int, int, int]]:
    """Where each outermost box begins, where its contents begin and end, and where it ends."""
    found: list[tuple[int, int, int, int]] = []
    opened: list[tuple[int, int, bool]] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if match["number"]:
            found.append((match.start(), *match.span("number"), match.end()))
        elif token.endswith("{") and token != r"\{":
            opened.append((match.start(), match.end(), token != "{"))
        elif token == "}" and opened:
            begin, start, is_box = opened.pop()
            if is_box:
                while found and found[-1][1] > start:
                    found.pop()
                found.append((begin, start, match.start(), match.end()))
    return found


_LAYOUT = re.compile(r"\\q?quad(?![a-z])|\\[,;: ()\[\]]|\$|~")
_WORD = r"(?:(?:and|or|vs\.?|alternatively)(?: (?:else|maybe|perhaps|possibly))?,? |\\text ?\{ ?,? ?(?:and|or) ?\} ?)"
_LISTED = re.compile(
    rf" ?(?:(?:[,;/|(]|\\(?:mid|vert|lor|vee)(?![a-z])) ?{_WORD}?|(?:(?!not|wrong|no)[a-z]{{1,15}} )?{_WORD})"
    r"(?:(?:[A-Za-z]|\\[a-z]+)(?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]{1,9}\}))?(?:\([0-9A-Za-z]{1,9}\))? ?= ?)?"
)
_MAX_GAP = 60
"""Characters between two boxes that are listed together, white space collapsed."""


def boxes_together(text: str) -> list[str]:
    r"""The last box, with those before it that are listed with it, as in `\boxed{1} and \boxed{2}`; each text once.
    Only a comma, a slash or the like, `and` or `or`, and the name of what is equal to the next box, stand between
    listed boxes. Empty boxes are none.

    >>> boxes_together(r"\boxed{7}. So $x=\boxed{1}$, $y=\boxed{2}$ or $\boxed{2}$. \boxed{}")
    ['1', '2']
    >>> boxes_together(r"\boxed{1}, no, \boxed{2}")
    ['2']
    """
    boxes = [box for box in _boxes(text) if text[box[1] : box[2]].strip()]
    first = max(len(boxes) - 1, 0)
    while first and _are_listed(text[boxes[first - 1][3] : boxes[first][0]]):
        first -= 1
    return list(dict.fromkeys(text[start:end].strip() for _, start, end, _ in boxes[first:]))


def _are_listed(between: str) -> bool:
    """Whether boxes with this text between them are parts of one list."""
    gap = " ".join(_LAYOUT.sub(" ", between).split())
    return len(gap) <= _MAX_GAP and _LISTED.fullmatch(f"{gap} ") is not None


# Characters

_ALIKE = {
    "-": "\u2010\u2011\u2012\u2013\u2212\u02d7\ufe63",
    "'": "\u2018\u2019\u201a\u201b\u2032\u00b4\u02bc",
    '"': "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb",
    "*": "\u00d7\u2715\u2716\u2a2f\u2217\u22c5\u00b7\u2219\u2022",
    "/": "\u00f7\u2215\u2044\u2797",
    "+": "\ufe62\u2795",
    ">": "\u2192\u27f6\u2794\u279c\u21d2\u203a\u27a1",
    ",": "\u3001\u060c\u066c",
    ".": "\u3002\uff61\u066b",
}
_LANGUAGE = re.compile(r"\A[a-z0-9+]{1,20}[ \t]*\n")
"""What a fence of code says behind its first mark."""
_WRAPS = [(mark, mark) for mark in ("```", "**", "__", "$$", "*", "_", "`", "$", '"', "'")]
_WRAPS += [(r"\(", r"\)"), (r"\[", r"\]")]


class _Table(dict[int, str]):
    """What each character is read as, found when it first occurs."""

    def __missing__(self, code: int) -> str:
        self[code] = read = _read(chr(code))
        return read


def _read(character: str) -> str:
    if "\uff01" <= character <= "\uff5e":  # the wide forms of ASCII
        character = chr(ord(character) - 0xFEE0)
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    kind = unicodedata.category(character)
    return {"Zs": " ", "Zl": "\n", "Zp": "\n", "Cf": ""}.get(kind, character)


_TABLE = _Table({ord(other): plain for plain, others in _ALIKE.items() for other in others})


def plain_characters(text: str) -> str:
    """The text with the characters of a keyboard in place of those that look alike: dashes, quotation marks, operators,
    arrows, wide letters, and the decimal digits of every script. White space becomes a space, and what is invisible is
    left out. A superscript is no digit.

    >>> plain_characters("\uff17\u00a0\u00d7 \u0665 \u2212\u200b 3 \u00f7 2\u00b2")
    '7 * 5 - 3 / 2\u00b2'
    """
    return text if text.isascii() else text.translate(_TABLE)


def unwrapped(text: str) -> str:
    r"""The text without white space, emphasis, quotation marks, code marks and LaTeX delimiters around it, and without
    the punctuation that ends a sentence. For short texts.

    >>> [unwrapped(text) for text in (" **A + B**. ", "`A`", r"\( A \)", "$A$;", "*A")]
    ['A + B', 'A', 'A', 'A', '*A']
    """
    before = None
    while before != text:
        before, text = text, text.strip().rstrip(".;,").rstrip()
        for start, end in _WRAPS:
            if len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end):
                text = text[len(start) : -len(end)]
                text = _LANGUAGE.sub("", text) if start == "```" else text
                break
    return text
