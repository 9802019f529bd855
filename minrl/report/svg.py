"""Charts as SVG: lines with bands, and bars. Their colours are in a style sheet, so that they follow a dark screen.

The colours are Okabe and Ito's, for colour-blind readers (https://jfly.uni-koeln.de/color/), brighter on a dark screen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minrl.report.charts import PALETTE
from minrl.utils.text import html_text

ON_DARK = ("#4DA3FF", "#FF8A4C", "#2BC79B", "#E59CC6", "#F2B63C", "#8FD0F5", "#A8A8A8", "#FFFFFF")
WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 30, 36
MOST_POINTS = 400
"""Points of a drawn line; a chart is not wider."""


def _colors(palette: Sequence[str]) -> str:
    return "".join(f"--c{number}:{color};" for number, color in enumerate(palette))


STYLE = f"""
:root {{ color-scheme: light dark; --ink:#262626; --paper:#fff; --faint:#d9d9d9; {_colors(PALETTE)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink:#e6e6e6; --paper:#16181c; --faint:#3a3d44; {_colors(ON_DARK)} }}
}}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--ink); }}
svg text.title {{ font-size: 13px; font-weight: 600; }}
svg .grid {{ stroke: var(--faint); fill: none; }}
svg .whisker {{ stroke: var(--ink); fill: none; }}
svg .line {{ fill: none; stroke-width: 1.8; stroke-linejoin: round; }}
svg .raw {{ stroke-width: .9; opacity: .3; }}
svg .band {{ opacity: .18; }}
"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A line of a chart, the pale band around it and the faint lines behind it, in the colour of its number."""

    number: int
    line: Points
    band: Sequence[tuple[float, float, float]] = ()
    """x, lower and upper end."""
    behind: Sequence[Points] = ()
    dots: bool = False


@dataclass(frozen=True)
class Bar:
    """A horizontal bar of parts, each a length and the number of its colour, with its label above and a text behind."""

    label: str
    parts: Sequence[tuple[float, int]]
    text: str
    interval: tuple[float, float] | None = None


def chart(title: str, curves: Sequence[Curve], x_label: str, scale: str, kind: str = "") -> str:
    """A chart of lines. `scale` is linear, share (of 1, shown as percentages) or log; `kind` is a class of the SVG."""
    log = scale == "log"
    up: Callable[[float], float] = (lambda value: math.log10(max(value, 1e-300))) if log else float
    lines = [points for curve in curves for points in (curve.line, *curve.behind)]
    drawn = [(x, y) for points in lines for x, y in points if not log or y > 0]
    low_x, high_x = _ends([x for x, _ in drawn])
    low, high = _ends([up(y) for _, y in drawn])
    reach = (high - low) / 2  # bands of two or three seeds may be far wider than the lines
    banded = [up(end) for curve in curves for _, *ends in curve.band for end in ends]
    low, high = max([low - reach, min([low, *banded])]), min([high + reach, max([high, *banded])])

    def place(x: float, y: float) -> str:
        right = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        below = TOP + (high - min(max(up(y), low), high)) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{right:.1f},{below:.1f}"

    body = [_axes(title, x_label, (low_x, high_x), (low, high), scale)]
    for curve in curves:
        color, dashes = f"var(--c{curve.number % len(PALETTE)})", curve.number // len(PALETTE) * 4
        dashed = f' stroke-dasharray="{dashes} 3"' if dashes else ""
        if curve.band:
            ends = [place(x, y) for x, _, y in _thin(curve.band)] + [place(x, y) for x, y, _ in _thin(curve.band)[::-1]]
            body.append(f'<polygon class="band" style="fill:{color}" points="{" ".join(ends)}"/>')
        for name, points in [*(("line raw", points) for points in curve.behind), ("line", curve.line)]:
            seen = [place(x, y) for x, y in _thin(points) if not log or y > 0]
            body.append(f'<polyline class="{name}" style="stroke:{color}"{dashed} points="{" ".join(seen)}"/>')
        for x, y in curve.line if curve.dots else ():
            across, down = place(x, y).split(",")
            body.append(f'<circle cx="{across}" cy="{down}" r="2.6" style="fill:{color}"/>')
    return _svg(WIDTH, HEIGHT, title, body, kind)


def bars(title: str, rows: Sequence[Bar], limit: float, legend: Sequence[str] = ()) -> str:
    """A chart of horizontal bars from 0 to `limit`. `legend` names the colours of the parts."""
    body, y, wide = [f'<text class="title" x="8" y="18">{html_text(title)}</text>'], 34, WIDTH - 80
    for row in rows:
        body.append(f'<text x="8" y="{y + 8}">{html_text(_cut(row.label))}</text>')
        left = 8.0
        for length, number in row.parts:
            width, color = length / limit * wide, f"var(--c{number % len(PALETTE)})"
            body.append(f'<rect x="{left:.1f}" y="{y + 13}" width="{width:.1f}" height="14" style="fill:{color}"/>')
            left += width
        if row.interval is not None:
            low, high = (8 + end / limit * wide for end in row.interval)
            body.append(
                f'<path class="whisker" d="M{low:.1f} {y + 20}H{high:.1f}M{low:.1f} {y + 16}v8M{high:.1f} {y + 16}v8"/>'
            )
            left = max(left, high)
        body.append(f'<text x="{left + 5:.1f}" y="{y + 24}">{html_text(row.text)}</text>')
        y += 36
    for number, name in enumerate(legend):
        body.append(_key(8 + number % 3 * 136, y + number // 3 * 16, number, name))
    return _svg(WIDTH, y + 16 * math.ceil(len(legend) / 3) + 4, title, body)


def sheet(charts: Sequence[str], legend: Sequence[str]) -> str:
    """A whole SVG file: charts in up to three columns, and a legend below them."""
    columns = min(3, len(charts))
    rows = math.ceil(len(charts) / columns)
    body = [f"<style>{STYLE}</style>", '<rect width="100%" height="100%" style="fill:var(--paper)"/>']
    for number, one in enumerate(charts):
        place = (
            f'<svg x="{number % columns * WIDTH}" y="{number // columns * HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        )
        body.append(one.replace("<svg ", place, 1))
    height = rows * HEIGHT + 16 * len(legend)
    body += [_key(12, rows * HEIGHT + 16 * number, number, name) for number, name in enumerate(legend)]
    return _svg(columns * WIDTH, height, "", body, file=True)


def alone(one: str) -> str:
    """A whole SVG file of one chart."""
    start, _, body = one.partition(">")
    width, height = (1.5 * int(size) for size in start.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    paper = f'<style>{STYLE}</style><rect width="100%" height="100%" style="fill:var(--paper)"/>'
    return f'{start} xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">{paper}{body}'


def _svg(width: int, height: int, title: str, body: Sequence[str], kind: str = "", file: bool = False) -> str:
    own = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"' if file else ""
    kind = f' class="{kind}"' if kind else ""
    name = f"<title>{html_text(title)}</title>" if title else ""
    return f'<svg viewBox="0 0 {width} {height}" role="img"{own}{kind}>{name}{"".join(body)}</svg>'


def _axes(title: str, x_label: str, x: tuple[float, float], y: tuple[float, float], scale: str) -> str:
    """Title, grid, ticks and the label of the x axis."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<text class="title" x="{LEFT}" y="18">{html_text(title)}</text>']
    for tick, text in ticks(*y, scale):
        down = TOP + (y[1] - tick) / (y[1] - y[0]) * (bottom - TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {down:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{text}</text>')
    for tick, text in ticks(*x, "linear"):
        across = LEFT + (tick - x[0]) / (x[1] - x[0]) * (right - LEFT)
        parts.append(f'<path class="grid" d="M{across:.1f} {bottom}v4"/>')
        parts.append(f'<text x="{across:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{html_text(x_label)}</text>')
    return "".join(parts)


def ticks(low: float, high: float, scale: str) -> list[tuple[float, str]]:
    """Up to six round numbers between two others, and how they are written; those of a log axis are exponents.

    >>> ticks(0.0, 150.0, "linear")
    [(0.0, '0'), (50.0, '50'), (100.0, '100'), (150.0, '150')]
    >>> ticks(0.4, 0.6, "share")
    [(0.4, '40%'), (0.45, '45%'), (0.5, '50%'), (0.55, '55%'), (0.6, '60%')]
    >>> ticks(-6.6, -3.9, "log")
    [(-6.0, '1e-06'), (-5.0, '1e-05'), (-4.0, '0.0001')]
    """
    if scale == "log" and high - low >= 1:
        every = max(1, math.ceil((high - low) / 5))
        return [(float(power), f"{10.0**power:g}") for power in range(math.ceil(low), math.floor(high) + 1, every)]
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [round(number * step, 12) for number in range(first, last + 1)]
    return [(value, _written(value, scale)) for value in values]


def _written(value: float, scale: str) -> str:
    if scale == "share":
        return f"{round(100 * value, 9):g}%"
    if scale == "log":
        return f"{10.0**value:.2g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, apart also where there is one value or none."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)


def _thin(points: Sequence) -> Sequence:  # type: ignore[type-arg]
    """Every n-th point, the last one always."""
    every = math.ceil(len(points) / MOST_POINTS) or 1
    return [*points[:-1:every], *points[-1:]]


def _key(x: int, y: int, number: int, name: str) -> str:
    square = f'<rect x="{x}" y="{y}" width="10" height="10" style="fill:var(--c{number % len(PALETTE)})"/>'
    return f'{square}<text x="{x + 15}" y="{y + 9}">{html_text(name)}</text>'


def _cut(label: str, most: int = 66) -> str:
    """A label that fits, with its end, where the seed is."""
    return label if len(label) <= most else f"{label[: most // 2 - 1]}…{label[-most // 2 :]}"
