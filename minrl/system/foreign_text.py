"""Text that a model or a stranger wrote, made harmless: for terminal, log, pages and reports, and for another model.

Every text of others passes one of these functions before it is shown or put into a prompt.
"""

import html
import re
import unicodedata

HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    r"\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
"""What commands a terminal, ends a line, rearranges its neighbours, is invisible, or has no encoding: Unicode's Cc, Cf,
Cs, Zl and Zp, without the tab, the line's end, and the two joiners, which emoji and Persian need.
"""

ORDINARY = (
    "[abipuBIPTKVN]|br|hr|h[1-6]|[uod]l|d[dt]|li|em|t[dhr]|div|pre|sub|sup|img|table|thead|tbody|head|body|html|span|code"
    "|strong|[iu](?:8|16|32|64|128)|f(?:32|64)|[ui]size|int|str|bool|char|float|double|long|[sS]tring|auto|void|object|any"
    "|number|answer"
)
"""Names in angle brackets that are left whole: of HTML, of types, and of the tasks' answers."""

MARK = re.compile(
    r"(?<=<)(?=\|\S)|(?<=\S\|)(?=>)"  # <|im_end|>, and with full-width bars; <|turn>, <turn|>
    rf"|(?<=<)(?![/!]?(?:{ORDINARY})>)(?=[^\s<>\w]{{0,9}}\w[^\s<>]{{0,99}}>)"  # </s>, <end_of_turn>, <seed:eos>
    r"|(?<=\[)(?=/?[a-z]?[A-Z][A-Z0-9_]{1,59}\])"  # [/INST], [gMASK]
    r"|(?<=\[)(?=\|\w)|(?<=\w\|)(?=\])"  # [|endofturn|]
    r"|(?<=\])(?=~)|(?<=~)(?=\[)|(?<=\]<)(?=\])|(?<=\[>)(?=\[)"  # ]~b], [e~[, ]<]name[>[
    r"|(?<=>>)(?=[A-Z_]{2,60}<<)|(?<=\|)(?=[A-Z_]{3,60}\|)"  # >>ANSWER<<, |ENDOFTEXT|
    r"|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"  # a joiner beside ASCII joins nothing
)
"""Where the special tokens of tokenizers are broken, by their shapes."""


def printable(text: str) -> str:
    """The text with escapes in place of what is hidden or commands the program that shows it.

    >>> printable("clear \\x1b[2J")
    'clear \\\\x1b[2J'
    """
    return HIDDEN.sub(_escaped, text)


def indented(text: str) -> str:
    """The text, printable, with its further lines set in: none of them looks like a line of the program's own.

    >>> indented("it failed\\nINFO it is solved")
    'it failed\\n    INFO it is solved'
    """
    return printable(text).replace("\n", "\n    ")


def one_line(text: str) -> str:
    """The text, printable, in one line, such as a table's cell.

    >>> one_line("a\\tb\\n\\x85c")
    'a b \\\\x85c'
    """
    return " ".join(printable(text).split())


def html_text(text: str) -> str:
    """The text, printable, for HTML, SVG and attributes."""
    return html.escape(printable(text))


def unmarked(text: str) -> str:
    """The text, printable, with a space in what a chat template or a tokenizer could take for a mark of its own.

    >>> unmarked("4<|im_end|> [/INST] <b>if a < b</b>")
    '4< |im_end| > [ /INST] <b>if a < b</b>'
    """
    text = printable(text.replace("\r\n", "\n"))
    pieces, start = [], 0
    for match in MARK.finditer(_folded(text)):
        pieces += [text[start : match.start()], _escaped(match) or " "]
        start = match.end()
    return "".join([*pieces, text[start:]])


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def _folded(text: str) -> str:
    """The text as a normalizing tokenizer reads it (NFKC), character for character."""
    if text.isascii():
        return text
    alike = {one: unicodedata.normalize("NFKC", one) for one in set(text) if not one.isascii()}
    return text.translate({ord(one): other for one, other in alike.items() if len(other) == 1})
