"""The list of all runs in a folder: what each is, how far it came, and how it goes on."""

import shlex
import shutil
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from minrl.report.runs import RunData, Score, is_report, read_ends
from minrl.run.folder import RunFolder
from minrl.types import UserError, require
from minrl.utils.cli import typed
from minrl.utils.files import LOCK, holder, is_locked


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
    facts += [f"note: {run.note}"] if run.note else []
    width = shutil.get_terminal_size().columns
    lines = [textwrap.fill(f, width, initial_indent="  ", subsequent_indent="    ") for f in facts]
    if not going_on and not run.summary:  # whole, for copying: a terminal wraps it by itself
        command = typed(run.record.get("program", "train"))
        lines.append(f"  {command} --resume {shlex.quote(str(folder))}")
    return "\n".join([folder.name, *lines, ""]) + "\n"


def _percent(score: Score | None) -> str:
    return "-" if score is None else f"{score.pass_at_1:.1%}"
