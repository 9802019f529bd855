"""The report as one HTML file, which asks no network for anything and needs no script."""

from collections.abc import Sequence

from minrl.report.pictures import before_and_after, curves, seconds
from minrl.report.runs import AXES, RunData
from minrl.report.seeds import groups_of
from minrl.report.svg import PALETTE, STYLE
from minrl.report.tables import Table, cost, over_seeds, remarks, results, settings, title
from minrl.utils.text import html_text

LAYOUT = """
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1320px;
  margin: 0 auto; padding: 12px 16px; }
h1 { font-size: 22px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 8px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
code { overflow-wrap: anywhere; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
.charts svg { width: 100%; max-width: 560px; height: auto; }
.legend span { display: inline-block; margin-right: 18px; overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; }
"""


def page(runs: Sequence[RunData], smoothing: float, command: str) -> str:
    """The whole page. Each curve is there once for each axis that the runs have; the switch shows one of them."""
    groups = groups_of(runs)
    axes = [axis for axis in AXES if any(run.positions(axis)[run.last_step] for run in runs)] or ["step"]
    charts = [one for axis in axes for one in curves(groups, axis, smoothing)]
    keys = [
        f'<span><i style="background:var(--c{number % len(PALETTE)})"></i>{html_text(group.name)}</span>'
        for number, group in enumerate(groups)
    ]
    several = over_seeds(groups)
    about = "Thin lines: each seed. Thick: their mean; from three seeds on with its 95 % interval (Student's t)."
    parts = [
        *(f"<p>{html_text(one)}</p>" for one in remarks(runs)),
        _table(_scores_first(results(runs))),
        f"<h2>Over seeds</h2>{_table(several)}" if several[1] else "",
        f'<h2>Curves</h2><p class="legend">{"".join(keys)}</p>',
        f"<p>Smoothed with weight {smoothing:g}. {about if several[1] else ''}</p>",
        f'{_switch(axes)}<div class="charts">{"".join(charts)}</div>',
        f'<h2>Before, after, seconds</h2><div class="charts">{"".join([*before_and_after(runs), seconds(runs)])}</div>',
        f"<h2>Settings</h2>{_settings(runs)}<h2>Cost</h2>{_table(cost(runs))}<p>Made by {_code(command)}.</p>",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html_text(title(runs))}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{LAYOUT}{_rules(axes)}</style></head><body><h1>{html_text(title(runs))}</h1>"
        f"{''.join(parts)}</body></html>\n"
    )


def _switch(axes: Sequence[str]) -> str:
    """A choice of the x axis, which the style sheet alone obeys."""
    if len(axes) == 1:
        return ""
    choices = [
        f'<input type="radio" name="axis" id="by-{axis}"{" checked" * (axis == "step")}>'
        f'<label for="by-{axis}">{AXES[axis]}</label> '
        for axis in axes
    ]
    return f"Curves over {''.join(choices)}"


def _rules(axes: Sequence[str]) -> str:
    hidden = ", ".join(f"#by-{axis}:not(:checked) ~ .charts .{axis}" for axis in axes)
    return f"{hidden} {{ display: none; }}"


def _settings(runs: Sequence[RunData]) -> str:
    found = settings(runs)
    return f"<p>{_code(found)}</p>" if isinstance(found, str) else _table(found)


def _scores_first(content: Table) -> Table:
    """The table of results with before and after beside the run, where a phone shows them."""
    header, rows = content
    first, *others = zip(header, *rows, strict=True)
    turned = list(zip(first, *others[-3:], *others[:-3], strict=True))
    return turned[0], turned[1:]


def _table(content: Table) -> str:
    header, rows = content
    cells = ["".join(f"<td>{_code(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{html_text(name)}</th>" for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _code(text: str) -> str:
    """A text in which backquotes mark code, as HTML."""
    pieces = html_text(text).split("`")
    return "".join(f"<code>{one}</code>" if number % 2 else one for number, one in enumerate(pieces))
