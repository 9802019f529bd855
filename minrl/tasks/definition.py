"""A row of TASK_DEFINITIONS: what makes a task from its options."""

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any

from minrl.dataflow import Example, UserError, require
from minrl.tasks.conventions import TrlOrVerlReward, imported, parameters, weighted_rewards
from minrl.tasks.data import Row, Source, dataset_of, example_of_row, problem_of
from minrl.tasks.task import Dataset, Task, TaskOptions, ToolDefinition, split
from minrl.utils.settings import Bound, Share, meant


@dataclass(frozen=True, kw_only=True)
class RowOptions(TaskOptions):
    """How rows are divided."""

    held_out_share: Share = 0.2
    """Share of the prompts that is never trained on."""


@dataclass(frozen=True, kw_only=True)
class SolvedOptions(TaskOptions):
    """What counts as solved by rewards of TRL's or verl's form, which name no maximum."""

    solved_at: Annotated[float, Bound(least=0)] = 0.0
    """Reward from which a completion counts as solved. 0: that of 1 by each of the rewards, times their weights."""
    solved_by: str = ""
    """The one of several rewards by whose value alone that is decided. Empty: their sum."""


@dataclass(frozen=True, kw_only=True)
class SumOptions(SolvedOptions, RowOptions):
    """How rows are divided, and what counts as solved."""


@dataclass(frozen=True, eq=False)
class TaskDefinition:
    """A row of TASK_DEFINITIONS, `TaskDefinition(dataset=..., reward=...)`.

    `dataset` is a `Dataset`; rows, each a dict with a `prompt` or an `Example`; or a function of the options that gives
    one of these. `reward` is a function of (completion, example), which may have a third parameter, `options`; a
    function or class of `options` alone that makes one; or one in the form of TRL or verl, or a list of them. An
    episode has none.
    A text names a function by its module, `minrl.tasks.hanoi:dataset`, which is imported when the task is used; without
    a module, `:reward`, it is in that of the dataset.
    """

    dataset: Dataset | Iterable[Row | Example] | Callable[..., Any] | str
    reward: Callable[..., Any] | Sequence[Any] | str | None = None
    options: type | str = RowOptions
    """The dataclass of the options, which are flags."""
    more: Callable[[Any], Mapping[str, Any]] | str | None = None
    """A function of the options that gives other fields of `Task`, by name."""
    words: Callable[[Any], tuple[str, ...]] | str | None = None
    """A function of the options that gives words which every embedded base model knows, whatever its task. A task's
    vocabulary is for its own model."""
    tool: str | Sequence[Callable[..., Any]] | ToolDefinition = ""
    """The row of TOOLS with which the task is always played, functions that are its tools, or what plays it."""

    def __post_init__(self) -> None:
        if isinstance(self.dataset, Iterator):  # a second run reads the rows again
            object.__setattr__(self, "dataset", list(self.dataset))
        if not isinstance(self.options, str):
            require_options(self.options)

    @property
    def options_class(self) -> type:
        """The dataclass of the options."""
        found = self._named(self.options)
        return SumOptions if found is RowOptions and weighted_rewards(self._named(self.reward)) else found

    @property
    def module(self) -> str:
        """The module that the task is written in."""
        for written in (self.dataset, self.reward):
            if isinstance(written, str):
                return written.partition(":")[0]
            if callable(written):
                return written.__module__
        return ""

    @property
    def path(self) -> str:
        """The local file or folder of its own rows; empty if it has none."""
        return ""

    def make(self, options: Any) -> Task:  # noqa: ANN401 - an object of `options`
        """The task with these options."""
        more = dict(self._named(self.more)(options)) if self.more else {}
        reward: Any = self._named(self.reward)
        if weighted_rewards(reward):
            own = options if isinstance(options, SolvedOptions) else SumOptions()
            reward = TrlOrVerlReward(self._full(self.reward), own.solved_at, own.solved_by)
            more = {"group": reward.sees_group, "notes": functools.partial(_notes, reward), **more}
        elif reward is not None:
            reward = _with_options(reward, options)
        if reward is not None and not more.get("cheap") and not is_importable(reward):
            say_runs_here(getattr(self._named(self.reward), "__name__", "the task"))
            more["cheap"] = True
        return Task(self._dataset(options), reward, **more)

    def offered_words(self, options: Any) -> tuple[str, ...]:  # noqa: ANN401 - an object of `options`
        """The words that every embedded base model knows for this task."""
        return self._named(self.words)(options) if self.words else ()

    def _dataset(self, options: Any) -> Dataset:  # noqa: ANN401 - an object of `options`
        found = self._named(self.dataset)
        if callable(found):
            found = found(options) if parameters(found) else found()
        path = getattr(options, "data_path", "")
        if isinstance(found, Dataset):
            own = not (path and isinstance(self.dataset, Dataset))
            require(own, f"a task with a Dataset has its own examples and takes no data_path, got {path!r}")
            return found
        rows, share = list(found), getattr(options, "held_out_share", RowOptions.held_out_share)
        if rows and all(isinstance(row, Example) for row in rows):
            require(not path, f"a task with Examples takes no data_path, got {path!r}")
            return split(rows, share)
        source = Source(columns=("prompt",), rows=lambda: rows)
        return dataset_of(source, path, lambda row: example_of_row(row, row["prompt"], row), share, problem_of)

    def _named(self, value: Any) -> Any:  # noqa: ANN401 - whatever the row holds
        """What a text names, imported; other values as they are."""
        if not isinstance(value, str):
            return value
        return imported(self._full(value))

    def _full(self, value: Any) -> Any:  # noqa: ANN401 - whatever the row holds
        """A text with the module of what it names; other values as they are."""
        return f"{self.module}{value}" if isinstance(value, str) and value[:1] == ":" else value


def _notes(reward: TrlOrVerlReward) -> tuple[str, ...]:
    other = "" if reward.names_maximum else ": the task's options solved-at and solved-by say otherwise"
    return (f"solved is {reward.solved()}{other}",)


def definition_of(name: str, row: object) -> TaskDefinition:
    """What a row of TASK_DEFINITIONS says: a `TaskDefinition`, a `Task`, or a mapping with their arguments."""
    if isinstance(row, TaskDefinition):
        return row
    if isinstance(row, Task):
        own = {one.name: getattr(row, one.name) for one in fields(Task) if one.name not in ("dataset", "reward")}
        return TaskDefinition(row.dataset, row.reward, TaskOptions, lambda options: own)
    if isinstance(row, Mapping):
        given = {"reward" if key == "reward_function" else key: value for key, value in row.items()}
        known = [one.name for one in fields(TaskDefinition)]
        for key in given:
            require(key in known, f"TASK_DEFINITIONS[{name!r}] has no {key!r}{meant(key, known)}")
        require("dataset" in given, f"TASK_DEFINITIONS[{name!r}] needs a `dataset`, got {', '.join(map(str, row))}")
        return TaskDefinition(**given)
    takes = "a TaskDefinition(dataset=..., reward=...), a Task, or a dict with `dataset` and `reward`"
    raise UserError(f"TASK_DEFINITIONS[{name!r}] must be {takes}, got {type(row).__name__}")


def require_options(options: object) -> None:
    """Refuse what are no options of a task: a dataclass whose fields have defaults."""
    if not (isinstance(options, type) and is_dataclass(options)):
        raise UserError(f"a task's options must be a dataclass, got {options!r}: decorate it with @dataclass")
    required = [one.name for one in fields(options) if one.default is MISSING and one.default_factory is MISSING]
    if required:
        raise UserError(f"each option of a task needs a default, {options.__name__}.{required[0]} has none")


def called(function: Callable[..., Any], options: Any, *given: Any) -> Any:  # noqa: ANN401 - the user's function
    """Call the function, with the options if it has a parameter of that name."""
    return function(*given, **{"options": options} if "options" in parameters(function) else {})


def _with_options(reward: Callable[..., Any], options: Any) -> Callable[..., Any]:  # noqa: ANN401
    """The function of (completion, example) of a reward that may need the options."""
    names = list(parameters(reward))
    if names[:1] == ["options"]:
        return reward(options)
    return functools.partial(reward, options=options) if "options" in names else reward


def is_importable(function: Callable[..., Any]) -> bool:
    """Whether a worker process can import the function."""
    try:
        return b"__main__" not in pickle.dumps(function)
    except Exception:  # pickling a task's objects may raise anything
        return False


def say_runs_here(name: str) -> None:
    """Log that a task's rewards are computed in this process."""
    from loguru import logger  # each reward worker would pay for the import

    logger.info(f"{name}: the reward runs in this process, because worker processes cannot import it")
