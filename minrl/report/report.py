"""A summary of runs side by side, as a page and as Markdown; without a name, the list of all runs.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison

A run that is still running, or was killed, is shown up to its last step.
"""

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minrl.dataflow import UserError, require
from minrl.report.runs import REPORTS, SMOOTHING, RunCurves, read_ends, read_runs
from minrl.run.folder import CONFIG, RunFolder
from minrl.utils.cli import Command, typed
from minrl.utils.console import Table, print_tables
from minrl.utils.files import LOCK, holder, is_locked
from minrl.utils.settings import Settings, ShareBelowOne


@dataclass(init=False)
class ReportConfig(Settings):
    """Summarize runs side by side, as a page and as Markdown. The runs come first, by folder or by
    name; without any, all runs are listed.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison --png
    """

    first = "runs"

    runs: tuple[str, ...] = ()
    """The runs. The flag itself may be left out."""
    output: str = ""
    """Folder of report.html and report.md. Empty: `report` in the run's folder; for several runs runs_dir/report."""
    runs_dir: str = "runs"
    """Folder in which runs are looked for by name."""
    axis: Literal["step", "tokens", "seconds"] = "step"
    """What curves are drawn over: steps, sampled tokens or seconds of training."""
    smoothing: ShareBelowOne = SMOOTHING
    """Weight of the past in the smoothed curves, as in TensorBoard. 0: not smoothed."""
    png: bool = False
    """Write each curve as a PNG too."""


def main(command: Command[ReportConfig]) -> int:
    """Read the runs, draw, write, and say where."""
    config = command.config
    if not config.runs:
        print_listing(Path(config.runs_dir))
        return 0
    from minrl.report.page import write_report  # which imports matplotlib: the list does without

    sys.stderr.write(f"reading {', '.join(config.runs)}\n")
    runs = read_runs(config.runs, Path(config.runs_dir))
    folder = runs[0].path / REPORTS if len(runs) == 1 else Path(config.runs_dir) / REPORTS
    folder, made_by = Path(config.output or folder), f"python -m minrl report {shlex.join(command.arguments)}"
    write_report(runs, folder, made_by, config.axis, config.smoothing, config.png)
    return 0


def print_listing(runs_dir: Path) -> None:
    """A table of the runs in a folder, the one that wrote last at the end."""
    require(runs_dir.is_dir(), f"there is no folder {runs_dir}: name that of the runs with --runs-dir")
    is_run = (runs_dir / CONFIG).exists()
    require(not is_run, f"{runs_dir} is a run itself: name it without --runs-dir, or the folder that holds it")
    rows: list[tuple[float, list[str]]] = []
    for folder in sorted(path for path in runs_dir.iterdir() if path.is_dir() and path.name[0] != "."):
        if folder.name == REPORTS and not (folder / CONFIG).exists():
            continue
        try:
            rows.append((RunFolder(folder).last_written, _described(read_ends(folder))))
        except (UserError, OSError) as error:
            begun = is_locked(folder / LOCK) and not (folder / CONFIG).exists()
            what = f"is being prepared ({holder(folder / LOCK)})" if begun else f"not a run: {error}"
            sys.stdout.write(f"{folder.name}: {what}\n")
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a file of this name that is not ours
            sys.stdout.write(f"{folder.name}: not a run: its files hold something else ({error!r})\n")
    if not rows:
        sys.stdout.write(f"no run in {runs_dir} yet: {typed('train')} makes one\n")
        return
    header = ["run", "state", "step", "task", "before", "after", "last written"]
    print_tables([Table(f"Runs in {runs_dir}", header, [row for _, row in sorted(rows)])])
    sys.stdout.write(
        f"Curves and tables: {typed('report')} RUN [RUN ...]; to resume a run: {typed('train')} --resume "
        f"{shlex.quote(str(runs_dir))}/RUN\n"
    )


def _described(run: RunCurves) -> list[str]:
    """The cells of a run in the list."""
    wanted = run.config.get("steps") or run.config.get("rounds")
    state = "running" if is_locked(run.path / LOCK) else "finished" if run.summary else "stopped"
    scores = [f"{one.pass_at_1:.1%}" if one else "-" for one in run.before_and_after(run.trained)]
    written = time.strftime("%d %b %H:%M", time.localtime(run.last_written))
    return [run.name, state, f"{run.last_step}" + (f" of {wanted}" if wanted else ""), run.trained, *scores, written]
