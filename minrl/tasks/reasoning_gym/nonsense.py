"""Answers that are right for no problem: what a verifier must not pay, and need not look at."""

import contextlib
import re
from collections.abc import Iterator
from fractions import Fraction

MAX_ANSWER_CHARACTERS = 10_000
"""Longer answers are wrong without a look at them, unless the problem's own is nearly as long."""

NO_ANSWER = "there is no such answer"
NONSENSE = (
    "",
    NO_ANSWER,
    "nan",
    "nan+nanj",
    "inf",
    "-inf",
    "1e999",
    "?",
    "()",
    "[[",
    "}",
    "\0",
    "None",
    "lambda: 1",
)
"""Answers that are right for no problem."""

NUMBERS = ("0", "1", "-1")
"""Right for few problems."""

_HUGE = re.compile(r"[\d.][eE][-+]?[\d_]{4,}")
"""A number with so many digits that exact arithmetic on it takes minutes."""
_NUMERIC = re.compile(r"[^a-df-hk-zA-Z]+")
"""What holds no letter but those of numbers: `3.5e4`, `2 - 3i`."""
_NO_NUMBER = re.compile(r"nan|inf", re.IGNORECASE)


def nonsense(own: str | None) -> Iterator[str]:
    """Texts that are wrong for a problem with this answer of its own."""
    yield from NONSENSE
    for text in NUMBERS:
        with contextlib.suppress(ValueError, ZeroDivisionError):  # its own is no number
            if abs(Fraction(text) - Fraction(own or "")) > 1e-3:
                yield text


def is_absurd(answer: str, own: str) -> bool:
    """Whether an answer is wrong without a look at it: far too long, or no number or a huge one beside a number."""
    if len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(own)):
        return True
    huge = _HUGE.search(answer) is not None and _HUGE.search(own) is None
    return huge or (_NUMERIC.fullmatch(own) is not None and _NO_NUMBER.search(answer) is not None)
