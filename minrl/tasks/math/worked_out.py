r"""Is an answer worked out, or is it what the problem shows, written otherwise?

    Compute $\binom{17}{9}.$    24310 is worked out;    0+\binom{17}{9}, \binom{17}{8} and \frac{48620}{2} are not

Where the reference is a number, or a list of numbers, so is the answer, or it is no longer than the reference (`2^{10}`
for 1024). Where the problem states an expression of the reference's value, the problem is to rewrite it: the answer
must be as short as the reference, or nearly, and have its form, where that is not the shorter one. Lengths and forms
are of what is written, for the library that compares values evaluates as it reads.

Only what the problem's mathematics say is an expression of it: whole formulas and their sides, no figures' code.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from string import digits

from minrl.tasks.math.claims import SENTENCE
from minrl.tasks.math.leftovers import leftovers, read
from minrl.tasks.math.notation import FORMULA, formulas, undelimited
from minrl.tasks.math.written import Form, Number, form, last, number, opened, parts, spelled, squeezed

_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_PLAIN_FORMULA = re.compile(r"(?<![\w\\$.])(?=[^\s,;?]*[0-9])[\w.()]+(?:\s?[-+*/^!]\s?[\w.()]+)+|(?<!\w)\d+!")
_RESTATED = re.compile(r"(?i)\b(?:write|express|convert|change) +(-?[0-9]*\.?[0-9]+(?:\\?%)?)(?![0-9^*/])")
_SIDES = re.compile(
    r"(?<![<>!:\\])=|[<>]|\\(?:leq?|geq?|neq?|lt|gt|approx|equiv|to|in|cup|quad|qquad)(?![a-z])|[,;&]|\\\\"
)
_RELATION = re.compile(r"[^=A-Za-z\\]*[0-9][^=A-Za-z\\]*=|[^=]*[A-Za-z)}0-9] *[-+*/^][^=]*=")
"""An equation that does not just give a value to a name."""
_IDLE = set("01+-*/^")
_OPERATORS = {r"\sum", r"\prod", r"\int", r"\lim", r"\max", r"\min", r"\det", r"\gcd"}
"""What is worked out has these only where the reference has them."""
_CONSTANT = {*"+-*/i", r"\sqrt", r"\pi", r"\pm"}
_ALWAYS = {"like", "fraction", "root", "power", "product", "nested", "imaginary"}
_SIMPLIFY = re.compile(r"simpl|rationali|radical", re.IGNORECASE)
_FACTOR = re.compile(r"factor", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"scientific|standard form", re.IGNORECASE)
_MANTISSA = re.compile(r"-?[1-9](?:\.[0-9]*)?(?:\*10\^|[eE])")
_POWER = re.compile(r"[0-9]+\^\{?-?[0-9]+\}?")
_AS_A_POWER = re.compile(r"power of|as a power|exponential (?:form|notation)|using exponents", re.IGNORECASE)
_SQUARE = re.compile(r"[-+].*\)\^|\)\^\{?[0-9]+\}?[-+]")
_EXACT = re.compile(r"in terms of|exact|simpl|radical|rationali", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SENTENCE_WORDS = 3
"""Sentences of fewer words are not looked for."""
_NEARLY = 3
"""An answer that is shorter than what is stated has at most so many symbols more than the reference, or a quarter."""


def is_longer_than_numbers(answer: str, gold: str) -> bool:
    r"""Whether the reference is numbers and the answer has what is no number and longer than they are.

    >>> [is_longer_than_numbers(answer, "1024") for answer in ("1024.0", "2^{10}", r"2 \cdot 512", "x = 1024")]
    [False, False, True, False]
    """
    golds = parts(gold)
    if not golds or not all(map(number, golds)) or _RELATION.match(gold):
        return False
    longest = max(len(form(one).symbols) for one in golds)
    return any(number(one) is None and len(form(one).symbols) > longest for one in parts(answer))


def is_restated(answer: str, gold: str, problem: str) -> bool:
    r"""Whether the answer is sentences of the problem and nothing more, unless all that these show is the reference.

    >>> asked = "How many ways are there to select 5 of 6?"
    >>> is_restated(asked, "6", asked), is_restated(asked + " 6", "6", asked)
    (True, False)
    >>> is_restated(r"What is $\sqrt{53}$ in simplest form?", r"\sqrt{53}", r"What is $\sqrt{53}$ in simplest form?")
    False
    """
    left, found = " ".join(answer.split()), []
    for sentence in (problem, *SENTENCE.split(problem)):
        text = " ".join(sentence.split())
        if len(_WORD.findall(text)) >= _SENTENCE_WORDS and text in left:
            left = left.replace(text, " ")
            found.append(sentence)
    if not found or any(map(str.isnumeric if any(map(str.isdecimal, gold)) else str.isalpha, left)):
        return False
    shown = set(expressions(" ".join(found)))
    return not shown or any(form(one) != form(gold) for one in shown)


def is_worked_out(answer: str, gold: str, stated: Callable[[], Iterable[str]], problem: str = "") -> bool:
    """Whether an answer that has the reference's value is worked out. `stated` gives the problem's expressions of that
    value; it is asked only if they matter.
    """
    answer = undelimited(answer)  # as it is compared: `$2+x$ for all x` says 2+x
    ending = answer if "=" in gold else last(answer)
    given, wanted = form(ending), form(gold)
    one, reference = number(last(answer)), None if _RELATION.match(gold) else number(last(gold))
    if reference and _is_an_equation(answer) and any(_repeats(answer, expression) for expression in stated()):
        return False
    if Counter(given.symbols) == Counter(wanted.symbols) or (
        one and one.reduced and one == reference and one.kind != "power"
    ):
        return True
    if _left(ending, gold, problem) or not _has_the_wording(answer, gold, problem):
        return False
    if _OPERATORS & (form(answer).functions - wanted.functions):
        return False
    if reference is None and not wanted.functions and not any(map(str.isalpha, wanted.symbols)) and given.functions:
        return False  # a constant by its name in trigonometry and the like
    shown = [expression for expression in stated() if not _adds_nothing(wanted, form(expression))]
    if reference:
        return not any(_same_work(one, reference, expression) for expression in shown)
    forms = list(map(form, shown))
    if forms and (not _has_the_form(answer, gold) or _left(ending, gold, "simplify")):
        return False
    beside = _IDLE | set(digits) if len(given.symbols) > len(wanted.symbols) + _NEARLY else _IDLE
    if any(_adds_nothing(given, one, beside) for one in forms):
        return False
    return _is_constant(given, wanted) or all(_is_simpler(given, wanted, one) for one in forms)


def _left(answer: str, gold: str, problem: str) -> bool:
    """Whether the answer leaves more to compute than the reference does."""
    mine, meant = (leftovers(read(squeezed(opened(spelled(one))))) for one in (answer, gold))
    kinds = {"fraction"} if all(map(number, parts(gold))) and not _RELATION.match(gold) else _ALWAYS
    kinds = kinds | {"denominator"} if _SIMPLIFY.search(problem) else kinds
    kinds = kinds | {"open"} if _is_constant(form(gold)) else kinds
    kinds = kinds | {"common"} if _FACTOR.search(problem) and form(gold).terms == 1 else kinds
    return any(mine[kind] > meant[kind] for kind in kinds)


def _has_the_wording(answer: str, gold: str, problem: str) -> bool:
    """Whether the answer has what the problem asks for by name: a power, scientific notation, an exact value."""
    one, wanted = number(last(answer)), number(last(gold))
    if wanted and wanted.kind == "power" and _SCIENTIFIC.search(problem):
        return bool(one) and bool(_MANTISSA.match(squeezed(opened(spelled(last(answer))))))
    if _POWER.fullmatch(squeezed(spelled(gold))) and _AS_A_POWER.search(problem):
        return Counter(form(last(answer)).symbols) == Counter(form(gold).symbols)
    return not (one and wanted is None and _EXACT.search(problem) and re.search(r"\\(?:pi|sqrt)", spelled(gold)))


def _is_constant(*forms: Form) -> bool:
    """Whether roots and numbers are all that the forms have."""
    return all(one in _CONSTANT or one.isdecimal() for each in forms for one in each.symbols)


def _is_an_equation(text: str) -> bool:
    """Whether the text says that an expression, not a name, is something."""
    left, equals, _ = text.rpartition("=")
    return bool(equals) and len(form(left).symbols) > 1


def _repeats(answer: str, expression: str) -> bool:
    """Whether the answer has all symbols of an equation."""
    return _is_an_equation(expression) and _shows(form(answer), form(expression))


def _shows(answer: Form, stated: Form) -> bool:
    """Whether all of the stated expression's symbols stand in the answer."""
    return Counter(stated.symbols) <= Counter(answer.symbols)


def _has_the_form(answer: str, gold: str) -> bool:
    """Whether the answer is a product and is solved for a name where the reference is."""
    left, equals, _ = spelled(gold).partition("=")
    other, also, _ = spelled(answer).partition("=")
    if equals and also and len(form(left).symbols) == 1 and form(left) != form(other):
        return False
    if form(gold).terms > 1 and _SQUARE.search(squeezed(spelled(gold))) and ")^" not in squeezed(spelled(answer)):
        return False
    return ")(" not in squeezed(spelled(gold)) or form(answer).terms <= form(gold).terms


def _same_work(answer: Number | None, gold: Number, expression: str) -> bool:
    """Whether the answer is no more of a number than the expression that the problem states."""
    stated = number(expression)
    if answer is None or not answer.reduced:
        return stated is None or not stated.reduced or answer is None
    if stated is None or stated.kind == gold.kind:
        return False
    return answer.kind not in {gold.kind, "digits" if gold.kind == "percent" else "mixed"}


def _adds_nothing(answer: Form, stated: Form, idle: Set[str] = frozenset(_IDLE)) -> bool:
    """Whether the answer has the symbols of the stated expression, in any order, and idle ones beside them."""
    beside = Counter(answer.symbols) - Counter(stated.symbols)
    return _shows(answer, stated) and set(beside) <= idle


def _is_simpler(answer: Form, gold: Form, stated: Form) -> bool:
    length, limit = len(answer.symbols) - (answer.symbols[:1] == ("-",)), len(gold.symbols)
    enough = limit + max(_NEARLY, limit // 4)
    if stated.functions and not gold.functions:  # to be rid of them is what is asked for
        return not answer.functions and length <= enough
    if limit >= len(stated.symbols):  # what is asked for is no shorter: its form counts
        return length <= limit and answer.heads == gold.heads and answer.terms == gold.terms
    if answer.functions - gold.functions and not gold.functions:
        return False
    return length <= limit or length < min(len(stated.symbols), enough + 1)


def expressions(problem: str) -> Iterator[str]:
    r"""The formulas of a problem, and the sides of those that are relations or lists.

    >>> list(expressions(r"If $x=\sqrt{51}$, simplify 2/4. [asy] draw((0,0)--(sqrt(2),1)); [/asy]"))
    ['x=\\sqrt{51}', 'x', '\\sqrt{51}', '2/4']
    """
    text = _FIGURE.sub(" ", problem)
    found = formulas(text) + _PLAIN_FORMULA.findall(FORMULA.sub(" ", text)) + _RESTATED.findall(text)
    sides = (side for one in found for side in (one, *_SIDES.split(one)))
    yield from dict.fromkeys(bare for side in sides if (bare := side.strip().rstrip(".,;:?! ").strip()))
