"""What the code of a task hands over, checked: examples, turns and rewards.

A `Mistake` is of the code, not of a completion. Its message is one line that begins with MISTAKE and names the task and
the example.
"""

import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from minrl import dataflow
from minrl.dataflow import Episode, Example, Job, Mistake, Reward, Turn, TurnReward, finite, require

MISTAKE = "mistake in "
ACCIDENTS = ("timeout", "judge_failed")
"""Parts that are equal unless something went wrong."""
REWARDS = "return a number (float, int, bool, a tensor or array of one value) or a Reward made of numbers"
PROMPTS = 'a string or a list of messages such as {"role": "user", "content": "2 + 2 ="}'


def refuse_mistakes(failures: Iterable[str]) -> None:
    """Raise the first mistake among the reasons why rewards failed."""
    mistakes = [reason for reason in failures if reason.startswith(MISTAKE)]
    require(not mistakes, f"{(mistakes or [''])[0]} (the first of {len(mistakes)})", Mistake)


def mistaken(task: str, example: Example, what: str) -> Mistake:
    """A mistake in the task's code, of which the message may know the task and the example already."""
    line, named = " ".join(what.split()), f"task {task}" if task else "the task"
    return Mistake(line if line.startswith(MISTAKE) else f"{MISTAKE}{named}, example {example.id!r:.80}: {line}")


@contextmanager
def checking(task: str, example: Example) -> Iterator[None]:
    """Mistakes in the block get the names of the task and the example, and the line of the code."""
    try:
        yield
    except Mistake as error:
        own = {__file__, dataflow.__file__}
        lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename not in own]
        place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        raise mistaken(task, example, f"{error}{place}") from error


def reward_of(task: str, function: Callable[[str, Example], Any], completion: str, example: Example) -> Reward:
    """The reward of a completion by a task's function."""
    with checking(task, example):
        return as_reward(function(completion, example))


def rewards_of(
    task: str, function: Callable[..., Any], completions: Sequence[str], examples: Sequence[Example]
) -> list[Reward | None]:
    """The reward of each completion by a function that sees a group; None where it does not apply."""
    with checking(task, examples[0]):
        paid = one_of_each(function(completions, examples), len(completions))
        return [None if is_missing(one) else as_reward(one) for one in paid]


def one_of_each(paid: Any, count: int) -> list[Any]:  # noqa: ANN401 - a task's code may return anything
    """The rewards of so many completions, as a list. Raises `Mistake` if it is no list of as many."""
    found = paid.tolist() if hasattr(paid, "tolist") else paid  # of a tensor or an array
    right = isinstance(found, list | tuple) and len(found) == count
    require(right, f"a reward of this form must return a list of {count}, one of each, got {paid!r:.80}", Mistake)
    return list(found)


def is_missing(paid: Any) -> bool:  # noqa: ANN401 - a task's code may return anything
    """Whether this says that a reward does not apply: None, or NaN, which pandas and numpy write for it.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0.0)
    (True, True, False)
    """
    return paid is None or (getattr(paid, "ndim", 0) == 0 and bool(paid != paid))


def as_reward(paid: Any) -> Reward:  # noqa: ANN401 - a task's code may return anything
    """The reward, of which a task may return the value alone."""
    if isinstance(paid, Reward):
        return paid
    require(paid is not None, f"the reward is None (NoneType): {REWARDS}, from every branch", Mistake)
    return Reward(finite(f"the value of a reward ({REWARDS})", paid))


def equal_parts(rewards: Sequence[Reward]) -> Iterator[str]:
    """A line on parts that are equal in all of these rewards, though the rewards differ: they teach nothing."""
    names = [name for name in rewards[0].parts if name not in ACCIDENTS] if rewards else []
    values = {name: {one.parts.get(name) for one in rewards} for name in names}
    equal = [f"{name} ({rewards[0].parts[name]:g})" for name, found in values.items() if len(found) == 1]
    if equal and len({one.value for one in rewards}) > 1:
        yield (
            f"parts of the reward that are equal in all {len(rewards)} completions: {', '.join(equal)}; one that the "
            "reward counts teaches nothing until it differs"
        )


def demonstrated(task: str, function: Callable[..., Any], example: Example, rng: Random) -> Any:  # noqa: ANN401
    """A demonstration: a text, or one role's turns."""
    with checking(task, example):
        shown = function(example, rng)
        turns = [("", shown)] if isinstance(shown, str) else shown
        right = isinstance(turns, list) and all(len(one) == 2 and isinstance(one[1], str) for one in turns)
        require(right, f"a demonstration must be a text, or a list of (prompt, text), got {shown!r:.80}", Mistake)
        return shown


def played(task: str, function: Callable[[Example, Random], Any], example: Example, rng: Random) -> Episode:
    """A task's episode, which yields turns and jobs and returns the reward of each role."""
    with checking(task, example):
        episode = function(example, rng)
        require(isinstance(episode, Generator), f"an episode must yield turns, got {episode!r:.80}", Mistake)
        with closing(episode):
            value = None
            while True:
                try:
                    asked = episode.send(value)
                except StopIteration as end:
                    paid = end.value
                    returns = "an episode must return the reward of each role, such as {SOLO: 1.0}"
                    require(isinstance(paid, Mapping), f"{returns}, got {paid!r:.80}", Mistake)
                    return {role: as_reward(reward) for role, reward in paid.items()}
                right = isinstance(asked, Job | TurnReward) or (isinstance(asked, Turn) and is_prompt(asked.message))
                yields = f"an episode must yield a Turn, with {PROMPTS}, a TurnReward or a Job"
                require(right, f"{yields}, got {asked!r:.80}", Mistake)
                value = yield asked


def require_example(example: Any) -> None:  # noqa: ANN401 - a task's code may make anything
    """Refuse what is no example, or one that cannot be told from others or shown."""
    require(isinstance(example, Example), f"a dataset holds Examples, got {example!r:.80}", Mistake)
    require(isinstance(example.id, str), f"the id of an example must be a string, got {example.id!r:.80}", Mistake)
    right = is_prompt(example.prompt)
    require(right, f"the prompt of example {example.id!r:.80} must be {PROMPTS}, got {example.prompt!r:.80}", Mistake)


def is_prompt(prompt: object) -> bool:
    """Whether this is a text or a list of chat messages. A call of tools among them may have None as its content."""
    return isinstance(prompt, str) or (
        isinstance(prompt, list)
        and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in prompt)
        and all(isinstance(one["content"], str | list) or one.get("tool_calls") for one in prompt)
    )
