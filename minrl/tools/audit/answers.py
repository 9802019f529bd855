"""Right answers of the examples, and the form that they share.

They are what the user names, what the task says, or what is found: a demonstration, or a field of the example in a
usual form, that is paid in full where nonsense is not. An answer that is found shows how the reward reads; whether it
is the only right one nobody said.
"""

import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from minrl.rewards.workers import Workers
from minrl.tasks import Task
from minrl.tools.audit.pay import Paid, pay
from minrl.types import Example, UserError

FORMS = ("{}", "<answer> {} </answer>", "\\boxed{{{}}}", "#### {}", "<think> </think> <answer> {} </answer>")
"""In which the fields of an example are tried."""

NONSENSE = ("I do not know.", "qwz vrk plim")

WORDS = string.ascii_letters + string.digits
"""What a form does not end in: it may be the beginning of all answers."""

DEMONSTRATIONS, LONGEST = 8, 10_000
"""Demonstrations of an example that are tried, and characters of a field that is."""


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

    def bare(self, number: int) -> str:
        """The answer without its form."""
        text = self.texts[number]
        return text[len(self.prefix) : len(text) - len(self.suffix)]

    def formed(self, text: str) -> str:
        """A text in the form."""
        return f"{self.prefix}{text}{self.suffix}"


def find_answers(task: Task, examples: Sequence[Example], column: str, seed: int, workers: Workers) -> Answers:
    """The answers that the column holds, that the task says, or that are found."""
    if column:
        return _of_texts(dict(enumerate(_column(examples, column))), f"--gold-column {column}", True)
    if task.episode is not None:
        return Answers()
    for name, says in (("solution", task.solution), ("shortest_answer", task.shortest_answer)):
        said = {number: text for number, one in enumerate(examples) if says is not None and (text := says(one))}
        if said:
            return _of_texts(said, f"the task's {name}", True)
    tried = [(number, text) for number, one in enumerate(examples) for text in dict.fromkeys(_guesses(task, one, seed))]
    tried += [(number, text) for number in range(len(examples)) for text in NONSENSE]
    paid = pay(task, [(examples[number], text) for number, text in tried], workers)
    return _of_texts(_solved(tried, paid), "found by trying", False)


def _solved(tried: Sequence[tuple[int, str]], paid: Sequence[Paid]) -> dict[int, str]:
    """The first text of each example that is paid in full, if nonsense is not."""
    full = [pair for pair, one in zip(tried, paid, strict=True) if one.kind == "paid" and one.solved]
    given_away = {number for number, text in full if text in NONSENSE}
    return {number: text for number, text in reversed(full) if number not in given_away}


def _column(examples: Sequence[Example], column: str) -> Iterator[str]:
    for example in examples:
        if column not in example.fields:
            raise UserError(f"--gold-column {column}: no such field; the examples have {', '.join(example.fields)}")
        yield str(example[column])


def _guesses(task: Task, example: Example, seed: int) -> Iterator[str]:
    """Demonstrations, and the fields of the example in usual forms."""
    for number in range(DEMONSTRATIONS if task.demonstrations else 0):
        assert task.demonstrations is not None
        said = task.demonstrations(example, Random(f"{seed} {number} {example.id}"))
        yield from [said] if isinstance(said, str) else []
    for value in example.fields.values():
        if isinstance(value, str | int | float) and 0 < len(str(value)) <= LONGEST:
            yield from (form.format(value) for form in FORMS)


def _of_texts(texts: Mapping[int, str], source: str, declared: bool) -> Answers:
    """The answers with the form that all share: what they begin and end with, up to a letter or digit."""
    different = set(texts.values())
    if len(different) < 2:
        return Answers(texts, source, declared)
    prefix = _beginning(different).rstrip(WORDS)
    suffix = _beginning({text[len(prefix) :][::-1] for text in different}).rstrip(WORDS)[::-1]
    return Answers(texts, source, declared, prefix, suffix)


def _beginning(texts: Collection[str]) -> str:
    """What all texts begin with.

    >>> _beginning({"#### 12", "#### 13"})
    '#### 1'
    """
    first, last = min(texts), max(texts)
    same = (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(same, min(len(first), len(last)))]
