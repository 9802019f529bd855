"""Texts: what models and strangers wrote, made harmless for terminals, pages and prompts; strict and stable JSON."""

import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from minrl.dataflow import UserError, require

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

HOLDS_KEY = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")
"""The end of the name of a variable of the environment that holds a key."""


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: a lone half of a surrogate pair, as JSON may hold, cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def printable(text: str) -> str:
    """The text with escapes in place of what is hidden or commands a terminal: Unicode's controls and format characters
    without tab, line end, and the two joiners that emoji and Persian need.

    >>> printable("clear \\x1b[2J")
    'clear \\\\x1b[2J'
    """
    hidden = {one for one in set(text) - set("\n\t\u200c\u200d") if not one.isprintable()}
    escapes: dict[str, str | int | None] = {
        one: _escaped(one) for one in hidden if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    return text.translate(str.maketrans(escapes))


def cut(text: str, longest: int) -> str:
    """The text, printable, with at most so many characters: the middle is left out, since an answer is at the end."""
    text, half = printable(text), longest // 2
    if len(text) <= longest:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def one_line(text: str) -> str:
    """The text, printable, in one line, such as a table's cell.

    >>> one_line("a\\tb\\n\\x85c")
    'a b \\\\x85c'
    """
    return " ".join(printable(text).split())


def first_line(error: Exception) -> str:
    """The first line of an error of a library's, or its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def end_of(failure: str) -> str:
    """What a traceback ends with, in one line, also where the exception says several; of another reason the last line.

    >>> end_of('Traceback:\\n  File "a.py", line 1, in f\\n    f()\\nValueError: bad row\\n  input: 3')
    'ValueError: bad row input: 3'
    """
    lines = failure.strip().splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    behind = range(places[-1] + 1, len(lines)) if places else ()
    start = next((number for number in behind if not lines[number].startswith("  ")), -1)
    return one_line("\n".join(lines[start:]))


def unmarked(text: str) -> str:
    """The text, printable, with a space in what a chat template or a tokenizer could take for a mark of its own.

    >>> unmarked("4<|im_end|> [/INST] <b>if a < b</b>")
    '4< |im_end| > [ /INST] <b>if a < b</b>'
    """
    text = printable(text.replace("\r\n", "\n"))
    # As a normalizing tokenizer reads it (NFKC), character for character.
    alike = {one: unicodedata.normalize("NFKC", one) for one in set(text) if not one.isascii()}
    folded = text.translate({ord(one): other for one, other in alike.items() if len(other) == 1})
    pieces, start = [], 0
    for match in MARK.finditer(folded):
        pieces += [text[start : match.start()], _escaped(match[0]) or " "]
        start = match.end()
    return "".join([*pieces, text[start:]])


def _escaped(text: str) -> str:
    return ascii(text)[1:-1]


def without_keys(text: str) -> str:
    """The text without users in URLs and without keys of the environment.

    >>> without_keys("no answer of https://me:secret@host/v1")
    'no answer of https://host/v1'
    """
    text = re.sub(r"(?<=://)[^\s/?#]*@", "", text)
    for name, value in os.environ.items():
        if len(value) >= 12 and HOLDS_KEY.search(name) and not value.startswith("/"):
            text = text.replace(value, "***")
    return text


def json_text(value: Any, **options: Any) -> str:  # noqa: ANN401 - any JSON value, and what json.dumps takes
    """The value as strict JSON: null in place of NaN and infinities.

    >>> json_text({"loss": float("nan"), "steps": [1, float("inf")]})
    '{"loss": null, "steps": [1, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # a number is not finite
        return json.dumps(plain(value), allow_nan=False, **options)


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with None for each number that is not finite."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def stable_text(value: Any, **options: Any) -> str:  # noqa: ANN401 - whatever a task keeps, and what json.dumps takes
    """A value of an example as JSON that is the same in every process, and equal exactly if the values are. Raises
    `UserError` for an object without such a text.

    >>> stable_text({"b": {"b", "a"}, "path": range(2)})
    '{"b": ["a", "b"], "path": "range(0, 2)"}'
    """
    try:
        return json.dumps(value, default=_plain, **options)
    except TypeError as error:  # the key of a dictionary
        raise UserError(f"an example holds a dictionary with other keys than texts and numbers: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a task keeps in an example
    """A value in JSON's types."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=stable_text)
    if hasattr(value, "tolist") and not isinstance(value, type):  # the repr of a long array is abbreviated
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    text = repr(value)
    require(
        " at 0x" not in text,
        f"an example holds {text}, whose text is another in each process: keep texts, numbers, lists and dictionaries",
    )
    return text


def digest_of(values: Iterable[Any]) -> str:
    """A hash of the values in order."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(stable_text(value).encode() + b"\n")
    return digest.hexdigest()[:16]
