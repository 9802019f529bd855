"""A report of runs side by side: results, curves, cost and settings as a page, and its tables as Markdown."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from minrl.evaluate.statistics import shown
from minrl.report.charts import charts_of, draw, hex_colours, legend_below, picture, svg
from minrl.report.problems import CATEGORIES, CHANGED, problems
from minrl.report.runs import SMOOTHING, Group, RunCurves, Score, differences, groups_of, mean
from minrl.utils.files import write_text
from minrl.utils.settings import flag_of
from minrl.utils.text import one_line, printable

NOTHING = "-"

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and rows of cells, in which backquotes mark code."""


def write_report(
    runs: Sequence[RunCurves],
    folder: Path,
    command: str,
    axis: str = "step",
    smoothing: float = SMOOTHING,
    png: bool = False,
) -> None:
    """Write report.html and report.md to the folder, with `png` also each chart, and say where they are. `command` made
    them.
    """
    groups = groups_of(runs)
    for name, text in {
        "report.md": markdown(groups, command),
        "report.html": page(groups, command, axis, smoothing),
    }.items():
        write_text(folder / name, text)
        sys.stdout.write(f"{folder / name}\n")
    for chart in charts_of(groups) if png else ():
        with picture(folder / chart.file) as (figure, (axes,)):
            draw(axes, chart, groups, axis, smoothing)
            legend_below(figure, axes)
        sys.stdout.write(f"{folder / chart.file}\n")
    sys.stderr.writelines(f"{remark}\n" for remark in unfinished(runs))


def page(groups: Sequence[Group], command: str, axis: str = "step", smoothing: float = SMOOTHING) -> str:
    """The whole page, which asks no network for anything and needs no script."""

    def finalize(value: Any) -> Any:  # noqa: ANN401 - whatever the template prints
        return printable(value) if type(value) is str else value  # safe text has a class of its own

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, finalize=finalize)
    return environment.get_template("report.html.jinja").render(
        title=title(groups),
        sections=sections(groups),
        legend=[(group.name, colour) for group, colour in zip(groups, hex_colours() * len(groups), strict=False)],
        seeds=any(len(group.runs) > 1 for group in groups),
        smoothing=f"{smoothing:g}",
        curves=[svg(chart, groups, axis, smoothing) for chart in charts_of(groups)],
        command=f"`{command}`",
    )


def markdown(groups: Sequence[Group], command: str) -> str:
    """The tables."""
    parts = [f"# {title(groups)}"]
    for name, content in sections(groups):
        parts += [f"## {name}"] if name else []
        parts += [markdown_table(*one) if isinstance(one, tuple) else one for one in content]
    return "\n\n".join([*parts, f"Made by `{command}`. The curves are in report.html."]) + "\n"


def title(groups: Sequence[Group]) -> str:
    """What the report is about."""
    return " / ".join(group.name for group in groups)


def sections(groups: Sequence[Group]) -> list[tuple[str, list[Table | str]]]:
    """The parts of a report: each a heading (empty for the first), and its tables and sentences."""
    runs = [run for group in groups for run in group.runs]
    categories, changed, changes = problems(runs)
    tables = [(header, rows) for header, rows in ((CATEGORIES, categories), (CHANGED, changed)) if rows]
    several = over_seeds(groups)
    found: list[tuple[str, list[Table | str]]] = [
        ("", [*unfinished(runs), results(runs)]),
        ("Over seeds", [several] if several[1] else []),
        ("Held-out problems", [*changes, *tables]),
        ("Settings", [settings(runs)]),
        ("Cost", [cost(runs)]),
    ]
    return [(name, content) for name, content in found if content]


def unfinished(runs: Sequence[RunCurves]) -> list[str]:
    """What to know before reading: which runs have not ended."""
    why = "has no summary.json: it is still running, or was stopped, after step"
    return [f"{run.name} {why} {run.last_step}" for run in runs if not run.summary]


def results(runs: Sequence[RunCurves]) -> Table:
    """Held-out pass@1 before and after, with 95 % intervals, a line for each run and task. The scores stand next to the
    name, where a phone shows them.
    """
    header = ["run", "before", "after", "greedy", "task", "algorithm", "seed", "steps"]
    rows = []
    for run in runs:
        for task in run.tasks or [""]:
            before, after = run.before_and_after(task)
            best, greedy = run.best(task), run.curve(f"eval/{task}/pass@1_greedy")
            scores = [_score(before), _score(after, run.last_step) + (f"; best {_score(best, 0)}" if best else "")]
            ends = [f"{greedy[one.step]:.1%}" if one and one.step in greedy else NOTHING for one in (before, after)]
            algorithm = run.summary.get("algorithm") or run.config.get("algorithm", NOTHING)
            about = [task or NOTHING, algorithm, run.config.get("seed", NOTHING), run.last_step]
            rows.append([run.name, *scores, " to ".join(ends), *map(str, about)])
    return header, rows


def _score(score: Score | None, last_step: int | None = None) -> str:
    """A score in percent with its interval, and its step if that is not the `last_step`."""
    if score is None:
        return NOTHING
    when = "" if last_step in (None, score.step) else f" at step {score.step}"
    return f"{score}{when}"


def over_seeds(groups: Sequence[Group]) -> Table:
    """The mean of pass@1 over the seeds of a group, with Student's 95 % interval, before the first step and at the last
    step at which all were measured; no row where no group has several.
    """
    rows = []
    for group in groups if any(len(group.runs) > 1 for group in groups) else ():
        for task in dict.fromkeys(task for run in group.runs for task in run.tasks):
            curves = [run.curve(f"eval/{task}/pass@1") for run in group.runs]
            step = max(set.intersection(*map(set, curves)), default=0)
            when = f" at step {step}" if step < max(run.last_step for run in group.runs) else ""
            before = [one[0] for one in curves if 0 in one]
            after = _mean([one[step] for one in curves]) + when if step else NOTHING
            rows.append([group.name, task, _mean(before), after])
    return ["runs", "task", "before, mean over seeds", "after, mean over seeds"], rows


def _mean(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    value, low, high = mean(values)
    return f"{value:.1%} (one seed)" if len(values) == 1 else shown(value, (max(0.0, low), min(1.0, high)))


def cost(runs: Sequence[RunCurves]) -> Table:
    """Seconds, tokens per second and memory; the seconds of a step by phase; on which machine."""
    spent = [run.seconds_by_phase() for run in runs]
    phases = dict.fromkeys(name for one in spent for name in one)
    columns: list[tuple[str, list[str]]] = [
        ("seconds, all in all", [_number(run.summary.get("seconds"), 0) for run in runs]),
        ("seconds a step", [_number(run.mean("time/step_s"), 3) for run in runs]),
        *((f"... {name}", [_number(one.get(name), 3) for one in spent]) for name in phases),
        ("sampled tokens/s", [_number(run.mean("speed/rollout_tokens_per_s"), 0) for run in runs]),
        ("peak memory, GiB", [_number(max(run.curve("memory/peak_gib").values(), default=None), 2) for run in runs]),
        ("machine", [_machine(run.record.get("machine", {})) for run in runs]),
        ("commit", [str(run.record.get("commit") or NOTHING)[:12] for run in runs]),
    ]
    return ["", *[run.name for run in runs]], [[name, *values] for name, values in columns]


def _machine(machine: Mapping[str, Any]) -> str:
    return f"{machine.get('cuda') or machine.get('processor') or NOTHING}, {machine.get('threads', '?')} threads"


def settings(runs: Sequence[RunCurves]) -> Table | str:
    """The settings that differ between the runs; of a single run those that are not at their defaults."""
    if len(runs) > 1:
        rows = [[f"`{flag_of(name)}`", *map(_value, values)] for name, values in differences(runs).items()]
        return (["", *[run.name for run in runs]], rows) if rows else "The runs differ in no setting."
    rows = [[f"`{flag_of(name)}`", _value(value)] for name, value in runs[0].record.get("not_default", {}).items()]
    return (["not at its default", "value"], rows) if rows else "Every setting is at its default."


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is aligned to the left, the others to the right. No cell ends it, or holds a
    mark of its own other than backquotes.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    | --- | --: |
    | 1 | x\\|y |
    """
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    cells.insert(1, ["---", *["--:"] * (len(header) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def escaped(text: str) -> str:
    """A text in one line of Markdown, without marks of its own other than backquotes."""
    return re.sub(r"[\[|<]", r"\\\g<0>", one_line(text))


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _value(value: Any) -> str:  # noqa: ANN401 - a setting
    return NOTHING if value is None else f"`{json.dumps(value)}`"
