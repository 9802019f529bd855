"""The runs of a sweep's file: every combination of the grid with every seed, each with a name of its own.

All of them are checked before the first one starts. A name follows from the settings, so that the same file finds what
is complete, and an edited one makes new runs for what it changed.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrl.config import ENDS, TaskOptions, TrainerConfig, with_absolute_paths
from minrl.run.defaults import NOT_IN_NAMES, full_name, part, with_defaults
from minrl.run.folder import RunFolder
from minrl.tasks import flag_identifier
from minrl.types import UserError, require
from minrl.utils.cli import from_dict, parse, read_config_file, to_dict, unknown

KEYS = ("task", "flags", "grid", "seeds")

OWN = ("run_name", "resume", "preflight_only", "config")
"""Settings that a sweep gives its runs, or that would keep them from running."""

END = ("steps", *ENDS)
"""The settings of a run's end: one that ended goes on where they are changed, under the same name."""

FREE = ("resume", "runs_dir", "checkpoints_dir", "quiet")
"""Settings that may differ from those that a run began with."""

LONGEST = 180
"""Characters of a run's name; beyond them it is cut, and ends with a digest of its settings."""


@dataclass(frozen=True)
class Planned:
    """A run of the sweep: its name, its settings, and the flags of train.py that give it these."""

    name: str
    settings: TrainerConfig
    options: TaskOptions
    flags: Sequence[str]

    @property
    def folder(self) -> Path:
        """Where the run is, or will be."""
        return Path(self.settings.logging.runs_dir) / self.name

    @property
    def state(self) -> str:
        """`complete`, `begun` or `new`. One that ended with other settings has only begun: train.py goes on to another
        end, and refuses what cannot change.
        """
        run = RunFolder(self.folder)
        if not run.exists:
            return "new"
        stored = run.config
        options = {task: with_absolute_paths(own) for task, own in self.options.items()}
        given = to_dict(with_absolute_paths(self.settings), options)
        usual = {**to_dict(with_absolute_paths(TrainerConfig()), {}), "tasks": given["tasks"]}  # of newer settings
        same = all(stored.get(name, usual[name]) == value for name, value in given.items() if name not in FREE)
        return "complete" if same and run.summary else "begun"


def read_plan(path: Path) -> list[Planned]:
    """The runs of a file, seed by seed. Raises `UserError` in one line on what no run could be made of."""
    content = read_config_file(path)
    try:
        for key in content:
            if key not in KEYS:
                raise unknown(f"key {key!r} of a sweep", str(key), KEYS)
        common, grid, seeds = _common(content), _grid(content), _seeds(content)
        settings = [*common, *grid, *(["seed"] if seeds else [])]
        for name, count in Counter(settings).items():
            require(count == 1, f"{name} is set in two places: leave one of them out")
            require(name not in OWN, f"{name} is the sweep's own: leave it out")
        require("runs_dir" not in grid, "runs_dir is of all runs: set it under flags")
        require(bool(grid or seeds), "it has no grid and no seeds, so it would be one run, for which train.py is there")
        cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        return _named(path, [(common, {**cell, **seed}) for seed in seeds or [{}] for cell in cells])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _common(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all runs."""
    flags = content.get("flags") or {}
    require(isinstance(flags, dict), f"flags must hold settings by name, such as {{steps: 30}}, got {flags!r:.80}")
    require("task" not in content or "task" not in flags, "task is set in two places: leave one of them out")
    return {**({"task": content["task"]} if "task" in content else {}), **_by_name(flags)}


def _grid(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each setting of the grid."""
    grid = content.get("grid") or {}
    form = "grid must hold a list of values for each setting, such as {learning_rate: [1e-4, 3e-4]}"
    require(isinstance(grid, dict), f"{form}, got {grid!r:.80}")
    for name, values in grid.items():
        require(isinstance(values, list) and bool(values), f"{form}, got {name}: {values!r:.80}")
        _require_once(str(name), values)
    return _by_name(grid)


def _by_name(given: Mapping[Any, Any]) -> dict[str, Any]:
    """What is given by names, of which group-size and group_size are the same one."""
    names = Counter(str(name).replace("-", "_") for name in given)
    for name, count in names.items():
        require(count == 1, f"{name} is set in two places: leave one of them out")
    return dict(zip(names, given.values(), strict=True))


def _seeds(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    seeds = content.get("seeds", [])
    require(isinstance(seeds, list), f"seeds must be a list, such as [0, 1, 2], got {seeds!r:.80}")
    _require_once("seeds", seeds)
    return [{"seed": seed} for seed in seeds]


def _require_once(name: str, values: Sequence[Any]) -> None:
    texts = Counter(json.dumps(value, default=str) for value in values)
    twice = next((text for text, count in texts.items() if count > 1), "")
    require(not twice, f"{name} lists {twice} more than once")


def _named(path: Path, cells: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Planned]:
    """The runs of the cells, each with the settings that all have in common and its own."""
    sweep = sweep_name(path)
    found: list[tuple[list[str], str, Mapping[str, Any], tuple[TrainerConfig, TaskOptions]]] = []
    for common, own in cells:
        flags = _flags({**common, **own})
        settings, options = _planned(flags)
        _require_other(own, [before for *_, before, same in found if same == (settings, options)])
        found.append((flags, _name(sweep, settings, options, own), own, (settings, options)))
    names = Counter(name for _, name, *_ in found)
    planned = []
    for flags, usual, *_ in found:
        name, digest = usual, hashlib.sha256("\0".join(flags).encode()).hexdigest()[:8]
        if names[name] > 1 or len(name) > LONGEST:
            name = f"{name[:LONGEST]}-{digest}"
        flags = [*flags, f"--run-name={name}"]
        planned.append(Planned(name, *_planned(flags), flags))
    return planned


def _planned(flags: Sequence[str]) -> tuple[TrainerConfig, TaskOptions]:
    command = with_defaults(parse(TrainerConfig, flags))
    return command.config, command.options


def _require_other(own: Mapping[str, Any], same: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a cell of whose settings another one makes the same run: 1 and 1.0 differ only in spelling."""
    for before in same:
        name = next(name for name, value in own.items() if repr(value) != repr(before[name]))
        require(False, f"{name} lists {own[name]!r} more than once: {before[name]!r} makes the same run")


def sweep_name(path: Path) -> str:
    """The name of a sweep, with which those of its runs begin."""
    return re.sub(r"[^\w.+-]+", "-", path.stem, flags=re.ASCII).strip("-.")


def _name(sweep: str, settings: TrainerConfig, options: TaskOptions, own: Mapping[str, Any]) -> str:
    """The run's own name behind that of the sweep, with settings of the grid that such a name leaves out."""
    seed = f"-seed{settings.seed}"
    name = full_name(settings, options, changing=END).removesuffix(seed)
    left_out = {*NOT_IN_NAMES, *END} - {"task", "algorithm", "seed"}
    values = to_dict(settings, {})
    parts = [part(key, values[key]) for key in own if key in left_out]
    return "-".join([sweep, name, *parts]) + seed


def _flags(values: Mapping[str, Any]) -> list[str]:
    """The settings as flags of train.py, with the types that the settings have. Options of tasks are `task.option`, or
    stand under `tasks`, as in a --config file.
    """
    tasks = {str(task): dict(own) for task, own in (values.get("tasks") or {}).items()}
    plain = {name: value for name, value in values.items() if name != "tasks"}
    for name in [name for name in plain if "." in name]:
        task, _, option = name.partition(".")
        tasks.setdefault(task, {})[option] = plain.pop(name)
    config, options = from_dict({**plain, "tasks": tasks}, TrainerConfig)
    typed = to_dict(config, options)
    flags = [word for name in plain for word in _flag(name, typed[name])]
    for task, own in tasks.items():
        names = [name.replace("-", "_") for name in own]
        flags += [
            word for name in names for word in _flag(f"{flag_identifier(task)}.{name}", typed["tasks"][task][name])
        ]
    return flags


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401 - a setting
    """A setting as it is given on a command line."""
    spelled = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{spelled}" if value else f"--no-{spelled}"]
    if isinstance(value, list):
        return [f"--{spelled}", *map(str, value)]
    return [f"--{spelled}={value}"]
