"""Tasks of one's own: a decorated function, a reward in the form of TRL or verl, and where they are found.

    @task(data="questions.jsonl", prompt="question")
    def quiz(completion: str, row: dict) -> float:
        return completion.split()[-1:] == [row["answer"]]

A reward worker imports a task of a file by its module's name, so the file's folder joins `sys.path`, which workers
share.
"""

import functools
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from minrl.dataflow import Example, Prompt, UserError, require
from minrl.tasks.checked import demonstrated
from minrl.tasks.conventions import LEFT_OUT, convention_of, finished, parameters, weighted_rewards, wrong_member
from minrl.tasks.data import SUFFIXES, Row, Source, dataset_of, example_of_row, problem_of
from minrl.tasks.definition import RowOptions, SolvedOptions, TaskDefinition, called, definition_of
from minrl.tasks.task import Dataset, Demonstration, Task, TaskOptions, identity_of
from minrl.utils.files import importing
from minrl.utils.settings import meant
from minrl.utils.task_names import entries_of, mixed, split_tool, weights_of

if TYPE_CHECKING:  # each reward worker would pay for the import
    from importlib.metadata import EntryPoints

Data = str | Path | Iterable[Row] | Callable[..., Iterable[Row]]
"""A file, a folder or a dataset of the hub, `owner/name` or `owner/name/configuration`; rows, or what makes them."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+|[\w-]+)(/(?P<configuration>[\w.-]+))?")
PROBLEMS = 1000
"""The rows of an environment without data, each with a seed."""
OWN = ("dataset", "reward", "episode", "demonstrations", "name", "max_tokens")
"""Fields of a `Task` that the decorator makes or has arguments for."""


def task(
    *,
    data: Data | None = None,
    prompt: str | Callable[..., Prompt] = "",
    system: str = "",
    held_out: float | str = 0.2,
    options: type = TaskOptions,
    episode: Callable[..., Any] | None = None,
    tools: str | Sequence[Callable[..., Any]] = "",
    demonstrations: str | Callable[..., Demonstration] | None = None,
    **more: Any,  # noqa: ANN401 - category, rewards, fields of Task
) -> Callable[[Callable[..., Any]], "CustomTask"]:
    """Make a task of the function: the reward of `(completion, row)`, or an episode of `(row, rng)`, which yields; or
    of a class, an environment of TRL's form, whose `rewards` of TRL's form are beside its own `get_reward`.

    `data` is a file in JSONL, JSON, CSV or parquet (also compressed by gzip) or a folder of them, beside the file of
    the task; a dataset of the hub; a list of rows; or a function that makes them. `--data-path` replaces it.
    `prompt` is a column, or a function of the row, that gives a text, shown as it is, or chat messages; `system` makes
    a chat of it. An episode may do without.
    `held_out` is the share of the problems (equal prompts) that is never trained on, or the split that holds them.
    `options` is a dataclass whose fields become flags, of `TaskOptions` if it is to have theirs. Each function here
    that has a parameter `options` is given them.
    `episode` is played in place of a single turn by a task that has a reward too; `tools` are functions that the model
    may call, or the name of a tool, `python`. `demonstrations` (a column, or a function of `(row, rng)`) and
    `vocabulary` (words, or a function) let the embedded base model play it. `category` names columns by whose values
    an evaluation is divided. Other arguments are those of `minrl.tasks.Task`, such as `stop_strings`; with
    `group=True` the function is given all completions of a prompt and returns a list.
    """
    known = ["category", "rewards", *(one.name for one in fields(Task) if one.name not in OWN)]
    for name in more:
        require(name in known, f"@task takes no {name!r}{meant(name, known)}; it also takes {', '.join(known)}")
    arguments = SimpleNamespace(
        data=data, prompt=prompt, system=system, held_out=held_out, episode=episode, demonstrations=demonstrations
    )
    return lambda function: CustomTask(function, arguments, more, options, tools)


class CustomTask(TaskDefinition):
    """The task of a decorated function, which can still be called. It is pickled by its name."""

    __name__: str
    __qualname__: str
    function: Callable[..., Any]
    arguments: SimpleNamespace
    """Those of `task`; `further` are fields of `Task`."""
    further: dict[str, Any]
    is_environment: bool

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: SimpleNamespace,
        further: dict[str, Any],
        options: type,
        tools: Any,  # noqa: ANN401 - those of `task`
    ) -> None:
        rewards = further.pop("rewards", ())
        made: Any = function if isinstance(function, type) else None
        vars(self).update(function=function, arguments=arguments, further=further, is_environment=bool(made))
        vars(self).update({name: getattr(function, name) for name in functools.WRAPPER_ASSIGNMENTS[:4]})
        reward: Any = None if inspect.isgeneratorfunction(function) else self._reward
        if made:
            from minrl.tasks.environments import environment

            require(not tools, f"the tools of {self.__name__} are its methods: leave out tools={tools!r:.60}")
            reward, tools = environment(made, rewards)
            options, further["cheap"] = SolvedOptions if options is TaskOptions else options, True
        else:
            needs = "@task needs data: a file, a dataset of the hub, rows, or a function that makes them"
            require(arguments.data is not None, needs)
            needs = "@task needs a prompt: a column, or a function of the row"
            require(reward is None or bool(arguments.prompt or arguments.episode), needs)
            require(not rewards, f"rewards are those of an environment, a class: {self.__name__} is the reward itself")
        super().__init__(self._rows, reward, options, self._more, tool=tools)

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the function is the user's
        """Call the function, as a test does."""
        return self.function(*given, **named)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __fspath__(self) -> str:
        """What `--task` names it by: its file and its name there, or its own name where no file has it, such as in a
        notebook.
        """
        module = sys.modules.get(self.__module__)
        file = getattr(module, "__file__", None)
        named = [name for name, one in vars(module or SimpleNamespace()).items() if one is self]
        if named and file and Path(file).stem == self.__module__:
            return f"{Path(file).resolve()}:{named[0]}"
        from minrl.tasks import register

        return register(self.__name__, self)

    @property
    def module(self) -> str:
        """The module that the task is written in."""
        return self.__module__

    @property
    def path(self) -> str:
        """The local file or folder of its rows; empty if they come from the hub or a program."""
        return self._source(None).path

    def _reward(self, options: Any) -> "RowReward":  # noqa: ANN401 - the options are the user's
        return RowReward(self, options)

    def _more(self, options: Any) -> dict[str, Any]:  # noqa: ANN401 - the options are the user's
        """The fields of the task beside its dataset and reward."""
        given, further, shown = self.arguments, dict(self.further), self.arguments.demonstrations
        further.pop("category", None)
        episode = given.episode if self.reward else self.function
        if isinstance(shown, str):
            further.setdefault("solution", lambda example: example[shown])
        words = further.pop("vocabulary", ())
        return {
            "episode": episode and _of_rows(episode, options),
            "demonstrations": shown and partial(demonstrated, self.__name__, _of_rows(shown, options)),
            "vocabulary": tuple(called(words, options) if callable(words) else words),
            **further,
        }

    def _rows(self, options: Any) -> Dataset:  # noqa: ANN401 - the options are the user's
        """The examples of the rows."""
        given, divided = self.arguments, self.further.get("category", ())
        divided = [divided] if isinstance(divided, str) else divided
        repeated = Counter[str]()

        def example_of(row: Row) -> Example:
            shown: Any = ""
            if self.is_environment:  # which completes it
                shown = row.get("prompt") or [{"role": "user", "content": ""}]
            if given.prompt:
                shown = row[given.prompt] if isinstance(given.prompt, str) else called(given.prompt, options, dict(row))
                require(bool(shown and str(shown).strip()), "its prompt is empty")
            category = {name: str(row[name]) for name in divided if row.get(name) is not None}
            example = replace(example_of_row(row, shown, dict(row), given.system), category=category)
            if not self.is_environment:
                return example
            repeated[example.id] += 1  # an environment may begin otherwise with each of equal rows
            return replace(example, id=f"{example.id}#{repeated[example.id]}")

        columns = tuple(name for name in (given.prompt, given.demonstrations) if name and isinstance(name, str))
        share = given.held_out if isinstance(given.held_out, float | int) else 0.0
        source, path = replace(self._source(options), columns=columns), getattr(options, "data_path", "")
        return dataset_of(source, path, example_of, share, identity_of if self.is_environment else problem_of)

    def _source(self, options: Any) -> Source:  # noqa: ANN401 - the options are the user's
        """Where the rows come from."""
        data, held_out = self.arguments.data, self.arguments.held_out
        splits = {"train": "train", "held_out": held_out} if isinstance(held_out, str) else {"all": "train"}
        if data is None:
            data = [{"seed": number} for number in range(PROBLEMS)]
        if not isinstance(data, str | Path):
            return Source(splits=splits, rows=lambda: called(data, options) if callable(data) else data)
        file = getattr(sys.modules.get(self.__module__), "__file__", None)
        path, match = (Path(file).resolve().parent if file else Path()) / data, HUB_NAME.fullmatch(str(data))
        if path.exists() or match is None or str(data).endswith(SUFFIXES):
            return Source(splits=splits, path=str(path))
        return Source(match["name"], splits=splits, configuration=match["configuration"])


@dataclass(frozen=True)
class RowReward:
    """The reward of a decorated function, which is given the completion and the row; all completions of a prompt and
    their row if it sees the group.
    """

    task: CustomTask
    options: Any

    def __call__(self, completion: Any, example: Any) -> Any:  # noqa: ANN401 - of one, or lists of them
        """What the function returns."""
        row = example.fields if isinstance(example, Example) else example[0].fields
        return finished(called(self.task.function, self.options, completion, dict(row)))


def _of_rows(source: str | Callable[..., Any], options: Any) -> Callable[[Example, Random], Any]:  # noqa: ANN401
    """A column, or a function of the row and a generator of random numbers, as a function of the example."""
    if isinstance(source, str):
        return lambda example, rng: example[source]
    return lambda example, rng: called(source, options, dict(example.fields), rng)


def definition_of_rewards(module: str, attribute: str, found: Any) -> TaskDefinition | None:  # noqa: ANN401
    """The task of one reward in the form of TRL or verl, or of a list of them with or without weights, over the rows of
    `--data-path`; None if it is nothing like it.
    """
    conventions = {convention_of(function) for function, _ in weighted_rewards(found)}
    if not conventions:
        return None

    def example_of(row: Row) -> Example:
        return example_of_row(row, row["prompt"], {name: row[name] for name in row if name not in LEFT_OUT})

    def dataset(options: RowOptions) -> Dataset:
        source = Source(columns=("prompt", *(("data_source", "reward_model") if "verl" in conventions else ())))
        return dataset_of(source, options.data_path, example_of, options.held_out_share, problem_of)

    for function, _ in weighted_rewards(found):
        name = getattr(function, "__name__", attribute)
        asks = parameters(function).get("environments")
        needs = (
            f"{name} rewards the episodes of an environment: put @task(rewards={name}) above its class, and name that"
        )
        require(asks is None or asks.default is not asks.empty, needs)
    dataset.__module__ = module  # where the task's program is looked for
    return TaskDefinition(dataset, f"{module}:{attribute}")


# Where tasks are found


GROUP = "minrl.tasks"
"""The group of entry points under which an installed package offers tasks."""

FILE_TASK = re.compile(r"(?P<path>.+\.py)(:(?P<attribute>.*))?")


def with_absolute_path(name: str) -> str:
    """The task's name with the path of its file made absolute, so that a resumed run finds it from any folder.

    >>> with_absolute_path("/somewhere/else/../sevens.py:sevens"), with_absolute_path("countdown")
    ('/somewhere/sevens.py:sevens', 'countdown')
    """
    name, tool = split_tool(name)
    match = FILE_TASK.fullmatch(name)
    whole = str(Path(match["path"]).resolve()) + (match[2] or "") if match else name
    return f"{whole}+{tool}" if tool else whole


def tasks_in(setting: str, value: str) -> tuple[str, list[str]]:
    """A setting that names tasks, with absolute paths of their files, and these tasks. `eval_tasks` names several, and
    `task` too, with weights.
    """
    if setting == "task":
        weights = {with_absolute_path(name): weight for name, weight in weights_of(value).items()}
        return mixed(weights), list(weights)
    found = [with_absolute_path(name) for name in (entries_of(value) if setting == "eval_tasks" else [value.strip()])]
    return ",".join(found), found


def module_of_file(name: str, path: Path) -> Any:  # noqa: ANN401 - a module
    """The module of a user's file, which `name` names."""
    require(path.is_file(), f"{name}: no file {path}")
    require(path.stem.isidentifier(), f"a task's file must be named as a Python module is, got {path.name}: rename it")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, so that nothing beside the file hides an installed module
    with importing(str(path)):
        module = importlib.import_module(path.stem)
    other = Path(module.__file__ or "").resolve()
    require(
        other == path, f"{path} has the name of another module, {other}: rename the file; workers import it by name"
    )
    return module


def member_of_file(name: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:name` says; the path is absolute, with or without its first slash."""
    path, _, attribute = f"/{name.removeprefix('/')}".rpartition(":")
    found = getattr(module_of_file(f"--tools {name}", Path(path).resolve()), attribute, None)
    if not callable(found):
        raise UserError(f"--tools {path}:{attribute}: there is no function {attribute}")
    return found


def definition_in_file(name: str) -> TaskDefinition | None:
    """The task that `path/to/file.py:name` says: a decorated function, a `TaskDefinition`, a `Task`, or rewards in the
    form of TRL or verl. None where the name is of another form.
    """
    match = FILE_TASK.fullmatch(name)
    if match is None:
        return None
    path, attribute = Path(match["path"]).resolve(), match["attribute"]
    module = module_of_file(f"--task {name}", path)
    found = getattr(module, attribute or "", None)
    if isinstance(found, type) and not convention_of(found):
        found = task()(found)
    if isinstance(found, TaskDefinition | Task):
        return definition_of(name, found)
    definition = definition_of_rewards(path.stem, attribute or "", found)
    if definition is None:
        offered = [key for key, value in vars(module).items() if isinstance(value, TaskDefinition | Task)]
        nameless = f"--task {name} names no task of the file: give {name}:{' or :'.join(offered)}"
        require(bool(attribute) or not offered, nameless)
        raise UserError(
            f"--task {name}: {attribute or 'what is named'} is no task{wrong_member(found)}, and {path} has "
            f"{', '.join(offered) or 'none'}: "
            "make one with @task, as in README, or name a reward of TRL's form (parameter `completions`) or of verl's "
            "(`solution_str` and `ground_truth`)"
        )
    return definition


def definition_installed(name: str) -> TaskDefinition | None:
    """The task that an installed package offers by an entry point of this name; None if there is none."""
    for entry in installed_tasks().select(name=name):
        with importing(f"the entry point {entry.name} = {entry.value!r}"):
            found = entry.load()
        right = isinstance(found, TaskDefinition | Task)
        require(right, f"the entry point {entry.name} must be a task, which @task makes, got {type(found).__name__}")
        return definition_of(name, found)
    return None


def installed_tasks() -> "EntryPoints":
    """The entry points by which installed packages offer tasks."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)
