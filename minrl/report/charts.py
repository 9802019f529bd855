"""The style of all pictures, and how they are written.

The colours are Okabe and Ito's, for colour-blind readers (https://jfly.uni-koeln.de/color/); lines also differ in
dashes and markers. matplotlib is imported with the first picture.
"""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minrl.types import require
from minrl.utils.files import whole

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
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require_matplotlib(what: str) -> None:
    """Raise `UserError` if matplotlib is missing."""
    require(available(), f"{what} needs matplotlib, which is not installed: pip install matplotlib")


@contextlib.contextmanager
def picture(
    path: Path, width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure (inches) and its axes, row by row. The end of the block writes a PNG to `path`, whole or not at all.

    The style holds inside the block only. No display or global state of matplotlib is used.
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
