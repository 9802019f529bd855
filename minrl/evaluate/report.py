"""The last stage: the figures as one table, in Markdown, as CSV, on the terminal and in charts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from minrl.evaluate.charts import draw
from minrl.evaluate.figures import differences, results, together
from minrl.evaluate.plan import EvaluationPlan, Settings
from minrl.evaluate.rows import Key, Row
from minrl.evaluate.score import asked_again
from minrl.utils.console import Table
from minrl.utils.files import write_json, write_text
from minrl.utils.text import one_line, printable

SUMMARY, MARKDOWN, CSV, CHARTS = "summary.json", "summary.md", "summary.csv", "charts"

COLUMNS = ("task", "model", "category", "figure", "value", "low", "high", "n", "examples")
"""The columns of summary.csv."""

NOT_COMPLETE = (
    "**Not complete**: some completions are missing, or a judge failed to say what some are worth. The same command "
    "asks for them again."
)

Summary = Mapping[str, Any]


def report(
    plan: EvaluationPlan, folder: Path, settings: Settings, lines: Sequence[Row], rows: Mapping[Key, Row]
) -> dict[str, Any]:
    """Write everything that is made from the scores; returns the content of summary.json."""
    found = results(plan, lines, rows)
    complete = not any(result["missing"] for result in found) and not any(map(asked_again, lines))
    summary = {"complete": complete, "settings": settings, "results": found, "differences": differences(plan, lines)}
    if scores := together(plan, found):
        summary["together"] = scores
    write_text(folder / MARKDOWN, markdown(summary))
    frame = frame_of(summary)
    write_text(folder / CSV, frame.to_csv(columns=COLUMNS, index=False))
    for old in (folder / CHARTS).glob("*.png"):
        old.unlink()
    drawn = draw(frame, folder / CHARTS) if plan.config.charts else []
    summary["charts"] = [str(path.relative_to(folder)) for path in drawn]
    write_json(folder / SUMMARY, summary)
    return summary


def frame_of(summary: Summary) -> pd.DataFrame:
    """A line for each figure of each model on each task and category."""
    frame = pd.DataFrame(_figures(summary), columns=[*COLUMNS, "label", "run", "step", "baseline"])
    return frame.astype({"n": "Int64", "examples": "Int64"})


def _figures(summary: Summary) -> Iterator[dict[str, Any]]:
    for result in summary["results"]:
        about = {name: result.get(name) for name in ("task", "model", "label", "run", "step", "n", "examples")}
        about["category"] = ""
        for name in ("refused_frac", "unscorable", "missing"):
            yield {**about, "figure": name, "value": result.get(name, 0)}
        if "pass@1" not in result:
            continue
        for k, found in result["pass@k"].items():
            yield {**about, **_measured(f"pass@{k}", found["value"], found["ci95"]), "examples": found["examples"]}
        if interval := result["pass@1_greedy_ci95"]:
            yield {**about, **_measured("pass@1_greedy", result["pass@1_greedy"], interval), "n": None}
        for name in ("reward", "completion_tokens_mean", "truncated_frac"):
            yield {**about, "figure": name, "value": result[name]}
        yield from ({**about, "figure": f"part/{part}", "value": mean} for part, mean in result["parts"].items())
        for category, found in result["by_category"].items():
            within = {**about, "category": category, "n": found["n"], "examples": found["examples"]}
            yield {**within, **_measured("pass@1", found["pass@1"], found["ci95"])}
            yield from ({**within, "figure": f"part/{part}", "value": mean} for part, mean in found["parts"].items())
    for one in summary.get("together", ()):
        about = {name: one.get(name) for name in ("task", "model", "label", "run", "step", "n", "examples")}
        yield {**about, "category": "", **_measured("pass@1", one["pass@1"], one["ci95"])}
    for one in summary["differences"]:
        about = {name: one[name] for name in ("task", "model", "label", "examples")}
        figure = _measured(f"pass@1 minus that of {one['baseline']}", one["difference"], one["ci95"])
        yield {**about, "category": "", **figure, "baseline": one["baseline_label"]}


def _measured(figure: str, value: float, ci95: Sequence[float]) -> dict[str, Any]:
    return {"figure": figure, "value": value, "low": ci95[0], "high": ci95[1]}


def tables(summary: Summary, narrow: bool = False) -> Iterator[Table]:
    """Each task's models, their differences, and pass@1 by category. `narrow`: the first and the last pass@k alone."""
    for task in dict.fromkeys(result["task"] for result in summary["results"]):
        of_task = [result for result in summary["results"] if result["task"] == task]
        measured = [result for result in of_task if "pass@1" in result]
        counts = max(((one["n"], one["examples"]) for one in measured), default=None)
        title = task if counts is None else f"{task}: {counts[0]} completions of {counts[1]} held-out examples"
        yield Table(title, *_models(of_task, narrow), [note for result in of_task if (note := _not_counted(result))])
        changes = [one for one in summary["differences"] if one["task"] == task]
        if changes:
            title = f"Difference of pass@1 to {changes[0]['baseline_label']}, same examples"
            lines = [
                [one["label"], points(one), *(str(one[name]) for name in ("better", "worse", "same"))]
                for one in changes
            ]
            yield Table(title, ["model", "points (95 %)", "examples better", "worse", "same"], lines)
        categories = dict.fromkeys(name for result in measured for name in result["by_category"])
        if categories:
            lines = []
            for name in categories:
                cells = [result["by_category"].get(name) for result in measured]
                texts = ["-" if cell is None else interval_text(cell["pass@1"], cell["ci95"]) for cell in cells]
                lines.append([name, str(max(cell["examples"] for cell in cells if cell)), *texts])
            yield Table("pass@1 by category", ["category", "examples", *(one["label"] for one in measured)], lines)
    if scores := summary.get("together", ()):
        shown = ", ".join(f"{share(part)} {task}" for task, part in scores[0]["shares"].items())
        lines = [[one["label"], interval_text(one["pass@1"], one["ci95"])] for one in scores]
        yield Table(scores[0]["task"], ["model", f"pass@1 of {shown} (95 %)"], lines)


def points(change: Summary) -> str:
    """A difference in percentage points with its interval."""
    value, low, high = (f"{100 * number:+.1f}" for number in (change["difference"], *change["ci95"]))
    return f"{value} ({low} to {high})"


def _models(of_task: Sequence[Summary], narrow: bool) -> tuple[list[str], list[list[str]]]:
    """The columns and the lines of a task's models."""
    ks = sorted({k for result in of_task for k in result.get("pass@k", ())}, key=int)
    short = ks[1:][-1:] if narrow else []  # without their intervals
    ks = ks[:1] if narrow else ks
    lines = []
    for result in of_task:
        found = result.get("pass@k", {})
        texts = [interval_text(found[k]["value"], found[k]["ci95"]) if k in found else "-" for k in ks]
        texts += [share(found[k]["value"] if k in found else None) for k in short]
        tokens, reward = result.get("completion_tokens_mean"), result.get("reward")
        texts += [share(result.get("pass@1_greedy")), "-" if reward is None else f"{reward:.3f}"]
        lines.append([result["label"], *texts, "-" if tokens is None else f"{tokens:.1f}"])
    columns = [*(f"pass@{k} (95 %)" for k in ks), *(f"pass@{k}" for k in short), "greedy", "reward", "tokens"]
    return ["model", *columns], lines


def _not_counted(result: Summary) -> str:
    """What a model's figures hide: completions that are missing, refused, cut off or unscorable."""
    said = [f"{result['missing']} missing"] if result["missing"] else []
    for name, what in (("refused_frac", "refused"), ("truncated_frac", "cut off at the longest completion")):
        said += [f"{share(result[name])} {what}"] if result.get(name) else []
    if result.get("unscorable"):
        said.append(f"{result['unscorable']} could not be scored, the first because: {result['first_unscorable']}")
    return f"{result['label']}: {', '.join(said)}" if said else ""


def unscored(summary: Summary) -> Iterator[str]:
    """A line for each model and task of which no completion could be scored, with the first reason."""
    for result in summary["results"]:
        if "pass@1" not in result and result.get("n"):
            count = f"{result['n']} of {result['n']} completions could not be scored"
            why = printable(result["first_unscorable"])
            yield f"{result['label']} on {result['task']}: {count}, the first because: {why}"


def markdown(summary: Summary) -> str:
    """The tables in Markdown, with the notes below."""
    blocks = [] if summary["complete"] else [NOT_COMPLETE]
    for table in tables(summary):
        blocks += [f"## {escaped(table.title)}", markdown_table(table.columns, table.lines)]
        blocks += [f"- {escaped(note)}" for note in table.notes]
    return "\n\n".join(blocks) + "\n"


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is aligned to the left, the others to the right."""
    cells = [[escaped(cell) for cell in line] for line in (columns, *lines)]
    cells.insert(1, ["---", *["--:"] * (len(columns) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def escaped(text: str) -> str:
    """A text in one line of Markdown, without marks of its own."""
    return re.sub(r"[\[|<]", r"\\\g<0>", one_line(text))


def interval_text(value: float, ci95: Sequence[float]) -> str:
    """A share with its interval, in per cent."""
    return f"{value:.1%} ({ci95[0]:.1%} to {ci95[1]:.1%})"


def share(value: float | None) -> str:
    """A share in per cent; a dash for None."""
    return "-" if value is None else f"{value:.1%}"
