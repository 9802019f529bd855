"""Answers in words: `The answer is 12.`, `so there are $12$ apples`, and those that say several numbers or none."""

import re
from dataclasses import dataclass

from minrl.tasks.math.claims import SENTENCE, last_said
from minrl.tasks.math.notation import FORMULA, NUMERALS, closing, usual
from minrl.tasks.math.units import TIMES, UNIT_OF

MANY_WORDS = 20
"""With more different words a text is prose, also if there are words for numbers among them."""
_ARGUMENTS = re.compile(r"\\(?:begin|end) *\{[^{}]*\}(?: *\{[lcr| ]*\})?|\\(?:text)?color *\{[^{}]*\}")
_EXPONENT = re.compile(r"\^ *\{? *-?[0-9]+ *\}?")
_WORD_BEFORE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}.*[0-9]", re.DOTALL)
_OTHERS = re.compile(
    r"\b(?:or|either|xor|vs|versus|alternatively|otherwise|options?|candidates?|one of|unless|except)\b", re.IGNORECASE
)
_NO_NUMBER = re.compile(
    r"\b(?:no (?:real )?(?:solutions?|answers?|values?)|undefined|unknown|impossible"
    r"|(?:do|does)(?: not|n't) (?:exist|know))\b",
    re.IGNORECASE,
)


def is_prose(text: str) -> bool:
    r"""Whether a text has words that are no units and no numerals: an answer stands somewhere in it.

    >>> is_prose("It is twelve: 12."), is_prose("12 cm"), is_prose(r"\begin{cases} 5 \\ 3 \end{cases}")
    (False, False, False)
    """
    words = {word.lower() for word in re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", _ARGUMENTS.sub(" ", text))}
    spoken = words & {*TIMES, *NUMERALS, "percent", "pct", "base"}
    return bool(words - set(UNIT_OF) - {"and", "text"}) and (not spoken or len(words) > MANY_WORDS)


@dataclass(frozen=True)
class Prose:
    """An answer in words, as it is written and in normal notation.

    >>> [Prose(one, one).says_several for one in ("The sum is 12", "either 11 or 12", "Undefined, or 12")]
    [False, True, True]
    """

    answer: str
    normal: str

    @property
    def says_several(self) -> bool:
        """Whether it offers other numbers beside its last, or no number."""
        said = SENTENCE.split(last_said(usual(self.answer)))[0]
        others = _OTHERS.search(said)
        return bool(
            _NO_NUMBER.search(said) or (others and (len(_numbers(said)) > 1 or said[: others.start()].strip() == ""))
        )

    @property
    def ends_in_words(self) -> bool:
        """Whether its last number stands behind words, so that only the whole of it tells what is meant."""
        if _marked(self.answer):
            return not self._is_marked
        side = _EXPONENT.sub("", self.normal.replace(r"\text{", " ")).rpartition("=")[2]
        return _WORD_BEFORE.search(side) is not None

    @property
    def has_one_number(self) -> bool:
        """Whether it is words around one number."""
        return not _marked(self.answer) and len(_numbers(self.normal)) == 1

    @property
    def _is_marked(self) -> bool:
        """Whether its last number stands in a formula or a box, of which all braces close."""
        if self.normal.count("{") != self.normal.count("}"):
            return False
        return bool(_numbers(self.normal)) and not _numbers(self.answer[_marked(self.answer) :])


def _marked(text: str) -> int:
    """Where the last box, or else the last formula, ends; 0 if there is none."""
    start = text.rfind(r"\boxed")
    if start >= 0:
        return max(closing(text, text.find("{", start)), start) if "{" in text[start:] else start
    return max((found.end() for found in FORMULA.finditer(text)), default=0)


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"[0-9]+(?:\.[0-9]+)?", text))
