"""What the code of a task hands over, checked: examples, turns and rewards.

A `Mistake` is of the code, not of a completion. Its message is one line that begins with MISTAKE and names the task and
the example.
"""

import copy
import re
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from minrl import dataflow
from minrl.dataflow import Episode, Example, Job, Mistake, Reward, Turn, UserError, finite
from minrl.utils.text import is_unicode, stable_text

T = TypeVar("T")
MISTAKE = "mistake in "

REWARDS = "return a number (float, int, bool, a tensor or array of one value) or a Reward made of numbers"
LONGEST_NAME, MOST_NAMES = 64, 100
"""Characters of a name of a part or role, and the different names that a task may use in a run."""

NAME = re.compile(rf"[^\W_][\w .%+@/=-]{{0,{LONGEST_NAME - 1}}}")
NAMES = (
    f"take names from a list of the task's own and not from the completion, at most {MOST_NAMES}, of at most "
    f"{LONGEST_NAME} letters, digits, spaces and _ . % + @ / = -"
)

_NAMES: dict[str, set[str]] = {}
_SAID: set[str] = set()

PROMPTS = 'a string or a list of messages such as {"role": "user", "content": "2 + 2 ="}'
HALF = "a lone half of a surrogate pair, which is no character: remove it"


def refuse_mistakes(failures: Iterable[str]) -> None:
    """Raise the first mistake among the reasons why rewards failed."""
    mistakes = [reason for reason in failures if reason.startswith(MISTAKE)]
    if mistakes:
        raise Mistake(f"{mistakes[0]} (the first of {len(mistakes)})")


def mistaken(task: str, example: Example, what: str) -> Mistake:
    """A mistake in the task's code, of which the message may know the task and the example already."""
    line, named = " ".join(what.split()), f"task {task}" if task else "the task"
    return Mistake(line if line.startswith(MISTAKE) else f"{MISTAKE}{named}, example {example.id!r:.80}: {line}")


@contextmanager
def checking(task: str, example: Example) -> Iterator[Example]:
    """A copy of the example for the task's code, which may change it. Mistakes in the block get the names of the task
    and the example, and the line of the code.
    """
    try:
        yield copied(example)
    except Mistake as error:
        raise mistaken(task, example, f"{error}{_place(error)}") from error


def copied(value: T) -> T:
    """A copy of an example or a row, for code that may change it."""
    try:
        return copy.deepcopy(value)
    except Exception:  # it may hold anything, such as a lock: all completions share it
        return value


@contextmanager
def of_the_task(what: str) -> Iterator[None]:
    """What the user's code in the block raises is a mistake, in one line with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise Mistake(f"{what} raises {type(error).__name__}: {' '.join(str(error).split())}{_place(error)}") from error


def _place(error: Exception) -> str:
    """The line of the task's code that the mistake came from, if it is known."""
    own = {__file__, dataflow.__file__}
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename not in own]
    lines = [one for one in lines if one.filename[0] != "<" and "beartype" not in one.filename]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""


def reward_of(task: str, function: Callable[[str, Example], Any], completion: str, example: Example) -> Reward:
    """What a task's reward function pays for a completion."""
    with checking(task, example) as own:
        return as_reward(function(completion, own))


def as_reward(paid: Any) -> Reward:  # noqa: ANN401 - a task's code may return anything
    """The reward, of which a task may return the value alone."""
    if isinstance(paid, Reward):
        return paid
    if paid is None:
        raise Mistake(f"the reward is None (NoneType): {REWARDS}, from every branch")
    try:
        return Reward(finite("the value of a reward", paid))
    except Mistake as error:
        raise Mistake(f"{error}{'' if isinstance(paid, Real) else f'; {REWARDS}'}") from error


def demonstrated(task: str, function: Callable[..., Any], example: Example, rng: Random) -> Any:  # noqa: ANN401
    """A demonstration: a text, or one role's turns."""
    with checking(task, example) as own, of_the_task("`demonstrations`"):
        shown = function(own, rng)
        turns = [("", shown)] if isinstance(shown, str) else shown
        pairs = isinstance(turns, list | tuple) and [isinstance(one, list | tuple) and len(one) == 2 for one in turns]
        if not (pairs and all(pairs) and all(is_prompt(asked) and isinstance(said, str) for asked, said in turns)):
            raise Mistake(f"a demonstration must be a text, or a list of (prompt, text), got {_shown(shown)}")
        return shown


def played(task: str, function: Callable[[Example, Random], Any], example: Example, rng: Random) -> Episode:
    """A task's episode, which yields turns and jobs and returns the reward of each role."""
    with checking(task, example) as own:
        episode = function(own, rng)
        if not isinstance(episode, Generator):
            raise Mistake(f"an episode must be a function that yields turns, got one that returns {_shown(episode)}")
        with closing(episode):
            value = None
            while True:
                try:
                    asked = episode.send(value)
                except StopIteration as end:
                    return _by_role(end.value)
                value = yield _asked(asked)


def named(task: str, rewards: Mapping[str, Reward]) -> Mapping[str, Reward]:
    """The rewards without the parts whose names no curve can have: names come from the task, and not from what a
    completion says. What is left out is said once, and the pay stays. A role with such a name is a mistake.
    """
    known = _NAMES.setdefault(task, set()) if task else set()

    def fits(name: str) -> bool:
        fitting = NAME.fullmatch(name) is not None and (name in known or len(known) < MOST_NAMES)
        known.update([name] if fitting else [])
        return fitting

    for role in rewards:
        if not fits(role):
            raise Mistake(f"the role {_shown(role)} has no name for a curve: {NAMES}")
    left_out = next((name for reward in rewards.values() for name in reward.parts if not fits(name)), None)
    if left_out is None:
        return rewards
    if task not in _SAID:
        from loguru import logger  # each reward worker would pay for the import

        _SAID.add(task)
        logger.warning(f"task {task}: the part {_shown(left_out)} and the like are left out of the curves: {NAMES}")
    return {
        role: replace(reward, parts={name: value for name, value in reward.parts.items() if fits(name)})
        for role, reward in rewards.items()
    }


def _asked(asked: Any) -> Turn | Job:  # noqa: ANN401 - a task's code may yield anything
    if not isinstance(asked, Turn | Job):
        raise Mistake(f"an episode must yield a Turn or a Job, got {_shown(asked)}")
    if isinstance(asked, Turn) and not is_prompt(asked.message):
        raise Mistake(f"the message of a Turn must be {PROMPTS}, got {_shown(asked.message)}")
    return asked


def _by_role(rewards: Any) -> dict[str, Reward]:  # noqa: ANN401 - a task's code may return anything
    if not isinstance(rewards, Mapping):
        raise Mistake(f"an episode must return the reward of each role, such as {{SOLO: 1.0}}, got {_shown(rewards)}")
    paid = {}
    for role, reward in rewards.items():
        try:
            paid[role] = as_reward(reward)
        except Mistake as error:
            raise Mistake(f"the reward of {role!r}: {error}") from error
    return paid


def is_blank(prompt: object) -> bool:
    """Whether a prompt is a blank text or a chat without messages: nothing could be sampled after it."""
    return prompt == [] or (isinstance(prompt, str) and not prompt.strip())


def require_example(example: Any) -> None:  # noqa: ANN401 - a task's code may make anything
    """Refuse what is no example, or one that cannot be told from others or shown."""
    if not isinstance(example, Example):
        raise Mistake(f"a dataset holds Examples, got {_shown(example)}")
    if not isinstance(example.id, str):
        raise Mistake(f"the id of an example must be a string, such as str(number), got {_shown(example.id)}")
    for name, is_right, right in (
        ("prompt", is_prompt(example.prompt), PROMPTS),
        ("fields", isinstance(example.fields, Mapping), "a dict of what the reward reads"),
        ("category", isinstance(example.category, Mapping), 'a dict such as {"level": "easy"}'),
    ):
        if not is_right:
            got = _shown(getattr(example, name))
            raise Mistake(f"the {name} of an example must be {right}, got {got} in example {example.id!r:.80}")


def require_distinct(examples: Iterable[Example]) -> None:
    """Refuse an id of several problems: examples that differ in prompt and fields. One problem may be asked in several
    ways, and a prompt may have several answers.
    """
    by_id: dict[tuple[str, str], list[Example]] = {}
    for example in examples:
        by_id.setdefault((example.task, example.id), []).append(example)
    for (_, name), (first, *others) in by_id.items():
        if any(one.prompt != first.prompt and stable_text(one.fields) != stable_text(first.fields) for one in others):
            raise Mistake(f"{name!r:.80} is the id of {1 + len(others)} examples: give each problem an id of its own")


def is_prompt(prompt: object) -> bool:
    """Whether this is a text or a list of chat messages. A call of tools among them may have None as its content."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str)
    return (
        all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in prompt)
        and all(isinstance(one["role"], str) for one in prompt)
        and all(isinstance(one["content"], str | list) or one.get("tool_calls") for one in prompt[:-1])
        and all(isinstance(one["content"], str | list) for one in prompt[-1:])
    )


def encodable(value: object) -> bool:
    """Whether all texts of a value can be written as UTF-8."""
    if isinstance(value, str):
        return is_unicode(value)
    parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    return not isinstance(parts, list | tuple) or all(map(encodable, parts))


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever a task hands over
    """The value in a line, with its type."""
    return f"{' '.join(repr(value).split()):.80} ({type(value).__name__})"
