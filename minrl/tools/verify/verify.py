"""Repeat a step of a run and compare, or begin a new run there with another setting.

A copy resumes from the last checkpoint before the step, and the hashes of ids, rewards, advantages, weights and moments
are compared. Exit status 1 says that something differs.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minrl.run.checkpoint import BEST, step_of
from minrl.run.model_names import checkpoints_of, resolve_model, run_folder_of
from minrl.run.provenance import changes, provenance
from minrl.tools.verify import fork, replay
from minrl.tools.verify.config import VerifyConfig
from minrl.types import UserError, require
from minrl.utils.cli import Command
from minrl.utils.files import read_json, write_text
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
    run = _run(config.run)
    checkpoints, recorded = checkpoints_of(run), read_json(run / "config.json")
    require("not_default" in recorded, f"{run} is no run of train.py")
    step = config.step or max(replay.read_fingerprints(run), default=0)
    replay.require_recorded(run, step)
    checkpoint = replay.checkpoint_before(checkpoints, step)
    steps = range(step_of(checkpoint) + 1, step + 1)
    other = changes(recorded, provenance(map(Path, recorded.get("files", {}))))
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
        write_text(Path(config.output), json_text({"run": str(run), "other": other, "steps": lines}, indent=1) + "\n")
    return 0 if compared and not any(one.differs for one in verdicts) else DIFFERS


def _fork(place: str, flags: Sequence[str]) -> int:
    name, at, step = place.rpartition("@")
    known = bool(at) and (step.isdigit() or step == BEST)
    require(known, "--fork needs RUN@STEP or RUN@best, such as countdown-grpo-seed0@120")
    run = _run(name)
    new = fork.forked(run, step_of(Path(resolve_model(f"{run}@{BEST}"))) if step == BEST else int(step), flags)
    status, saved = fork.go_on(new)
    if status:
        return status
    output = new.folder.parent / saved.parent.name / "against"
    return fork.compare(run, saved, new.config.rollout.task, output)


def _run(name: str) -> Path:
    found = run_folder_of(name)
    if found is None:
        raise UserError(f"there is no run {name}: name a folder with a config.json, or a run in runs/")
    return found
