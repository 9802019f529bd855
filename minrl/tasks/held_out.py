"""Held-out problems in other words: no text that is trained on may show a problem that is kept for evaluation.

A text shows a problem if it asks the same question, or if the problem's text stands in it, on word borders, whatever
the case, the white space and the words around it. A problem of fewer than 40 characters stands in many texts and is
recognised as a whole question alone. So are the problems of tasks that divide theirs by a key of their own, such as
Countdown's numbers: what they ask is known by that key, not by its words.
"""

import re
import unicodedata
from collections.abc import Iterable

from minrl.dataflow import Example, Prompt
from minrl.models.chat import question_of, said_in
from minrl.tasks.data import problem_of
from minrl.tasks.task import Dataset, Task, identity_of

SHORTEST = 40
"""Characters of a problem that is recognised inside other texts."""

COLUMNS = ("problem", "question", "text")
"""Fields of an example that hold its problem without the task's own words."""


def words_of(text: str) -> tuple[str, ...]:
    """Words, numbers and marks, without case and white space.

    >>> words_of("Find  $x^2$, if x is 12.")
    ('find', '$', 'x', '^', '2', '$', ',', 'if', 'x', 'is', '12', '.')
    """
    return tuple(re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold()))


class Problems:
    """Recognises problems: whole `questions`, and `inside` other texts those of at least 40 characters."""

    def __init__(self, questions: Iterable[str], inside: Iterable[str]) -> None:
        self.questions = {words_of(question): question for question in questions if question}
        long = {text: words_of(text) for text in inside if len(" ".join(text.split())) >= SHORTEST}
        self._start = min((len(words) for words in long.values()), default=0)
        self._beginning = dict[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]()
        for text, words in long.items():
            self._beginning.setdefault(words[: self._start], []).append((text, words))

    def shown(self, prompt: Prompt, *answers: str) -> set[str]:
        """Which of the problems a prompt with its answers shows."""
        asked = () if isinstance(prompt, str) else ([one] for one in prompt if one["role"] == "user")
        whole = (words_of(question_of(one)) for one in (prompt, *asked)) if self.questions else ()
        found = {self.questions[one] for one in whole if one in self.questions}
        words = words_of("\n".join([said_in(prompt), *answers])) if self._beginning else ()
        for place in range(len(words)):
            for text, problem in self._beginning.get(words[place : place + self._start], ()):
                if words[place : place + len(problem)] == problem:
                    found.add(text)
        return found


def recognised(task: Task, example: Example) -> tuple[str, str]:
    """What a problem is recognised by: its question, and its text inside others (empty: not there).

    An episode of the task's own may ask something else than the example's prompt says.
    """
    question = "" if task.episode is not None else question_of(example.prompt)
    return question, "" if divides_by_key(task, example) else _named(example) or question


def divides_by_key(task: Task, example: Example) -> bool:
    """Whether the task divides its problems by a key that is not the text of the problem."""
    return not _named(example) and task.dataset.key not in (identity_of, problem_of)


def _named(example: Example) -> str:
    return next((value for name in COLUMNS if isinstance(value := example.fields.get(name), str)), "")


def held_out_problems(task: Task) -> Problems:
    """The problems that the task keeps for evaluation, without those that its training examples pose too."""
    dataset: Dataset = task.dataset
    held_out, train = ({one for e in part for one in recognised(task, e)} for part in (dataset.held_out, dataset.train))
    inside = {recognised(task, example)[1] for example in dataset.held_out}
    return Problems(held_out - train, inside - train)
