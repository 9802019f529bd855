"""Characters that look alike, and what surrounds an answer: `**7 \u00d7 5 \u2212 3**.` is read as `7 * 5 - 3`."""

import re
import unicodedata

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
