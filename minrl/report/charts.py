"""Charts: the style of all pictures, and the curves of runs.

Colours are those of matplotlib's `tableau-colorblind10`. matplotlib is imported with the first picture.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from minrl.report.runs import Group, mean, smoothed
from minrl.utils.files import atomic_write
from minrl.utils.text import printable

Figure = Any
Axes = Any
"""matplotlib's types, which are not imported for annotations."""

STYLE: Any = (
    "seaborn-v0_8-whitegrid",
    "tableau-colorblind10",
    {
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
        "text.parse_math": False,  # names of tasks and runs may hold anything
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.dpi": 150,
        "svg.fonttype": "none",
        "svg.hashsalt": "minrl",
    },
)

COLOURS = 10
"""Colours of the style, which repeat."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")


@contextmanager
def picture(
    target: Path | io.BytesIO, width: float = 8.0, height: float = 4.5, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure (inches) and its axes in our style. The end of the block writes a PNG to a path, whole or not at all, or
    an SVG to a buffer. No display or global state of matplotlib is used.
    """
    from matplotlib import style
    from matplotlib.figure import Figure as MatplotlibFigure

    with style.context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that our font lacks
        figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(1, columns, squeeze=False).flat)
        if isinstance(target, io.BytesIO):
            figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        else:
            with atomic_write(target, "wb") as file:
                figure.savefig(file, format="png", metadata={"Software": None})


def color(index: int) -> str:
    """The colour of a series."""
    return f"C{index % COLOURS}"


def hex_colours() -> list[str]:
    """The style's colours for style sheets."""
    from matplotlib import style

    return style.library[STYLE[1]]["axes.prop_cycle"].by_key()["color"]


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a series, distinct for 40 series."""
    return {
        "color": color(index),
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // COLOURS % len(DASHES)],
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
        axes.fill_between(x, *band, color=color(index), alpha=0.18, linewidth=0, gid="band")


def percent(axes: Axes, which: str = "y") -> None:
    """Show shares as percentages on the axis, with as many decimals as its ticks need."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 6) + 0.0:g}%")  # + 0.0: no minus before a zero


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put one legend for the whole figure below it."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


# The curves of runs


class Chart(NamedTuple):
    """A curve of runs: its title, its tag, and the scale of its values."""

    title: str
    tag: str
    scale: str = "linear"

    @property
    def file(self) -> str:
        """The name of its picture."""
        return f"{self.tag.replace('/', '_').replace('@', '_at_')}.png"


CHARTS = (
    Chart("reward", "reward/mean"),
    Chart("share of rollouts solved", "reward/solved_frac", "share"),
    Chart("tokens of a completion", "rollout/completion_tokens_mean"),
    Chart("share truncated", "rollout/truncated_frac", "share"),
    Chart("entropy of the policy, nats", "policy/entropy"),
    Chart("loss of held-out rows, nats", "sft/held_out_loss"),
    Chart("loss, nats", "sft/loss"),
    Chart("gap of engine and policy, nats", "engine/logprob_gap_mean", "log"),
    Chart("gradient norm", "policy/grad_norm"),
    Chart("sampled tokens per second", "speed/tokens_per_s"),
    Chart("peak memory, GiB", "memory/peak_gib"),
)
"""The charts beside the held-out scores, in their order."""

FEWEST_FOR_A_BAND = 3
"""Seeds of a mean with a band: the interval of two is 13 standard errors wide and would hide the curves."""


def charts_of(groups: Sequence[Group]) -> list[Chart]:
    """A chart of each tag that the runs have; the held-out scores come second."""
    runs = [run for group in groups for run in group.runs]
    charts = [chart for chart in CHARTS if any(len(run.curve(chart.tag)) > 1 for run in runs)]
    tasks = dict.fromkeys(task for run in runs for task in run.tasks)
    scores = [Chart(f"held-out pass@1 of {task}", f"eval/{task}/pass@1", "score") for task in tasks]
    return [*charts[:1], *scores, *charts[1:]]


def svg(chart: Chart, groups: Sequence[Group], axis: str, smoothing: float) -> str:
    """A chart as SVG for HTML."""
    out = io.BytesIO()
    with picture(out, 4.4, 2.6) as (_, (axes,)):
        draw(axes, chart, groups, axis, smoothing)
    text = out.getvalue().decode()
    return text[text.index("<svg") :]


def draw(axes: Axes, chart: Chart, groups: Sequence[Group], axis: str, smoothing: float) -> None:
    """Draw a tag of the groups over `axis`: the mean over seeds at the steps that all have, with Student's
    interval from three seeds on, and each seed behind. A single run's score has its own interval.
    """
    is_score = chart.scale == "score"
    for number, group in enumerate(groups):
        places, alone = [run.positions(axis) for run in group.runs], len(group.runs) == 1
        raw = [run.curve(chart.tag) for run in group.runs]
        smooth = [dict(zip(one, smoothed([*one.values()], 0.0 if is_score else smoothing), strict=True)) for one in raw]
        for place, one in zip(places, raw if alone else smooth, strict=True):
            axes.plot([place[step] for step in one], [*one.values()], color=color(number), linewidth=0.9, alpha=0.3)
        steps = [step for step in smooth[0] if all(step in one for one in smooth)]
        x = [sum(place[step] for place in places) / len(places) for step in steps]
        means = [mean([one[step] for one in smooth]) for step in steps]
        band = None
        if alone and is_score:
            low, high = (group.runs[0].curve(f"{chart.tag}_{end}") for end in ("low", "high"))
            band = [low[step] for step in steps], [high[step] for step in steps]
        elif len(group.runs) >= FEWEST_FOR_A_BAND:
            band = [low for _, low, _ in means], [high for *_, high in means]
        marker = "o" if is_score else ""
        curve(axes, x, [value for value, *_ in means], band, number, marker=marker, markersize=4, label=group.name)
    axes.set_title(printable(chart.title))
    axes.set_xlabel(axis)
    axes.locator_params(axis="x", nbins=5, integer=True)
    if chart.scale == "log" and axes.get_ylim()[1] > 10 * axes.dataLim.minposy:  # within a decade labels would repeat
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter("{x:g}")  # the usual one needs mathtext
        axes.yaxis.set_minor_formatter("")
    if chart.scale in ("share", "score"):
        percent(axes)
