"""Answers in text: what surrounds them, characters that look alike, the last LaTeX boxes, fenced blocks."""

import re

_ALIKE = {
    "-": "\u2010\u2011\u2012\u2013\u2212",
    "'": "\u2018\u2019\u2032",
    '"': "\u201c\u201d\u00ab\u00bb",
    "*": "\u00d7\u22c5\u00b7\u2217",
    "/": "\u00f7\u2215\u2044",
    ">": "\u2192\u27f6\u21d2",
    " ": "\u00a0\u2009",
    "": "\u200b\u202f\ufeff",
}
_TABLE = {ord(other): plain for plain, others in _ALIKE.items() for other in others}
_TABLE |= {code + 0xFEE0: chr(code) for code in range(0x21, 0x7F)}  # wide letters, digits and signs
_BEFORE = re.compile(r"\A(?:```\w*\n|\\[(\[]|[\s*_`$\"'])+")
_BEHIND = re.compile(r"\A(?:[)\]]\\|[\s*_`$\"'.;,])+")
"""Of a text from its end, so that its time is in proportion to its length."""
_BOX, _BRACES = r"\boxed{", re.compile(r"\\.|[{}]", re.DOTALL)
_LISTED = re.compile(r"(?:[ $,;]|\\[(),;: ]|\\q?quad\b|and\b|or\b|\\text\{ ?(?:and|or) ?\}|[A-Za-z](?:_\w)? ?=)+")
_FENCE = re.compile(r"^( {0,3}+)(```|~~~)[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)(?:^(?:\1)?\2|\Z)", re.DOTALL | re.MULTILINE)


def plain_characters(text: str) -> str:
    """The text with the characters of a keyboard in place of those that look alike: dashes, quotation marks, operators,
    arrows, no-break spaces and wide letters.

    >>> plain_characters("\uff17\u00a0\u00d7 5 \u2212\u200b 3 \u00f7 2\u00b2")
    '7 * 5 - 3 / 2\u00b2'
    """
    return text.translate(_TABLE)


def unwrapped(text: str) -> str:
    r"""The text without white space, emphasis, quotation marks, code marks and LaTeX delimiters around it, and without
    the punctuation that ends a sentence.

    >>> [unwrapped(text) for text in (" **A + B**. ", "`A`", r"\( A \)", "$A$;")]
    ['A + B', 'A', 'A', 'A']
    """
    return _BEFORE.sub("", _BEHIND.sub("", text[::-1])[::-1])


def last_boxes(text: str) -> list[str]:
    r"""The content of the last closed `\boxed{...}`, behind those of the boxes that are listed with it: a comma, `and`
    or `or`, and a name of what is equal to the next box, stand between them.

    >>> last_boxes(r"\boxed{1}. So $x=\boxed{2}$, $y = \boxed{ \{3, \frac{3}{4}\} }$.")
    ['2', '\\{3, \\frac{3}{4}\\}']
    """
    found, end = list[str](), len(text)
    while (start := text.rfind(_BOX, 0, end)) >= 0:
        close = _closing_brace(text, start + len(_BOX))
        if not 0 <= close < end or (found and not _LISTED.fullmatch(text, close + 1, end)):
            break
        found.append(text[start + len(_BOX) : close].strip())
        end = start
    return found[::-1]


def _closing_brace(text: str, start: int) -> int:
    """Where the brace is closed that was opened before `start`; -1 if it is not."""
    depth = 1
    for found in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if not depth:
            return found.start()
    return -1


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block, less the indent of its fence; the last one needs no end.

    >>> fenced_blocks("so\\n  ```Python\\n  a = 1\\n  ```\\nand\\n~~~\\nb")
    [('python', 'a = 1\\n'), ('', 'b')]
    """
    return [
        (language.lower(), re.sub(f"(?m)^ {{0,{len(indent)}}}", "", body))
        for indent, _, language, body in _FENCE.findall(text)
    ]
