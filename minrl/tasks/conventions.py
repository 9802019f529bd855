"""Rewards in the form of TRL (functions of `completions` and columns) or of verl (of `solution_str` and others)."""

import contextlib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from minrl.dataflow import Example, Reward, finite, require
from minrl.tasks.checked import is_missing, one_of_each
from minrl.tasks.task import Sampled

LEFT_OUT = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""

NOT_FOR_THIS_ROW = "the reward returned None or NaN, which says that it does not apply to the row"


class NotForThisRow(ValueError):
    """No function of a reward applies to the row. The completion is unscorable."""


@dataclass(frozen=True)
class TrlOrVerlReward:
    """Rewards in the form of TRL or verl, each with its weight: in a list, or by the name of what holds them, as in
    `module:attribute`: a worker need not unpickle them.

    Their sum is solved at `solved_at` (0: where each that applies is 1), or where the one called `solved_by` is as
    much: the forms name no maximum.
    """

    found: Any
    solved_at: float = 0.0
    solved_by: str = ""

    @property
    def weighted(self) -> list[tuple[Callable[..., Any], float]]:
        """Each function with its weight."""
        return weighted_rewards(imported(self.found) if isinstance(self.found, str) else self.found)

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return distinct_names([function for function, _ in self.weighted])

    @property
    def sees_group(self) -> bool:
        """Whether one of them is of TRL's form, which is called with all completions of a prompt."""
        return "trl" in [convention_of(function) for function, _ in self.weighted]

    @property
    def reads_tokens(self) -> bool:
        """Whether one of them has the parameter `completion_ids`."""
        return any("completion_ids" in parameters(function) for function, _ in self.weighted)

    @property
    def names_maximum(self) -> bool:
        """Whether the user said what is solved."""
        return bool(self.solved_at or self.solved_by)

    def solved(self) -> str:
        """What counts as solved, for the start of a run."""
        names = self.names
        known = not self.solved_by or self.solved_by in names
        require(known, f"solved_by: no reward {self.solved_by!r}; choose of {', '.join(names)}")
        if self.solved_by:
            return f"{self.solved_by} of {self.solved_at or 1:g} or more"
        if self.solved_at or len(names) == 1:
            return f"a reward of {self.solved_at or max(0, self.weighted[0][1]):g} or more"
        total = sum(max(0, weight) for _, weight in self.weighted)
        return f"a reward of {total:g} or more, where each of {', '.join(names)} is 1"

    def __call__(self, completions: Any, examples: Any) -> Any:  # noqa: ANN401 - of one, or lists of them
        """The reward of each completion; of one, where an example is given and no list."""
        if isinstance(examples, Example):
            (paid,) = self([completions], [examples])
            if paid is None:
                raise NotForThisRow(NOT_FOR_THIS_ROW)
            return paid
        parts, columns = [dict[str, float]() for _ in completions], dict[str, list[Any]]()
        for name, (function, _) in zip(self.names, self.weighted, strict=True):
            if convention_of(function) == "trl":
                columns[name] = trl_rewards(function, completions, examples, parts)
            else:
                columns[name] = [_verl_score(function, *one) for one in zip(completions, examples, parts, strict=True)]
        paid = [{name: values[n] for name, values in columns.items()} for n in range(len(completions))]
        return [self._sum(own, more) for own, more in zip(paid, parts, strict=True)]

    def _sum(self, values: Mapping[str, Any], parts: Mapping[str, float]) -> Reward | None:
        """The weighted sum of the functions that apply to the row."""
        paid = {name: finite("a reward", value) for name, value in values.items() if not is_missing(value)}
        if not paid:
            return None
        weights = dict(zip(values, (weight for _, weight in self.weighted), strict=True))
        total, most = sum(paid[name] * weights[name] for name in paid), sum(max(0.0, weights[name]) for name in paid)
        full = paid.get(self.solved_by, 0.0) >= (self.solved_at or 1.0) if self.solved_by else None
        most = self.solved_at if self.solved_at and full is None else most
        return Reward(total, {**parts, **paid} if len(values) > 1 else parts, maximum=max(most, total), full=full)


def imported(name: str) -> Any:  # noqa: ANN401 - whatever it names
    """What `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters by name; none of a built-in function that does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def convention_of(found: object) -> str:
    """Whose convention a reward follows, by the names of its parameters: `trl`, `verl` or none."""
    names = {*parameters(found)} if callable(found) else set()
    if names & {"completions", "completion_ids", "environments"}:
        return "trl"
    return "verl" if {"solution_str", "ground_truth"} <= names else ""


def weighted_rewards(found: object) -> list[tuple[Callable[..., Any], float]]:
    """A reward in the form of TRL or verl, or each of a list of them, with its weight: 1 where none is given. Empty if
    one of them is none.
    """
    pairs = _pairs(found)
    return [] if any(map(_is_wrong, pairs)) else pairs


def wrong_member(found: object) -> str:
    """The first of a list that is no reward, in words; empty of what is no list."""
    wrong = [n for n, pair in enumerate(_pairs(found), 1) if _is_wrong(pair)] if isinstance(found, list | tuple) else []
    return f", because its member {wrong[0]} is {found[wrong[0] - 1]!r:.60}" if wrong else ""  # type: ignore[index]


def _pairs(found: object) -> list[tuple[Any, Any]]:
    each = found if isinstance(found, list | tuple) else [found]
    return [one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0) for one in each]


def _is_wrong(pair: tuple[Any, Any]) -> bool:
    return not (convention_of(pair[0]) and isinstance(pair[1], int | float))


def distinct_names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """The functions' names, in which equal ones are numbered.

    >>> distinct_names([sum, max, sum])
    ['sum_1', 'max', 'sum_2']
    """
    names = [getattr(getattr(one, "func", one), "__name__", type(one).__name__) for one in functions]
    return [
        f"{name}_{names[:place].count(name) + 1}" * (names.count(name) > 1) or name for place, name in enumerate(names)
    ]


def trl_arguments(completions: Sequence[str], examples: Sequence[Example]) -> dict[str, Any]:
    """What TRL gives a reward function beside its loggers: in a run, and wherever else completions are scored. A
    completion of a chat is a list of one message. `completion_ids` are there if a run sampled the completions.
    """
    names = dict.fromkeys(name for one in examples for name in one.fields if name not in LEFT_OUT)
    given: dict[str, Any] = {name: [one.fields.get(name) for one in examples] for name in names}
    given["prompts"] = [example.prompt for example in examples]
    given["completions"] = [
        str(text) if isinstance(example.prompt, str) else [{"role": "assistant", "content": str(text)}]
        for text, example in zip(completions, examples, strict=True)
    ]
    sampled = [text for text in completions if isinstance(text, Sampled)]
    if len(sampled) == len(completions):
        given["completion_ids"] = [list(text.ids) for text in sampled]
    return given | {"trainer_state": SimpleNamespace(global_step=sampled[0].step if sampled else 0)}


def trl_rewards(
    function: Callable[..., Any],
    completions: Sequence[str],
    examples: Sequence[Example],
    parts: Sequence[dict[str, float]],
) -> list[Any]:
    """The rewards by a function of TRL's form; what it logs as metrics joins the parts of all. Raises `Mistake` if
    it returns no list of as many.
    """

    def log_metric(name: str, value: float) -> None:
        for one in parts:
            one[name] = value

    loggers = {"log_metric": log_metric, "log_extra": lambda column, values: None}
    return one_of_each(finished(function(**trl_arguments(completions, examples), **loggers)), len(completions))


def _verl_score(function: Callable[..., Any], completion: str, example: Example, parts: dict[str, float]) -> Any:  # noqa: ANN401
    """What verl's `compute_score` returns: a number, or a dictionary with the `score` and further numbers, as parts."""
    paid = finished(
        function(
            data_source=example["data_source"],
            solution_str=str(completion),
            ground_truth=example["reward_model"]["ground_truth"],
            extra_info=example.fields.get("extra_info") or {},
        )
    )
    if not isinstance(paid, Mapping):
        return paid
    parts |= {name: one for name, one in paid.items() if name != "score" and not isinstance(one, str | list | dict)}
    return paid["score"]


def finished(paid: Any) -> Any:  # noqa: ANN401 - what the user's function returned
    """The result of a coroutine. One event loop of the process runs them all, so that a client may be kept."""
    return begun(paid).result() if inspect.isawaitable(paid) else paid


def begun(coroutine: Awaitable[Any]) -> Future[Any]:
    """The result of a coroutine on the event loop of this process. There `sys.exit` is an error."""
    import asyncio

    async def awaited() -> Any:  # noqa: ANN401 - whatever it returns
        try:
            return await coroutine
        except SystemExit as error:
            raise RuntimeError(f"sys.exit({error.code!r})") from error

    return asyncio.run_coroutine_threadsafe(awaited(), event_loop())


@cache
def event_loop() -> Any:  # noqa: ANN401 - asyncio is imported where a reward is a coroutine
    """The event loop of this process, in a thread of its own."""
    import asyncio
    import threading

    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            with contextlib.suppress(SystemExit):  # asyncio raises it here too, and whoever awaits the task gets it
                loop.run_forever()

    threading.Thread(target=run, daemon=True).start()
    return loop
