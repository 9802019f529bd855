"""A summary of runs side by side, as a page and as Markdown; without a name, the list of all runs.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison

A run that is still going on, or was killed, is shown up to its last step.
"""

import hashlib
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minrl.dataflow import UserError, require
from minrl.report.runs import REPORTS, SMOOTHING, RunData, Score, is_report, read_ends, read_runs
from minrl.run.folder import RunFolder
from minrl.utils.cli import Command, typed
from minrl.utils.files import LOCK, holder, is_locked
from minrl.utils.settings import Settings, ShareBelowOne

LONGEST_NAME = 160
"""Largest number of bytes in a folder's name that is made of runs' names; file systems allow 255."""


@dataclass(init=False)
class ReportConfig(Settings):
    """Summarize runs side by side, as a page and as Markdown. The runs come first, by folder or by
    name; without any, all runs are listed.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison
    """

    first = "runs"

    runs: tuple[str, ...] = ()
    """The runs. The flag itself may be left out."""
    output: str = ""
    """Folder of report.html and report.md. Empty: `report` in the run's folder; for several runs a folder in
    runs_dir/report that is named by them."""
    runs_dir: str = "runs"
    """Folder in which runs are looked for by name."""
    smoothing: ShareBelowOne = SMOOTHING
    """Weight of the past in the smoothed curves, as in TensorBoard. 0: not smoothed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = not self.runs and (bool(self.output) or self.smoothing != SMOOTHING)
        require(not unused, "--output and --smoothing are for the report of a run: name one, such as runs/NAME")


def main(command: Command[ReportConfig]) -> int:
    """Read the runs, draw, write, and say where."""
    config = command.config
    if not config.runs:
        sys.stdout.writelines(listing(Path(config.runs_dir)))
        return 0
    from minrl.report.page import write_report  # which imports matplotlib: the list does without

    sys.stderr.write(f"reading {', '.join(config.runs)}\n")
    runs = read_runs(config.runs, Path(config.runs_dir))
    folder = Path(config.output or _default_folder(runs, config.runs[0], config.runs_dir))
    write_report(runs, folder, f"python -m minrl report {shlex.join(command.arguments)}", config.smoothing)
    return 0


def _default_folder(runs: Sequence[RunData], first: str, runs_dir: str) -> Path:
    """A folder in that of a single run, given as `first`. A comparison has its own folder, named by its runs in their
    order; a name that is too long is cut and ends with a hash.
    """
    if len(runs) == 1:
        return RunFolder.open(first, runs_dir).path / "report"
    name = "+".join(run.name for run in runs)
    if len(name.encode()) > LONGEST_NAME:
        name = f"{runs[0].name[: LONGEST_NAME // 2]}+{len(runs) - 1}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path(runs_dir) / REPORTS / name


# The list of all runs: what each is, how far it came, and how it is resumed


def listing(runs_dir: Path) -> Iterator[str]:
    """A few lines for each run, the one that wrote last at the end; before them a line for each folder that is none."""
    require(runs_dir.is_dir(), f"there is no folder {runs_dir}: name that of the runs with --runs-dir")
    is_run = (runs_dir / "config.json").exists()
    require(not is_run, f"{runs_dir} is a run itself: name it without --runs-dir, or the folder that holds it")
    folders = [path for path in sorted(runs_dir.iterdir()) if path.is_dir() or path.is_symlink()]
    runs: list[tuple[float, str]] = []
    for folder in folders:
        if folder.name.startswith(".") or is_report(folder):
            continue
        try:
            text = _described(folder, read_ends(folder))
            runs.append((RunFolder(folder).last_written, text))
        except (UserError, OSError) as error:
            begun = is_locked(folder / LOCK) and not (folder / "config.json").exists()
            what = f"is being prepared ({holder(folder / LOCK)})" if begun else f"not a run: {error}"
            yield f"{folder.name}: {what}\n"
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a file of this name that is not ours
            yield f"{folder.name}: not a run: its files hold something else ({error!r})\n"
    for _, text in sorted(runs):
        yield text
    yield _how_to_go_on(runs_dir, len(runs))


def _how_to_go_on(runs_dir: Path, count: int) -> str:
    train = typed("train")
    if not count:
        return f"no run in {runs_dir} yet: {train} makes one\n"
    where = "" if runs_dir == Path("runs") else f" --runs-dir {shlex.quote(str(runs_dir))}"
    return (
        f"{count} run{'s' * (count > 1)} in {runs_dir}. Side by side: {typed('report')} RUN RUN{where}\n"
        f"Further than its last step: {train} --resume {shlex.quote(f'{runs_dir}/RUN')} --steps N\n"
    )


def _described(folder: Path, run: RunData) -> str:
    """The run's name, and below it state, task and score, note, and the command that resumes it."""
    config, going_on = run.record["config"], is_locked(folder / LOCK)
    wanted = config.get("steps") or config.get("rounds")
    steps = f"step {run.last_step}" + (f" of {wanted}" if wanted else "")
    written = time.strftime("%d %b %Y %H:%M", time.localtime(RunFolder(folder).last_written))
    state = f"going on ({holder(folder / LOCK)})" if going_on else "finished" if run.summary else "stopped"
    (before, after), best = run.before_and_after(run.trained), run.best(run.trained)
    facts = [f"{state}, {steps}, {written}", f"{run.trained}, {run.model}"]
    if before or after:
        facts[1] += f", held-out pass@1 {_percent(before)} before, {_percent(after)} after"
        facts[1] += f", {_percent(best)} at step {best.step}, the best" if best else ""
    width = shutil.get_terminal_size().columns
    lines = [textwrap.fill(f, width, initial_indent="  ", subsequent_indent="    ") for f in facts]
    if not going_on and not run.summary:  # whole, for copying: a terminal wraps it by itself
        command = typed(run.record.get("program", "train"))
        lines.append(f"  {command} --resume {shlex.quote(str(folder))}")
    return "\n".join([folder.name, *lines, ""]) + "\n"


def _percent(score: Score | None) -> str:
    return "-" if score is None else f"{score.pass_at_1:.1%}"
