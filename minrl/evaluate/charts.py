"""The four charts of an evaluation: pass@1, pass@k, pass@1 over training steps, and paired differences."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from minrl.report.charts import INK, Axes, bars, color, curve, legend_below, line_style, percent, picture


def draw(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw every chart that has figures, from the table that `report.frame_of` makes."""
    whole = frame[frame.category == ""]
    pass_at_1, pass_at_k = whole[whole.figure == "pass@1"], whole[whole.figure.str.fullmatch(r"pass@\d+")]
    steps = pass_at_1[pass_at_1.step.notna()].groupby("run").step.nunique()
    charts: dict[str, tuple[Callable[[Path, pd.DataFrame], None], pd.DataFrame]] = {
        "pass_at_1": (_pass_at_1, pass_at_1),
        "pass_at_k": (_pass_at_k, pass_at_k if pass_at_k.figure.nunique() > 1 else pass_at_k[:0]),
        "steps": (_over_steps, pass_at_1 if (steps > 1).any() else pass_at_1[:0]),
        "differences": (_differences, whole[whole.baseline.notna()]),
    }
    drawn = {folder / f"{name}.png": chart for name, chart in charts.items() if len(chart[1])}
    for path, (function, figures) in drawn.items():
        function(path, figures)
    return list(drawn)


def _pass_at_1(path: Path, figures: pd.DataFrame) -> None:
    """Bars with intervals, a group for each task."""
    tasks, labels = list(figures.task.unique()), list(figures.label.unique())
    found = {(one.label, one.task): one for one in figures.itertuples()}
    rows = [[found.get((label, task)) for task in tasks] for label in labels]
    heights = [[math.nan if one is None else one.value for one in row] for row in rows]
    bounds = [[None if one is None else (one.low, one.high) for one in row] for row in rows]
    with picture(path, width=min(14.0, 3.5 + 0.6 * len(tasks) * len(labels)), height=4.5) as (figure, (axes,)):
        bars(axes, tasks, list(zip(labels, heights, strict=True)), bounds)
        axes.set_title("pass@1 on held-out examples, with 95 % intervals")
        _shares(axes)
        legend_below(figure, axes, columns=2)


def _shares(axes: Axes) -> None:
    axes.set_ylim(0.0, 1.0)
    percent(axes)


def _pass_at_k(path: Path, figures: pd.DataFrame) -> None:
    """pass@k over k, a panel for each task."""
    tasks, labels = list(figures.task.unique()), list(figures.label.unique())
    figures = figures.assign(k=figures.figure.str.removeprefix("pass@").astype(float))
    with picture(path, width=1.0 + 4.0 * len(tasks), height=4.2, columns=len(tasks)) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            of_task = figures[figures.task == task]
            for label, found in of_task.groupby("label", sort=False):
                curve(axes, found.k, found.value, (found.low, found.high), labels.index(label), label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted(of_task.k.unique()), [f"{k:g}" for k in sorted(of_task.k.unique())])
            axes.minorticks_off()
            axes.set_xlabel("k, samples of which one must solve")
            axes.set_title(f"{task}: pass@k")
            _shares(axes)
        legend_below(figure, panels[0], columns=2)


def _over_steps(path: Path, figures: pd.DataFrame) -> None:
    """pass@1 over the training steps of each run, a panel for each task; other models are horizontal lines."""
    tasks, runs = list(figures.task.unique()), list(figures.run.dropna().unique())
    others = list(figures[figures.step.isna()].label.unique())
    with picture(path, width=1.0 + 4.5 * len(tasks), height=4.2, columns=len(tasks)) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            of_task = figures[figures.task == task]
            for run, found in of_task[of_task.step.notna()].sort_values("step").groupby("run", sort=False):
                steps = found.step.astype(float)
                curve(axes, steps, found.value, (found.low, found.high), runs.index(run), label=Path(run).name)
            for other in of_task[of_task.step.isna()].itertuples():
                style = {**line_style(len(runs) + others.index(other.label)), "marker": "none", "linestyle": "--"}
                axes.axhline(other.value, label=other.label, **style, linewidth=1.3)
            axes.set_xlabel("training step")
            axes.set_title(f"{task}: pass@1")
            _shares(axes)
        legend_below(figure, panels[0], columns=2)


def _differences(path: Path, figures: pd.DataFrame) -> None:
    """The paired differences with their intervals, a row for each model and task, around a line at 0."""
    labels, names = list(figures.label.unique()), [f"{one.task}: {one.label}" for one in figures.itertuples()]
    with picture(path, width=8.0, height=1.6 + 0.45 * len(figures)) as (figure, (axes,)):
        for row, one in enumerate(figures[::-1].itertuples()):
            style = {"color": color(1 + labels.index(one.label)), "capsize": 4, "fmt": "o", "markersize": 7}
            axes.errorbar(one.value, row, xerr=[[one.value - one.low], [one.high - one.value]], **style)
            text = f"{100 * one.value:+.1f}"
            axes.annotate(text, (one.value, row), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axes.axvline(0.0, color=INK, linewidth=1.2)
        axes.set_yticks(range(len(names)), names[::-1])
        axes.set_ylim(-0.6, len(names) - 0.4)
        percent(axes, "x")
        axes.set_xlabel("on the same examples, 95 % interval")
        title = f"pass@1 minus that of {figures.baseline.iloc[0]}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
