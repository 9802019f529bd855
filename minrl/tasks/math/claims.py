r"""What an answer claims beside its value: names (`y = 1`), other equations (`x^2 = 2`), negation, and words that
change it.

Everything here reads texts; `minrl/tasks/math/agreement.py` decides whether two values are the same.
"""

import re
from collections.abc import Callable, Iterator

from minrl.tasks.changing import CHANGES
from minrl.tasks.math.exact import number
from minrl.tasks.math.forms import NAME, form_of, has_sign
from minrl.tasks.math.notation import NUMERALS, TEXT_COMMANDS, split, undelimited, usual
from minrl.tasks.math.units import UNIT_OF, quantity

_NEGATION = re.compile(
    r"\\(?:not(?:in)?|neg|lnot)(?![A-Za-z])|(?<![\\A-Za-z])(?:not|never|isn't|false|wrong|incorrect|untrue)(?![A-Za-z])",
    re.IGNORECASE,
)
_LAST_NUMBER = (
    r"[^0-9A-Za-z]{0,20}(?:[a-z] ?[=<>] ?)?(?:\\(?:[dt]?frac|sqrt)\W{0,9})?[0-9][0-9.,/{}_\s]{0,60}[^0-9A-Za-z]{0,20}$"
)
_HEDGE = re.compile(
    r"(?<!\\)\b(?:perhaps|maybe|possibly|might|(?:at )?(?:least|most) \W*[0-9]|between \W*[0-9]|than \W*[0-9]|twice"
    r"|thrice"
    r"|(?:than|least|most|over|under|above|below|exceed(?:s|ing)?|up to|beyond|before|after|neg(?:ative)?|unless|except"
    rf"|rather than|instead of|other than|excluding|(?:negative|opposite|reciprocal|inverse) of)(?: the)?{_LAST_NUMBER}"
    r"|(?:double|triple|half|plus|minus|times|(?:square|cube|root|reciprocal|negative|opposite|inverse|half) of)"
    r"(?: the)? [\W(]*[0-9][0-9.,]*\W*$)",
    re.IGNORECASE,
)
"""What makes another claim of the number behind it."""
_ABOUT = re.compile(
    r"(?:\b(?:about|approx(?:imately)?|roughly|around|nearly|almost|circa)\b|^\W*~)[^0-9A-Za-z]{0,9}[0-9][0-9.,]*[^0-9]*$"
    r"|[0-9][^0-9]{0,9}\b(?:approx(?:imately)?|roughly|rounded|or so|or thereabouts)\b[^0-9]*$",
    re.IGNORECASE,
)
"""An approximation is no answer where the reference is exact, unless the problem asks for one."""
_UNEQUAL = re.compile(
    r"(?:(?<![-=])>|[<\u2264\u2265\u2260]|(?<![0-9)])!=|\\(?:[gl](?:t|eqs?|eqslant|e)|neq?)(?![a-z]))=?"
    r"[\s\\$({]*(-?(?:\\[dt]?frac\W*)?[0-9][0-9.,/{}]*)[^0-9]*$"
)
"""What is more than a number is not that number."""
_RESTRICTION = re.compile(
    rf"(?:[,;(\s]|\\q?quad|\\[ ,;:]|\\(?:{TEXT_COMMANDS})\s*\{{\s*,?\s*(?:for|where|if|with|provided)(?: that)?\s*\}})"
    r"(?:(?:for|where|if|with)\s)?[\s(]*[a-z]\s*(?:\\neq?(?![a-z])|\u2260|!=)\s*(?:[-0-9,\s]|\\pm|\\frac|[{}/])+\)?$"
)
"""Where what is simplified is defined."""
_SCALES = re.compile(
    r"(?<![A-Za-z])(?:mn|mln|bn|bps|pp[mb]|(?:per ?)?mille?|percentage|basis|fold|ish|M(?=[\s}]*$)|\u2030)"
    r"(?![A-Za-z])"
)
"""Words behind a number that make it another one, unless the problem has them."""
_OTHER_NUMBER = re.compile(
    rf"[0-9}}]\s*\\(?:{TEXT_COMMANDS})\s*\{{(?![^{{}}]*\b(?:base|mod)\b)[^{{}}]{{0,80}}?(?<![A-Za-z^_0-9.])([0-9]+(?:\.[0-9]+)?)"
)
"""A number in the words behind another."""
_WORD = re.compile("[a-z]+")
_LAST_BASE = re.compile(rf".*\bbase[- ]*\{{?([0-9]+|{'|'.join(NUMERALS)})\b", re.DOTALL | re.IGNORECASE)
_BASED = re.compile(r"[0-9)] *_ *\{?([0-9]+)")
_ASKS_ABOUT = re.compile(r"\b(?:round|nearest|approximat|about|estimat)|\\approx", re.IGNORECASE)
_ASKED = re.compile(r"\b(?:how many|number of) +([a-z]+)", re.IGNORECASE)
_CHOICE = re.compile(
    rf"(?:\\(?:{TEXT_COMMANDS})\s*\{{)?\s*\(([A-J])\)\s*\}}?(?:\\[ ,:;]|\\q?quad|[~:\s])*(.*)", re.DOTALL
)
_OTHER_CHOICE = re.compile(
    r"\b(?:[A-J]|or|and|not|wrong|false|incorrect|untrue|never|unless|except|maybe)\b|(?:^|[\s,;/)}])\([a-j]\)"
)
_LETTER = re.compile(rf"(?:\\(?:{TEXT_COMMANDS})\s*\{{)?\s*\(?[A-J]\)?\s*\}}?")
_NEAR = r"(?:\\approx|\\simeq|\\doteq|\u2248)(?![a-z])\s*"
_APPROXIMATED = re.compile(
    rf"([^\u2248]*?[^\s\\])\s*(?:\\?\(\s*{_NEAR}(-?[0-9][0-9,]*(?:\.[0-9]+)?)([^0-9()]*)\)"
    rf"|{_NEAR}(-?[0-9][0-9,]*(?:\.[0-9]+)?)([^0-9]*))"
)
"""An exact value and a decimal for it: what stands before, then twice the decimal and what stands behind it."""
_DENIED = re.compile(r"[,;]?\s*\b(?:and |but )?(?:not|rather than|instead of) \W*([0-9]+(?:[.,][0-9]+)*)\$?")
_DECIMAL_COMMA = re.compile(r"(?<![0-9,(\[{])(?:0,[0-9]+|[0-9]+,[0-9]{1,2})(?![0-9,)\]}])")
_OPENING = re.compile(r"^(?:(?:so|thus|hence|then),? +)?(?:it|this|that|which) +(?:is|equals) +", re.IGNORECASE)
_REMARK = re.compile(r"(?<=[0-9a-z}$])\s+\((?!base\b|mod\b)[A-Za-z]{2,}[A-Za-z ,]*\)$")
_TENS = {"hundred", "thousand", "million", "billion", "trillion"}
"""Words that `quantity` reads as powers of ten."""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\])")
_APPLIED = re.compile(r"([A-Za-z])('*(?:\^-1)?)\((-?[0-9][^()]*)\)")
_NAMED = re.compile(
    r"[A-Za-z ]{2,}|m? *\\(?:angle|overline|triangle|text) *\{?[A-Za-z ]+\}?(?: *[A-Z]+)?|\[[A-Z]+\]|\|[A-Za-z]+\|"
    r"|[A-Za-z](?: *: *[A-Za-z])+"
)
_ASKS_PERCENT = re.compile(
    r"\b(?:what|which|many|a|in|the) +(?:percent(?!age)|\$?\\?%)"
    r"|\b(?:what|which|find|determine|compute|calculate|as an?)\b[^.?!]{0,60}percentage|percentage[^.?!]*\?",
    re.IGNORECASE,
)
_IN_BASE = re.compile(r"\bbase\b[ -]*[a-z]+")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-5][0-9]")


def asks_for_percent(problem: str) -> bool:
    """Whether a problem asks for a percent. `A discount of 20 percent` does not."""
    return _ASKS_PERCENT.search(problem) is not None


def alone(answer: str, gold: str, problem: str) -> str:
    r"""The answer without what it says beside: what else is said of its choice, a number that it is not, a remark.

    >>> alone(r"\textbf{(C)}\ 3", "C", ""), alone("12, not 13", "12", ""), alone("18 (in all)", "18", "")
    ('C', '12', '18')
    """
    if (choice := _CHOICE.fullmatch(answer)) and choice[2]:
        if _LETTER.fullmatch(gold):
            return answer if _OTHER_CHOICE.search(choice[2]) else choice[1]
        return choice[2] if f"({choice[1]})" in problem else answer
    answer = _OPENING.sub("", answer)
    if not has_sign(gold, r"\ne", r"\neq", "!=") and (restriction := _RESTRICTION.search(answer)):
        answer = answer[: restriction.start()].rstrip(" ,;\\") or answer
    for denied in reversed(list(_DENIED.finditer(answer))):
        others = answer[: denied.start()] + answer[denied.end() :]
        if denied[1] not in (numbers := re.findall(r"[0-9]+(?:[.,][0-9]+)*", others)) and numbers:
            answer = others.strip(" ,;")
    remark = _REMARK.search(answer)
    if not remark or CHANGES.search(remark[0]) or says_otherwise(gold, answer, problem):
        return answer
    return answer[: remark.start()]


def approximated(answer: str, gold: str, problem: str) -> tuple[str, tuple[str, str] | None]:
    r"""What is answered where a decimal is given for an exact value: the exact value; where the reference is a decimal
    or the problem asks for one the decimal, and then both, which must be near each other.

    >>> approximated(r"x = \frac{1}{3} \approx 0.33", r"\frac{1}{3}", "")
    ('x = \\frac{1}{3}', None)
    >>> approximated(r"$\frac{1}{3} \approx 0.33$", "0.33", "")
    ('0.33', ('\\frac{1}{3}', '0.33'))
    """
    found = _APPROXIMATED.fullmatch(undelimited(answer))
    if found is None or "approx" in gold or NAME.fullmatch(found[1]):
        return answer, None
    exact, decimal, unit = found[1], found[2] or found[4], found[3] or found[5] or ""
    wants = "." in gold or (_ASKS_ABOUT.search(problem) and re.fullmatch("-?[0-9,]+", gold))
    if not wants:
        return exact, None
    beside = (exact.rpartition("=")[2].strip(), decimal.replace(",", ""))
    return decimal + unit, beside if "%" in exact or "%" not in unit else None


def is_decimal_comma(gold: str, answer: str, problem: str) -> bool:
    """Whether the reference is the answer with a comma for its point. A problem that never writes so means a list.

    >>> is_decimal_comma("1,22", "1.22", ""), is_decimal_comma("1,22", "1.22", "Find all $x$.")
    (True, False)
    """
    means_it = not problem or _DECIMAL_COMMA.search(problem)
    return bool(means_it and _DECIMAL_COMMA.match(gold) and gold == answer.replace(".", ",", 1) != answer)


def says_otherwise(gold: str, answer: str, problem: str = "") -> bool:
    """Whether an answer denies its value, or has words that change it, other than the reference's.

    >>> says_otherwise("12", "It is not 12"), says_otherwise("12", r"12\\text{ squared}"), says_otherwise("12", "12 cm")
    (True, True, False)
    """
    said = last_said(usual(answer))
    meant = gold.casefold()
    found = {match[0].casefold() for match in (*_NEGATION.finditer(said), *_HEDGE.finditer(said))}
    last = max((match.end() for match in re.finditer("[0-9]", said)), default=0)
    words = re.sub(r"([a-z]+)\.? (?:squared|cubed)\b", _kept_unit, _IN_BASE.sub(" ", said[last:]), flags=re.IGNORECASE)
    if last:
        found |= {match[0].casefold() for match in CHANGES.finditer(words)} - _TENS - {f"{ten}s" for ten in _TENS}
        found |= {
            match[0].casefold() for match in re.finditer(r"\b(?:minus|plus|modulo|or (?:more|less|fewer))\b", said)
        }
        found |= set(re.findall(rf"\\(?:{TEXT_COMMANDS}|operatorname)\{{ *(pi|M)\b", said))
        found |= {match[0].casefold() for match in _SCALES.finditer(words)} - set(_WORD.findall(problem.casefold()))
        found |= {match[1] for match in _OTHER_NUMBER.finditer(said)}
    if number(gold) and "." not in gold and _ABOUT.search(said) and not _ASKS_ABOUT.search(problem):
        return True
    unequal = _UNEQUAL.search(said)
    if unequal and number(gold) and number(unequal[1]) == number(gold):
        return True
    asked = {word.casefold() for word in _ASKED.findall(problem)}
    return any(word not in meant and word not in asked for word in found)


def _kept_unit(found: re.Match[str]) -> str:
    return "" if found[1].casefold() in UNIT_OF else found[0]


def last_said(answer: str) -> str:
    """The sentence with the last digit, and those behind it."""
    sentences = SENTENCE.split(answer)
    numbered = [place for place, sentence in enumerate(sentences) if re.search("[0-9]", sentence)]
    return " ".join(sentences[numbered[-1] if numbered else 0 :])


def of_another_kind(gold: str, answer: str, problem: str) -> bool:
    """Whether an answer has a base, letters or a fraction that the reference, in normal notation too, cannot have."""
    bases = set(_bases(gold))
    if (problem or bases) and not set(_bases(answer)) <= bases | _asked_bases(problem):
        return True
    if _CLOCK.fullmatch(gold) and ":" not in answer and "ratio" not in problem.casefold():
        return True
    mine, yours = (_letters(text) for text in (gold, answer))
    return any(one.swapcase() in mine - yours for one in yours - mine)


def _bases(text: str) -> Iterator[str]:
    """The bases that the numbers of an answer name."""
    yield from filter(None, (quantity(part).base for one in split(text, ",", ";") for part in split(one, "=")))
    yield from _BASED.findall(text)


def _asked_bases(problem: str) -> set[str]:
    """The base that a problem names last; any if it only speaks of bases."""
    found = _LAST_BASE.match(problem)
    if found is None:
        return set(map(str, range(100))) if "base" in problem.casefold() else set()
    return {str(NUMERALS.get(found[1].casefold(), found[1]))}


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
    if r"\ldots" in side:  # a sum that is not written out
        return True
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
    if form_of(gold).kind not in ("tuple", "interval", "vector") or "=" in gold:
        return answer
    form, either = form_of(answer), re.search(r"(?<![A-Za-z\\])or(?![A-Za-z])", written)
    if "=" not in answer:
        return None if either and form.kind == "bare" else answer
    pairs = [[side.strip() for side in split(part, "=")] for part in form.parts]
    if form.kind == "one" and len(pairs[0]) > 1 and re.fullmatch(r"\( *[A-Za-z](?: *, *[A-Za-z])+ *\)", pairs[0][0]):
        names, values = re.findall("[A-Za-z]", pairs[0][0]), list(form_of(pairs[0][-1]).parts)
    elif form.kind in ("bare", "tuple", "interval"):
        names, values = [pair[0] for pair in pairs], [pair[-1] for pair in pairs]
        if either or any(len(pair) < 2 for pair in pairs):
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
