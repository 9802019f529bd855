"""Repeat a step of a run and compare.

A copy resumes from the last checkpoint before the step, and the hashes of ids, rewards, advantages, weights and moments
are compared.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from minrl.config import TrainerConfig
from minrl.dataflow import UserError, require
from minrl.run.checkpoint import has_moments, is_whole
from minrl.run.folder import CONFIG, FINGERPRINTS, RunFolder, by_step, step_of
from minrl.run.records import changes, provenance
from minrl.run.run import open_run
from minrl.run.setup import assemble
from minrl.tools.config import VerifyConfig
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from minrl.tracking.writers import PARTS
from minrl.trainer import loop
from minrl.utils.cli import Command, parse
from minrl.utils.files import write_json

DIFFERS = 1
"""Exit status if something that was recorded differs, or nothing could be compared."""


def main(command: Command[VerifyConfig]) -> int:
    """Repeat and compare."""
    config = command.config
    require(bool(config.run), "name the run first: minrl verify RUN --step 120")
    run = RunFolder.open(config.run, config.runs_dir)
    require(run.program == TrainerConfig.program, f"{run.path} is no run of minrl train")
    step = config.step or max(run.fingerprints, default=0)
    checkpoint = _checkpoint_before(run, step)
    sys.stderr.write(f"repeating steps {step_of(checkpoint) + 1} to {step} from {checkpoint}\n")
    with tempfile.TemporaryDirectory(prefix="minrl-verify-") as place:
        repeats = _repeat(run, checkpoint, step, Path(place))
    other = changes(run.record, provenance(map(Path, run.record.get("files", {}))))  # with the run's threads
    sys.stderr.writelines(f"not as in the run: {change}\n" for change in other)
    texts, found = {True: "the same", False: "DIFFERS", None: "not recorded"}, list[bool | None]()
    for number, same in _compare(run.fingerprints, repeats, range(step_of(checkpoint) + 1, step + 1)):
        sys.stdout.write(f"step {number}: {', '.join(f'{part} {texts[one]}' for part, one in same.items())}\n")
        found += same.values()
    return DIFFERS if False in found or True not in found else 0


# Repeat a step


class UntilStep(Session):
    """The session of a run that ends after a step. Nothing is evaluated: no later step depends on it."""

    until = 0

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after this step."""
        return super().interrupted or self.state.step >= self.until

    @property
    def ended(self) -> bool:
        """No score ends the run: its steps were made."""
        return self.interrupted

    def evaluate(self) -> None:
        """Leave the held-out score out."""

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """After an error too, nothing is said of resuming a copy that will be gone."""
        super().__exit__(None, None, None)


def _checkpoint_before(run: RunFolder, step: int) -> Path:
    """The last whole checkpoint with moments before a step that was recorded."""
    recorded, kept = sorted(run.fingerprints), by_step(run.checkpoints)
    require(
        step in recorded,
        f"{run.path / FINGERPRINTS} has nothing of step {step}: it has {', '.join(map(str, recorded)) or 'none'}",
    )
    for path in reversed(kept):
        if step_of(path) < step and is_whole(path) and has_moments(path):
            return path
    raise UserError(
        f"step {step} cannot be repeated: {run.checkpoints} has no whole checkpoint with optimizer state of a step "
        f"before it (it has {', '.join(str(step_of(path)) for path in kept) or 'none'}); --keep-checkpoints 0 keeps "
        "those of all steps"
    )


def _repeat(run: RunFolder, checkpoint: Path, step: int, place: Path) -> dict[int, dict]:
    """Repeat a run's steps after a checkpoint up to `step`, in a copy in `place`, and return its fingerprints."""
    copy, kept = (place / folder / run.path.resolve().name for folder in ("runs", "checkpoints"))
    copy.mkdir(parents=True)
    settings = {**run.record["config"], "logger": "tensorboard"}  # others would show the steps as another run's
    write_json(copy / CONFIG, {**run.record, "config": settings, "models": run.models})  # they are not beside the copy
    shutil.copytree(checkpoint, kept / checkpoint.name)
    command = parse(TrainerConfig, ["--resume", str(copy), "--checkpoints-dir", str(kept.parent), "--quiet"])
    again = open_run(command.config, command.options, command.given)
    with assemble(again) as parts, UntilStep(parts, time.perf_counter(), diagnostics=UpdateDiagnostics) as session:
        # Schedules depend on the end that the run had, which a resume may have moved.
        steps = range(parts.state.step + 1, step)
        for session.until in [*(one for one in steps if run.steps_at(one) != run.steps_at(one + 1)), step]:
            parts.config = replace(parts.config, steps=run.steps_at(session.until))
            loop(session)
    return RunFolder(copy).fingerprints


def _compare(
    recorded: Mapping[int, Mapping], repeats: Mapping[int, Mapping], steps: Sequence[int]
) -> Iterator[tuple[int, dict[str, bool | None]]]:
    """Whether what was recorded of each step is the same (None: it was not recorded), and the files of the last one."""
    for step in steps:
        before, now = recorded.get(step, {}), repeats[step]
        same = {part: before[part] == now[part] if part in before else None for part in PARTS}
        for name, digest in now["files"].items() if step == steps[-1] else ():
            same[name] = before["files"].get(name) == digest if "files" in before else None
        yield step, same
