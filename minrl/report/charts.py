"""What every picture of the project has in common: one look, one palette, one way to disk.

Colours are Okabe and Ito's, which colour-blind readers tell apart (https://jfly.uni-koeln.de/color/); lines differ in
their dashes and markers too. matplotlib is imported when the first picture is made: reading numbers needs none.
"""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minrl.system.files import whole
from minrl.types import UserError

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
INK, FAINT = "#262626", "#D9D9D9"

Figure = Any
Axes = Any
"""matplotlib's own, which is not imported to say so."""

STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that pictures look alike everywhere
    "text.color": INK,
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


def available() -> bool:
    """Whether pictures can be drawn here."""
    return find_spec("matplotlib") is not None


def require_matplotlib(what: str) -> None:
    """Refuse in one line what needs pictures where matplotlib is missing."""
    if not available():
        raise UserError(f"{what} needs matplotlib, which is not installed: pip install matplotlib")


@contextlib.contextmanager
def picture(
    path: Path, width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure (inches) and its axes, row by row; leaving the block writes the PNG at `path`, whole or not at all.

    The style holds inside the block only, and no display or global state of matplotlib is touched.
    """
    require_matplotlib(f"the picture {path.name}")
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
    """The colour of the series of that number, again from the first after the last."""
    return PALETTE[index % len(PALETTE)]


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of the series of that number: no two of 32 look the same."""
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
    """A line, and around it a pale band from its lower to its upper bound."""
    axes.plot(x, y, **{**line_style(index), **options})
    if band is not None:
        axes.fill_between(x, *band, color=color(index), alpha=0.18, linewidth=0)


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    bounds: Sequence[Sequence[tuple[float, float] | None]] | None = None,
) -> None:
    """Grouped bars: for each group one bar of each (label, heights), NaN for none. `bounds` are the intervals' ends."""
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
    """The axis shows shares as percentages, with as many decimals as its ticks need."""
    from matplotlib.ticker import PercentFormatter

    (axes.yaxis if which == "y" else axes.xaxis).set_major_formatter(PercentFormatter(1.0))


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """One legend for the whole figure, under it, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def wrapped(label: str, width: int = 18) -> str:
    """A label in several lines, broken where words and paths allow."""
    spaced = label.replace("/", "/ ").replace("_", "_ ").replace("-", "- ")
    lines = textwrap.wrap(spaced, width, break_long_words=True)
    return "\n".join(line.replace("/ ", "/").replace("_ ", "_").replace("- ", "-") for line in lines)
