"""Writes docs/algorithms_measured.md and docs/algorithms.png: how each algorithm learned the default task.

    python -m minrl sweep docs/algorithms.yaml --at-once 2
    python docs/algorithms_measured.py

The numbers are those of the sweep's runs.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from minrl.report.charts import FAINT, color, picture
from minrl.report.runs import RunData, read_run
from minrl.tools.sweep import read_plan
from minrl.types import require

PLAN, PAGE, PICTURE = (Path(__file__).with_name(f"algorithms{name}") for name in (".yaml", "_measured.md", ".png"))

SMOOTHING = 5
"""Steps in the moving mean of the picture."""

COLUMNS = 5

Runs = Mapping[str, Sequence[RunData]]
"""The runs of each algorithm, a seed each."""


def read() -> Runs:
    """The runs of the sweep, which must be complete."""
    planned = sorted(read_plan(PLAN), key=lambda run: run.settings.seed)
    left = [run.name for run in planned if run.state != "complete"]
    require(not left, f"{len(left)} runs are not complete: python -m minrl sweep docs/algorithms.yaml")
    order = list(dict.fromkeys(run.settings.algorithm.algorithm for run in planned))
    of_each = sorted(planned, key=lambda run: order.index(run.settings.algorithm.algorithm))
    groups = groupby(of_each, key=lambda run: run.settings.algorithm.algorithm)
    return {name: [read_run(run.folder) for run in group] for name, group in groups}


def page(runs: Runs) -> str:
    """The whole page: before and after, over the seeds."""
    everything = [run for of_it in runs.values() for run in of_it]
    before = [run.summary["eval_before"]["pass@1"] for run in everything]
    config, samples = everything[0].record["config"], everything[0].summary["eval_after"]["n"]
    rows = [f"| `{name}` | {' | '.join(_figures(of_it))} |" for name, of_it in runs.items()]
    return TEXT.format(
        steps=config["steps"],
        prompts=config["prompts_per_step"],
        group=config["group_size"],
        seeds=", ".join(str(run.record["config"]["seed"]) for run in next(iter(runs.values()))),
        samples=samples,
        before=_over_seeds(before),
        date=time.strftime("%Y-%m-%d", time.gmtime(max(_ended(run) for run in everything))),
        rows="\n".join(rows),
    )


def _ended(run: RunData) -> float:
    return (Path(run.record["config"]["runs_dir"]) / run.name / "summary.json").stat().st_mtime


def _figures(runs: Sequence[RunData]) -> list[str]:
    after = [run.summary["eval_after"] for run in runs]
    entropy = statistics.mean(statistics.mean(run.curve("policy/entropy")[1][-5:]) for run in runs)
    greedy = _percent(statistics.mean(one["pass@1_greedy"] for one in after))
    return [_over_seeds([one["pass@1"] for one in after]), greedy, f"{entropy:.3f}"]


def _over_seeds(values: Sequence[float]) -> str:
    """The mean, the lowest and the highest."""
    return f"{_percent(statistics.mean(values))} ({_percent(min(values))} to {_percent(max(values))})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and the ones before it."""
    return [statistics.mean(values[max(0, end - SMOOTHING) : end]) for end in range(1, len(values) + 1)]


def draw(runs: Runs, path: Path) -> None:
    """One panel for each algorithm, the others in grey behind it."""
    curves = {name: [smooth(run.curve("reward/mean")[1]) for run in of_it] for name, of_it in runs.items()}
    means = {name: [statistics.mean(step) for step in zip(*of_it, strict=True)] for name, of_it in curves.items()}
    rows = -(-len(curves) // COLUMNS)
    limits = [value for of_it in curves.values() for seed in of_it for value in seed]
    with picture(path, 12.0, 2.3 * rows, rows, COLUMNS) as (figure, panels):
        for panel, (name, of_it) in zip(panels, curves.items(), strict=False):
            for mean in means.values():
                panel.plot(mean, color=FAINT, linewidth=0.8)
            for seed in of_it:
                panel.plot(seed, color=color(0), linewidth=0.8, alpha=0.5)
            panel.plot(means[name], color=color(0), linewidth=2)
            panel.set_title(name)
            panel.set_ylim(min(limits), max(limits))
        for panel in panels[len(curves) :]:
            panel.set_visible(False)
        figure.supxlabel("step")
        figure.supylabel(f"mean reward, over {SMOOTHING} steps")


TEXT = """# Each algorithm learns

`python -m minrl sweep docs/algorithms.yaml`: {steps} steps of Countdown with {prompts} prompts and groups of
{group}, each other setting at its default, seeds {seeds}. pass@1 of held-out problems, {samples}
samples at temperature 1 for each figure: the mean over the seeds, and the lowest and the highest.
Before training it is {before} for all, which
start from the same base model. {date}.

A step makes one update here, so every ratio is 1 and no bound is met: rows that differ in nothing else (`grpo`
and `dual_clip`, `dapo` and `cispo`) are the same to the last digit, as they must be.

| algorithm | after | greedy | entropy of the last five steps, nats per token |
|---|---|---|---|
{rows}

![Mean reward of each algorithm, three seeds](algorithms.png)
"""


def main() -> None:
    """Write the page and its picture."""
    runs = read()
    PAGE.write_text(page(runs), encoding="utf-8")
    draw(runs, PICTURE)


if __name__ == "__main__":
    main()
