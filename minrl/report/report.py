"""A summary of runs side by side, as a page and as Markdown with pictures; without a name, the list of all runs.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison

A run that is still going on, or was killed, is shown up to its last step.
"""

import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrl.report.listing import listing
from minrl.report.runs import AXES, REPORTS, RunData, groups_of, read_runs
from minrl.report.tables import Table, cost, markdown, over_seeds, remarks, results, settings, title
from minrl.run.folder import RunFolder
from minrl.types import require
from minrl.utils.cli import Command
from minrl.utils.files import write_text
from minrl.utils.settings import Bounded, ShareBelowOne
from minrl.utils.text import printable

SMOOTHING = 0.6
"""Weight of the past in curves, unless the user says otherwise."""

MOST_CHARTS = 6
"""Charts in the picture of Markdown; the page has all."""

LONGEST_NAME = 160
"""Largest number of bytes in a folder's name that is made of runs' names; file systems allow 255."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Bounded):
    """Summarize runs side by side, as a page and as Markdown with pictures. The runs come first, by folder or by
    name; without any, all runs are listed.

    python -m minrl report
    python -m minrl report runs/countdown-grpo-seed0
    python -m minrl report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison
    """

    first = "runs"

    runs: tuple[str, ...] = ()
    """The runs. The flag itself may be left out."""
    output: str = ""
    """Folder of report.md and its pictures. Empty: `report` in the run's folder; for several runs a folder in
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
    sys.stderr.write(f"reading {', '.join(config.runs)}\n")
    runs = read_runs(config.runs, Path(config.runs_dir))
    folder = Path(config.output or _default_folder(runs, config.runs[0], config.runs_dir))
    write_report(runs, folder, f"python -m minrl report {shlex.join(command.arguments)}", config.smoothing)
    return 0


def write_report(runs: Sequence[RunData], folder: Path, command: str, smoothing: float = SMOOTHING) -> None:
    """Write report.md, its pictures and report.html to the folder, and say where they are. `command` made them."""
    from minrl.report.charts import before_and_after, seconds, svg

    folder.mkdir(parents=True, exist_ok=True)
    bars = [(chart.title, svg([chart])) for chart in [*before_and_after(runs), *seconds(runs)]]
    written = {
        "report.md": markdown(runs, _draw(runs, bars, folder, smoothing), command),
        "report.html": page(runs, [text for _, text in bars], smoothing, command),
    }
    for name, text in written.items():
        write_text(folder / name, text)
        sys.stdout.write(f"{folder / name}\n")
    for run in runs:
        if run.unfinished:
            sys.stderr.write(f"{run.unfinished}\n")


def _draw(runs: Sequence[RunData], bars: Sequence[tuple[str, str]], folder: Path, smoothing: float) -> dict[str, str]:
    """Write all pictures that the runs have numbers for: file names by caption. `bars` are drawn already, by title."""
    from minrl.report.charts import curves, standalone, svg

    groups, pictures = groups_of(runs), dict[str, tuple[str, str]]()
    drawn = curves(groups, "step", smoothing)[:MOST_CHARTS]
    if drawn:  # nothing has a curve after a single step
        text = svg(drawn, min(3, len(drawn)), [group.name for group in groups])
        pictures["curves.svg"] = f"Curves, smoothed with weight {smoothing:g}", text
    pictures |= {f"bars-{number}.svg": one for number, one in enumerate(bars, 1)}
    for name, (_, text) in pictures.items():
        write_text(folder / name, standalone(text))
    return {caption: name for name, (caption, _) in pictures.items()}


def page(runs: Sequence[RunData], bars: Sequence[str], smoothing: float, command: str) -> str:
    """The whole page, which asks no network for anything and needs no script. Each curve is there once for each axis
    that the runs have; the style sheet shows those of the chosen one.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from minrl.report.charts import PALETTE, THEME, curves, svg

    groups = groups_of(runs)
    axes = [axis for axis in AXES if any(run.positions(axis)[run.last_step] for run in runs)] or ["step"]

    def shown(value: Any) -> Any:  # noqa: ANN401 - whatever the template prints
        return printable(value) if type(value) is str else value  # safe text has a class of its own

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, finalize=shown)
    return environment.get_template("report.html.jinja").render(
        title=title(runs),
        theme=THEME,
        axes=axes,
        remarks=remarks(runs),
        results=_scores_first(results(runs)),
        seeds=over_seeds(groups),
        groups=[group.name for group in groups],
        colours=len(PALETTE),
        smoothing=f"{smoothing:g}",
        curves={axis: [svg([chart]) for chart in curves(groups, axis, smoothing)] for axis in axes},
        bars=bars,
        settings=settings(runs),
        cost=cost(runs),
        command=f"`{command}`",
    )


def _scores_first(content: Table) -> Table:
    """The table of results with before and after beside the run, where a phone shows them."""
    header, rows = content
    first, *others = zip(header, *rows, strict=True)
    turned = list(zip(first, *others[-3:], *others[:-3], strict=True))
    return turned[0], turned[1:]


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
