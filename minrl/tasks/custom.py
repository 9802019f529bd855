"""Tasks of one's own: a decorated function, a reward in the form of TRL or verl, and where they are found.

    @task(data="questions.jsonl", prompt="question")
    def quiz(completion: str, row: dict) -> float:
        return completion.split()[-1:] == [row["answer"]]

A reward worker imports a task of a file by its module's name, so the file's folder joins `sys.path`, which workers
share.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from types import ModuleType, NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from minrl.dataflow import Example, Message, Mistake, Prompt, Reward, UserError, finite, require
from minrl.tasks.checked import copied, demonstrated, is_blank, of_the_task
from minrl.tasks.data import SUFFIXES, Row, Source, dataset_of, identity
from minrl.tasks.task import Dataset, Demonstration, Sampled, Task, TaskDefinition
from minrl.utils.files import importing
from minrl.utils.settings import Settings, Share, converted, meant
from minrl.utils.task_names import mixed, weights_of
from minrl.utils.text import digest_of, stable_text

if TYPE_CHECKING:  # each reward worker would pay for the import
    from importlib.metadata import EntryPoints

Data = str | Path | Iterable[Row] | Callable[..., Iterable[Row]]
"""A file, a folder or a dataset of the hub, `owner/name` or `owner/name/configuration`; rows, or what makes them."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+|[\w-]+)(/(?P<configuration>[\w.-]+))?")

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs", "images")
"""Columns that change a conversation in other trainers, and that no chat template is given here."""

ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "data": ((Path, Iterable, Callable), "a file, rows, or a function that makes them"),
    "prompt": ((str, Callable), "a column, or a function of the row"),
    "system": ((str,), "text (a function of the row is `prompt`)"),
    "episode": ((NoneType, Callable), "a function that yields turns"),
    "tools": ((str,), "the name of a tool, such as python"),
    "demonstrations": ((NoneType, str, Callable), "a column, or a function of (row, rng)"),
}
"""The kinds of arguments of `task`, and their name in messages."""

OWN = ("dataset", "reward", "episode", "demonstrations", "name", "max_tokens")
"""Fields of a `Task` that the decorator makes or has arguments for."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""


def task(
    *bare: object,
    data: Data | None = None,
    prompt: str | Callable[..., Prompt] = "",
    system: str = "",
    held_out: float | str = 0.2,
    options: type = NoOptions,
    episode: Callable[..., Any] | None = None,
    tools: str = "",
    demonstrations: str | Callable[..., Demonstration] | None = None,
    **more: Any,  # noqa: ANN401 - fields of Task
) -> Callable[[Callable[..., Any]], "CustomTask"]:
    """Make a task of the function: the reward of `(completion, row)`, or an episode of `(row, rng)`, which yields.

    `data` is a file in JSONL, JSON, CSV or parquet (also compressed by gzip) or a folder of them, beside the file of
    the task; a dataset of the hub; a list of rows; or a function that makes them. `--data-path` replaces it.
    `prompt` is a column, or a function of the row, that gives a text, shown as it is, or chat messages; `system` makes
    a chat of it. An episode may do without.
    `held_out` is the share of the problems (equal prompts) that is never trained on, or the split that holds them.
    `options` is a dataclass whose fields become flags. Each function here that has a parameter `options` is given them.
    `episode` is played in place of a single turn by a task that has a reward too; `tools` names a tool, such as
    `python`. `demonstrations` (a column, or a function of `(row, rng)`) and `vocabulary` (words, or a function) let the
    embedded base model play it. Other arguments are those of `minrl.tasks.Task`, such as `stop_strings`.
    """
    require(not bare, "write @task(data=..., prompt=...) above the function: @task alone names no rows")
    form, known = SimpleNamespace(**locals()), [one.name for one in fields(Task) if one.name not in OWN]
    _require_arguments(form)
    for name in more:
        require(name in known, f"@task takes no {name!r}{meant(name, known)}; it also takes {', '.join(known)}")
        form.more[name] = _checked_field(name, more[name])
    return lambda function: CustomTask(function, form)


def _require_arguments(form: SimpleNamespace) -> None:
    """Refuse arguments of `task` of another kind, such as a split named "0.2"."""
    for name, (kinds, takes) in ARGUMENTS.items():
        value = getattr(form, name)
        right = isinstance(value, kinds) and not isinstance(value, Mapping | bytes)
        require(right, f"{name} must be {takes}, got {value!r:.60}")
    share = form.held_out
    is_split = isinstance(share, str) and not re.fullmatch(r"[\d.]*", share)
    is_share = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
    takes = "a share from 0 to 1, such as 0.2, or the name of a split"
    require(is_split or is_share, f"held_out must be {takes}, got {share!r:.60}")


def _checked_field(name: str, value: Any) -> Any:  # noqa: ANN401 - of a Task
    """A field of a `Task` as its type has it. `vocabulary` may be a function as well as words."""
    hint = get_type_hints(Task)[name]
    if hint in (bool, float, tuple[str, ...]) and not (name == "vocabulary" and callable(value)):
        return converted(name, hint, value)
    require(callable(value), f"{name} must be a function, got {value!r:.60}")
    return value


class CustomTask(TaskDefinition):
    """The task of a decorated function, which can still be called. It is pickled by its name."""

    __name__: str
    __qualname__: str
    function: Callable[..., Any]
    form: SimpleNamespace
    """The arguments of `task`."""

    def __init__(self, function: Callable[..., Any], form: SimpleNamespace) -> None:
        named = inspect.isfunction(function) and function.__name__.isidentifier()
        require(named, f"@task decorates a function that `def` names, got {function!r:.80}")
        is_async = any(map(inspect.isasyncgenfunction, (function, form.episode)))
        require(not is_async, "an episode must be `def`, not `async def`: yield a Job for what it waits for")
        vars(self).update(function=function, form=form)
        vars(self).update({name: getattr(function, name) for name in functools.WRAPPER_ASSIGNMENTS[:4]})
        given = ("row", "rng") if self.plays else ("completion", "row")
        try:
            inspect.signature(function).bind(*given, **{"options": None} if _takes_options(function) else {})
        except TypeError as error:
            takes = f"({', '.join(given)}), with `options` if it likes"
            raise UserError(f"{self.__name__} must take {takes}: {error}") from error
        require(not (self.plays and form.episode), f"{self.__name__} yields, so it is the episode: leave out `episode`")
        needs = "@task needs a prompt: a column, or a function of the row"
        require(bool(self.plays or form.prompt or form.episode), needs)
        super().__init__(form.options, self._make, tool=form.tools)

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the function is the user's
        """Call the function, as a test does."""
        return self.function(*given, **named)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __fspath__(self) -> str:
        """What `--task` names it by: its file, or its own name where no file has it, such as in a notebook."""
        file = getattr(sys.modules.get(self.__module__), "__file__", None)
        if file and Path(file).stem == self.__module__:
            return f"{Path(file).resolve()}:{self.__name__}"
        from minrl.tasks import free_name

        return free_name(self.__name__, self, self)

    @property
    def module(self) -> str:
        """The module that the task is written in."""
        return self.__module__

    @property
    def path(self) -> str:
        """The local file or folder of its rows; empty if they come from the hub or a program."""
        return self._source(None).path

    @property
    def plays(self) -> bool:
        """Whether the function is an episode, and no reward of single completions."""
        return inspect.isgeneratorfunction(self.function)

    def _make(self, options: Any, data_path: str) -> Task:  # noqa: ANN401 - the options are the user's
        """The task with these options and, if it is given, this local file."""
        form, more = self.form, dict(self.form.more)
        words = more.pop("vocabulary", ())
        reward = None if self.plays else RowReward(self, options)
        if reward and self._runs_here():
            more.setdefault("cheap", True)
        demonstrate: Callable[..., Any] | None
        if isinstance(form.demonstrations, str):
            demonstrate = _of_column(form.demonstrations)
            more.setdefault("solution", demonstrate)
        else:
            demonstrate = _of_rows(form.demonstrations, options)
        return Task(
            self._dataset(options, data_path, reward),
            reward,
            _of_rows(self.function if self.plays else form.episode, options),
            None if demonstrate is None else partial(demonstrated, self.__name__, demonstrate),
            vocabulary=tuple(self._made("vocabulary", words, options) if callable(words) else words),
            **more,
        )

    def _made(self, what: str, function: Callable[..., Any], options: Any) -> Any:  # noqa: ANN401 - the user's
        """What a function of the task makes before there is an example. What it raises is a mistake."""
        with of_the_task(f"`{what}` of {self.__name__}"):
            return _called(function, options)

    def _runs_here(self) -> bool:
        """Whether rewards are computed in this process: of a program that is being run, such as a notebook. Refuses a
        function that worker processes could not import either.
        """
        if self.__module__ == "__main__":
            say_runs_here(self.__name__)
            return True
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        require(
            found is self,
            f"{self.__qualname__} of {self.__module__} cannot be sent to worker processes, which import it by name: "
            "decorate a function at the top level of its module, and give it as `options` what a closure would hold",
        )
        return False

    def _dataset(self, options: Any, data_path: str, reward: "RowReward | None") -> Dataset:  # noqa: ANN401
        form = self.form

        def example_of(row: Row) -> Example:
            shown = form.prompt
            if shown:
                shown = row[shown] if isinstance(shown, str) else _called(shown, options, dict(copied(row)))
                require(not is_blank(shown), "its prompt is empty")
            return _example(row, shown, dict(row), form.system)

        columns = [name for name in (form.prompt, form.demonstrations) if name and isinstance(name, str)]
        reads = [] if reward is None else _columns_read(self.function)
        share = form.held_out if isinstance(form.held_out, float | int) else 0.0
        source = replace(self._source(options), columns=tuple(columns), reads=tuple(reads))
        return dataset_of(source, data_path, example_of, share, by=_problem_of)

    def _source(self, options: Any) -> Source:  # noqa: ANN401 - the options are the user's
        """Where the rows come from."""
        data, held_out = self.form.data, self.form.held_out
        splits = {"train": "train", "held_out": held_out} if isinstance(held_out, str) else {"all": "train"}
        if not isinstance(data, str | Path):
            rows = partial(self._made, "data", data, options) if callable(data) else partial(iter, data)
            return Source(splits=splits, rows=rows)
        file = getattr(sys.modules.get(self.__module__), "__file__", None)
        path, match = (Path(file).resolve().parent if file else Path()) / data, HUB_NAME.fullmatch(str(data))
        if path.exists() or match is None or str(data).endswith(SUFFIXES):
            return Source(splits=splits, path=str(path))
        return Source(match["name"], splits=splits, configuration=match["configuration"])


@dataclass(frozen=True)
class RowReward:
    """The reward of a decorated function, which is given the completion and the row."""

    task: CustomTask
    options: Any

    def __call__(self, completion: str, example: Example) -> Any:  # noqa: ANN401 - the function is the user's
        """What the function returns."""
        return _finished(_called(self.task.function, self.options, completion, dict(example.fields)))


def say_runs_here(name: str) -> None:
    """Log that a task's rewards are computed in this process."""
    from loguru import logger  # each reward worker would pay for the import

    logger.info(f"{name}: the reward runs in this process, because worker processes cannot import it")


def _called(function: Callable[..., Any], options: Any, *given: Any) -> Any:  # noqa: ANN401 - the user's function
    """Call the function, with the options if it has a parameter of that name."""
    return function(*given, options=options) if _takes_options(function) else function(*given)


def _takes_options(function: Callable[..., Any]) -> bool:
    return "options" in _parameters(function)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters by name; none of a built-in function that does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _of_rows(function: Callable[..., Any] | None, options: Any) -> Callable[[Example, Random], Any] | None:  # noqa: ANN401
    """A function of the row and a generator of random numbers as one of the example."""
    return None if function is None else lambda example, rng: _called(function, options, dict(example.fields), rng)


def _of_column(name: str) -> Callable[..., Any]:
    """A column as a function of the example."""
    return lambda example, rng=None: example[name]


def _example(row: Row, shown: Prompt, fields: Mapping[str, Any], system: str = "") -> Example:
    """The example of a row, which its content identifies. Refuses what would be left out of its conversation."""
    name = digest_of([[shown, dict(sorted(row.items(), key=lambda item: str(item[0])))]])
    if isinstance(shown, str) and not system:
        return Example(name, shown, fields)
    for column in TEMPLATE_COLUMNS:
        require(not row.get(column), f"{column} is not shown to the model: write it into the messages, or rename it")
    messages: list[Message] = [{"role": "user", "content": shown}] if isinstance(shown, str) else shown
    if system:
        begins = isinstance(messages, list) and messages and messages[0].get("role") == "system"
        require(not begins, "the prompt has a system message of its own: leave out `system`")
        messages = [{"role": "system", "content": system}, *messages]
    return Example(name, messages, fields)


def _problem_of(example: Example) -> str:
    """What is held out together: equal prompts, whatever the system message and white space; without a prompt, equal
    rows.
    """
    shown = example.prompt
    if isinstance(shown, str):
        return identity(shown) if shown else example.id
    shown = shown[1:] if shown and shown[0].get("role") in ("system", "developer") else shown
    said = [{**message, "content": " ".join(_text_of(message.get("content")).split())} for message in shown]
    kept = [{name: value for name, value in message.items() if value is not None} for message in said]
    return identity(str(kept[0]["content"]) if len(kept) == 1 else stable_text(kept, sort_keys=True))


def _text_of(content: Any) -> str:  # noqa: ANN401 - of a message, as the user wrote it
    """The content of a message; parts of text are joined."""
    parts = content if isinstance(content, list) else [content]
    return " ".join(str(part.get("text", part) if isinstance(part, Mapping) else part or "") for part in parts)


def _columns_read(function: Callable[..., Any]) -> list[str]:
    """The columns that a reward reads as `row["name"]`; none if its source is not at hand. One that a row may lack is
    read by `row.get("name")`.
    """
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError):
        return []
    row = list(_parameters(function))[1]
    found = [
        node.slice.value
        for statement in getattr(tree, "body", [tree])  # without the decorator, whose functions have rows too
        for node in ast.walk(statement)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if isinstance(node.value, ast.Name) and node.value.id == row
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    ]
    return list(dict.fromkeys(found))


# Rewards in the form of other trainers


TRL_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL's GRPOTrainer passes beside the columns."""

TRL_LEFT_OUT = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(Settings):
    """How the rows are divided."""

    held_out_share: Share = 0.2
    """Share of the prompts that is never trained on."""


class NotForThisRow(ValueError):
    """No function of a reward in TRL's form applies to the row. The completion is unscorable."""


@dataclass(frozen=True)
class ForeignReward:
    """Rewards in the form of TRL or verl, each with its weight, found by the name of what holds them: a worker need not
    unpickle them.
    """

    module: str
    attribute: str

    @property
    def weighted(self) -> list[tuple[Callable[..., Any], float]]:
        """Each function with its weight."""
        return weighted_rewards(getattr(importlib.import_module(self.module), self.attribute))

    def __call__(self, completion: str, example: Example) -> Reward:
        """The weighted sum of what the functions pay; one that pays None does not apply to the row. A number of 1 or
        more counts as a full solution, because the form names no maximum.
        """
        weighted, parts, paid, total = self.weighted, dict[str, float](), dict[str, float](), 0.0
        for function, weight in weighted:
            if form_of(function) == "verl":
                value = _verl_score(function, completion, example, parts)
            else:
                (value,) = trl_rewards(function, [completion], [example], parts)
            if value is not None:
                name = getattr(function, "__name__", type(function).__name__)
                paid[name] = finite("a reward", value)
                total += paid[name] * weight
        if not paid:
            raise NotForThisRow("the reward returned None, which says that it does not apply to the row")
        return Reward(total, parts | paid if len(weighted) > 1 else parts, maximum=max(1.0, total))

    @property
    def takes_batches(self) -> bool:
        """Whether it is one function of TRL's form, which may compare the completions of a batch."""
        return [form_of(function) for function, _ in self.weighted] == ["trl"]

    @property
    def reads_tokens(self) -> bool:
        """Whether a function of TRL's form has the parameter `completion_ids`."""
        return any("completion_ids" in _parameters(function) for function, _ in self.weighted)

    def together(self, completions: Sequence[str], examples: Sequence[Example]) -> list[Any]:
        """What the one function of TRL's form pays for a batch."""
        ((function, _),) = self.weighted
        return trl_rewards(function, completions, examples, {})


def trl_rewards(
    function: Callable[..., Any], completions: Sequence[str], examples: Sequence[Example], parts: dict[str, float]
) -> list[Any]:
    """What a function of TRL's form pays for a batch; what it logs as metrics joins the parts. `completion_ids` are
    there if a run sampled the completions. Raises `Mistake` if the function returns no list of as many.
    """
    given: dict[str, Any] = {name: [example[name] for example in examples] for name in examples[0].fields}
    given["prompts"] = [example.prompt for example in examples]
    given["completions"] = [
        str(text) if isinstance(example.prompt, str) else [{"role": "assistant", "content": str(text)}]
        for text, example in zip(completions, examples, strict=True)
    ]
    sampled = [text for text in completions if isinstance(text, Sampled)]
    if len(sampled) == len(completions):
        given["completion_ids"] = [list(text.ids) for text in sampled]
    elif "completion_ids" in _parameters(function):
        raise Mistake("the reward reads completion_ids, which texts that no run sampled do not have")
    given["trainer_state"] = SimpleNamespace(global_step=sampled[0].step if sampled else 0)
    given["log_metric"] = parts.__setitem__
    given["log_extra"] = lambda column, values: None  # rollouts have no further columns
    paid = _finished(function(**given))
    count = len(paid) if hasattr(paid, "__len__") and not isinstance(paid, str | dict) else None
    if count != len(completions):
        got = f"{' '.join(repr(paid).split()):.80} ({type(paid).__name__})"
        raise Mistake(f"a reward of this form must return a list of {len(completions)}, one of each, got {got}")
    return list(paid)


def _verl_score(function: Callable[..., Any], completion: str, example: Example, parts: dict[str, float]) -> Any:  # noqa: ANN401
    """What verl's `compute_score` pays: a number, or a dictionary with the `score` and further numbers, as parts."""
    paid = _finished(
        function(
            data_source=example["data_source"],
            solution_str=str(completion),
            ground_truth=example["reward_model"]["ground_truth"],
            extra_info=example.fields.get("extra_info") or {},
        )
    )
    if not isinstance(paid, Mapping):
        return paid
    require("score" in paid, f"compute_score must return a number or a dict with `score`, got {paid!r:.80}", Mistake)
    numbers = {name: value for name, value in paid.items() if isinstance(value, int | float) or hasattr(value, "item")}
    parts |= {name: value for name, value in numbers.items() if name != "score"}
    return paid["score"]


def _finished(paid: Any) -> Any:  # noqa: ANN401 - what the user's function returned
    """The result of a coroutine. One event loop of the process runs them all, so that a client may be kept."""
    if not inspect.isawaitable(paid):
        return paid
    import asyncio

    async def awaited() -> Any:  # noqa: ANN401
        return await paid

    return asyncio.run_coroutine_threadsafe(awaited(), _event_loop()).result()


@cache
def _event_loop() -> Any:  # noqa: ANN401 - asyncio is imported where a reward is a coroutine
    import asyncio
    import threading

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def form_of(found: object) -> str:
    """Whose form a reward has, by the names of its parameters: `trl`, `verl` or none."""
    names = list(_parameters(found)) if callable(found) else []
    return "trl" if "completions" in names else "verl" if {"solution_str", "ground_truth"} <= {*names} else ""


def weighted_rewards(found: object) -> list[tuple[Callable[..., Any], float]]:
    """A reward in the form of TRL or verl, or each of a list of them, with its weight: 1 where none is given. Empty if
    one of them is none.
    """
    each = found if isinstance(found, list | tuple) else [found]
    pairs = [one if isinstance(one, tuple) else (one, 1.0) for one in each]
    right = [
        len(pair) == 2 and form_of(pair[0]) != "" and isinstance(pair[1], int | float) and math.isfinite(pair[1])
        for pair in pairs
    ]
    return pairs if all(right) else []


def _definition_of(module: str, attribute: str, found: Any) -> TaskDefinition | None:  # noqa: ANN401
    """The task of one reward in the form of TRL or verl, or of a list of them with or without weights, over the rows of
    `--data-path`; None if it is nothing like it.
    """
    reward, functions = ForeignReward(module, attribute), [function for function, _ in weighted_rewards(found)]
    if not functions:
        return None
    forms = {form_of(function) for function in functions}
    columns = dict.fromkeys(name for function in functions for name in _columns_of(function))

    def example_of(row: Row) -> Example:
        taken = [name for name in TRL_ARGUMENTS if name in row and name not in TRL_LEFT_OUT and "trl" in forms]
        require(not taken, f"the column {', '.join(taken)} has the name of an argument of TRL's rewards: rename it")
        held = row.get("reward_model")
        known = isinstance(held, Mapping) and held.get("ground_truth") is not None
        require(known or "verl" not in forms, f"reward_model must be a dict with `ground_truth`, got {held!r:.60}")
        fields = {name: value for name, value in row.items() if name not in TRL_LEFT_OUT}
        return _example(row, row["prompt"], fields)

    def make(options: HeldOutOptions, data_path: str) -> Task:
        source = Source(columns=("prompt", *columns))
        return Task(dataset_of(source, data_path, example_of, options.held_out_share, _problem_of), reward)

    make.__module__ = module  # where the task's program is looked for
    return TaskDefinition(HeldOutOptions, make)


def _columns_of(function: Callable[..., Any]) -> list[str]:
    """The columns that a reward cannot do without."""
    if form_of(function) == "verl":
        return ["data_source", "reward_model"]
    needed = [one.name for one in _parameters(function).values() if one.default is one.empty and "*" not in str(one)]
    return [name for name in needed if name not in (*TRL_ARGUMENTS, *TRL_LEFT_OUT)]


# Where tasks are found


GROUP = "minrl.tasks"
"""The group of entry points under which an installed package offers tasks."""

FILE_TASK = re.compile(r"(?P<path>.+\.py)(:(?P<attribute>.*))?")


def with_absolute_path(name: str) -> str:
    """The task's name with the path of its file made absolute, so that a resumed run finds it from any folder.

    >>> with_absolute_path("/somewhere/else/../sevens.py:sevens"), with_absolute_path("countdown")
    ('/somewhere/sevens.py:sevens', 'countdown')
    """
    match = FILE_TASK.fullmatch(name)
    return str(Path(match["path"]).resolve()) + (match[2] or "") if match else name


def tasks_in(setting: str, value: str) -> tuple[str, list[str]]:
    """A setting that names tasks, with absolute paths of their files, and these tasks. `eval_tasks` names several, and
    `task` too, with weights.
    """
    if setting == "task":
        weights = {with_absolute_path(name): weight for name, weight in weights_of(value).items()}
        return mixed(weights), list(weights)
    names = value.split(",") if setting == "eval_tasks" else [value]
    found = [with_absolute_path(name.strip()) for name in names if name.strip()]
    return ",".join(found), found


def definition_in_file(name: str) -> TaskDefinition | None:
    """The task that `path/to/file.py:name` says: a decorated function, a `TaskDefinition`, or rewards in the form of
    TRL or verl. None where the name is of another form.
    """
    match = FILE_TASK.fullmatch(name)
    if match is None:
        return None
    path, attribute = Path(match["path"]).resolve(), match["attribute"]
    if not path.is_file():
        raise UserError(f"--task {name}: no file {path}")
    if not attribute:
        raise UserError(f"--task {name}: say which of its attributes is the task, such as {name.rstrip(':')}:TASK")
    module = _module_of(path)
    found = getattr(module, attribute, None)
    if isinstance(found, TaskDefinition):
        return found
    if found is not None and (definition := _definition_of(module.__name__, attribute, found)) is not None:
        return definition
    offered = [key for key, value in vars(module).items() if isinstance(value, TaskDefinition)]
    has = f"{path} has {', '.join(offered)}" if offered else f"{path} has none: make one with @task, as in README"
    if not hasattr(module, attribute):
        raise UserError(f"--task {name}: {attribute} is not there; of tasks {has}")
    takes = f" of parameters {', '.join(inspect.signature(found).parameters)}" if inspect.isroutine(found) else ""
    raise UserError(
        f"--task {name}: {attribute} is no task but {type(found).__name__}{takes}; a reward in TRL's form has a "
        "parameter `completions`, one in verl's has `solution_str` and `ground_truth`, a list of them gives weights "
        f"as in [accuracy, (brevity, 0.2)]; of tasks {has}"
    )


def _module_of(path: Path) -> ModuleType:
    """The file imported as a module named by its stem."""
    stem = path.stem
    if not stem.isidentifier():
        raise UserError(f"a task's file must be named as a Python module is, got {path.name}: rename it")
    importlib.invalidate_caches()  # the file may be younger than what was cached of its folder
    _require_free(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, so that nothing beside the file hides an installed module
    _require_free(path)  # a package of its name in its own folder would be imported in its place
    with importing(str(path)):
        return importlib.import_module(stem)


def _require_free(path: Path) -> None:
    """Refuse a file whose module name is another module's: workers would import that one."""
    try:
        spec = importlib.util.find_spec(path.stem)
    except ValueError:  # a module without a spec is being run, such as __main__
        raise UserError(f"{path.name} has the name of the module {path.stem!r}: rename the file") from None
    if spec is not None and (spec.origin is None or Path(spec.origin).resolve() != path):
        raise UserError(
            f"{path} has the name of another module, {spec.origin or path.stem}: rename the file, because reward "
            "workers import it by its name"
        )


def definition_installed(name: str) -> TaskDefinition | None:
    """The task that an installed package offers by an entry point of this name; None if there is none."""
    for entry in installed_tasks():
        if entry.name == name:
            said = f"the entry point {entry.name} = {entry.value!r}"
            with importing(said):
                found = entry.load()
            got = type(found).__name__
            require(isinstance(found, TaskDefinition), f"{said} must be a task, which @task makes, got {got}")
            return found
    return None


def installed_tasks() -> "EntryPoints":
    """The entry points by which installed packages offer tasks."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)
