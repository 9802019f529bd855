"""The settings that a resumed run may change: its end, and where its files and servers are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minrl.config import ENDS, EngineConfig
from minrl.run.run import Program
from minrl.types import require

ENDING = tuple(f"--{name.replace('_', '-')}" for name in ENDS)

ALWAYS = ("--resume", "--runs-dir", "--checkpoints-dir", "--quiet", *ENDING)
"""Flags that a resumed run takes."""

PLACES = frozenset(["--engine", "--engine-urls", "--engine-weights-dir"])
"""Where the servers of --engine vllm-server are, which may be elsewhere when a run goes on."""


def with_end(stored: Any, settings: Any, changed: Sequence[str], program: Program) -> Any:  # noqa: ANN401 - any program's
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


def elsewhere(stored: EngineConfig, given: EngineConfig) -> EngineConfig:
    """The stored engine with the places of the given one."""
    require(stored.engine == given.engine, f"the run samples with --engine {stored.engine}, and a resume keeps it")
    return replace(stored, engine_urls=given.engine_urls, engine_weights_dir=given.engine_weights_dir)
