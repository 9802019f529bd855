"""Repeat a step of a run and compare, or begin a new run there with another setting.

A copy resumes from the last checkpoint before the step, and the hashes of ids, rewards, advantages, weights and moments
are compared. Exit status 1 says that something differs.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minrl.config import TrainerConfig
from minrl.run.checkpoint import BEST, step_of
from minrl.run.folder import AT_BEST, RunFolder, resolve_model
from minrl.run.provenance import changes, provenance
from minrl.run.run import TRAIN
from minrl.tools.verify import fork, replay
from minrl.tools.verify.config import VerifyConfig
from minrl.types import require
from minrl.utils.cli import Command, parse
from minrl.utils.files import write_text
from minrl.utils.text import json_text

DIFFERS = 1
"""Exit status where something that was recorded differs, or nothing could be compared."""

SAID = {True: "the same", False: "DIFFERS", None: "not recorded"}


def main(command: Command[VerifyConfig]) -> int:
    """Repeat and compare, or fork."""
    config = command.config
    if config.fork:
        return _fork(config.fork, command.arguments)
    require(bool(config.run), "name the run first: minrl verify RUN --step 120")
    run = RunFolder.open(config.run, config.runs_dir)
    checkpoints = run.checkpoints
    require(run.program == TRAIN.command, f"{run.path} is no run of minrl train")
    step = config.step or max(run.fingerprints, default=0)
    replay.require_recorded(run, step)
    checkpoint = replay.checkpoint_before(checkpoints, step)
    steps = range(step_of(checkpoint) + 1, step + 1)
    other = changes(run.record, provenance(map(Path, run.record.get("files", {}))))
    sys.stderr.writelines(f"not as in the run: {change}\n" for change in other)
    sys.stderr.write(f"repeating steps {steps[0]} to {step} from {checkpoint}\n")
    with tempfile.TemporaryDirectory(prefix="minrl-verify-", dir=config.scratch or None) as place:
        copy, kept = replay.repeat(run, checkpoint, step, Path(place))
        verdicts = list(replay.compare(run, checkpoints, copy, kept, steps))
    for one in verdicts:
        sys.stdout.write(f"step {one.step}: {', '.join(f'{part} {SAID[same]}' for part, same in one.same.items())}\n")
        sys.stdout.writelines(f"  {said}\n" for said in (one.first, one.damaged) if said)
    compared = any(same is not None for one in verdicts for same in one.same.values())
    if config.output:
        lines = [vars(one) for one in verdicts]
        write_text(
            Path(config.output), json_text({"run": str(run.path), "other": other, "steps": lines}, indent=1) + "\n"
        )
    return 0 if compared and not any(one.differs for one in verdicts) else DIFFERS


def _fork(place: str, flags: Sequence[str]) -> int:
    name, at, step = place.rpartition("@")
    known = bool(at) and (step.isdigit() or step == BEST)
    require(known, "--fork needs RUN@STEP or RUN@best, such as countdown-grpo-seed0@120")
    run = RunFolder.open(name, parse(TrainerConfig, flags).config.logging.runs_dir)
    if step == BEST:
        step = str(step_of(Path(resolve_model(f"{run.path}{AT_BEST}"))))
    return fork.fork(run, int(step), flags)
