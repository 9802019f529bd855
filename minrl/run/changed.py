"""The settings that a resumed run may change: its end, and where its files and servers are."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from minrl.config import ENDS, TaskOptions, with_absolute_paths
from minrl.run.run import Program
from minrl.tasks import flag_identifier
from minrl.utils.cli import from_dict, to_dict

ENDING = tuple(f"--{name.replace('_', '-')}" for name in ENDS)

PLACES = frozenset(["--engine-urls", "--engine-weights-dir"])
"""Where the servers of --engine vllm-server are, which may be elsewhere when a run goes on."""

ALWAYS = frozenset(["--resume", "--runs-dir", "--checkpoints-dir", "--quiet", *ENDING, *PLACES])
"""Flags that may have another value when any run is resumed."""


def with_end(stored: Any, settings: Any, changed: Collection[str], program: Program) -> Any:  # noqa: ANN401 - any program's
    """The stored settings with the given end: all of `extends`, since of two one wins, and what ends it early."""
    extended = any(f"--{name}" in changed for name in program.extends)
    early = {
        name: getattr(settings.evaluation, name) for name, flag in zip(ENDS, ENDING, strict=True) if flag in changed
    }
    return replace(
        stored,
        **{name: getattr(settings, name) for name in program.extends if extended},
        evaluation=replace(stored.evaluation, **early),
    )


def changeable(program: Program) -> set[str]:
    """The flags that may have another value when a run of the program is resumed."""
    return {*ALWAYS, *(f"--{name}" for name in program.extends)}


def elsewhere(stored: Any, given: Any) -> Any:  # noqa: ANN401 - as above
    """The stored settings with the given places of the servers."""
    own = with_absolute_paths(given.engine)
    places = {"engine_urls": own.engine_urls, "engine_weights_dir": own.engine_weights_dir}
    return replace(stored, engine=replace(stored.engine, **places))


def differences(settings: Any, options: TaskOptions, stored: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401 - as above
    """The settings and options that differ from those of the stored run, by flag, such as `--seed 1 (it has 0)`."""
    options = {name: with_absolute_paths(own) for name, own in options.items()}
    given = _by_flag(with_absolute_paths(settings), options)
    kept = _by_flag(*from_dict(stored, type(settings)))  # with the defaults of flags that are newer than the run
    found = {flag: (value, kept.get(flag)) for flag, value in given.items() if value != kept.get(flag)}
    return {flag: f"{flag} {_short(value)} (it has {_short(had)})" for flag, (value, had) in found.items()}


def _short(value: object) -> str:
    """A value in one line; a chat template of a file is long."""
    return " ".join(str(value).split())[:200]


def _by_flag(settings: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - as above
    values = to_dict(settings, options)
    tasks = values.pop("tasks")
    values |= {f"{flag_identifier(key)}.{name}": value for key, own in tasks.items() for name, value in own.items()}
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}
