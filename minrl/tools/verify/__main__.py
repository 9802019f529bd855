"""Repeat a step of a run and compare, or begin a new run there with another setting.

    python -m minrl.tools.verify countdown-grpo-seed0 --step 120
    python -m minrl.tools.verify --fork countdown-grpo-seed0@120 --algorithm dapo

The first form resumes a copy from the last checkpoint before the step, and compares the hashes of ids, rewards,
advantages, weights and moments. Exit status 1 says that something differs.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minrl.run.checkpoint import BEST, step_of
from minrl.run.model_names import checkpoints_of, resolve_model, run_folder_of
from minrl.run.provenance import changes, provenance
from minrl.tools.verify import fork, replay
from minrl.types import UserError, require
from minrl.utils.cli import HELP, parse, parse_trainer, run_main
from minrl.utils.files import read_json, write_text
from minrl.utils.launch import require_one_process
from minrl.utils.settings import Bounded, Natural
from minrl.utils.text import json_text

DIFFERS = 1
"""Exit status where something that was recorded differs, or nothing could be compared."""

SAID = {True: "the same", False: "DIFFERS", None: "not recorded"}


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Bounded):
    """Repeat a step of a run from the checkpoint before it, and compare. The run comes first, by folder or by name.
    With --fork RUN@STEP a new run begins there instead, with what further flags of train.py change.

    python -m minrl.tools.verify countdown-grpo-seed0 --step 120
    python -m minrl.tools.verify --fork countdown-grpo-seed0@120
    """

    often = ("step", "fork", "output")

    step: Natural = 0
    """The step. 0: the last one."""
    fork: str = ""
    """RUN@STEP or RUN@best: begin a new run there, on the same random numbers. All other flags are train.py's."""
    output: str = ""
    """File for the result as JSON. Empty: none."""
    scratch: str = ""
    """Folder for the copy and its checkpoints, which are removed. Empty: that of the system (TMPDIR)."""


def main(arguments: Sequence[str]) -> int:
    """Repeat and compare, or fork."""
    require_one_process("python -m minrl.tools.verify")
    arguments = [word for one in arguments for word in (one.split("=", 1) if one.startswith("--fork=") else [one])]
    if "--fork" in arguments:
        return _fork(arguments)
    asked = [one for one in arguments if one in HELP]
    named = bool(arguments) and not arguments[0].startswith("-")
    require(named or bool(asked), "name the run first: python -m minrl.tools.verify RUN --step 120")
    config, _ = parse(VerifyConfig, asked or arguments[1:])
    run = _run(arguments[0])
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


def _fork(arguments: list[str]) -> int:
    place = arguments.index("--fork")
    name, at, step = "".join(arguments[place + 1 : place + 2]).rpartition("@")
    known = bool(at) and (step.isdigit() or step == BEST)
    require(known, "--fork needs RUN@STEP or RUN@best, such as countdown-grpo-seed0@120")
    flags = arguments[:place] + arguments[place + 2 :]
    parse_trainer(flags)  # a mistake in them is answered first
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


if __name__ == "__main__":
    run_main(main)
