"""The settings that a resumed run may change: its end, and where its files and servers are."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from minrl.config import ENDS, EngineConfig, TaskOptions, with_absolute_paths
from minrl.run.run import Program
from minrl.tasks import flag_identifier
from minrl.utils.cli import from_dict, to_dict

ENDING = tuple(f"--{name.replace('_', '-')}" for name in ENDS)

ALWAYS = ("--resume", "--runs-dir", "--checkpoints-dir", "--quiet", *ENDING)
"""Flags that a resumed run takes."""

PLACES = frozenset(["--engine-urls", "--engine-weights-dir"])
"""Where the servers of --engine vllm-server are, which may be elsewhere when a run goes on."""


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


def movable(settings: Any) -> frozenset[str]:  # noqa: ANN401 - of any program
    """The flags of the engine that may change when a run goes on."""
    engine = getattr(settings, "engine", None)
    return PLACES if engine is not None and engine.engine == "vllm-server" else frozenset()


def changeable(settings: Any, program: Program) -> set[str]:  # noqa: ANN401 - as above
    """The flags that may have another value when a run is resumed."""
    return {*ALWAYS, *movable(settings), *(f"--{name}" for name in program.extends)}


def elsewhere(stored: EngineConfig, given: EngineConfig) -> EngineConfig:
    """The stored engine with the places of the given one."""
    return replace(stored, engine_urls=given.engine_urls, engine_weights_dir=given.engine_weights_dir)


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
