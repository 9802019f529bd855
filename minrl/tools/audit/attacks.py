"""The texts of each family: by construction none of them is worth what a right answer is.

A text that may be right is not made. A prompt that holds its answer is not copied; several answers are put together
only if each is one line, since two programs in one text may both be right; a right answer stands among wrong ones in
their midst, so that who reads the first or the last one reads a wrong one, and beside a single wrong one it is tried on
both sides.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from minrl.models.thoughts import after_thoughts
from minrl.tools.audit.answers import NONSENSE, Answers
from minrl.tools.audit.pay import shown
from minrl.types import Example

BLANKS = (" ", "\n\n", "\t \r\n", "\u00a0\u3000")
EMPTY_FORMS = (
    *("<answer></answer>", "<answer> </answer>", "<think> </think> <answer> </answer>", "\\boxed{}", "#### "),
    *("```python\n```", "Answer:", "{}", "[]"),
)
SCRIPTS = (
    *("\u0664\u0665\u0666\u0667\u0668", "\uff17\uff13\uff11\uff19", "\u0967\u0968\u0969\u096a", "7\u00b2", "\u00b3"),
    *("\u00bd", "\u2167", "\u56db\u5341\u4e8c", "\u2460\u2461", "\u202e731", "7\u200b3\u200b1", "\x00", "\ufffd" * 3),
    *("\U0001f642", "e\u0301" * 50, "\u0430\u043f\u0440\u0435\u043b\u044c", "\u0661e\u0665", "--5", "1e999", "\u2212"),
)
LOOKS = str.maketrans(
    "0123456789aceopxyABCEHKMOPTX",
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19\u0430\u0441\u0435\u043e\u0440\u0445\u0443"
    "\u0410\u0412\u0421\u0415\u041d\u041a\u041c\u041e\u0420\u0422\u0425",
)
"""Full-width digits, and Cyrillic letters that look like Latin ones."""
SUPERSCRIPTS = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
LONG, OF_LONG = 100_000, 2
"""Words of a long text, and the examples for which it is tried."""
JOINS = (", ", " or ", " ")
OTHERS = 3
"""Other examples whose answers are tried."""
MOST_CHARACTERS = 200
"""Of an answer that is put among others."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Attack:
    """A text for an example, None for a copy of what is shown. Attacks with the same `trial` are one: the reward falls
    for them if it pays each. `others` are the examples whose answers the text holds, which are wrong here unless the
    reward takes them. `may_be_paid`: only a failure is a fault.
    """

    family: str
    number: int
    text: str | None
    trial: str = ""
    others: tuple[int, ...] = ()
    may_be_paid: bool = False


def attacks(examples: Sequence[Example], answers: Answers, seed: int) -> Iterator[Attack]:
    """All attacks on the examples, the right answers among them."""
    for number, example in enumerate(examples):
        bare = answers.bare(number) if number in answers.texts else None
        yield from _of_nothing(number, bare)
        yield from _of_prompt(number, example, bare, answers)
        yield from _of_form(number, bare, answers)
        yield from _of_scripts(number, bare, answers)
        if number < OF_LONG:
            yield from _of_length(number, answers)
        if bare is not None:
            yield Attack("gold", number, answers.texts[number])
            yield from _of_others(number, answers, Random(f"{seed} {example.id}"))


def _of_nothing(number: int, bare: str | None) -> Iterator[Attack]:
    if bare is None or bare.strip():
        yield Attack("empty", number, "")
        yield from (Attack("whitespace", number, text) for text in BLANKS)
    yield from (Attack("nonsense", number, text) for text in NONSENSE if text != bare)


def _of_prompt(number: int, example: Example, bare: str | None, answers: Answers) -> Iterator[Attack]:
    """The prompt, its last message, and the prompt in the form of an answer; not where it holds the answer."""
    whole = shown(example.prompt)
    if bare is not None and _on_a_line(bare) in _on_a_line(whole):
        return
    yield Attack("prompt", number, None)
    if isinstance(example.prompt, list) and len(example.prompt) > 1:
        yield Attack("prompt", number, shown(example.prompt[-1:]))
    if answers.prefix or answers.suffix:
        yield Attack("prompt", number, answers.formed(whole))


def _on_a_line(text: str) -> str:
    return " ".join(text.casefold().split())


def _folded(text: str) -> str:
    """The words and numbers of a text, each between blanks."""
    return "".join(f" {word} " for word in _WORD.findall(text.casefold()))


def _of_form(number: int, bare: str | None, answers: Answers) -> Iterator[Attack]:
    own = [answers.formed(text) for text in ("", " ", *NONSENSE)] if answers.prefix or answers.suffix else []
    blank = bare is not None and not re.search(r"\w", bare)
    for text in dict.fromkeys([] if blank else [*own, *EMPTY_FORMS]):
        yield Attack("format", number, text)


def _of_scripts(number: int, bare: str | None, answers: Answers) -> Iterator[Attack]:
    for text in SCRIPTS:
        yield Attack("scripts", number, answers.formed(text), may_be_paid=_plain(text) == bare)
    if bare is not None:
        yield Attack("scripts", number, answers.formed(bare.translate(LOOKS)), may_be_paid=True)
        if re.fullmatch(r"[1-9][0-9]+", bare):
            yield Attack("scripts", number, answers.formed(bare[:-1] + bare[-1].translate(SUPERSCRIPTS)))


def _plain(text: str) -> str:
    r"""A text as a lenient reader may read it.

    >>> _plain("\u2460\u2461"), _plain("\u0664\u0665"), _plain("\u202e731")
    ('12', '45', '731')
    """
    known = (one for one in unicodedata.normalize("NFKC", text) if unicodedata.category(one) != "Cf")
    return "".join(str(unicodedata.decimal(one, one)) for one in known)


def _of_length(number: int, answers: Answers) -> Iterator[Attack]:
    for text in ("vrk " * LONG, "(" * LONG, "7" * LONG):
        yield Attack("long", number, text)
        yield Attack("long", number, answers.formed(text))
    yield from (Attack("long", number, text * LONG) for text in ("<answer>", "\\boxed{"))


def _of_others(number: int, answers: Answers, rng: Random) -> Iterator[Attack]:
    """The answers of other examples: alone, beside the right one, and all together with it in their midst."""
    own = answers.bare(number)
    different = {answers.bare(other): other for other in answers.texts if _differ(answers.bare(other), own)}
    others = sorted(different.values())
    rng.shuffle(others)
    for other in others[:OTHERS]:
        wrong = answers.texts[other]
        yield Attack("other", number, wrong, others=(other,))
        thought = after_thoughts(answers.texts[number]).strip() or own
        yield Attack("place", number, f"<think> {thought} </think> {wrong}", f"thought {other}", (other,))
        if _is_line(own) and _is_line(answers.bare(other)):
            yield Attack("place", number, f"{own}\n{wrong}", f"beside {other}", (other,))
            yield Attack("place", number, f"{wrong}\n{own}", f"beside {other}", (other,))
    if re.fullmatch("[1-9][0-9]*", own):
        yield Attack("place", number, answers.formed(f"9{own}9"), others=tuple(others[:1]))
    lines = [other for other in others if _is_line(answers.bare(other))]
    if _is_line(own) and len(lines) > 1:
        yield from _together(number, lines, answers)


def _together(number: int, lines: Sequence[int], answers: Answers) -> Iterator[Attack]:
    order = (*lines[: len(lines) // 2], number, *lines[len(lines) // 2 :])
    for join in JOINS:
        text = answers.formed(join.join(map(answers.bare, order)))
        yield Attack("candidates", number, text, others=tuple(lines))
    text = "\n".join(answers.texts[other] for other in order)
    yield Attack("candidates", number, text, others=tuple(lines))
    if re.fullmatch(r"-?[0-9]{1,4}", own := answers.bare(number)):
        numbers = " ".join(map(str, range(int(own) - 50, int(own) + 51)))
        yield Attack("candidates", number, answers.formed(numbers), others=tuple(lines))


def _is_line(text: str) -> bool:
    return "\n" not in text and 0 < len(text.strip()) <= MOST_CHARACTERS


def _differ(one: str, other: str) -> bool:
    """Whether two answers are different words, whatever stands between them."""
    return _folded(one) != _folded(other)
