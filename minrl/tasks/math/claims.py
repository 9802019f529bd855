r"""What an answer claims beside its value: names (`y = 1`), other equations (`x^2 = 2`), negation, and words that
change it.

Everything here reads texts; `minrl/tasks/math/agreement.py` decides whether two values are the same.
"""

import re
from collections.abc import Callable, Iterator

from minrl.tasks.changing import CHANGES
from minrl.tasks.math.forms import NAME, form_of
from minrl.tasks.math.notation import UNIT_OF, quantity, split

_NEGATION = re.compile(
    r"\\(?:not(?:in)?|neg|lnot)(?![A-Za-z])|(?<![\\A-Za-z])(?:not|never|isn't|false|wrong|incorrect|untrue)(?![A-Za-z])",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    r"\b(?:perhaps|maybe|possibly|might|(?:at )?(?:least|most) \W*[0-9]|between \W*[0-9]|than \W*[0-9]|twice|thrice"
    r"|(?:double|triple|half|plus|minus|times|(?:square|cube|root|reciprocal|negative|opposite|inverse|half) of)"
    r"(?: the)? [\W(]*[0-9][0-9.,]*\W*$)",
    re.IGNORECASE,
)
"""What makes another claim of the number behind it."""
_TENS = {"hundred", "thousand", "million", "billion", "trillion"}
"""Words that `quantity` reads as powers of ten."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\])")
_APPLIED = re.compile(r"([A-Za-z])(\^-1)?\((-?[0-9][^()]*)\)")
_NAMED = re.compile(
    r"[A-Za-z ]{2,}|m? *\\(?:angle|overline|triangle|text) *\{?[A-Za-z ]+\}?(?: *[A-Z]+)?|\[[A-Z]+\]|\|[A-Za-z]+\|"
    r"|[A-Za-z](?: *: *[A-Za-z])+"
)
_ASKS_PERCENT = re.compile(
    r"\b(?:what|which|many|a|in|the) +(?:percent(?!age)|\$?\\?%)"
    r"|\b(?:what|which|find|determine|compute|calculate|as an?)\b[^.?!]{0,60}percentage|percentage[^.?!]*\?",
    re.IGNORECASE,
)
_IN_BASE = re.compile(r"_ *\{? *\\text\{[^{}]*\}|\bbase\b[ -]*[a-z]+")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-5][0-9]")


def asks_for_percent(problem: str) -> bool:
    """Whether a problem asks for a percent. `A discount of 20 percent` does not."""
    return _ASKS_PERCENT.search(problem) is not None


def says_otherwise(gold: str, answer: str) -> bool:
    """Whether an answer denies its value, or has words that change it, other than the reference's.

    >>> says_otherwise("12", "It is not 12"), says_otherwise("12", r"12\\text{ squared}"), says_otherwise("12", "12 cm")
    (True, True, False)
    """
    said = _said(answer)
    meant = gold.casefold()
    found = {match[0].casefold() for match in (*_NEGATION.finditer(said), *_HEDGE.finditer(said))}
    last = max((match.end() for match in re.finditer("[0-9]", said)), default=0)
    words = re.sub(r"([a-z]+)\.? (?:squared|cubed)\b", _kept_unit, _IN_BASE.sub(" ", said[last:]), flags=re.IGNORECASE)
    if last:
        found |= {match[0].casefold() for match in CHANGES.finditer(words)} - _TENS - {f"{ten}s" for ten in _TENS}
        found |= {
            match[0].casefold() for match in re.finditer(r"\b(?:minus|plus|modulo|or (?:more|less|fewer))\b", said)
        }
        found |= set(re.findall(r"\\text\{ *(pi)\b", said))
    return any(word not in meant for word in found)


def _kept_unit(found: re.Match[str]) -> str:
    return "" if found[1].casefold() in UNIT_OF else found[0]


def _said(answer: str) -> str:
    """The sentence with the last digit, and those behind it."""
    sentences = _SENTENCE.split(answer)
    numbered = [place for place, sentence in enumerate(sentences) if re.search("[0-9]", sentence)]
    return " ".join(sentences[numbered[-1] if numbered else 0 :])


def of_another_kind(gold: str, answer: str, problem: str) -> bool:
    """Whether an answer has a base, letters or a fraction that the reference, in normal notation too, cannot have."""
    if problem and quantity(answer).base and not quantity(gold).base and "base" not in problem.casefold():
        return True
    if _CLOCK.fullmatch(gold) and ":" not in answer and "ratio" not in problem.casefold():
        return True
    mine, yours = (_letters(text) for text in (gold, answer))
    return any(one.swapcase() in mine - yours for one in yours - mine)


def _letters(text: str) -> set[str]:
    """The letters that stand for themselves in a formula."""
    bare = re.sub(r"\\text\{[^{}]*\}|\\[A-Za-z]+|_ *\{?[A-Za-z0-9]*", " ", text.rpartition("=")[2])
    return set(re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", bare)) if re.search(r"[-+^0-9]", bare) else set()


def claims_hold(answer: str, problem: str, agree: Callable[[str, str], bool]) -> bool:
    """Whether each `a = b = c` of an answer names what it gives, or is true."""
    for part in split(answer, ",", ";"):
        *lefts, last = split(part.partition(r"\approx")[0], "=")
        if not all(_names(left, problem) or agree(last, re.sub(r"\\text\{[^{}]*\}", "", left)) for left in lefts):
            return False
    return True


def _names(left: str, problem: str) -> bool:
    side, asked = _squeezed(left), _squeezed(problem)
    if applied := _APPLIED.fullmatch(side):
        others = [found for found in _APPLIED.finditer(asked) if found[1] == applied[1]]
        return not others or side in asked
    if NAME.fullmatch(left) or _NAMED.fullmatch(left):
        return side != r"\pi"
    quoted = re.compile(rf"(?<![\w^+*/\\(=-]){re.escape(side)}(?![\w^+*/=(-])")
    if not side or f"{side}=" in asked or re.fullmatch("[-0-9./]+", side):
        return False
    return quoted.search(asked) is not None


def _squeezed(text: str) -> str:
    """The text without layout; words stay apart from formulas."""
    return re.sub(r"[{}]|\\left(?![a-z])|\\right(?![a-z])|(?<=[^A-Za-z$]) +| +(?=[^A-Za-z$])", "", text)


def ordered(gold: str, answer: str, written: str, problem: str) -> str | None:
    r"""The answer, where it assigns the parts of a tuple, as that tuple, in the order of the problem's or else of the
    alphabet; None where what is written assigns none.

    >>> ordered("(1,2)", "y=2, x=1", "y=2, x=1", ""), ordered("(1,2)", "x=1, x=2", "x=1, x=2", "")
    ('(1, 2)', None)
    """
    if form_of(gold).kind not in ("tuple", "interval", "vector") or "=" not in answer or "=" in gold:
        return answer
    form = form_of(answer)
    pairs = [[side.strip() for side in split(part, "=")] for part in form.parts]
    if form.kind == "one" and len(pairs[0]) > 1 and re.fullmatch(r"\( *[A-Za-z](?: *, *[A-Za-z])+ *\)", pairs[0][0]):
        names, values = re.findall("[A-Za-z]", pairs[0][0]), list(form_of(pairs[0][-1]).parts)
    elif form.kind in ("bare", "tuple", "interval"):
        names, values = [pair[0] for pair in pairs], [pair[-1] for pair in pairs]
        if re.search(r"(?<![A-Za-z\\])or(?![A-Za-z])", written) or any(len(pair) < 2 for pair in pairs):
            return None
    else:
        return answer
    if not all(map(NAME.fullmatch, names)) or not len(names) == len(set(names)) == len(values):
        return None
    order = next((one for one in _tuples(problem) if sorted(one) == sorted(names)), sorted(names))
    return "(" + ", ".join(values[names.index(name)] for name in order) + ")"


def _tuples(problem: str) -> Iterator[list[str]]:
    for found in re.finditer(
        r"\(((?: *[A-Za-z](?:_\{?[0-9A-Za-z]\}?)? *,)+ *[A-Za-z](?:_\{?[0-9A-Za-z]\}?)? *)\)", problem
    ):
        yield [name.strip() for name in found[1].split(",")]
