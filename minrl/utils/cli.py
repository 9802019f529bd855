"""The command line: dataclasses of settings become argparse flags, and words and files become configs.

A setting `group_size` is the flag `--group-size`; options of tasks are `--countdown.max-number`. `--config` reads YAML
or a run's config.json, and flags override it. Help comes from the strings below the fields. Whatever is wrong is one
line on stderr and exit status 2.
"""

import argparse
import ast
import errno
import inspect
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml

from minrl.config import TaskOptions
from minrl.dataflow import UserError, require
from minrl.tasks import TASK_DEFINITIONS, TOOLS, flag_identifier, option_classes, tasks_in
from minrl.utils.files import refusal
from minrl.utils.settings import ROWS, Setting, close_names, converted, flag_of, meant, settings_of
from minrl.utils.signals import answered, exit_status, stop_at_once
from minrl.utils.task_names import weights_of
from minrl.utils.text import printable, without_keys

T = TypeVar("T")

HELP = ("-h", "--help", "--help-all")

ALONE = "alone"
"""Metadata of a setting: the value of its flag if no words follow it."""

ALIASES = {
    "learning_rate": ["lr"], "checkpoint": ["model"], "model_id": ["model", "model-name-or-path"],
    "group_size": ["num-generations"], "max_tokens": ["max-new-tokens", "max-completion-length"],
    "steps": ["max-steps"], "kl_coef": ["beta"],
}  # fmt: skip
"""Other flags of a setting, as other trainers call it."""

FULL_DISTRIBUTION = "completions are sampled from the whole distribution, which the loss needs; see --temperature"
SIMILAR = {
    "epochs": "did you mean --steps?",
    "batch-size": "did you mean --prompts-per-step?",
    "dataset": "did you mean --data-path?",
    "output-dir": "did you mean --runs-dir?",
    **dict.fromkeys(["top-p", "top-k", "min-p"], FULL_DISTRIBUTION),
}
"""Hints for flags that other trainers have."""

REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of reading or writing a file that the user can fix: a folder, a disk, a permission."""


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command line after parsing: the config, the options of the tasks named, and the words themselves."""

    config: T
    options: TaskOptions
    arguments: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """The tasks named, also by their options."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """What the flags set, by name; the option of a task is `hanoi.skill`."""
    file: Mapping[str, Any] = field(default_factory=dict)
    """What the --config file sets."""
    started: float = field(default_factory=time.perf_counter, compare=False)

    @property
    def given(self) -> list[str]:
        """The flags that were given, in one spelling, such as `--learning-rate`."""
        names = [*self.flags, *["config"] * bool(self.file)]
        return [flag_of(name) for name in names]

    def over(self, defaults: Mapping[str, Any], options: TaskOptions | None = None) -> "Command[T]":
        """The same command with other defaults."""
        values = {**defaults, **self.file, **self.flags}
        config, chosen = _build(type(self.config), values, self.tasks, options)
        return replace(self, config=config, options=chosen)


# Configs from words and files


def parse(cls: type[T], arguments: Sequence[str]) -> Command[T]:
    """The command line of a program with this config. Flags override a `--config` file. A class may name in `first` the
    setting that the words before all flags belong to.
    """
    words = [re.sub(r"^--[\w.-]+", lambda flag: flag[0].replace("_", "-"), word) for word in arguments]
    first = getattr(cls, "first", "")
    if first and words and not words[0].startswith("-"):
        words = [f"--{first}", *words]
    flags, left = _Parser(cls, {}).read(words)
    files = flags.pop("config", [])
    require(len(files) <= 1, "--config may be given once: put the settings into one file, and flags on top")
    in_file, tasks = _flat(read_config_file(Path(files[0]))) if files else ({}, [])
    tasks += _with_paths(flags)[1]
    tasks += _tasks_of_options(left, tasks)
    if set(words) & set(HELP):
        _show_help(cls, tasks, {*in_file, *flags}, "--help-all" in words)
    parser = _Parser(cls, option_classes(dict.fromkeys(tasks)))
    flags, left = parser.read(words)
    if left:
        raise parser.unknown(left[0])
    flags.pop("config", None)
    flags, _ = _with_paths(flags)
    config, options = _build(cls, {**in_file, **flags}, tasks)
    return Command(config, options, tuple(arguments), tuple(tasks), flags, in_file)


def from_dict(values: Mapping[str, Any], cls: type[T], named: Sequence[str] = ()) -> tuple[T, TaskOptions]:
    """A config with these values over the defaults, and the options of the tasks that the values or `named` name."""
    settings, tasks = _flat(values, named)
    return _build(cls, settings, tasks)


def to_dict(config: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - the config of any program
    """Plain values by flag name, and each task's options in a dictionary. `from_dict` reads it."""
    tasks = {key: plain_options(own) for key, own in options.items()}
    return {**{name: _plain(value) for name, value in config.settings.items()}, "tasks": tasks}


def plain_options(own: Any) -> dict[str, Any]:  # noqa: ANN401 - a task's options
    """The options of one task as JSON can hold them, by name."""
    return {one.name: _plain(getattr(own, one.name)) for one in fields(own) if one.init}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a config value
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def read_config_file(path: Path) -> dict[Any, Any]:
    """The settings in a YAML file or in a run's config.json, without that run's own name and note."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    own: tuple[str, ...] = ()
    if isinstance(values, dict) and "minrl_run" in values:
        values, own = values.get("config"), ("run_name", "note")
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings by name, such as `learning_rate: 3e-4`")
    return {name: value for name, value in values.items() if name not in own}


def _build(
    cls: type[T], values: Mapping[str, Any], tasks: Iterable[str], options: TaskOptions | None = None
) -> tuple[T, TaskOptions]:
    """The config of flat values, in which the option of a task is `hanoi.skill`, and the options of the tasks, over
    those that are given.
    """
    for name, one in settings_of(cls).items():
        value, rows = values.get(name), one.metadata.get(ROWS, ())
        known = not (rows and value) or value in rows or ".py:" in str(value)
        file = "; a file of yours is named with its row, path/to/file.py:row" if str(value).endswith(".py") else ""
        require(known, f"no {name} {value!r}: choose one of {', '.join(rows)}{file or meant(value, rows)}")
    config: Any = cls(**without_options(values))
    own = getattr(config, "settings", {}).get("task") or ""
    named = dict.fromkeys([*tasks, *getattr(config, "task_names", weights_of(own))])
    chosen = {key: options_class() for key, options_class in option_classes(named).items()} | dict(options or {})
    given: dict[str, dict[str, Any]] = {}
    for name in filter(lambda name: "." in name, values):
        key, _, option = name.rpartition(".")
        known_options = settings_of(type(chosen[key])) if key in chosen else {}
        if option not in known_options:
            raise unknown(f"option {option!r} of {key}", option, known_options)
        given.setdefault(key, {})[option] = converted(name, known_options[option].hint, values[name])
    return config, chosen | {key: replace(chosen[key], **own) for key, own in given.items()}


def without_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among flat values, without options of tasks."""
    return {name: value for name, value in values.items() if "." not in name}


def _flat(values: Mapping[Any, Any], named: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """The settings and options of a file, and the tasks named before and in it."""
    settings = {str(name).replace("-", "_"): value for name, value in values.items()}
    options = settings.pop("tasks", {})
    is_nested = isinstance(options, Mapping) and all(isinstance(own, Mapping) for own in options.values())
    require(is_nested, f"tasks must hold options by task, such as `tasks: {{hanoi: {{skill: 0.5}}}}`, got {options!r}")
    settings, tasks = _with_paths(settings)
    tasks = [*named, *tasks]
    known = option_classes(dict.fromkeys(tasks))
    for key, own in options.items():
        settings |= {f"{key}.{str(name).replace('-', '_')}": value for name, value in own.items()}
    return settings, [*tasks, *(str(key) for key in options if key not in known)]


def _with_paths(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values with absolute paths of tasks' files, and the tasks that they name."""
    changed, tasks = dict(values), list[str]()
    for name in ("task", "eval_tasks"):
        if isinstance(values.get(name), str):
            changed[name], found = tasks_in(name, values[name])
            tasks += found
    if "tasks" in values:
        found_each = [tasks_in("tasks", name) for name in values["tasks"]]
        changed["tasks"] = [name for name, _ in found_each]
        tasks += [task for _, found in found_each for task in found]
    return changed, tasks


def _tasks_of_options(words: Iterable[str], named: Sequence[str]) -> Iterator[str]:
    """The built-in tasks, beside those named, whose options are among unknown flags, or nearly."""
    tasks = {flag_identifier(name): name for name in TASK_DEFINITIONS}
    known = set(map(flag_identifier, option_classes(dict.fromkeys(named))))
    for word in words:
        task = word.removeprefix("--").partition(".")[0].replace("-", "_")
        if word.startswith("--") and task not in known and ("." in word or task in tasks):
            yield from (tasks[one] for one in close_names(task, tasks)[:1])


# Flags and their help


class _Parser(argparse.ArgumentParser):
    """The flags of a config class, and of options by task. `page` is what help shows: `short`, `all` or nothing."""

    def __init__(self, cls: type, options: Mapping[str, type], page: str = "") -> None:
        width = min(100, shutil.get_terminal_size().columns)
        about, _, examples = (inspect.getdoc(cls) or "").partition("\n\n")
        super().__init__(
            usage=argparse.SUPPRESS,
            description=f"{textwrap.fill(about, width)}\n\n{examples}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width),
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        self._negative_number_matcher = re.compile(r"-(\.?\d.*|inf|nan)")  # argparse's does not know -1e-3
        self.page, self.settings = page, settings_of(cls)
        self.flags = [word.lstrip("-") for word in HELP[1:]]
        often = getattr(cls, "often", [name for name, one in self.settings.items() if not one.group])
        group = self.add_argument_group("most used")
        if hasattr(cls, "trainer"):
            about = "YAML file, or a run's config.json; flags override it"
            group.add_argument("--config", action="append", metavar="FILE", help=about)
            self.flags.append("config")
        for name in [*often, *(name for name in self.settings if name not in often)]:
            one = self.settings[name]
            title = "most used" if name in often else one.group or "run"
            if group.title != title:
                described = page == "all" and bool(one.group)
                group = self.add_argument_group(title, first_paragraph(one.owner) if described else None)
            self._add(group, name, name, one, hidden=page != "all" and name not in often)
        self.untyped: dict[str, str] = {}
        for key, options_class in options.items():
            group = self.add_argument_group(f"task {key}")
            untyped = {name for name in vars(options_class) if name[0] != "_"} - settings_of(options_class).keys()
            self.untyped |= {flag_of(f"{flag_identifier(key)}.{name}")[2:]: name for name in untyped}
            for name, one in settings_of(options_class).items():
                self._add(group, f"{flag_identifier(key)}.{name}", f"{key}.{name}", one)
        for word in HELP:
            self.add_argument(word, action="store_true", dest="help", help=argparse.SUPPRESS)

    def _add(self, group: argparse._ArgumentGroup, flag: str, name: str, one: Setting, hidden: bool = False) -> None:
        inner = get_args(one.hint)
        kind = inner[0] if NoneType in inner else one.hint
        more: dict[str, Any] = {"metavar": _metavar(kind)}
        if kind is bool:
            more = {"action": argparse.BooleanOptionalAction}
        elif get_origin(kind) in (tuple, list):
            more["nargs"] = "*"
        text = argparse.SUPPRESS if hidden or not self.page else self._help(one)
        spelled = flag.replace("_", "-")
        aliases = [alias for alias in ALIASES.get(flag, ()) if alias not in self.flags]  # --model is of two settings
        self.flags += [spelled, *aliases]
        group.add_argument(f"--{spelled}", dest=name, help=text, **more)
        for alias in aliases:
            group.add_argument(f"--{alias}", dest=name, help=argparse.SUPPRESS, **more)

    def _help(self, one: Setting) -> str:
        text = meanings(one.owner).get(one.name, "")
        if self.page == "short":
            text = re.split(r"(?<=\w)[.:;] ", text)[0]
        elif one.name in ALIASES:
            text += f" Also --{', --'.join(ALIASES[one.name])}."
        if ROWS in one.metadata:
            text = f"{text.rstrip('.')}: {', '.join(one.metadata[ROWS])}"
        value = " ".join(map(str, one.default)) if isinstance(one.default, tuple | list) else one.default
        value = "on" if value is True else value
        shown = isinstance(value, str | int | float) and value not in ("", False)
        return (text.rstrip(".") + (f" [{value}]" if shown else "")).replace("%", "%%")

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The values that are given, by name, and the words that are no flags or values."""
        found, left = self.parse_known_args(words)
        alone = {name: one.metadata[ALONE] for name, one in self.settings.items() if ALONE in one.metadata}
        return {name: alone.get(name, ()) if value == [] else value for name, value in vars(found).items()}, left

    def error(self, message: str) -> NoReturn:
        """Refuse the words in one line."""
        raise UserError(message.removeprefix("argument "))

    def unknown(self, word: str) -> UserError:
        """The error for a word that is no flag."""
        bare = word.lstrip("-\u2013\u2014").partition("=")[0].replace("_", "-")  # editors make long dashes
        inside = [flag for flag in self.flags if flag.startswith(f"{bare}.")][:3]
        tasks = TASK_DEFINITIONS if word == bare and "task" in self.flags else ()
        close = [f"--{flag}" for flag in inside or close_names(bare, self.flags, cutoff=0.7)]
        close = close or [f"--task {task}" for task in close_names(bare, tasks, cutoff=0.7)]
        hint = f"did you mean {' or '.join(close)}?" if close else "--help lists the flags"
        if bare in self.untyped:
            hint = f"{self.untyped[bare]} has no type: write it as in `{self.untyped[bare]}: int = 10`"
        if "steps" in self.settings:
            hint = SIMILAR.get(bare.lower(), hint)
        return UserError(f"unknown flag {word}: {hint}")


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that nothing has, with the names that are near."""
    return UserError(f"unknown {what}{meant(name, known, cutoff=0.7) or ': --help lists all'}")


def _metavar(kind: Any) -> str:  # noqa: ANN401 - types are data here
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, inner))}}}"
    return _metavar(inner[0]) if inner else {str: "TEXT"}.get(kind, kind.__name__.upper())


def _show_help(cls: Any, tasks: Sequence[str], given: Iterable[str], everything: bool) -> NoReturn:  # noqa: ANN401
    """Print a page of the flags used most, or all, and of the options of the tasks named (by default the default's)."""
    settings, shown = settings_of(cls), list(tasks)
    if "task" in settings and everything:
        shown += [*TASK_DEFINITIONS, *TOOLS]
    elif "task" in settings and not {"task", "tasks"} & set(given):
        shown += filter(None, [settings["task"].default or getattr(cls, "default_task", "")])
    page = _Parser(cls, option_classes(dict.fromkeys(shown)), "all" if everything else "short").format_help()
    sys.stdout.write(page + ("" if everything else "\n--help-all shows every setting, with whole descriptions.\n"))
    raise SystemExit(0)


def first_paragraph(cls: type) -> str:
    """The first paragraph of a class's docstring, in one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


@cache
def meanings(cls: type) -> Mapping[str, str]:
    """The string below each field of a dataclass and of those that it inherits from, by the field's name."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        declared = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(declared, ast.ClassDef)
        for one, below in pairwise(declared.body):
            if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[ast.unparse(one.target)] = " ".join(str(below.value.value).split())
    return found


# The process


def run_main(main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> NoReturn:
    """End the process with the status of `main`. A user's mistake, a refused file, a closed pipe or an interruption is
    one line and a status of its own.
    """
    sys.excepthook = show_fault
    try:
        with answered(stop_at_once):
            sys.exit(main(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        _refuse(str(error), getattr(error, "status", 2))
    except BrokenPipeError:  # of `| head`: what is left in the buffer has no reader either
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(exit_status(signal.SIGPIPE))
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        _refuse(": ".join(filter(None, [error.filename, refusal(error)])))
    except KeyboardInterrupt as stop:
        sys.stderr.write("interrupted\n")
        sys.exit(getattr(stop, "status", exit_status(signal.SIGINT)))


def _refuse(reason: str, status: int = 2) -> NoReturn:
    sys.stderr.write(f"error: {without_keys(printable(reason))}\n")
    sys.exit(status)


def show_fault(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Show an exception that nothing caught, without keys and without what commands a terminal. Ctrl-C is a line."""
    text = "".join(traceback.format_exception(error)) if kind is not KeyboardInterrupt else "interrupted\n"
    sys.stderr.write(without_keys(printable(text)))


def typed(program: str) -> str:
    """A program's command such that a shell in this folder finds it, also where no environment is activated."""
    words = ["minrl"] if Path(sys.argv[0]).name == "minrl" else ["python", "-m", "minrl"]
    return shlex.join([tool(words[0]), *words[1:], program])


def tool(name: str) -> str:
    """The name of a program of this environment if the shell would find that one, else its path."""
    own, found = Path(sys.executable).with_name(name), shutil.which(name)
    same = found is not None and Path(found).parent.resolve() == own.parent.resolve()
    return name if same or not own.exists() else near(own)


def near(path: Path) -> str:
    """The path from the current folder if it is below it, else the whole path."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
