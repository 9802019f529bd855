"""Train over a grid of settings, a list of seeds or both, and report on all runs side by side.

    python -m minrl sweep docs/algorithms.yaml
    python -m minrl sweep docs/algorithms.yaml --at-once 2
    python -m minrl sweep docs/algorithms.yaml --dry-run

The file has the `task` and the `flags` that all runs share, a `grid` with values for some settings, and `seeds`. The
same command again leaves out what is complete and resumes what is not.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from minrl.report.report import write_report
from minrl.report.runs import REPORTS, read_ends, read_run
from minrl.tools.sweep.plan import Planned, read_plan, sweep_name
from minrl.tools.sweep.processes import Place, places, train_all
from minrl.types import UserError, require
from minrl.utils.cli import Command, typed
from minrl.utils.files import LOCK, holder, lock
from minrl.utils.settings import Bounded, Count
from minrl.utils.signals import exit_status


@dataclass(frozen=True, kw_only=True)
class SweepConfig(Bounded):
    """Train over a grid of settings, a list of seeds or both, and report on all runs side by side. The file comes
    first.

    python -m minrl sweep docs/algorithms.yaml
    python -m minrl sweep docs/algorithms.yaml --at-once 2
    python -m minrl sweep docs/algorithms.yaml --dry-run
    """

    first = "file"

    file: str = ""
    """The file of the sweep. The flag itself may be left out."""
    at_once: Count = 1
    """Runs at the same time, each on a card of its own, or without cards on an equal share of the cores."""
    dry_run: bool = False
    """Show every run with its state and its command, and train nothing."""


def main(command: Command[SweepConfig]) -> int:
    """Train what is missing, write the report, name what failed."""
    config = command.config
    require(bool(config.file), "name the file of the sweep first: minrl sweep FILE.yaml")
    path = Path(config.file)
    planned = read_plan(path)
    if config.dry_run:
        sys.stdout.writelines(f"{run.state}: {_command(run)}\n" for run in planned)
        return 0
    devices = {run.settings.model.device for run in planned}
    where = places(config.at_once, "cpu" if devices == {"cpu"} else "auto")
    folder = planned[0].folder.parent / REPORTS / sweep_name(path)
    with ExitStack() as held:
        _lock(folder, path, held)
        return _sweep(path, planned, where, folder)


def _sweep(path: Path, planned: Sequence[Planned], where: Sequence[Place], folder: Path) -> int:
    states = Counter(run.state for run in planned)
    said = ", ".join(f"{states[state]} {state}" for state in ("complete", "begun", "new") if states[state])
    _say(f"{len(planned)} run{'s' * (len(planned) > 1)} of {path}: {said}; {len(where)} at once")
    todo = [run for run in planned if run.state != "complete"]
    failed, stopped_by = train_all(todo, where, folder / "logs", _say)
    if stopped_by:
        _say("stopped: the same command goes on")
        return exit_status(stopped_by)
    measured = [run.folder for run in planned if run.state != "new" and read_ends(run.folder).lines]
    if measured:
        write_report([read_run(one) for one in measured], folder, f"python -m minrl sweep {shlex.quote(str(path))}")
    for one in failed:
        _say(str(one))
    if failed:
        _say(f"{len(failed)} of {len(planned)} runs failed: mend the cause, and the same command tries them again")
    return 1 if failed else 0


def _command(run: Planned) -> str:
    return f"{typed('train')} {shlex.join(run.flags)} --resume=auto"


def _lock(folder: Path, path: Path, held: ExitStack) -> None:
    """One sweep of a file at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    file = lock(folder / LOCK)
    if file is None:
        raise UserError(f"the sweep of {path} is going on ({holder(folder / LOCK)}): wait for its end, or stop it")
    held.enter_context(file)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
