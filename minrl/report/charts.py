"""Charts: the style of all pictures, and the charts of a report as SVG that follows a dark screen.

The colours are Okabe and Ito's, for colour-blind readers (https://jfly.uni-koeln.de/color/); lines also differ in
dashes and markers. matplotlib is imported with the first picture.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from minrl.report.runs import Group, mean, smoothed
from minrl.utils.files import atomic_write
from minrl.utils.text import printable

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
INK, EDGE, FAINT = "#262626", "#808080", "#D9D9D9"

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
    "axes.edgecolor": EDGE,
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
def _figure(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    style: Any = STYLE,  # noqa: ANN401 - what matplotlib knows
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure (inches) and its axes, row by row, in our style. No display or global state of matplotlib is used."""
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure

    with matplotlib.rc_context(style):
        figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)


@contextlib.contextmanager
def picture(
    path: Path, width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """The same; the end of the block writes a PNG to `path`, whole or not at all."""
    with _figure(width, height, rows, columns) as (figure, axes):
        yield figure, axes
        with atomic_write(path, "wb") as file:
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


def percent(axes: Axes, which: str = "y") -> None:
    """Show shares as percentages on the axis, with as many decimals as its ticks need."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 6) + 0.0:g}%")  # + 0.0: no minus before a zero


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put one legend for the whole figure below it."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


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
    ("memory, GiB", "system/memory_gib", "linear"),
    ("memory of the GPU, GiB", "system/device_memory_gib", "linear"),
    ("processor, % of the cores", "system/cpu_percent", "linear"),
)
"""Title, tag and scale of the charts beside the held-out scores, in their order."""

ROUND = (1, 2, 2.5, 5, 10)
"""Distances of ticks, times a power of ten."""

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


class Chart(NamedTuple):
    """A chart of a report, and what draws it on axes."""

    title: str
    draw: Callable[[Axes], None]


def svg(chart: Chart) -> str:
    """A chart as SVG for HTML with `THEME`."""
    style = {**STYLE, "svg.fonttype": "none", "svg.hashsalt": "minrl", "font.family": "sans-serif"}
    with warnings.catch_warnings(), _figure(4.4, 2.6, style=style) as (figure, (axes,)):
        warnings.simplefilter("ignore", UserWarning)  # of letters that our font lacks and the browser's has
        axes.set_title(_shown(chart.title))
        chart.draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    shades = {**{shade: f"c{number}" for number, shade in enumerate(PALETTE)}, FAINT: "faint", INK: "ink", EDGE: "ink"}
    for shade, name in shades.items():
        text = re.sub(shade, f"var(--{name})", text, flags=re.IGNORECASE)
    return text


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
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=axis == "step"))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    low, high = axes.get_ylim()
    if scale == "log" and high > 10 * axes.dataLim.minposy:  # within a decade its labels would repeat
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the usual one needs mathtext
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
    if scale == "share":
        axes.set_ylim(max(low, -0.03 * high), min(high, 1.03))
        percent(axes)


def _shown(label: str, most: int = 66) -> str:
    """A printable label that fits, with its end, where the seed is."""
    label = printable(label)
    return label if len(label) <= most else f"{label[: most // 2 - 1]}…{label[-most // 2 :]}"
