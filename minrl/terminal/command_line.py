"""From the command line, a file or a stored run to a program's config and the tasks' options.

Flags come from the dataclasses by tyro. `--config FILE` (YAML, or a run's config.json) is read first, flags on top.
Whatever is refused is refused in one line.
"""

import contextlib
import dataclasses
import difflib
import errno
import gc
import io
import itertools
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
import yaml
from loguru import logger

from minrl.config import TaskOptions, TrainerConfig
from minrl.config.defaults import REINFORCEMENT, Rates, defaults, not_chosen
from minrl.system.disk import refusal
from minrl.system.signals import answered, exit_status, stop_at_once
from minrl.system.streams import forgive_closed_streams
from minrl.tasks import flag_identifier, option_classes, with_absolute_path
from minrl.types import UserError

T = TypeVar("T")

REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO),
)
"""Why the system refuses to read or write a file: the user's to mend, in a folder, a disk or a right."""

PREFIXED = {"prefixed": True}
"""Marks a task's options among the arguments: their flags begin with the task's name."""

SEVERAL_WORDS = "tasks"

TASK_NAMES = ("task", "eval_tasks", SEVERAL_WORDS)
"""The settings that name tasks: one, several with commas between them, several as words."""


def parse_trainer(arguments: Sequence[str]) -> tuple[TrainerConfig, TaskOptions]:
    """The config of train.py and the options of every task."""
    return parse_config(TrainerConfig, arguments)


def parse_config(cls: type[T], arguments: Sequence[str], rates: Rates = REINFORCEMENT) -> tuple[T, TaskOptions]:
    """The config of a program that makes runs, from flags over a `--config` file over the defaults of what is trained,
    and the options of every task.
    """
    arguments, values = _take_config_file(list(arguments))
    names = _take_task_names(arguments)[1]
    in_file: Any = from_dict(values, cls, names)
    config: Any
    config, options = parse_with_tasks(cls, arguments, *in_file)
    own = defaults(config.trainer, rates)  # what is trained is known after the flags are read: read them again
    given = {str(name).replace("-", "_"): value for name, value in values.items()}
    taken = not_chosen(in_file[0].trainer, config.trainer, rates, given)
    if not taken and own == defaults(TrainerConfig(), rates):
        return config, options
    if taken:
        said = ", ".join(f"{name} {value:g}" for name, value in taken.items())
        logger.info(
            f"the config file has the defaults of what it trains: another is trained here, by default with {said}"
        )
    return parse_with_tasks(cls, arguments, *from_dict({**own, **given, **taken}, cls, names))


def parse_with_tasks(
    cls: type[T], arguments: Sequence[str], default: T | None = None, options: TaskOptions | None = None
) -> tuple[T, TaskOptions]:
    """A config with flat flags, and the options of every built-in task and of those named, under the task's name."""
    arguments, names = _take_task_names(arguments)
    if options is None:
        options = {key: options_class() for key, options_class in option_classes(names).items()}
    main = dataclasses.field() if default is None else dataclasses.field(default=default)
    fields: list[Any] = [("_main", Annotated[cls, tyro.conf.OmitArgPrefixes], main)]
    for key, value in options.items():
        fields.append((flag_identifier(key), type(value), dataclasses.field(default=value, metadata=PREFIXED)))
    short = {"__module__": "minrl"}  # which tyro parses, looking for the fields' help; else all of Python's types.py
    parsed: Any = parse(dataclasses.make_dataclass("Arguments", fields, frozen=True, namespace=short), arguments)
    return parsed._main, {key: getattr(parsed, flag_identifier(key)) for key in options}


def parse(cls: type[T], arguments: Sequence[str], description: str | None = None) -> T:
    """`cls` from the command line; a mistake raises `UserError` with tyro's reason in one line."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return tyro.cli(cls, args=list(arguments), description=description or "")
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.write(output.getvalue())
            raise
        raise UserError(_one_line(output.getvalue(), _flags(cls))) from None


def run_main(main: Callable[[Sequence[str]], int | None]) -> NoReturn:
    """Run a script's main: the user's mistakes end it with one line and exit status 2, a signal with the shells'."""
    gc.freeze()  # what the imports made stays: a collection that looks at all of it again takes 0.2 s
    forgive_closed_streams()
    with answered(stop_at_once):
        try:
            sys.exit(main(sys.argv[1:]))
        except UserError as error:
            sys.exit(_refuse(str(error)))
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            sys.exit(_refuse(": ".join(filter(None, [error.filename, refusal(error)]))))
        except KeyboardInterrupt as stop:
            sys.stderr.write("interrupted\n")
            sys.exit(getattr(stop, "status", exit_status(signal.SIGINT)))


def _refuse(reason: str) -> int:
    sys.stderr.write(f"error: {reason}\n")
    return 2


def to_dict(config: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - the config of any program
    """Plain values by flag name, the tasks' options in a dictionary each: what `from_dict` reads."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values.update({name: _plain(v) for name, v in vars(value).items()})
        else:
            values[field.name] = value
    tasks = {name: {k: _plain(v) for k, v in vars(value).items()} for name, value in options.items()}
    return {**values, "tasks": tasks}


def from_dict(values: Mapping[str, Any], cls: type[T], named: Sequence[str] = ()) -> tuple[T, TaskOptions]:
    """A config of the class with these values over the defaults, and the options of every built-in task, of those in
    the values and of those named. Unknown names and wrong types are refused.
    """
    left = {str(key).replace("-", "_"): value for key, value in values.items()}
    tasks = list(named)
    for setting in TASK_NAMES:
        if isinstance(left.get(setting), str):
            found = _names_in(setting, left[setting])
            left[setting] = ",".join(found)
            tasks += found
    given = left.pop("tasks", {})
    if not isinstance(given, Mapping) or not all(isinstance(chosen, Mapping) for chosen in given.values()):
        raise UserError(f"tasks must hold options by task, such as `tasks: {{hanoi: {{skill: 0.5}}}}`, got {given!r}")
    groups: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for name, hint in hints.items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            inner = {field.name for field in dataclasses.fields(hint)}
            groups[name] = _typed(getattr(cls(), name), {key: left.pop(key) for key in list(left) if key in inner})
        elif name in left:
            groups[name] = left.pop(name)
    if left:
        known = _flags(cls)
        raise UserError(_unknown(f"setting {next(iter(left))!r}", next(iter(left)).replace("_", "-"), known))
    classes = option_classes(tasks)
    classes.update(option_classes(key for key in given if key not in classes))
    options: dict[str, Any] = {key: _typed(chosen(), given.get(key, {})) for key, chosen in classes.items()}
    return _typed(cls(), groups), options


def _typed(default: T, values: Mapping[str, Any]) -> T:
    """A dataclass with plain values, whose types are checked, in place of its own."""
    hints = get_type_hints(type(default))
    converted = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            raise UserError(_unknown(f"option {name!r} of {type(default).__name__}", name, sorted(hints)))
        converted[name] = _converted(name, hints[name], value)
    return dataclasses.replace(default, **converted)  # type: ignore[type-var]


def _converted(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - types are data here
    if dataclasses.is_dataclass(hint):
        return value
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(v, get_args(hint)[0]) for v in value):
            return tuple(value)
    elif get_args(hint):
        if value in get_args(hint):
            return value
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML reads 3e-4 as a string
            return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if get_origin(hint) is tuple:
        allowed = f"a list of {get_args(hint)[0].__name__}"
    else:
        allowed = f"one of {', '.join(map(str, get_args(hint)))}" if get_args(hint) else f"of type {hint.__name__}"
    raise UserError(f"{name} must be {allowed}, got {value!r}")


def _take_config_file(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """`--config FILE` taken out of the arguments, and what the file holds."""
    for index, argument in enumerate(arguments):
        if argument == "--config" or argument.startswith("--config="):
            _, equals, path = argument.partition("=")
            taken = 1 if equals else 2
            path = path or (arguments[index + 1] if index + 1 < len(arguments) else "")
            if not path:
                raise UserError("--config needs a file: YAML, or a run's config.json")
            return arguments[:index] + arguments[index + taken :], read_config_file(Path(path))
    return arguments, {}


def _take_task_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with absolute paths in the names of tasks, and these names: their options are flags too."""
    given, names = list(arguments), []
    for index, argument in enumerate(given):
        flag, equals, value = argument.partition("=")
        setting = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or setting not in TASK_NAMES:
            continue
        if equals:
            found = _names_in(setting, value)
            given[index] = f"{flag}={','.join(found)}"
            names += found
        for place in () if equals else _values_of(given, index, many=setting == SEVERAL_WORDS):
            found = _names_in(setting, given[place])
            given[place] = ",".join(found)
            names += found
    return given, names


def _values_of(arguments: Sequence[str], flag: int, many: bool) -> list[int]:
    """Where the values of a flag stand: the next argument, and with `many` all up to the next flag."""
    following = range(flag + 1, len(arguments))
    if not many:
        return list(following[:1])
    return list(itertools.takewhile(lambda place: not arguments[place].startswith("--"), following))


def _names_in(setting: str, value: str) -> list[str]:
    """The tasks that a setting names, the paths of their files absolute."""
    names = value.split(",") if setting == "eval_tasks" else [value]
    return [with_absolute_path(name.strip()) for name in names if name.strip()]


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a YAML file or in a run's config.json."""
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings by name, such as `learning_rate: 3e-4`")
    return values.get("config", values) if "minrl_run" in values else values


def _flags(cls: type) -> list[str]:
    """Every flag of a dataclass, without the dashes."""
    flags = []
    prefixed = {field.name for field in dataclasses.fields(cls) if field.metadata == PREFIXED}
    for name, hint in get_type_hints(cls).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            prefix = f"{name.replace('_', '-')}." if name in prefixed else ""
            flags += [prefix + flag for flag in _flags(hint)]
        else:
            flags.append(name.replace("_", "-"))
    return flags


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "--help lists all"
    return f"unknown {what}: {hint}"


def _one_line(box: str, known: Sequence[str]) -> str:
    """tyro's framed message as one line: what stands between its first two rules."""
    lines = [line.strip(" │|") for line in box.splitlines()]
    rules = [i for i, line in enumerate(lines) if line and set(line) <= set("-─╭╮╰╯")]
    body = lines[rules[0] + 1 : rules[1] if len(rules) > 1 else None] if rules else lines
    message = " ".join(line for line in body if line)
    message = re.sub(r"^Error parsing [a-z_.]+: ", "", message)  # the group's name, which is no flag's
    if message.startswith("Unrecognized options:"):
        flag = message.split(":", 1)[1].split(",")[0].strip()
        return _unknown(f"flag {flag}", flag.lstrip("-"), known)
    return message


def _plain(value: Any) -> Any:  # noqa: ANN401 - a config value
    return list(value) if isinstance(value, tuple) else value
