"""The pictures of an evaluation."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minrl.evaluate.plan import EvaluationPlan
from minrl.report.charts import INK, Axes, bars, color, curve, legend_below, line_style, percent, picture, wrapped

Summary = Mapping[str, Any]
Result = Mapping[str, Any]


def draw_all(plan: EvaluationPlan, summary: Summary, folder: Path) -> list[Path]:
    """Draw every picture that has figures. Pictures of an earlier report are removed."""
    for old in folder.glob("*.png"):
        old.unlink()
    measured = [result for result in summary["results"] if "pass@1" in result]
    drawn: list[Path] = []

    def draw(name: str, function: Callable[[Path, Any], None], figures: Any) -> None:  # noqa: ANN401
        if figures:
            path = folder / f"{name.replace('/', '-')}.png"
            function(path, figures)
            drawn.append(path)

    draw("pass_at_1", _models_and_tasks, measured)
    draw("pass_at_k", _over_k, [result for result in measured if len(result["pass@k"]) > 1])
    draw("steps", _over_steps, _runs(measured))
    draw("differences", _differences, summary["differences"])
    for task in plan.tasks:
        of_task = [result for result in measured if result["task"] == task.name]
        draw(f"parts-{task.name}", _parts, [result for result in of_task if result["parts"]])
        draw(f"categories-{task.name}", _categories, [result for result in of_task if result["by_category"]])
    return drawn


def _unique(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _models_and_tasks(path: Path, measured: Sequence[Result]) -> None:
    """Bars of pass@1 with intervals, a group for each task."""
    tasks, labels = _unique([r["task"] for r in measured]), _unique([r["label"] for r in measured])
    found = {(result["label"], result["task"]): result for result in measured}
    series, bounds = [], []
    for label in labels:
        of_model = [found.get((label, task)) for task in tasks]
        series.append((label, [one["pass@1"] if one else math.nan for one in of_model]))
        bounds.append([tuple(one["ci95"]) if one else None for one in of_model])
    with picture(path, width=min(14.0, 3.5 + 0.6 * len(tasks) * len(labels)), height=4.5) as (figure, (axes,)):
        bars(axes, tasks, series, bounds)
        axes.set_title("pass@1 on held-out examples, with 95 % intervals")
        _shares(axes)
        legend_below(figure, axes, columns=2)


def _shares(axes: Axes) -> None:
    axes.set_ylim(0.0, 1.0)
    percent(axes)


def _over_k(path: Path, measured: Sequence[Result]) -> None:
    """pass@k over k, a panel for each task."""
    tasks, labels = _unique([r["task"] for r in measured]), _unique([r["label"] for r in measured])
    with picture(path, width=1.0 + 4.0 * len(tasks), height=4.2, columns=len(tasks)) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            for result in (one for one in measured if one["task"] == task):
                ks = [float(k) for k in result["pass@k"]]
                values = [figure["value"] for figure in result["pass@k"].values()]
                low, high = zip(*(figure["ci95"] for figure in result["pass@k"].values()), strict=True)
                index = labels.index(result["label"])
                curve(axes, ks, values, (low, high), index, label=result["label"])
            axes.set_xscale("log", base=2)
            axes.set_xticks(ks, [f"{k:g}" for k in ks])
            axes.minorticks_off()
            axes.set_xlabel("k, samples of which one must solve")
            axes.set_title(f"{task}: pass@k")
            _shares(axes)
        legend_below(figure, panels[0], columns=2)


def _runs(measured: Sequence[Result]) -> dict[str, Any]:
    """The runs with several evaluated checkpoints, and all results; empty if there are none."""
    checkpoints = {(result["run"], result["step"]) for result in measured if "step" in result}
    counts = Counter(run for run, _ in checkpoints)
    runs = [run for run in _unique([result.get("run") for result in measured]) if counts[run] > 1]
    return {"runs": runs, "measured": measured} if runs else {}


def _over_steps(path: Path, figures: Mapping[str, Any]) -> None:
    """pass@1 over the training steps of each run, a panel for each task; other models are horizontal lines."""
    runs, measured = figures["runs"], figures["measured"]
    tasks = _unique([result["task"] for result in measured])
    with picture(path, width=1.0 + 4.5 * len(tasks), height=4.2, columns=len(tasks)) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            of_task = [result for result in measured if result["task"] == task]
            for index, run in enumerate(runs):
                found = sorted((r for r in of_task if r.get("run") == run), key=lambda result: result["step"])
                if not found:  # on this task nothing of the run could be scored
                    continue
                low, high = zip(*(result["ci95"] for result in found), strict=True)
                steps = [float(result["step"]) for result in found]
                values = [result["pass@1"] for result in found]
                curve(axes, steps, values, (low, high), index, label=Path(run).name)
            for index, result in enumerate((r for r in of_task if r.get("run") not in runs), len(runs)):
                style = {**line_style(index), "marker": "none", "linestyle": "--", "linewidth": 1.3}
                axes.axhline(result["pass@1"], label=result["label"], **style)
            axes.set_xlabel("training step")
            axes.set_title(f"{task}: pass@1 over training, 95 % band")
            _shares(axes)
        legend_below(figure, panels[0], columns=2)


def _parts(path: Path, of_task: Sequence[Result]) -> None:
    """Grouped bars of the parts of the reward; parts outside [0, 1] have a panel of their own."""
    names = _unique([name for result in of_task for name in result["parts"]])
    inside = [n for n in names if all(0 <= result["parts"].get(n, 0.0) <= 1 for result in of_task)]
    panels = [group for group in (inside, [name for name in names if name not in inside]) if group]
    width = min(14.0, 3.0 + 0.55 * len(names) * max(2, len(of_task)))
    with picture(path, width=width, height=4.5, columns=len(panels)) as (figure, all_axes):
        for axes, group in zip(all_axes, panels, strict=True):
            bars(axes, group, [(r["label"], [r["parts"].get(name, math.nan) for name in group]) for r in of_task])
            if group is inside:
                axes.set_ylim(0.0, 1.0)
        all_axes[0].set_title(f"{of_task[0]['task']}: mean of each part of the reward")
        legend_below(figure, all_axes[0], columns=2)


def _categories(path: Path, of_task: Sequence[Result]) -> None:
    """A heat map of pass@1 with its numbers, a row for each category and a column for each model."""
    names = _unique([name for result in of_task for name in result["by_category"]])
    cells = [[result["by_category"].get(name) for result in of_task] for name in names]
    width, height = min(14.0, 3.5 + 1.6 * len(of_task)), min(16.0, 1.8 + 0.42 * len(names))
    with picture(path, width, height) as (figure, (axes,)):
        shares = [[math.nan if cell is None else cell["pass@1"] for cell in row] for row in cells]
        image = axes.imshow(shares, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell is not None:
                    ink = INK if cell["pass@1"] > 0.55 else "white"
                    axes.text(x, y, f"{cell['pass@1']:.0%}", ha="center", va="center", color=ink)
        examples = [max(cell["examples"] for cell in row if cell) for row in cells]
        axes.set_yticks(range(len(names)), [f"{name}  (n={n})" for name, n in zip(names, examples, strict=True)])
        axes.set_xticks(range(len(of_task)), [wrapped(result["label"]) for result in of_task])
        axes.grid(visible=False)
        axes.set_title(f"{of_task[0]['task']}: pass@1 by category")
        percent(figure.colorbar(image, ax=axes).ax)


def _differences(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """The paired differences with their intervals, a row for each model and task, around a line at 0."""
    labels = _unique([one["label"] for one in found])
    with picture(path, width=8.0, height=1.6 + 0.45 * len(found)) as (figure, (axes,)):
        for row, one in enumerate(reversed(found)):
            low, high = one["ci95"]
            style = {"color": color(1 + labels.index(one["label"])), "capsize": 4, "fmt": "o", "markersize": 7}
            value = one["difference"]
            axes.errorbar(value, row, xerr=[[value - low], [high - value]], **style)
            axes.annotate(
                f"{100 * value:+.1f}", (value, row), (0, 7), textcoords="offset points", ha="center", fontsize=9
            )
        axes.axvline(0.0, color=INK, linewidth=1.2)
        axes.set_yticks(range(len(found)), [f"{one['task']}: {one['label']}" for one in reversed(found)])
        axes.set_ylim(-0.6, len(found) - 0.4)
        percent(axes, "x")
        axes.set_xlabel("on the same examples, 95 % interval")
        title = f"pass@1 minus that of {found[0]['baseline_label']}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
