"""Reads the command line, a file or a stored run into a program's config and the tasks' options.

Flags come from the dataclasses (`minrl.terminal.flags`). `--config FILE` (YAML or a run's config.json) is read first,
and flags override it. Every refusal is one line.
"""

import contextlib
import dataclasses
import difflib
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

import yaml
from loguru import logger

from minrl.config import TaskOptions, TrainerConfig, option_keys
from minrl.system.disk import refusal
from minrl.system.foreign_text import printable
from minrl.system.keys import without_keys
from minrl.system.signals import answered, exit_status, stop_at_once
from minrl.system.streams import forgive_closed_streams
from minrl.tasks import TASK_DEFINITIONS, TOOLS, flag_identifier, option_classes, tasks_in
from minrl.terminal.flag_help import help_text
from minrl.terminal.flags import Flag, Given, by_name, checked, flags_of, given_flags, in_its_table, read_flags, unknown
from minrl.types import UserError, require

T = TypeVar("T")

REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of reading or writing a file that the user can mend: a folder, a disk, a permission."""

TASK_NAMES = ("task", "eval_tasks", "tasks")
"""The settings that name tasks: one, several separated by commas, several as words."""

HELP = ("-h", "--help", "--help-all")


@dataclass(frozen=True)
class Layer:
    """What a file or the flags set."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name, options as `option_key.name`."""
    tasks: Sequence[str] = ()
    """The tasks that are named."""


def parse_trainer(arguments: Sequence[str]) -> tuple[TrainerConfig, TaskOptions]:
    """The config of train.py and the options of the tasks named, before `minrl.run.defaults`."""
    return parse_config(TrainerConfig, arguments)


def parse_config(
    cls: type[T], arguments: Sequence[str], defaults: Callable[[Any], Mapping[str, Any]] | None = None
) -> tuple[T, TaskOptions]:
    """The config of a program that makes runs, and the options of the tasks named. Flags override a `--config` file,
    which overrides `defaults`, the settings that depend on what is trained. Where a file holds the defaults of what it
    trains, as a run's config.json does, those of another model replace them.
    """
    given, in_file = given_flags(arguments), Layer()
    places = [place for place, one in enumerate(given) if one.flag == "--config"]
    require(len(places) <= 1, "--config may be given once: put the settings into one file, and flags on top")
    for place in places:
        one = given[place]
        require(any(one.words), "--config needs a file: YAML, or a run's config.json")
        in_file = _file_layer(read_config_file(Path(one.words[0])), cls)
        given[place] = Given("", one.words[1:])
    flags = _flag_layer(given, cls, in_file)
    read = _build(cls, in_file, flags)
    if defaults is None:
        return read
    now, before = defaults(read[0]), defaults(_build(cls, in_file)[0])
    held = in_file.values
    taken = {name: now[name] for name in held.keys() & now.keys() if held[name] == before[name] != now[name]}
    if taken:
        said = ", ".join(f"{name} {taken[name]:g}" for name in now if name in taken)
        logger.info(
            f"the config file has the defaults of what it trains: another is trained here, by default with {said}"
        )
    return _build(cls, Layer(now), in_file, Layer(taken), flags)


def parse_with_tasks(
    cls: type[T], arguments: Sequence[str], default: T | None = None, options: TaskOptions | None = None
) -> tuple[T, TaskOptions]:
    """A config, and the options of the tasks named. Flags override the defaults given here."""
    return _build(cls, _flag_layer(given_flags(arguments), cls, Layer()), default=default, options=options)


def parse(cls: type[T], arguments: Sequence[str]) -> T:
    """The config of a program that has no tasks."""
    return parse_with_tasks(cls, arguments)[0]


def before_imports(parse: Callable[[Sequence[str]], tuple[Any, TaskOptions]]) -> None:
    """Read the command line before a script's slow imports. --help and mistakes are answered at once; otherwise a line
    says that the program is loading.
    """
    forgive_closed_streams()
    logger.disable("minrl")  # main parses again, and reports then
    try:
        with _one_line_for_mistakes():
            config, _ = parse(sys.argv[1:])
    finally:
        logger.enable("minrl")
    quiet = getattr(config, "logging", config).quiet
    if not quiet and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        sys.stderr.write("loading: 5 to 15 s\n")
    gc.disable()  # of what imports make nearly all stays, and to look at it again and again takes a fifth of their time


def run_main(main: Callable[[Sequence[str]], int | None]) -> NoReturn:
    """Run a script's main. A user's mistake ends it with one line and status 2, a signal with the shells' status."""
    gc.freeze()  # a collection that looks at everything the imports made takes 0.2 s
    gc.enable()
    forgive_closed_streams()
    with answered(stop_at_once), _one_line_for_mistakes():
        sys.exit(main(sys.argv[1:]))


@contextlib.contextmanager
def _one_line_for_mistakes() -> Iterator[None]:
    """End the program after a user's mistake, a refused file or an interruption."""
    try:
        yield
    except UserError as error:
        _refuse(str(error), getattr(error, "status", 2))
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


def to_dict(config: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - the config of any program
    """Plain values by flag name, and each task's options in a dictionary. `from_dict` reads it."""
    values: dict[str, Any] = {}
    for name, value in vars(config).items():
        values.update(vars(value) if is_dataclass(value) else {name: value})
    tasks = {key: plain_options(own) for key, own in options.items()}
    return {**{name: _plain(value) for name, value in values.items()}, "tasks": tasks}


def from_dict(values: Mapping[str, Any], cls: type[T], named: Sequence[str] = ()) -> tuple[T, TaskOptions]:
    """A config with these values over the defaults, and the options of the tasks that the values or `named` name.
    Unknown names and wrong types are refused.
    """
    return _build(cls, _file_layer(values, cls, named))


def _build(
    cls: type[T], *layers: Layer, default: T | None = None, options: TaskOptions | None = None
) -> tuple[T, TaskOptions]:
    """The config and the options, later layers over earlier ones."""
    values = {name: value for layer in layers for name, value in layer.values.items()}
    made: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for one in fields(cls):  # type: ignore[arg-type]
        hint = hints[one.name]
        if is_dataclass(hint):
            assert isinstance(hint, type) and callable(one.default_factory)
            start = one.default_factory() if default is None else getattr(default, one.name)
            made[one.name] = replace(start, **{f.name: values[f.name] for f in fields(hint) if f.name in values})
        elif one.name in values:
            made[one.name] = values[one.name]
        elif default is None and one.default is one.default_factory is dataclasses.MISSING:
            raise UserError(f"--{one.name.replace('_', '-')} is missing: it has no default")
    config: Any = cls(**made) if default is None else replace(default, **made)  # type: ignore[type-var]
    names = dict.fromkeys([*(name for layer in layers for name in layer.tasks), *getattr(config, "task_names", ())])
    chosen = {key: options_class() for key, options_class in option_classes(names).items()} | dict(options or {})
    for key, start in chosen.items():
        own = {name.removeprefix(f"{key}."): value for name, value in values.items() if name.startswith(f"{key}.")}
        chosen[key] = replace(start, **own)
    return config, chosen


def _file_layer(values: Mapping[Any, Any], cls: type, named: Sequence[str] = ()) -> Layer:
    """What a file sets, with checked types."""
    left = by_name(values)
    tasks = list(named)
    for setting in TASK_NAMES:
        if isinstance(left.get(setting), str):
            left[setting], found = tasks_in(setting, left[setting])
            tasks += found
    given = left.pop("tasks", {})
    if not isinstance(given, Mapping) or not all(
        isinstance(k, str) and isinstance(v, Mapping) for k, v in given.items()
    ):
        raise UserError(f"tasks must hold options by task, such as `tasks: {{hanoi: {{skill: 0.5}}}}`, got {given!r}")
    flags = flags_of(cls)
    for name in left:
        if name not in flags:
            known = [flag.spelled[2:] for flag in flags.values()]
            raise unknown(f"setting {name!r}", name.replace("_", "-"), known)
    chosen = {name: in_its_table(flags[name], checked(name, flags[name].hint, v)) for name, v in left.items()}
    keys = [key for name in tasks for key in option_keys(name)]
    tasks += [key for key in given if key not in keys]
    classes = option_classes(tasks)
    for key, own in given.items():
        options = flags_of(classes[key])
        for name, value in by_name(own).items():
            if name not in options:
                raise unknown(f"option {name!r} of {classes[key].__name__}", name, sorted(options))
            chosen[f"{key}.{name}"] = checked(name, options[name].hint, value)
    return Layer(chosen, tasks)


def _flag_layer(given: Sequence[Given], cls: type, in_file: Layer) -> Layer:
    """What flags set. The options of the tasks that the file and the flags name are flags too."""
    given, named = list(given), list[str]()
    for place, one in enumerate(given):
        if one.name in TASK_NAMES:
            found = [tasks_in(one.name, word) for word in one.words]
            given[place] = replace(one, words=tuple(word for word, _ in found))
            named += chain.from_iterable(tasks for _, tasks in (found if one.name == "tasks" else found[:1]))
    flags = flags_of(cls)
    named += _tasks_of_options(given, flags, [*map(flag_identifier, option_classes([*in_file.tasks, *named]))])
    options = _option_flags([*in_file.tasks, *named])
    asked = {one.flag for one in given} & set(HELP)
    if asked:
        more: Iterable[str] = ()
        if "task" in flags and "--help-all" in asked:
            more = [*TASK_DEFINITIONS, *TOOLS]
        elif "task" in flags and not {"task", "tasks"} & {*in_file.values, *(one.name for one in given)}:
            more = filter(None, [flags["task"].default or getattr(cls, "default_task", "")])
        shown = _option_flags([*in_file.tasks, *named, *more])
        sys.stdout.write(help_text(cls, flags, shown, everything="--help-all" in asked))
        raise SystemExit(0)
    others = (*HELP, "--config") if hasattr(cls, "trainer") else HELP
    values = read_flags(given, flags | options, TASK_DEFINITIONS, others)
    own = {name: f"{flag.group}.{name.partition('.')[2]}" for name, flag in options.items()}
    return Layer({own.get(name, name): value for name, value in values.items()}, named)


def _option_flags(tasks: Iterable[str]) -> dict[str, Flag]:
    """The flags of the tasks' options."""
    flags: dict[str, Flag] = {}
    for key, options_class in option_classes(dict.fromkeys(tasks)).items():
        flags |= flags_of(options_class, key, f"{flag_identifier(key)}.")
    return flags


def _tasks_of_options(given: Sequence[Given], flags: Collection[str], named: Sequence[str]) -> Iterator[str]:
    """The built-in tasks, beside those `named`, whose options are given or nearly: their flags are suggested."""
    names = {flag_identifier(name): name for name in TASK_DEFINITIONS}
    for one in given:
        task, dot, _ = one.name.partition(".")
        if task not in named and (dot or (task in names and task not in flags)):
            yield from (names[near] for near in difflib.get_close_matches(task, names, n=1))


def read_config_file(path: Path) -> dict[Any, Any]:
    """The settings in a YAML file or in a run's config.json."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # bytes that are no UTF-8, numbers of too many digits, days that there are not
        raise UserError(f"{path} cannot be read: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path} is nested too deeply: settings are nested three deep at most") from error
    of_run = isinstance(values, dict) and "minrl_run" in values
    if of_run:
        values = values.get("config", values)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings by name, such as `learning_rate: 3e-4`")
    own = ("run_name", "note") if of_run else ()  # of that run alone
    return {name: value for name, value in values.items() if name not in own}


def plain_options(own: Any) -> dict[str, Any]:  # noqa: ANN401 - a task's options
    """The options of one task as JSON can hold them, by name."""
    return {one.name: _plain(getattr(own, one.name)) for one in fields(own) if one.init}


def _plain(value: Any) -> Any:  # noqa: ANN401 - a config value
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
