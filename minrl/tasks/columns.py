"""Reward functions in the form that TRL takes, as tasks: `func(completions, **columns)` over the rows of a file.

    --task mine.py:accuracy --data-path rows.jsonl

A row has a `prompt`, a text or chat messages; its other columns reach the function as lists, by name. Beside them it
gets what TRL's GRPOTrainer passes: `prompts`, `completion_ids` (here the bytes of the text, as no tokenizer is at
hand), `trainer_state`, `log_extra` and `log_metric`. Where the prompt is chat messages, a completion is a list of one
message. The function may be a coroutine. It is called with one completion at a time: a reward that compares the
completions of a batch with each other is not one that a completion has by itself.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from minrl.tasks.rows import Row, Source, dataset_of, identity
from minrl.tasks.task import Task, TaskDefinition
from minrl.types import Example, Mistake, Prompt, Reward, require

ROWS = Source(columns=("prompt",))

OWN = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """How the rows are divided."""

    held_out_share: float = 0.2
    """Share of the prompts that is never trained on."""

    def __post_init__(self) -> None:
        require(0 <= self.held_out_share <= 1, f"held_out_share must be in [0, 1], got {self.held_out_share}")


@dataclass(frozen=True)
class ColumnReward:
    """A function of lists as a reward of one completion."""

    function: Callable[..., Any]

    def __call__(self, completion: str, example: Example) -> Any:  # noqa: ANN401 - the function is the user's
        """What the function pays for it. A number of 1 or more counts as a full solution: the form names no maximum."""
        (paid,) = self.together([completion], [example])
        try:
            return Reward(float(paid), maximum=max(1.0, float(paid))) if not isinstance(paid, str) else paid
        except (Mistake, TypeError, ValueError, OverflowError, RuntimeError):
            return paid  # no finite number: refused where it is looked at

    def together(self, completions: Sequence[str], examples: Sequence[Example]) -> Sequence[Any]:
        """What the function pays for a batch. Raises `Mistake` if that is no list of as many."""
        columns = {name: [example[name] for example in examples] for name in examples[0].fields}
        paid = self.function(
            prompts=[example.prompt for example in examples],
            completions=[_as_said(*pair) for pair in zip(completions, examples, strict=True)],
            completion_ids=[list(completion.encode(errors="surrogatepass")) for completion in completions],
            **{**columns, **_of_trainer()},
        )
        if inspect.isawaitable(paid):
            paid = asyncio.run(_awaited(paid))
        count = len(paid) if hasattr(paid, "__len__") and not isinstance(paid, str | dict) else None
        if count != len(completions):
            got = f"{' '.join(repr(paid).split()):.80} ({type(paid).__name__})"
            raise Mistake(f"a reward of this form must return a list of {len(completions)}, one of each, got {got}")
        return list(paid)


async def _awaited(paid: Any) -> Any:  # noqa: ANN401 - what the user's coroutine returns
    return await paid


def _as_said(completion: str, example: Example) -> Prompt:
    return completion if isinstance(example.prompt, str) else [{"role": "assistant", "content": completion}]


def _of_trainer() -> dict[str, Any]:
    """What the trainer adds: its state before the first step, and two functions for its logs."""
    state = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[])
    return {"trainer_state": state, "log_extra": lambda *_, **__: None, "log_metric": lambda *_, **__: None}


def takes_columns(found: object) -> bool:
    """Whether this is a function of the form: one of its parameters is named `completions`."""
    return inspect.isfunction(found) and "completions" in inspect.signature(found).parameters


def definition_of(function: Callable[..., Any]) -> TaskDefinition:
    """The task of a function and the rows of `--data-path`."""

    def example_of(row: Row) -> Example:
        fields = {name: value for name, value in row.items() if name not in OWN}
        return Example(identity(str(row["prompt"])), row["prompt"], fields)

    def make(options: ColumnOptions, data_path: str) -> Task:
        return Task(dataset_of(ROWS, data_path, example_of, options.held_out_share), ColumnReward(function))

    make.__module__ = function.__module__  # where the task's program is looked for
    return TaskDefinition(ColumnOptions, make)
