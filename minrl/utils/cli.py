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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml

from minrl.config import OptionsByTask, algorithm_names
from minrl.dataflow import UserError, require
from minrl.tasks import TASK_DEFINITIONS, TOOLS, TaskOptions, flag_identifier, option_classes, tasks_in
from minrl.utils.files import refusal
from minrl.utils.other_names import HINTS
from minrl.utils.settings import (
    BY_SIZE,
    Setting,
    close_names,
    converted,
    flag_of,
    meant,
    settings_of,
    unknown_names,
    with_own_names,
)
from minrl.utils.signals import answered, exit_status, stop_at_once
from minrl.utils.text import printable, without_keys

T = TypeVar("T")

HELP = ("-h", "--help", "--help-all")

REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of reading or writing a file that the user can fix: a folder, a disk, a permission."""

BySize = Callable[[Any], Mapping[str, Any]]
"""What the settings BY_SIZE are for a config: `minrl.run.sizes.by_size`."""


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command line after parsing: the config, the options of the tasks named, and the words themselves."""

    config: T
    options: OptionsByTask
    arguments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    """What the flags set, by name; the option of a task is `hanoi.form`."""
    file: Mapping[str, Any] = field(default_factory=dict)
    """What the --config file sets."""
    started: float = field(default_factory=time.perf_counter, compare=False)

    @property
    def given(self) -> set[str]:
        """The names of the settings whose flags were given, and `config` for a file."""
        return {*self.flags, *["config"] * bool(self.file)}

    def over(self, defaults: Mapping[str, Any], options: OptionsByTask | None = None) -> "Command[T]":
        """The same command with other defaults."""
        config, chosen = from_dict({**defaults, **self.file, **self.flags}, type(self.config), options)
        return replace(self, config=config, options=chosen)


# Configs from words and files


def parse(cls: type[T], arguments: Sequence[str], by_size: BySize | None = None) -> Command[T]:
    """The command line of a program with this config. Flags override a `--config` file. A class may name in `first` the
    setting of a word before all flags. `by_size` is for help.
    """
    words = [re.sub(r"^--[\w.-]+", lambda flag: flag[0].replace("_", "-"), word) for word in arguments]
    first = getattr(cls, "first", "")
    if first and words and not words[0].startswith("-"):
        words = [f"--{first}", *words]
    flags, left = _Parser(cls, {}).read(words)  # which tasks are named, by flags or in the file
    files = flags.pop("config", [])
    require(len(files) <= 1, "--config may be given once: put the settings into one file, and flags on top")
    in_file = _flat(read_config_file(Path(files[0])), cls) if files else {}
    tasks = [*tasks_named({**in_file, **flags}), *_tasks_of_options([*left, *in_file])]
    others = option_classes(dict.fromkeys(tasks_named(in_file))).keys() - option_classes(dict.fromkeys(tasks)).keys()
    in_file = {name: value for name, value in in_file.items() if name.rpartition(".")[0] not in others}
    if set(words) & set(HELP):
        _show_help(cls, tasks, {**in_file, **flags}, "--help-all" in words, by_size)
    row = _options_of_row({**in_file, **flags}.get("algorithm"), [*left, *in_file])
    parser = _Parser(cls, option_classes(dict.fromkeys(tasks)) | row)
    flags, left = parser.read(words)
    if left:
        raise parser.unknown(left)
    flags.pop("config", None)
    flags, in_file = _with_task_files(flags), _with_task_files(in_file)
    config, options = from_dict({**in_file, **flags}, cls)
    if hasattr(config, "task_names") and getattr(config, "tasks", True):  # without --tasks, a run's own are evaluated
        played = option_classes(dict.fromkeys(config.task_names)) | row
        for name in filter(lambda name: "." in name, flags):
            key = name.rpartition(".")[0]
            require(
                key in played, f"{flag_of(name)} is an option of {key}, which is neither trained nor evaluated here"
            )
    return Command(config, options, tuple(arguments), flags, in_file)


def from_dict(values: Mapping[str, Any], cls: type[T], options: OptionsByTask | None = None) -> tuple[T, OptionsByTask]:
    """A config with these values over the defaults, and the options of the tasks that they name, over those given. The
    option of a task is `hanoi.form`, or stands in `tasks: {hanoi: {form: ...}}`.
    """
    values = _with_task_files(_flat(values, cls))
    config: Any = cls(**{name: value for name, value in values.items() if "." not in name})
    for name in ("task", "eval_tasks"):  # which may be an edited default
        if name in settings_of(cls):
            vars(config)[name] = tasks_in(name, getattr(config, name))[0]
    given: dict[str, dict[str, Any]] = {}
    for name in filter(lambda name: "." in name, values):
        key, _, option = name.rpartition(".")
        given.setdefault(key, {})[option] = values[name]
    named = getattr(config, "task_names", ())
    classes = option_classes(dict.fromkeys(named)) | _options_of_row(getattr(config, "algorithm", None), values)
    classes |= option_classes([key for key in given if key not in classes])
    chosen = {key: options_class() for key, options_class in classes.items()} | dict(options or {})
    for key, own in given.items():
        known = settings_of(type(chosen[key]))
        for option in own:
            near = meant(option, known) or ": --help lists all"
            require(option in known, f"unknown option {option!r} of {key}{near}")
        try:
            chosen[key] = replace(chosen[key], **{one: converted(one, known[one].hint, own[one]) for one in own})
        except UserError as error:
            raise UserError(f"{key}.{error}" if str(error).startswith(tuple(own)) else str(error)) from error
    return config, chosen


def to_dict(config: Any, options: OptionsByTask) -> dict[str, Any]:  # noqa: ANN401 - the config of any program
    """Plain values by name, and each task's options in a dictionary. `from_dict` reads it."""
    tasks = {key: plain_options(own) for key, own in options.items()}
    return {**{name: plain_value(value) for name, value in config.settings.items()}, "tasks": tasks}


def plain_options(own: Any) -> dict[str, Any]:  # noqa: ANN401 - a task's options
    """The options of one task as JSON can hold them, by name."""
    return {one.name: plain_value(getattr(own, one.name)) for one in fields(own) if one.init}


def plain_value(value: Any) -> Any:  # noqa: ANN401 - a config value
    """A value as JSON can hold it."""
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def read_config_file(path: Path) -> dict[Any, Any]:
    """The settings in a YAML file or in a run's config.json, without that run's own name and what followed from the
    size of its model.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    own: tuple[str, ...] = ()
    if isinstance(values, dict) and "minrl_run" in values:
        own, by_size = ("run_name",), values.get("by_size") or ()
        values = values.get("config")
        values = {**values, **dict.fromkeys(by_size)} if isinstance(values, dict) else values
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings by name, such as `learning_rate: 3e-4`")
    return {name: value for name, value in values.items() if name not in own}


def _flat(values: Mapping[Any, Any], cls: type) -> dict[str, Any]:
    """Settings by their own names, and options of tasks as `hanoi.form`."""
    named = {_own_name(str(name)): value for name, value in values.items()}
    held = "tasks" not in settings_of(cls) or isinstance(named.get("tasks"), Mapping)
    options: Any = named.pop("tasks", {}) if held else {}
    nested = isinstance(options, Mapping) and all(isinstance(own, Mapping) for own in options.values())
    require(nested, f"tasks must hold options by task, such as `tasks: {{hanoi: {{skill: 0.5}}}}`, got {options!r}")
    settings = with_own_names(cls, {name: value for name, value in named.items() if "." not in name})
    settings |= {name: value for name, value in named.items() if "." in name}
    if isinstance(settings.get("tasks"), str):
        settings["tasks"] = [settings["tasks"]]
    for key, own in options.items():
        settings |= {f"{key}.{str(name).replace('-', '_')}": value for name, value in own.items()}
    return settings


def _own_name(name: str) -> str:
    """The name of a setting, or of a task's option; the name of a task stays as it is."""
    task, dot, option = name.rpartition(".")
    return f"{task}{dot}{option.replace('-', '_')}"


def _with_task_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with absolute paths of tasks' files."""
    changed = dict(values)
    for name in ("task", "eval_tasks"):
        if isinstance(values.get(name), str):
            changed[name], _ = tasks_in(name, values[name])
    if isinstance(values.get("tasks"), list | tuple):
        changed["tasks"] = [tasks_in("tasks", name)[0] for name in values["tasks"]]
    return changed


def tasks_named(values: Mapping[str, Any]) -> list[str]:
    """The tasks that settings name, and those whose options are among them."""
    texts = [values.get("task"), values.get("eval_tasks"), *(values.get("tasks") or ())]
    return [task for text in texts if isinstance(text, str) for task in tasks_in("task", text)[1]]


def _tasks_of_options(words: Iterable[str]) -> Iterable[str]:
    """The built-in tasks whose options are among words or names, or nearly."""
    tasks = {flag_identifier(name): name for name in (*TASK_DEFINITIONS, *TOOLS)}
    for word in words:
        task, dot, _ = word.removeprefix("--").partition(".")
        if dot:
            yield from (tasks[one] for one in close_names(task.replace("-", "_"), tasks)[:1])


def _options_of_row(algorithm: object, names: Iterable[str] | None = None) -> dict[str, type]:
    """The options of an algorithm in a file, which is imported for it, and torch with it: of flags or names only if
    they are among them. A row that is given none has its defaults.
    """
    path, _, row = str(algorithm).rpartition(":")
    given = {name.lstrip("-").partition(".")[0].replace("-", "_") for name in names or ()}
    if not path.endswith(".py") or (names is not None and row not in given):
        return {}
    from minrl.algorithms import row_in_file

    options = row_in_file(str(algorithm)).options
    return {} if options is None else {row: options}


# Flags and their help


class _Parser(argparse.ArgumentParser):
    """The flags of a config class, and of options by task. `page` is what help shows: `short`, `all` or nothing."""

    def __init__(self, cls: type, options: Mapping[str, type], page: str = "", sizes: Mapping[str, Any] = {}) -> None:
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
        self.cls, self.page, self.sizes, self.settings = cls, page, sizes, settings_of(cls)
        self.flags = [word.lstrip("-") for word in HELP[1:]]
        often, described = getattr(cls, "often", tuple(self.settings)), sections(cls) if page == "all" else {}
        group = self.add_argument_group("most used")
        if hasattr(cls, "trainer"):
            about = "YAML file, or a run's config.json; flags override it"
            group.add_argument("--config", action="append", metavar="FILE", help=about)
            self.flags.append("config")
        for name in [*often, *(name for name in self.settings if name not in often)]:
            title = "most used" if name in often else described.get(name, "all")
            if group.title != title:
                group = self.add_argument_group(title)
            self._add(group, name, name, self.settings[name], cls, hidden=page != "all" and name not in often)
        for key, options_class in options.items():
            group = self.add_argument_group(f"options of {key}")
            for name, one in settings_of(options_class).items():
                hidden = page != "all" and name in settings_of(TaskOptions)
                self._add(group, f"{flag_identifier(key)}.{name}", f"{key}.{name}", one, options_class, hidden)
        for word in HELP:
            self.add_argument(word, action="store_true", dest="help", help=argparse.SUPPRESS)

    def _add(
        self, group: argparse._ArgumentGroup, flag: str, name: str, one: Setting, owner: type, hidden: bool = False
    ) -> None:
        inner = get_args(one.hint)
        kind = inner[0] if NoneType in inner else one.hint
        more: dict[str, Any] = {"metavar": _metavar(kind)}
        if kind is bool:
            more = {"action": argparse.BooleanOptionalAction}
        elif get_origin(kind) in (tuple, list):
            more |= {"nargs": "*", "action": "extend" if flag in getattr(self.cls, "collected", ()) else "store"}
        text = argparse.SUPPRESS if hidden or not self.page else self._help(one, owner)
        names = [flag, *(alias for alias, own in getattr(self.cls, "aliases", {}).items() if own == flag)]
        self.flags += [word.replace("_", "-") for word in names]
        group.add_argument(flag_of(flag), dest=name, help=text, **more)
        for alias in names[1:]:
            group.add_argument(flag_of(alias), dest=name, help=argparse.SUPPRESS, **more)

    def _help(self, one: Setting, owner: type) -> str:
        text = meanings(owner).get(one.name, "")
        if self.page == "short":
            text = re.split(r"(?<=\w)[.:;] ", text)[0]
        if one.name == "algorithm":
            text = f"{text.rstrip('.')}: {', '.join(algorithm_names())}"
        others = [flag_of(alias) for alias, own in getattr(self.cls, "aliases", {}).items() if own == one.name]
        if others and self.page == "all":
            text = f"{text.rstrip('.')}. Also {', '.join(others)}"
        value = " ".join(map(str, one.default)) if isinstance(one.default, tuple | list) else one.default
        value = "on" if value is True else value
        if one.default is None and one.by_size:
            text = re.sub(r" None: by the model's size\W?$", "", text)
            value = f"{BY_SIZE}: {self.sizes[one.name]:g}" if one.name in self.sizes else BY_SIZE
        shown = isinstance(value, str | int | float) and value not in ("", False)
        return (text.rstrip(".") + (f" [{value}]" if shown else "")).replace("%", "%%")

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The values that are given, by name, and the words that are no flags or values."""
        found, left = self.parse_known_args(words)
        return {name: () if value == [] else value for name, value in vars(found).items()}, left

    def error(self, message: str) -> NoReturn:
        """Refuse the words in one line."""
        message = re.sub(r"ignored explicit argument.*", HINTS["false"], message)
        raise UserError(message.removeprefix("argument "))

    def unknown(self, words: Sequence[str]) -> UserError:
        """The error for words that are no flags, all in one line; what follows them may be their values."""
        flags = [word for word in words if word.startswith(("--", "\u2013", "\u2014"))] or list(words[:1])
        found = {}
        for word in flags:
            spelled = word.partition("=")[0]
            found[spelled.lstrip("-\u2013\u2014").replace("-", "_").lower()] = spelled  # editors make long dashes
        line = unknown_names("flag", found, self.cls, [f"--{flag}" for flag in self.flags])
        return UserError(line if ":" in line else f"{line}: --help lists the flags")


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that nothing has, with the names that are near."""
    return UserError(f"unknown {what}{meant(name, known) or ': --help lists all'}")


def _metavar(kind: Any) -> str:  # noqa: ANN401 - types are data here
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, inner))}}}"
    return _metavar(inner[0]) if inner else {str: "TEXT"}.get(kind, kind.__name__.upper())


def _show_help(
    cls: Any,  # noqa: ANN401 - a class of settings
    tasks: Sequence[str],
    given: Mapping[str, Any],
    everything: bool,
    by_size: BySize | None,
) -> NoReturn:
    """Print a page of the flags used most, or all, and of the options of the tasks named (by default the default's)."""
    settings, shown = settings_of(cls), list(tasks)
    names = settings.keys() & {"task", "tasks"}
    if names and everything:
        shown += [*TASK_DEFINITIONS, *TOOLS]
    elif names and not names & given.keys():
        shown += filter(None, [getattr(cls, "default_task", "") or settings["task"].default])
    named = {name: value for name, value in given.items() if name in ("model_id", "lora_rank", "device")}
    sizes = by_size(cls(**named)) if by_size and "model_id" in settings else {}
    page = "all" if everything else "short"
    options = option_classes(dict.fromkeys(shown)) | _options_of_row(given.get("algorithm"))
    sys.stdout.write(_Parser(cls, options, page, sizes).format_help())
    sys.stdout.write("" if everything else "\n--help-all shows every setting, with whole descriptions.\n")
    raise SystemExit(0)


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


@cache
def sections(cls: type) -> Mapping[str, str]:
    """The comment above the block of fields that each field of a config stands in, by the field's name."""
    found = {}
    for owner in reversed(cls.__mro__[:-1]):
        title = "the program's own"
        for line in inspect.getsource(owner).splitlines():
            if heading := re.match(r"    # (\w[^#]*)$", line):
                title = heading[1]
            elif name := re.match(r"    (\w+): ", line):
                found[name[1]] = title
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
