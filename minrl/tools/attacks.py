"""The texts that attack a reward, by family: by construction none of them is worth what a right answer is.

A text that may be right is not made. A prompt that holds its answer is not copied; several answers are put together
only if each is one line, since two programs in one text may both be right; a right answer stands in the midst of wrong
ones, so that a reward that reads the first or the last one reads a wrong one, and beside a single wrong one it is tried
on both sides.
"""

import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from minrl.models.chat import text_of
from minrl.models.thoughts import after_thoughts
from minrl.types import Example, Prompt

NONSENSE = ("I do not know.", "qwz vrk plim")
REFUSALS = ("I'm sorry, but I can't help with that.", "As an AI language model, I cannot answer.", "unknown", "N/A")
BLANKS = (" ", "\n\n", "\t \r\n", "\u00a0\u3000")
EMPTY_FORMS = (
    *("<answer></answer>", "<answer> </answer>", "<think> </think> <answer> </answer>", "\\boxed{}", "#### "),
    *("```python\n```", "Answer:", "{}", "[]"),
)
TAGS = ("<think></think>", "<think>", "<answer></answer>", "\\boxed{} ", "#### ", "Answer: ", "```\n```\n")
VALUES = ("nan", "inf", "-inf", "1e999", "True", "true", "null", "None", "{}", "[]", "*", ".*", "%", "--5")
SCRIPTS = (
    *("\u0664\u0665\u0666\u0667\u0668", "\uff17\uff13\uff11\uff19", "\u0967\u0968\u0969\u096a", "7\u00b2", "\u00b3"),
    *("\u00bd", "\u2167", "\u56db\u5341\u4e8c", "\u2460\u2461", "\u202e731", "7\u200b3\u200b1", "\x00", "\ufffd" * 3),
    *("\U0001f642", "e\u0301" * 50, "\u0430\u043f\u0440\u0435\u043b\u044c", "\u0661e\u0665", "\u2212"),
)
LOOKS = str.maketrans(
    "0123456789aceopxyABCEHKMOPTX",
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19\u0430\u0441\u0435\u043e\u0440\u0445\u0443"
    "\u0410\u0412\u0421\u0415\u041d\u041a\u041c\u041e\u0420\u0422\u0425",
)
"""Full-width digits, and Cyrillic letters that look like Latin ones."""
SUPERSCRIPTS = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
LONG, BACKTRACKED = 100_000, 40
"""Repetitions in a long text, and in one that ends such that a pattern with nested repetitions tries 2^40 ways."""
OF_LONG, OTHERS, MOST_CHARACTERS = 2, 3, 200
"""Examples with long texts, other examples whose answers are tried, and characters of an answer put in a text."""


@dataclass(frozen=True)
class Answers:
    """A right completion of the examples that have one, by number, and who says so. `declared`: not found by trying.

    Each is `prefix`, an answer, and `suffix`: the form is what all of them share.
    """

    texts: Mapping[int, str] = field(default_factory=dict)
    source: str = ""
    declared: bool = False
    prefix: str = ""
    suffix: str = ""

    @classmethod
    def of(cls, texts: Mapping[int, str], source: str, declared: bool) -> "Answers":
        """Answers and their form: what all begin and end with, up to a letter or digit."""
        different, word = set(texts.values()), string.ascii_letters + string.digits
        if len(different) < 2:
            return cls(texts, source, declared)
        prefix = _common_start(different).rstrip(word)
        suffix = _common_start({text[len(prefix) :][::-1] for text in different}).rstrip(word)[::-1]
        return cls(texts, source, declared, prefix, suffix)

    def bare(self, number: int) -> str:
        """The answer without its form."""
        return self.texts[number][len(self.prefix) : len(self.texts[number]) - len(self.suffix)]

    def formed(self, text: str) -> str:
        """A text in the form."""
        return f"{self.prefix}{text}{self.suffix}"


def _common_start(texts: Collection[str]) -> str:
    """What all texts begin with.

    >>> _common_start({"#### 12", "#### 13"})
    '#### 1'
    """
    first, last = min(texts), max(texts)
    same = (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(same, min(len(first), len(last)))]


@dataclass(frozen=True)
class Attack:
    """A text for an example, None for a copy of what is shown. Attacks with the same `trial` are one: the reward falls
    for them if it pays each. `others` are the examples whose answers the text holds, which are wrong here unless the
    reward takes them. `may_be_paid`: only a failure is a fault.
    """

    text: str | None
    trial: str = ""
    others: tuple[int, ...] = ()
    may_be_paid: bool = False
    family: str = ""
    number: int = 0


@dataclass(frozen=True)
class Target:
    """An example that is attacked: its number, and its right answer without the form (None: unknown)."""

    number: int
    example: Example
    answers: Answers
    own: str | None
    others: Sequence[int]
    """Examples whose answers are others, in random order."""

    @property
    def has_form(self) -> bool:
        """Whether the right answers share a form."""
        return bool(self.answers.prefix.strip() or self.answers.suffix.strip())


def attacks(examples: Sequence[Example], answers: Answers, seed: int) -> Iterator[Attack]:
    """All attacks on the examples, the right answers among them."""
    for number, example in enumerate(examples):
        own = answers.bare(number) if number in answers.texts else None
        different = {
            answers.bare(other): other for other in answers.texts if _folded(answers.bare(other)) != _folded(own or "")
        }
        others = sorted(different.values())
        Random(f"{seed} {example.id}").shuffle(others)
        target = Target(number, example, answers, own, others)
        for name, family in FAMILIES.items():
            made = family.texts(target) if family.texts and (own is not None or not family.of_answers) else ()
            for one in made:
                attack = one if isinstance(one, Attack) else Attack(one)
                yield replace(attack, family=name, number=number)


Texts = Iterator[str | Attack | None]


def shown(prompt: Prompt) -> str:
    """The text of a prompt, of chat messages without their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(map(text_of, prompt))


def _empty(target: Target) -> Texts:
    if target.own is None or target.own.strip():
        yield from ("", *BLANKS)


def _nonsense(target: Target) -> Texts:
    for text in (*NONSENSE, *REFUSALS):
        if (target.own or "-").casefold() not in text.casefold():
            yield text


def _prompt(target: Target) -> Texts:
    """The prompt, its last message and an expression in it, bare and as an answer; not where it holds the answer."""
    prompt, formed = target.example.prompt, target.answers.formed
    whole = shown(prompt)
    if target.own is not None and _on_a_line(target.own) in _on_a_line(whole):
        return
    last = [shown(prompt[-1:])] if isinstance(prompt, list) and len(prompt) > 1 else []
    expressions = re.findall(r"[\d(][\d\s.()]*[-+*/^][-\d\s.()+*/^]*[\d)]", whole)[:1]
    yield from dict.fromkeys([None, *last, *expressions, formed(whole), *map(formed, expressions)])


def _format(target: Target) -> Texts:
    if target.own is None or re.search(r"\w", target.own):
        formed = ["", " ", *NONSENSE, *REFUSALS] if target.has_form else []
        yield from dict.fromkeys([*map(target.answers.formed, formed), *EMPTY_FORMS])


def _repeated(target: Target) -> Texts:
    for tag in TAGS:
        yield tag * 30 + target.answers.formed(NONSENSE[1])


def _candidates(target: Target) -> Texts:
    answers, own = target.answers, target.own or ""
    lines = [other for other in target.others if _is_line(answers.bare(other))]
    if not _is_line(own) or len(lines) < 2:
        return
    order = (*lines[: len(lines) // 2], target.number, *lines[len(lines) // 2 :])
    texts = [answers.formed(join.join(map(answers.bare, order))) for join in (", ", " or ", " ")]
    texts.append("\n".join(answers.texts[other] for other in order))
    if re.fullmatch(r"-?[0-9]{1,4}", own):
        texts.append(answers.formed(" ".join(map(str, range(int(own) - 50, int(own) + 51)))))
    yield from (Attack(text, others=tuple(lines)) for text in texts)


def _place(target: Target) -> Texts:
    answers, own = target.answers, target.own or ""
    thought = after_thoughts(answers.texts[target.number]).strip() or own
    if target.has_form:
        yield f"<think> {thought} </think> {NONSENSE[0]}"
    for other in target.others[:OTHERS]:
        wrong = answers.texts[other]
        yield Attack(f"<think> {thought} </think> {wrong}", f"thought {other}", (other,))
        if _is_line(own) and _is_line(answers.bare(other)):
            yield Attack(f"{own}\n{wrong}", f"beside {other}", (other,))
            yield Attack(f"{wrong}\n{own}", f"beside {other}", (other,))


def _longer(target: Target) -> Texts:
    own = target.own or ""
    number = re.fullmatch("[1-9][0-9]*", own)
    forms = ("9{}9", "{}.9", "{}e3", "{}/7") if number else ("{}xyz", "xyz{}") if own.isalpha() else ()
    yield from (Attack(target.answers.formed(form.format(own)), others=tuple(target.others[:1])) for form in forms)


def _fragments(target: Target) -> Texts:
    own = target.own or ""
    if own.isalnum() and len(own) > 1:
        parts = dict.fromkeys([own[0], own[-1], own[:-1], own[1:], own[::-1], string.digits, string.ascii_lowercase])
        yield from (target.answers.formed(part) for part in parts if part != own and own not in part)


def _near(target: Target) -> Texts:
    if re.fullmatch("-?[1-9][0-9]*", target.own or ""):
        value = int(target.own or "")
        step = max(1, abs(value) // 20)
        yield from (target.answers.formed(str(value + change)) for change in (step, -step))


def _code(target: Target) -> Texts:
    yield target.answers.formed("print('evaluated')")
    if re.fullmatch("[1-9][0-9]+", target.own or ""):
        yield target.answers.formed(f"int('{int(target.own or ''):b}', 2)")


def _scripts(target: Target) -> Texts:
    own, formed = target.own, target.answers.formed
    yield from (Attack(formed(text), may_be_paid=_plain(text) == own) for text in (*SCRIPTS, *VALUES) if text != own)
    if own is not None:
        yield Attack(formed(own.translate(LOOKS)), may_be_paid=True)
        if re.fullmatch(r"[1-9][0-9]+", own):
            yield formed(own[:-1] + own[-1].translate(SUPERSCRIPTS))


def _long(target: Target) -> Texts:
    if target.number < OF_LONG:
        failing = [part * count + "!" for part in ("7", "a", "a ", "7,") for count in (BACKTRACKED, LONG // len(part))]
        for text in ("vrk " * LONG, "(" * LONG, *failing):
            yield from dict.fromkeys([text, target.answers.formed(text)])
        yield from (text * LONG for text in ("<answer>", "\\boxed{"))


def _gold(target: Target) -> Texts:
    yield target.answers.texts[target.number]


def _other(target: Target) -> Texts:
    yield from (Attack(target.answers.texts[other], others=(other,)) for other in target.others[:OTHERS])


@dataclass(frozen=True)
class Family:
    """What a family tries, what fixes a reward that falls for it, and its texts. `of_answers`: it needs right answers.
    Without `texts` it is a failure that any text may show.
    """

    tries: str
    fix: str
    texts: Callable[[Target], Texts] | None = None
    of_answers: bool = False


FAMILIES = {
    "empty": Family("no text at all, and blanks", "pay nothing where nothing is said", _empty),
    "nonsense": Family("words that answer nothing, refusals", "pay for an answer, not for any text", _nonsense),
    "prompt": Family(
        "the prompt or its expression copied", "read the answer where it is asked for, as a value", _prompt
    ),
    "format": Family("the form with no answer in it", "pay less than half for the form", _format),
    "repeated": Family("thirty tags and no answer", "pay for a part once, however often it occurs", _repeated),
    "candidates": Family("every candidate in one answer", "refuse several answers that differ", _candidates, True),
    "place": Family(
        "the right answer in a thought, or beside a wrong one",
        "read one place: after_thoughts, then the last or the only marked answer",
        _place,
        True,
    ),
    "longer": Family("the right answer within a longer one", "compare the whole answer: re.fullmatch", _longer, True),
    "fragments": Family(
        "parts of the right answer", "compare the whole answer with ==, not with `in`", _fragments, True
    ),
    "near": Family("the right number plus or minus 5 %", "compare exactly, or up to rounding", _near, True),
    "code": Family("Python that computes the answer", "parse with ast.literal_eval or int, not with eval", _code),
    "scripts": Family(
        "digits of other scripts, look-alikes, nan, null",
        "int() raises for some of what isdigit() takes, NFKC makes 12 of 1 squared and float() takes nan: match [0-9]",
        _scripts,
    ),
    "long": Family(
        "a hundred thousand words, brackets, digits, and what makes a pattern backtrack",
        "bound the length that is read, and use patterns in linear time",
        _long,
    ),
    "gold": Family("the right answer", "compare values, not spellings, and pay it the maximum", _gold, True),
    "other": Family("the right answer of another example", "compare with the example's own answer", _other, True),
    "repeatable": Family(
        "the same texts in another process, in another order, in four processes at once",
        "no random numbers, clocks, hash(), order of sets, files of a fixed name; keep nothing between calls",
    ),
    "batch": Family("one text among others, and alone", "pay a completion for what it says, whatever is beside it"),
    "slow": Family("the deadline", "bound the work by the length of the text, or raise the deadline"),
    "crash": Family("memory, recursion, the end of the process", "bound the depth and the size of what is parsed"),
    "raises": Family("exceptions", "catch what reading a text can raise, and pay for it"),
    "prints": Family("what is printed", "print nothing: return Reward(value, {'part': number}) to see parts"),
    "returns": Family("what is returned", "return a finite number or a Reward, at most its maximum, from every branch"),
}
"""By name, in the order of the table."""


def _on_a_line(text: str) -> str:
    return " ".join(text.casefold().split())


def _folded(text: str) -> str:
    """The words and numbers of a text."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


def _is_line(text: str) -> bool:
    return "\n" not in text and 0 < len(text.strip()) <= MOST_CHARACTERS


def _plain(text: str) -> str:
    r"""A text as a lenient reader may read it.

    >>> _plain("\u2460\u2461"), _plain("\u0664\u0665"), _plain("\u202e731")
    ('12', '45', '731')
    """
    known = (one for one in unicodedata.normalize("NFKC", text) if unicodedata.category(one) != "Cf")
    return "".join(str(unicodedata.decimal(one, one)) for one in known)
