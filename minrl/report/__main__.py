"""A summary of runs side by side, as Markdown with pictures.

    python -m minrl.report runs/countdown-grpo-seed0
    python -m minrl.report countdown-grpo-seed0 countdown-rloo-seed0 --output comparison

A run that is still going on, or was killed, is shown as far as it came.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minrl.charts import require_matplotlib
from minrl.command_line import parse, run_main
from minrl.report.pictures import draw
from minrl.report.runs import read_runs
from minrl.report.tables import markdown
from minrl.types import require


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """How the report is made. The runs come first, by folder or by name."""

    output: str = ""
    """Folder of report.md and its pictures. Empty: `report` in the run's folder, or in runs_dir for several runs."""
    runs_dir: str = "runs"
    """Folder in which runs are looked for by name."""
    smoothing: float = 0.6
    """Weight of the past in the smoothed curves, as in TensorBoard. 0: not smoothed."""

    def __post_init__(self) -> None:
        require(0 <= self.smoothing < 1, f"smoothing must be at least 0 and below 1, got {self.smoothing}")


def main(arguments: Sequence[str]) -> int:
    """Read the runs, draw, write, and say where."""
    first_flag = next((place for place, given in enumerate(arguments) if given.startswith("-")), len(arguments))
    config = parse(ReportConfig, arguments[first_flag:], description=__doc__)
    runs = read_runs(arguments[:first_flag], Path(config.runs_dir))
    require_matplotlib("a report")
    folder = Path(config.output or _default_folder(arguments[:first_flag], config.runs_dir))
    folder.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m minrl.report", *arguments])
    text = markdown(runs, draw(runs, folder, config.smoothing), command)
    temporary = folder / "report.md.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / "report.md")
    sys.stdout.write(f"{folder / 'report.md'}\n")
    for run in runs:
        if run.unfinished:
            sys.stderr.write(f"{run.unfinished}\n")
    return 0


def _default_folder(names: Sequence[str], runs_dir: str) -> Path:
    if len(names) > 1:
        return Path(runs_dir) / "report"
    return (Path(names[0]) if Path(names[0], "config.json").exists() else Path(runs_dir) / names[0]) / "report"


if __name__ == "__main__":
    run_main(main)
