"""A report of runs side by side: results, curves, cost and settings as a page, and its tables as Markdown."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from minrl.report.charts import PALETTE, THEME, curves, svg
from minrl.report.problems import CATEGORIES, CHANGED, problems
from minrl.report.runs import AXES, SMOOTHING, Group, RunData, Score, differences, groups_of, mean
from minrl.utils.files import write_text
from minrl.utils.text import one_line, printable

NOTHING = "-"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and rows of cells, in which backquotes mark code."""


def write_report(runs: Sequence[RunData], folder: Path, command: str, smoothing: float = SMOOTHING) -> None:
    """Write report.html and report.md to the folder, and say where they are. `command` made them."""
    for name, text in {"report.md": markdown(runs, command), "report.html": page(runs, smoothing, command)}.items():
        write_text(folder / name, text)
        sys.stdout.write(f"{folder / name}\n")
    for run in runs:
        if run.unfinished:
            sys.stderr.write(f"{run.unfinished}\n")


def page(runs: Sequence[RunData], smoothing: float, command: str) -> str:
    """The whole page, which asks no network for anything and needs no script. Each curve is there once for each axis
    that the runs have; the style sheet shows those of the chosen one.
    """
    groups, (categories, changed, changes) = groups_of(runs), problems(runs)
    axes = [axis for axis in AXES if any(run.positions(axis)[run.last_step] for run in runs)] or ["step"]

    def shown(value: Any) -> Any:  # noqa: ANN401 - whatever the template prints
        return printable(value) if type(value) is str else value  # safe text has a class of its own

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, finalize=shown)
    return environment.get_template("report.html.jinja").render(
        title=title(groups),
        theme=THEME,
        axes=axes,
        remarks=remarks(runs),
        results=results(runs),
        seeds=over_seeds(groups),
        groups=[group.name for group in groups],
        colours=len(PALETTE),
        smoothing=f"{smoothing:g}",
        curves={axis: list(map(svg, curves(groups, axis, smoothing))) for axis in axes},
        categories=(CATEGORIES, categories),
        changed=(CHANGED, changed),
        changes=changes,
        settings=settings(runs),
        cost=cost(runs),
        command=f"`{command}`",
    )


# Tables


def title(groups: Sequence[Group]) -> str:
    """What the report is about."""
    return " / ".join(group.name for group in groups)


def remarks(runs: Sequence[RunData]) -> list[str]:
    """What to know before reading: which runs have not ended."""
    return [run.unfinished for run in runs if run.unfinished]


def markdown(runs: Sequence[RunData], command: str) -> str:
    """The tables."""
    groups, found = groups_of(runs), settings(runs)
    parts = [f"# {title(groups)}", markdown_table(*results(runs))]
    if (several := over_seeds(groups))[1]:
        parts.append(markdown_table(*several))
    if remarks(runs):
        parts.append("\n".join(f"- {remark}" for remark in remarks(runs)))
    categories, changed, changes = problems(runs)
    if categories or changes:
        parts += ["## Held-out problems", *changes]
        tables = {CATEGORIES: categories, CHANGED: changed}
        parts += [markdown_table(header, rows) for header, rows in tables.items() if rows]
    parts += ["## Cost", markdown_table(*cost(runs)), "## Settings"]
    parts.append(found if isinstance(found, str) else markdown_table(*found))
    return "\n\n".join([*parts, f"Made by `{command}`. The curves are in report.html."]) + "\n"


def results(runs: Sequence[RunData]) -> Table:
    """Held-out pass@1 before and after, with 95 % intervals, a line for each run and task. The scores stand next to the
    name, where a phone shows them.
    """
    header = ["run", "before", "after", "greedy", "task", "algorithm", "seed", "steps"]
    rows = []
    for run in runs:
        for task in run.tasks or [""]:
            before, after = run.before_and_after(task)
            scores = [_interval(before), _after(after, run.last_step) + _best(run.best(task))]
            greedy = f"{_greedy(before)} to {_greedy(after)}"
            algorithm = run.summary.get("algorithm") or run.config.get("algorithm", NOTHING)
            about = [task or NOTHING, algorithm, run.config.get("seed", NOTHING), run.last_step]
            rows.append([run.name, *scores, greedy, *map(str, about)])
    return header, rows


def over_seeds(groups: Sequence[Group]) -> Table:
    """The mean of pass@1 over the seeds of a group, with Student's 95 % interval; no row where no group has several."""
    rows = []
    for group in groups if any(len(group.runs) > 1 for group in groups) else ():
        for task in dict.fromkeys(task for run in group.runs for task in run.tasks):
            rows.append([group.name, task, _before(group, task), _after_all(group, task)])
    return ["runs", "task", "before, mean over seeds", "after, mean over seeds"], rows


def _before(group: Group, task: str) -> str:
    """The mean over the runs that were measured before their first step."""
    scores = [score for run in group.runs for score in run.scores(task) if score.step == 0]
    few = f", {len(scores)} of {len(group.runs)} seeds" if 1 < len(scores) < len(group.runs) else ""
    return _mean(scores) + few


def _after_all(group: Group, task: str) -> str:
    """The mean at the last step at which all runs were measured: some may have come less far."""
    measured = [{score.step: score for score in run.scores(task) if score.step > 0} for run in group.runs]
    step = max(set.intersection(*map(set, measured)), default=0)
    if not step:
        return NOTHING
    when = f" at step {step}" if step < max(run.last_step for run in group.runs) else ""
    return _mean([scores[step] for scores in measured]) + when


def _mean(scores: Sequence[Score]) -> str:
    if not scores:
        return NOTHING
    found = mean([score.pass_at_1 for score in scores])
    if found.low is None or found.high is None:
        return f"{found.value:.1%} (one seed)"
    return f"{found.value:.1%} ({100 * max(0.0, found.low):.1f} to {100 * min(1.0, found.high):.1f})"


def cost(runs: Sequence[RunData]) -> Table:
    """Seconds, tokens per second and memory; the seconds of a step by phase; on which machine."""
    phases = list(dict.fromkeys(phase for run in runs for phase in run.seconds_by_phase()))
    columns: list[tuple[str, list[str]]] = [
        ("seconds, all in all", [_number(run.summary.get("seconds"), 0) for run in runs]),
        ("seconds a step", [_number(run.mean("time/step_s"), 3) for run in runs]),
        *[(f"... {phase}", [_number(run.seconds_by_phase().get(phase), 3) for run in runs]) for phase in phases],
        ("sampled tokens/s", [_number(run.mean("speed/rollout_tokens_per_s"), 0) for run in runs]),
        ("peak memory, GiB", [_number(max(run.curve("memory/peak_gib")[1], default=None), 2) for run in runs]),
        ("machine", [_machine(run.record) for run in runs]),
        ("commit", [str(run.record.get("commit") or NOTHING)[:12] for run in runs]),
    ]
    return ["", *[run.name for run in runs]], [[name, *values] for name, values in columns]


def settings(runs: Sequence[RunData]) -> Table | str:
    """The settings that differ between the runs; of a single run those that are not at their defaults."""
    if len(runs) > 1:
        found = differences(runs)
        rows = [[_flag(name), *map(_value, values)] for name, values in found.items()]
        return (["", *[run.name for run in runs]], rows) if rows else "The runs differ in no setting."
    record = runs[0].record
    if record.get("not_default"):
        header = ["not at its default", "value"]
        return header, [[_flag(name), _value(value)] for name, value in record["not_default"].items()]
    if "not_default" in record:
        return "Every setting is at its default."
    command = shlex.join(map(str, record.get("command", [])))
    return f"`{command or NOTHING}`; every setting is in config.json."


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


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


def _interval(score: Score | None) -> str:
    if score is None:
        return NOTHING
    return f"{score.pass_at_1:.1%} ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _after(score: Score | None, last_step: int) -> str:
    """The last score of a run, with its step where that is not the run's last."""
    return _interval(score) + (f" at step {score.step}" if score is not None and score.step < last_step else "")


def _best(score: Score | None) -> str:
    """The best score, where a later one is worse."""
    return "" if score is None else f"; best {_interval(score)} at step {score.step}"


def _greedy(score: Score | None) -> str:
    return NOTHING if score is None or score.greedy is None else f"{score.greedy:.1%}"


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _value(value: Any) -> str:  # noqa: ANN401 - a setting
    return NOTHING if value is None else f"`{json.dumps(value)}`"


def _machine(record: Mapping[str, Any]) -> str:
    machine = record.get("machine", {})
    return f"{machine.get('cuda') or machine.get('processor') or NOTHING}, {machine.get('threads', '?')} threads"
