"""Repeats steps of a run from a checkpoint, in a copy, and compares what they sampled, were rewarded and saved."""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from minrl.config import TrainerConfig
from minrl.report.rollouts.chunk import Line, read_lines
from minrl.run.checkpoint import HASHES, by_step, damage, hash_files, read_state, step_name, step_of
from minrl.run.folder import CONFIG, FINGERPRINTS, RunFolder
from minrl.run.run import open_run
from minrl.run.setup import assemble
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.files import PARTS
from minrl.tracking.logger import Logger
from minrl.train import loop
from minrl.types import UserError, require
from minrl.utils.cli import parse


class UntilStep(Logger):
    """The logger of a train.py that ends after a step. Nothing is evaluated: no later step depends on it."""

    until = 0

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after this step."""
        return super().interrupted or self.state.step >= self.until

    @property
    def ended(self) -> bool:
        """The scores end nothing here: the steps were made."""
        return self.interrupted

    def evaluate(self) -> None:
        """Leave the held-out score out."""


@dataclass(frozen=True)
class Verdict:
    """What a step has recorded, compared with the same step repeated. None: not recorded."""

    step: int
    same: Mapping[str, bool | None]
    first: str = ""
    """Where the rollouts differ first, if they were written."""
    damaged: str = ""
    """What is wrong with the step's saved checkpoint."""

    @property
    def differs(self) -> bool:
        """Whether anything is not as it was recorded."""
        return False in self.same.values() or bool(self.first or self.damaged)


def checkpoint_before(checkpoints: Path, step: int) -> Path:
    """The last whole checkpoint of a run before a step."""
    kept = by_step(checkpoints)
    for path in reversed(kept):
        if step_of(path) < step and damage(path) is None:
            return path
    said = ", ".join(str(step_of(path)) for path in kept) or "none"
    raise UserError(
        f"step {step} cannot be repeated: {checkpoints} has no whole checkpoint of a step before it (it has {said}): "
        "name a later step, or keep all checkpoints of the next run with --keep-checkpoints 0"
    )


def moves_between(run: RunFolder, first: int, last: int) -> list[int]:
    """The steps in `first` to `last` after which the end of the run moved, and `last`."""
    return [*(step for step in range(first, last) if run.steps_at(step) != run.steps_at(step + 1)), last]


def repeat(run: RunFolder, checkpoint: Path, step: int, place: Path) -> tuple[Path, Path]:
    """Repeat a run's steps after a checkpoint up to `step`, in a copy in `place`; the copy's folder and checkpoints."""
    name = run.record["minrl_run"]
    copy, kept = place / "runs" / name, place / "checkpoints" / name
    copy.mkdir(parents=True)
    shutil.copy2(run.path / CONFIG, copy)
    shutil.copytree(checkpoint, kept / checkpoint.name)
    command = parse(TrainerConfig, ["--resume", str(copy), "--checkpoints-dir", str(kept.parent), "--quiet"])
    again = open_run(command.config, command.options, command.given)
    with assemble(again) as parts, UntilStep(parts, time.perf_counter(), diagnostics=UpdateDiagnostics) as logger:
        for logger.until in moves_between(run, parts.state.step + 1, step):
            parts.config = replace(parts.config, steps=run.steps_at(logger.until))
            loop(logger)
    return copy, kept


def compare(run: RunFolder, checkpoints: Path, copy: Path, kept: Path, steps: Sequence[int]) -> Iterator[Verdict]:
    """What came of each of the steps, and of the checkpoint of the last one."""
    recorded, found = run.fingerprints, RunFolder(copy).fingerprints
    for step in steps:
        before, now = recorded.get(step, {}), found.get(step, {})
        same: dict[str, bool | None] = {part: _same(before.get(part), now.get(part)) for part in PARTS}
        damaged = ""
        if step == steps[-1]:
            saved, files = checkpoints / step_name(step), before.get("files", {})
            problem = damage(saved) if saved.exists() else None
            damaged = f"{saved}: {problem}" if problem else ""
            own = hash_files(saved) if saved.exists() and not problem else {}
            repeated = read_state(kept / step_name(step))[HASHES]
            same |= {name: _same((files or own).get(name), digest) for name, digest in repeated.items()}
            if own:
                same |= {f"{saved.name}/{name}": own.get(name) == digest for name, digest in files.items()}
        yield Verdict(step, same, first_difference(run.path, copy, step), damaged)


def _same(before: str | None, now: str | None) -> bool | None:
    return None if before is None else before == now


def first_difference(run: Path, copy: Path, step: int) -> str:
    """Where a step's written rollouts differ first; empty if they do not, or if they were not written."""
    first, second = (folder / "rollouts" / f"{step_name(step)}.jsonl.gz" for folder in (run, copy))
    if not (first.exists() and second.exists()):
        return ""
    pairs: Iterable[tuple[Line, Line]] = zip_longest(read_lines(first), read_lines(second), fillvalue={})
    for number, (was, now) in enumerate(pairs, 1):
        for name in ("ids", "loss_mask", "reward", "advantage"):
            if was.get(name) != now.get(name):
                return (
                    f"rollout {number} ({was.get('purpose')}) differs in {_where(name, was.get(name), now.get(name))}"
                )
    return ""


def _where(name: str, was: Any, now: Any) -> str:  # noqa: ANN401 - from JSON
    if not isinstance(was, list) or not isinstance(now, list):
        return f"{name}: {was}, now {now}"
    place = next(place for place, pair in enumerate(zip_longest(was, now)) if len({*pair}) > 1)
    return f"{name} from token {place}: {was[place : place + 3]}, now {now[place : place + 3]}"


def require_recorded(run: RunFolder, step: int) -> None:
    """Refuse a step of which nothing was recorded."""
    recorded = run.fingerprints
    starts = [one for one in sorted(recorded) if one - 1 not in recorded]
    ends = [one for one in sorted(recorded) if one + 1 not in recorded]
    said = ", ".join(
        f"{first} to {last}" if first < last else f"{first}" for first, last in zip(starts, ends, strict=True)
    )
    require(
        step in recorded,
        f"{run.path / FINGERPRINTS} has nothing of step {step} (it has {said or 'none'}): the run has not reached it, "
        "or an older version of MinRL made it; name a step that it has",
    )
