"""Charts: the style of all pictures, and the charts of a report as SVG that follows a dark screen.

The colours are Okabe and Ito's, for colour-blind readers (https://jfly.uni-koeln.de/color/); lines also differ in
dashes and markers. matplotlib is imported with the first picture.
"""

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minrl.report.runs import Group, RunData, Score, mean, smoothed
from minrl.utils.files import whole
from minrl.utils.text import printable

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
INK, FAINT = "#262626", "#D9D9D9"

Figure = Any
Axes = Any
"""matplotlib's types, which are not imported for annotations."""

STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "text.color": INK,
    "text.parse_math": False,  # names of tasks and runs may hold anything
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": "#808080",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

DPI = 150


@contextlib.contextmanager
def picture(
    path: Path, width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure (inches) and its axes, row by row. The end of the block writes a PNG to `path`, whole or not at all.

    The style holds inside the block only. No display or global state of matplotlib is used.
    """
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure

    with matplotlib.rc_context(STYLE):
        figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.flat)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path, "wb") as file:
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})


def color(index: int) -> str:
    """The colour of a series; the palette repeats."""
    return PALETTE[index % len(PALETTE)]


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a series, distinct for 32 series."""
    return {
        "color": color(index),
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(PALETTE) % len(DASHES)],
    }


def curve(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]] | None = None,
    index: int = 0,
    **options: Any,  # noqa: ANN401 - what matplotlib's plot takes
) -> None:
    """Draw a line, and a pale band between its lower and upper bounds."""
    axes.plot(x, y, **{**line_style(index), **options})
    if band is not None:
        axes.fill_between(x, *band, color=color(index), alpha=0.18, linewidth=0)


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    bounds: Sequence[Sequence[tuple[float, float] | None]] | None = None,
) -> None:
    """Draw one bar per group for each (label, heights); NaN draws none. `bounds` are the ends of error bars."""
    width = 0.8 / max(1, len(series))
    for index, (label, heights) in enumerate(series):
        places = [group + (index - (len(series) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, heights, width * 0.92, label=label, color=color(index), zorder=2)
        ends = bounds[index] if bounds is not None else [None] * len(groups)
        for place, height, end in zip(places, heights, ends, strict=True):
            if end is not None:
                below, above = max(0.0, height - end[0]), max(0.0, end[1] - height)
                axes.errorbar(
                    place, height, [[below], [above]], color=INK, capsize=3, linewidth=1.2, linestyle="none", zorder=3
                )
    axes.set_xticks(range(len(groups)), [wrapped(group) for group in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.grid(axis="x", visible=False)


def percent(axes: Axes, which: str = "y") -> None:
    """Show shares as percentages on the axis, with as many decimals as its ticks need."""
    from matplotlib.ticker import PercentFormatter

    (axes.yaxis if which == "y" else axes.xaxis).set_major_formatter(PercentFormatter(1.0))


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put one legend for the whole figure below it."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def wrapped(label: str, width: int = 18) -> str:
    """The label in several lines, broken between words and parts of paths."""
    spaced = label.replace("/", "/ ").replace("_", "_ ").replace("-", "- ")
    lines = textwrap.wrap(spaced, width, break_long_words=True)
    return "\n".join(line.replace("/ ", "/").replace("_ ", "_").replace("- ", "-") for line in lines)


# The charts of a report

PANELS = (
    ("reward", "reward/mean", "linear"),
    ("share of rollouts solved", "reward/solved_frac", "share"),
    ("tokens of a completion", "rollout/completion_tokens_mean", "linear"),
    ("tokens of a solved completion", "rollout/completion_tokens_solved_mean", "linear"),
    ("tokens of an unsolved completion", "rollout/completion_tokens_unsolved_mean", "linear"),
    ("length's part of the reward", "reward/part/length", "linear"),
    ("share truncated", "rollout/truncated_frac", "share"),
    ("entropy of the policy, nats", "policy/entropy", "linear"),
    ("loss of held-out rows, nats", "sft/held_out_loss", "linear"),
    ("loss, nats", "sft/loss", "linear"),
    ("gap of engine and policy, nats", "engine/logprob_gap_mean", "log"),
    ("gradient norm", "policy/grad_norm", "linear"),
    ("sampled tokens per second", "speed/tokens_per_s", "linear"),
    ("peak memory, GiB", "memory/peak_gib", "linear"),
    ("memory, GiB", "system/memory_gb", "linear"),
    ("memory of the GPU, GiB", "system/device_memory_gb", "linear"),
    ("processor, % of the cores", "system/cpu_percent", "linear"),
)
"""Title, tag and scale of the charts beside the held-out scores, in their order."""

FEWEST_FOR_A_BAND = 3
"""Seeds of a mean with a band: the interval of two is 13 standard errors wide and would hide the curves."""

ON_DARK = ("#4DA3FF", "#FF8A4C", "#2BC79B", "#E59CC6", "#F2B63C", "#8FD0F5", "#A8A8A8", "#FFFFFF")


def _variables(ink: str, paper: str, faint: str, palette: Sequence[str]) -> str:
    own = "".join(f"--c{number}:{shade};" for number, shade in enumerate(palette))
    return f":root {{ --ink:{ink}; --paper:{paper}; --faint:{faint}; {own} }}"


THEME = (
    ":root { color-scheme: light dark; }\n"
    f"{_variables(INK, '#fff', FAINT, PALETTE)}\n"
    f"@media (prefers-color-scheme: dark) {{ {_variables('#e6e6e6', '#16181c', '#3a3d44', ON_DARK)} }}\n"
)
"""Style sheet of the colours, on a light and on a dark screen."""

Draw = Callable[[Axes], None]


@dataclass(frozen=True)
class Chart:
    """A chart of a report: what draws it on axes, and its height in inches."""

    title: str
    draw: Draw
    height: float = 2.6


def svg(charts: Sequence[Chart], columns: int = 1, legend: Sequence[str] = ()) -> str:
    """Charts in a grid as one SVG for HTML with `THEME`. `legend` names the colours."""
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.lines import Line2D

    rows = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(chart.height for chart in row) for row in rows]
    size = (4.4 * min(columns, len(charts)), sum(heights) + 0.2 * len(legend))
    style = {**STYLE, "svg.fonttype": "none", "svg.hashsalt": "minrl", "font.family": "sans-serif"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that our font lacks and the browser's has
        figure = MatplotlibFigure(figsize=size, layout="constrained")
        grid = list(figure.subplots(len(rows), min(columns, len(charts)), squeeze=False, height_ratios=heights).flat)
        for chart, axes in zip(charts, grid, strict=False):
            axes.set_title(_shown(chart.title))
            chart.draw(axes)
        for axes in grid[len(charts) :]:
            axes.axis("off")
        keys = [Line2D([], [], **line_style(number), label=_shown(name)) for number, name in enumerate(legend)]
        if keys:
            figure.legend(handles=keys, loc="outside lower left", ncols=1)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for shade, name in (*zip(PALETTE, (f"c{number}" for number in range(len(PALETTE))), strict=True), (FAINT, "faint")):
        text = re.sub(shade, f"var(--{name})", text, flags=re.IGNORECASE)
    return re.sub(f"{INK}|#808080", "var(--ink)", text, flags=re.IGNORECASE)


def standalone(text: str) -> str:
    """An SVG with its own style sheet and background, for a file."""
    paper = f'<style>{THEME}</style><rect width="100%" height="100%" style="fill:var(--paper)"/>'
    return text.replace(">", f">{paper}", 1)


def curves(groups: Sequence[Group], axis: str, smoothing: float) -> list[Chart]:
    """A chart of each tag that the runs have, over `axis` of `AXES`; the held-out scores come second."""
    runs = [run for group in groups for run in group.runs]
    charts = [
        Chart(title, partial(_draw_tag, groups, tag, scale, axis, smoothing))
        for title, tag, scale in PANELS
        if any(len(run.curve(tag)[0]) > 1 for run in runs)
    ]
    tasks = dict.fromkeys(task for run in runs for task in run.tasks)
    scores = [Chart(f"held-out pass@1 of {task}", partial(_draw_scores, groups, task, axis)) for task in tasks]
    return [*charts[:1], *scores, *charts[1:]]


def _draw_tag(groups: Sequence[Group], tag: str, scale: str, axis: str, smoothing: float, axes: Axes) -> None:
    for number, group in enumerate(groups):
        values = []
        for run in group.runs:
            steps, raw = run.curve(tag)
            raw = [value * 1e9 / 2**30 for value in raw] if tag.endswith("_gb") else raw
            values.append(dict(zip(steps, smoothed(raw, smoothing), strict=True)))
            if len(group.runs) == 1:
                x = [run.positions(axis)[step] for step in steps]
                axes.plot(x, raw, color=color(number), linewidth=0.9, alpha=0.3)
        _draw_mean(axes, number, group, axis, values)
    _finish(axes, axis, scale)


def _draw_scores(groups: Sequence[Group], task: str, axis: str, axes: Axes) -> None:
    """Of a single run with its own intervals, of several seeds with that over them."""
    for number, group in enumerate(groups):
        scores = [run.scores(task) for run in group.runs]
        _draw_mean(axes, number, group, axis, [{float(one.step): one.pass_at_1 for one in own} for own in scores])
        if len(group.runs) == 1:
            places, (own,) = group.runs[0].positions(axis), scores
            x = [places[float(one.step)] for one in own]
            axes.plot(x, [one.pass_at_1 for one in own], "o", color=color(number), markersize=4)
            ends = [one.low for one in own], [one.high for one in own]
            axes.fill_between(x, *ends, color=color(number), alpha=0.18, linewidth=0)
    _finish(axes, axis, "share")


def _draw_mean(axes: Axes, number: int, group: Group, axis: str, values: Sequence[Mapping[float, float]]) -> None:
    """The mean over the runs of a group, at the steps that all of them have, with its interval and each run behind."""
    places = [run.positions(axis) for run in group.runs]
    steps = [step for step in values[0] if all(step in one for one in values)]
    means = [mean([one[step] for one in values]) for step in steps]
    x = [sum(place[step] for place in places) / len(places) for step in steps]
    style = {"color": color(number), "linestyle": DASHES[number // len(PALETTE) % len(DASHES)]}
    if len(values) > 1:
        for place, one in zip(places, values, strict=True):
            axes.plot([place[step] for step in one], list(one.values()), linewidth=0.9, alpha=0.3, **style)
    axes.plot(x, [one.value for one in means], **style)
    if len(values) >= FEWEST_FOR_A_BAND and means:
        low, high = axes.get_ylim()
        reach = (high - low) / 2  # the band of a few seeds may be far wider than the lines
        ends = [one.low for one in means], [one.high for one in means]
        axes.fill_between(x, *ends, color=color(number), alpha=0.18, linewidth=0, gid="band")
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low - reach), min(top, high + reach))


def _finish(axes: Axes, axis: str, scale: str) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter

    axes.set_xlabel(axis)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=axis == "step"))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    low, high = axes.get_ylim()
    if scale == "log" and high > 10 * axes.dataLim.minposy:  # within a decade its labels would repeat
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the usual one needs mathtext
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if scale == "share":
        axes.set_ylim(max(low, -0.03), min(high, 1.03))
        percent(axes)


def before_and_after(runs: Sequence[RunData]) -> list[Chart]:
    """For each task a chart with two bars a run: the score before the first step, and the last one after it."""
    charts = []
    for task in dict.fromkeys(task for run in runs for task in run.tasks):
        rows = [
            (f"{when}: {run.name}", score, number)
            for run in runs
            for number, (when, score) in enumerate(zip(("before", "after"), run.before_and_after(task), strict=True))
            if score is not None
        ]
        title = f"held-out pass@1 of {task}, 95 % interval"
        charts.append(Chart(title, partial(_draw_before_and_after, rows), 0.6 + 0.5 * len(rows)))
    return charts


def _draw_before_and_after(rows: Sequence[tuple[str, Score, int]], axes: Axes) -> None:
    for place, (label, score, number) in enumerate(rows):
        error = [[score.pass_at_1 - score.low], [score.high - score.pass_at_1]]
        axes.barh(place, score.pass_at_1, 0.45, color=color(number), xerr=error, ecolor=INK, capsize=3, zorder=2)
        axes.text(max(score.high, score.pass_at_1) + 0.02, place, f"{score.pass_at_1:.1%}", va="center", fontsize=9)
        _label(axes, place, label)
    axes.set_xlim(0, 1.18)
    axes.axis("off")


def seconds(runs: Sequence[RunData]) -> list[Chart]:
    """A chart with a bar for each run: the phases of a step, the longest first; none without times."""
    shares = [_without_crumbs(run.seconds_by_phase()) for run in runs]
    if not any(shares):
        return []
    totals = {phase: sum(share.get(phase, 0.0) for share in shares) for share in shares for phase in share}
    phases = sorted(totals, key=lambda phase: -totals[phase])

    def draw(axes: Axes) -> None:
        for place, (run, share) in enumerate(zip(runs, shares, strict=True)):
            left = 0.0
            for number, phase in enumerate(phases):
                label = phase if place == 0 else None
                axes.barh(place, share.get(phase, 0.0), 0.45, left=left, color=color(number), label=label, zorder=2)
                left += share.get(phase, 0.0)
            axes.text(left, place, f" {left:.2f} s", va="center", fontsize=9)
            _label(axes, place, run.name)
        axes.margins(x=0.18)
        axes.axis("off")
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=4)

    return [Chart("seconds of a step", draw, 1.1 + 0.5 * len(runs))]


def _label(axes: Axes, place: int, label: str) -> None:
    """A label above a bar; the first bar is at the top."""
    axes.text(0, place - 0.29, _shown(label), va="bottom", fontsize=9)
    axes.set_ylim(place + 0.5, -0.7)


def _shown(label: str, most: int = 66) -> str:
    """A printable label that fits, with its end, where the seed is."""
    label = printable(label)
    return label if len(label) <= most else f"{label[: most // 2 - 1]}…{label[-most // 2 :]}"


def _without_crumbs(phases: Mapping[str, float]) -> dict[str, float]:
    """The phases, with those below 1 % of the step added to `other`."""
    whole = sum(phases.values())
    seen = {phase: value for phase, value in phases.items() if value >= 0.01 * whole and phase != "other"}
    return {**seen, "other": whole - sum(seen.values())} if whole else {}
