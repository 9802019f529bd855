"""Repeat a step of a run and compare.

A copy resumes from the last checkpoint before the step, and the hashes of ids, rewards, advantages, weights and moments
are compared.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from loguru import logger

from minrl.config import TrainerConfig
from minrl.dataflow import UserError, require
from minrl.report.rollouts import Line, read_lines
from minrl.run.checkpoint import HASHES, by_step, damage, hash_files, read_state, step_name, step_of
from minrl.run.folder import CONFIG, FINGERPRINTS, ROLLOUTS, RunFolder
from minrl.run.records import changes, provenance
from minrl.run.run import TRAIN, open_run
from minrl.run.setup import assemble
from minrl.tools.verify.config import VerifyConfig
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from minrl.tracking.writers import PARTS
from minrl.trainer import loop
from minrl.utils.cli import Command, parse

DIFFERS = 1
"""Exit status if something that was recorded differs, or nothing could be compared."""


def main(command: Command[VerifyConfig]) -> int:
    """Repeat and compare."""
    config = command.config
    require(bool(config.run), "name the run first: minrl verify RUN --step 120")
    run = RunFolder.open(config.run, config.runs_dir)
    require(run.program == TRAIN.command, f"{run.path} is no run of minrl train")
    step = config.step or max(run.fingerprints, default=0)
    checkpoint = _checkpoint_before(run, step)
    sys.stderr.write(f"repeating steps {step_of(checkpoint) + 1} to {step} from {checkpoint}\n")
    with tempfile.TemporaryDirectory(prefix="minrl-verify-") as place:
        copy, kept = _repeat(run, checkpoint, step, Path(place))
        other = changes(run.record, provenance(map(Path, run.record.get("files", {}))))  # with the run's threads
        verdicts = list(_compare(run, copy, kept, range(step_of(checkpoint) + 1, step + 1)))
    sys.stderr.writelines(f"not as in the run: {change}\n" for change in other)
    texts = {True: "the same", False: "DIFFERS", None: "not recorded"}
    for one in verdicts:
        sys.stdout.write(f"step {one.step}: {', '.join(f'{part} {texts[same]}' for part, same in one.same.items())}\n")
        sys.stdout.writelines(f"  {text}\n" for text in one.found)
    same = [one for verdict in verdicts for one in verdict.same.values()]
    found = any(verdict.found for verdict in verdicts)
    return DIFFERS if False in same or found or True not in same else 0


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


@dataclass(frozen=True)
class Verdict:
    """What a step has recorded, compared with the same step repeated (None: not recorded), and what else is wrong."""

    step: int
    same: Mapping[str, bool | None]
    found: Sequence[str]


def _checkpoint_before(run: RunFolder, step: int) -> Path:
    """The last whole checkpoint before a step that was recorded."""
    recorded, kept = sorted(run.fingerprints), by_step(run.checkpoints)
    require(
        step in recorded,
        f"{run.path / FINGERPRINTS} has nothing of step {step}: it has {', '.join(map(str, recorded)) or 'none'}",
    )
    for path in reversed(kept):
        if step_of(path) < step and damage(path) is None:
            return path
    raise UserError(
        f"step {step} cannot be repeated: {run.checkpoints} has no whole checkpoint of a step before it (it has "
        f"{', '.join(str(step_of(path)) for path in kept) or 'none'}); --keep-checkpoints 0 keeps those of all steps"
    )


def _repeat(run: RunFolder, checkpoint: Path, step: int, place: Path) -> tuple[Path, Path]:
    """Repeat a run's steps after a checkpoint up to `step`, in a copy in `place`; the copy's folder and checkpoints."""
    name = run.record["minrl_run"]
    copy, kept = place / "runs" / name, place / "checkpoints" / name
    copy.mkdir(parents=True)
    shutil.copy2(run.path / CONFIG, copy)
    shutil.copytree(checkpoint, kept / checkpoint.name)
    command = parse(TrainerConfig, ["--resume", str(copy), "--checkpoints-dir", str(kept.parent), "--quiet"])
    again = open_run(command.config, command.options, command.given)
    with assemble(again) as parts, UntilStep(parts, time.perf_counter(), diagnostics=UpdateDiagnostics) as session:
        # Schedules depend on the end that the run had, which a resume may have moved.
        steps = range(parts.state.step + 1, step)
        for session.until in [*(one for one in steps if run.steps_at(one) != run.steps_at(one + 1)), step]:
            parts.config = replace(parts.config, steps=run.steps_at(session.until))
            loop(session)
    return copy, kept


def _compare(run: RunFolder, copy: Path, kept: Path, steps: Sequence[int]) -> Iterator[Verdict]:
    """What became of each of the steps, and of the checkpoint of the last one."""
    recorded, repeats = run.fingerprints, RunFolder(copy).fingerprints
    for step in steps:
        before, now = recorded.get(step, {}), repeats.get(step, {})
        same = {part: _same(before.get(part), now.get(part)) for part in PARTS}
        found = [text for text in [_first_difference(run.path, copy, step)] if text]
        if step == steps[-1]:
            saved, files = run.checkpoints / step_name(step), before.get("files", {})
            problem = damage(saved) if saved.exists() else None
            found += [f"{saved}: {problem}"] if problem else []
            own = hash_files(saved) if saved.exists() and not problem else {}
            repeated = read_state(kept / step_name(step))[HASHES]
            same |= {name: _same((files or own).get(name), digest) for name, digest in repeated.items()}
            same |= {f"{saved.name}/{name}": own[name] == files[name] for name in own.keys() & files.keys()}
        yield Verdict(step, same, found)


def _same(before: str | None, now: str | None) -> bool | None:
    return None if before is None else before == now


def _first_difference(run: Path, copy: Path, step: int) -> str:
    """Where a step's written rollouts differ first; empty if they do not, or if they were not written."""
    first, second = (folder / ROLLOUTS / f"{step_name(step)}.jsonl.gz" for folder in (run, copy))
    pairs: Iterable[tuple[Line, Line]] = ()
    if first.exists() and second.exists():
        try:
            pairs = zip_longest(list(read_lines(first)), list(read_lines(second)), fillvalue={})
        except UserError as error:  # the hashes say enough
            logger.warning(f"{error}: what differs first is not named")
    for number, (was, now) in enumerate(pairs, 1):
        for name in ("ids", "loss_mask", "reward", "advantage"):
            before, after, where = was.get(name), now.get(name), ""
            if before == after:
                continue
            if isinstance(before, list) and isinstance(after, list):
                token = next(token for token, pair in enumerate(zip_longest(before, after)) if len({*pair}) > 1)
                before, after, where = before[token : token + 3], after[token : token + 3], f" from token {token}"
            return f"rollout {number} ({was.get('purpose')}) differs in {name}{where}: {before}, now {after}"
    return ""
