"""The report's pictures: curves of all runs, scores before and after, and where the seconds go."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from minrl.report.charts import Axes, bars, color, curve, legend_below, percent, picture, wrapped
from minrl.report.runs import RunData, smoothed

PANELS = (
    ("reward", "reward/mean", "linear"),
    ("share of rollouts solved", "reward/solved_frac", "share"),
    ("tokens of a completion", "rollout/completion_tokens_mean", "linear"),
    ("share truncated", "rollout/truncated_frac", "share"),
    ("entropy of the policy, nats", "policy/entropy", "linear"),
    ("loss of held-out rows, nats", "sft/held_out_loss", "linear"),
    ("loss, nats", "sft/loss", "linear"),
    ("gap of engine and policy, nats", "engine/logprob_gap_mean", "log"),
    ("gradient norm", "policy/grad_norm", "linear"),
)
"""Title, tag and scale of the panels beside the held-out score, in the order in which they are wanted."""

MOST_PANELS = 6
BAR_GREY = "#404040"


def draw(runs: Sequence[RunData], folder: Path, smoothing: float) -> dict[str, str]:
    """All pictures that the runs have numbers for: file names by caption."""
    made = {f"Curves, smoothed with weight {smoothing:g}": curves(runs, folder / "curves.png", smoothing)}
    if any(run.tasks for run in runs):
        made["Held-out pass@1 before and after, with 95 % intervals"] = before_and_after(runs, folder / "scores.png")
    if any(run.seconds_by_phase() for run in runs):
        made["Seconds of a step by phase"] = seconds(runs, folder / "seconds.png")
    return {what: path.name for what, path in made.items()}


def curves(runs: Sequence[RunData], path: Path, smoothing: float) -> Path:
    """Up to six panels: reward, held-out score of each task with its interval, and further tags."""
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))[: MOST_PANELS - 1]
    drawn = [panel for panel in PANELS if any(len(run.curve(panel[1])[0]) > 1 for run in runs)]
    drawn = drawn[: MOST_PANELS - len(tasks)]
    count = max(1, len(drawn) + len(tasks))
    columns = min(3, count)
    rows = math.ceil(count / columns)
    with picture(path, 4.2 * columns, 3.0 * rows + 0.5, rows, columns) as (figure, axes):
        for position, one in enumerate(axes[:count]):
            if 1 <= position <= len(tasks) or not drawn:  # the held-out score comes second
                _score_panel(one, runs, tasks[max(0, position - 1)]) if tasks else one.set_axis_off()
            else:
                title, tag, scale = drawn.pop(0)
                _tag_panel(one, runs, tag, smoothing, scale)
                one.set_title(title)
        for rest in axes[count:]:
            rest.set_axis_off()
        for one in axes[max(0, count - columns) : count]:
            one.set_xlabel("step")
        legend_below(figure, axes[0])
    return path


def _tag_panel(axes: Axes, runs: Sequence[RunData], tag: str, smoothing: float, scale: str) -> None:
    """The smoothed curve of each run over its raw one."""
    for index, run in enumerate(runs):
        steps, values = run.curve(tag)
        axes.plot(steps, values, color=color(index), alpha=0.22, linewidth=0.9)
        curve(axes, steps, smoothed(values, smoothing), index=index, marker="", label=run.name)
    if scale == "share":
        percent(axes)
    if scale == "log" and any(value > 0 for run in runs for value in run.curve(tag)[1]):
        axes.set_yscale("log")


def _score_panel(axes: Axes, runs: Sequence[RunData], task: str) -> None:
    """The held-out score of each run with its interval, as it was measured."""
    for index, run in enumerate(runs):
        scores = run.scores(task)
        band = [score.low for score in scores], [score.high for score in scores]
        steps, values = [float(score.step) for score in scores], [score.pass_at_1 for score in scores]
        curve(axes, steps, values, band, index, label=run.name)
    axes.set_title(f"held-out pass@1 of {task}")
    percent(axes)


def before_and_after(runs: Sequence[RunData], path: Path) -> Path:
    """For each task a panel, for each run the held-out score before the first step and the last one after it."""
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    width = min(12.0, max(4.5, 1.6 + 1.5 * len(runs)))
    with picture(path, width, 3.4 * len(tasks) + 0.4, len(tasks), 1) as (figure, axes):
        for one, task in zip(axes, tasks, strict=True):
            sides = list(zip(*(run.before_and_after(task) for run in runs), strict=True))
            heights = [[math.nan if score is None else score.pass_at_1 for score in side] for side in sides]
            bounds = [[None if score is None else (score.low, score.high) for score in side] for side in sides]
            names = [run.name for run in runs]
            bars(one, names, [("before", heights[0]), ("after", heights[1])], bounds)
            one.set_title(f"held-out pass@1 of {task}, 95 % interval")
            one.set_ylim(0, 1)
            percent(one)
        legend_below(figure, axes[0])
    return path


def seconds(runs: Sequence[RunData], path: Path) -> Path:
    """For each run a bar of the phases of a step, the longest first, with the whole beside it."""
    shares = [_without_crumbs(run.seconds_by_phase()) for run in runs]
    totals = {phase: sum(share.get(phase, 0.0) for share in shares) for share in shares for phase in share}
    whole = [sum(share.values()) for share in shares]
    phases = sorted(totals, key=lambda phase: -totals[phase])
    with picture(path, 8.0, 1.6 + 0.6 * len(runs)) as (figure, (axes,)):
        left = [0.0] * len(runs)
        for index, phase in enumerate(phases):
            widths = [share.get(phase, 0.0) for share in shares]
            axes.barh(range(len(runs)), widths, 0.6, left=left, label=phase, color=color(index), zorder=2)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, total in enumerate(whole):
            axes.text(total, place, f" {total:.2f} s", va="center", color=BAR_GREY)
        axes.set_yticks(range(len(runs)), [wrapped(run.name, 28) for run in runs])
        axes.set_xlim(0, 1.12 * max([*whole, 1e-9]))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title("seconds of a step")
        legend_below(figure, axes, columns=5)
    return path


def _without_crumbs(phases: Mapping[str, float]) -> dict[str, float]:
    """The phases, with those below 1 % of the step added to `other`."""
    whole = sum(phases.values())
    seen = {phase: value for phase, value in phases.items() if value >= 0.01 * whole and phase != "other"}
    return {**seen, "other": whole - sum(seen.values())}
