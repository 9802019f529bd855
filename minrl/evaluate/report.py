"""The third stage: figures, tables and pictures from the scores."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minrl.evaluate.figures import differences, results, together
from minrl.evaluate.folder import SUMMARY
from minrl.evaluate.pictures import draw_all
from minrl.evaluate.plan import EvaluationPlan
from minrl.evaluate.rows import Key, Row
from minrl.evaluate.score import asked_again
from minrl.evaluate.settings import StageSettings
from minrl.tracking.tensorboard import write_pictures
from minrl.utils.files import read_json, write_csv, write_json, write_text
from minrl.utils.text import one_line, plain

TABLE, CSV, CHARTS, EVENTS = "summary.md", "summary.csv", "charts", "tensorboard"

CSV_COLUMNS = ("task", "model", "category", "figure", "value", "low", "high", "n", "examples")

NOT_ANSWERED = ("refused_frac", "unscorable", "missing")

BY_CATEGORY = "pass@1 by category"

NOT_COMPLETE = (
    "**Not complete**: some completions are missing (column `missing`), or a judge failed to say what some are worth "
    "(among the `unscorable`). The same command asks for them again."
)

Figures = Mapping[str, Any]

Cells = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The columns of a table, and its lines."""


def report(
    plan: EvaluationPlan,
    folder: Path,
    settings: StageSettings,
    lines: Sequence[Mapping[str, Any]],
    rows: Mapping[Key, Row],
) -> dict[str, Any]:
    """Write everything that is made from the scores; summary.json comes last and marks a whole report."""
    (folder / SUMMARY).unlink(missing_ok=True)
    found = results(plan, lines, rows)
    summary: dict[str, Any] = {
        "complete": not any(result["missing"] for result in found) and not any(map(asked_again, lines)),
        "settings": settings,
        "results": found,
        "differences": plain(differences(plan, lines)),
        **({"together": scores} if (scores := together(plan, found)) else {}),
    }
    write_text(folder / TABLE, markdown(plan, summary))
    write_csv(folder / CSV, CSV_COLUMNS, tidy(summary))
    summary["charts"] = []
    if plan.config.charts:
        pictures = draw_all(plan, summary, folder / CHARTS)
        write_pictures(folder / EVENTS, pictures)
        summary["charts"] = [str(path.relative_to(folder)) for path in pictures]
    write_json(folder / SUMMARY, summary)
    return summary


def whole_report(folder: Path, settings: StageSettings) -> dict[str, Any] | None:
    """summary.json, if it has these settings and its table, CSV and pictures exist; else None."""
    summary = read_json(folder / SUMMARY)
    if summary is None or summary["settings"] != settings:
        return None
    return summary if all((folder / name).exists() for name in (TABLE, CSV, *summary["charts"])) else None


def tidy(summary: Figures) -> Iterator[dict[str, Any]]:
    """One line for each figure of each model on each task, and of each category."""
    for result in summary["results"]:
        if "pass@1" not in result:
            about = {"task": result["task"], "model": result["model"], "n": result.get("n", 0)}
            yield from ({**about, "figure": name, "value": result.get(name, 0)} for name in NOT_ANSWERED)
            continue
        shared = {"task": result["task"], "model": result["model"], "n": result["n"], "examples": result["examples"]}
        for k, figure in result["pass@k"].items():
            yield {**shared, **_measured(f"pass@{k}", figure["value"], figure["ci95"]), "examples": figure["examples"]}
        if result["pass@1_greedy_ci95"]:
            line = _measured("pass@1_greedy", result["pass@1_greedy"], result["pass@1_greedy_ci95"])
            yield {**shared, **line, "n": ""}
        for name in ("reward", "completion_tokens_mean", "truncated_frac", *NOT_ANSWERED):
            yield {**shared, "figure": name, "value": result[name]}
        for part, mean in result["parts"].items():
            yield {**shared, "figure": f"part/{part}", "value": mean}
        for category, of_it in result["by_category"].items():
            within = {**shared, "category": category, "n": of_it["n"], "examples": of_it["examples"]}
            yield {**within, **_measured("pass@1", of_it["pass@1"], of_it["ci95"])}
            for part, mean in of_it["parts"].items():
                yield {**within, "figure": f"part/{part}", "value": mean}
    yield from _compared(summary)


def _compared(summary: Figures) -> Iterator[dict[str, Any]]:
    """One line for the score of each model on several tasks together, and for its difference to the first."""
    for one in summary.get("together", ()):
        about = {name: one[name] for name in ("task", "model", "n", "examples")}
        yield {**about, **_measured("pass@1", one["pass@1"], one["ci95"])}
    for one in summary["differences"]:
        about = {name: one[name] for name in ("task", "model", "examples")}
        yield {**about, **_measured(f"pass@1 minus that of {one['baseline']}", one["difference"], one["ci95"])}


def _measured(figure: str, value: float, ci95: Sequence[float]) -> dict[str, Any]:
    return {"figure": figure, "value": value, "low": ci95[0], "high": ci95[1]}


def markdown(plan: EvaluationPlan, summary: Figures) -> str:
    """The tables: each task's models, their differences, and pass@1 by category."""
    blocks = [] if summary["complete"] else [NOT_COMPLETE]
    for task in plan.tasks:
        of_task = [result for result in summary["results"] if result["task"] == task.name]
        blocks += [f"## {task.name}", _models_table(of_task)]
        changes = [one for one in summary["differences"] if one["task"] == task.name]
        if changes:
            blocks += [f"{title_of(changes)}:", table(*difference_cells(changes))]
        categories = category_cells(of_task)
        if categories[1]:
            blocks += [f"{BY_CATEGORY}:", table(*categories)]
    if scores := summary.get("together", ()):
        blocks += [f"## {scores[0]['task']}", table(*together_cells(scores))]
    return "\n\n".join(blocks) + "\n"


def _models_table(of_task: Sequence[Figures]) -> str:
    ks = list(dict.fromkeys(k for result in of_task for k in result.get("pass@k", ())))
    columns = ["model", *(f"pass@{k} (95 %)" for k in ks), "greedy", "reward", "tokens", "cut off", "n", "examples"]
    lines = []
    for result in of_task:
        measured = ["-"] * (len(columns) - 1)
        if "pass@1" in result:
            found = [result["pass@k"].get(k) for k in ks]
            tokens = result["completion_tokens_mean"]
            measured = [
                *("-" if one is None else interval_text(one["value"], one["ci95"]) for one in found),
                share(result["pass@1_greedy"]),
                f"{result['reward']:.3f}",
                "-" if tokens is None else f"{tokens:.1f}",
                share(result["truncated_frac"]),
                str(result["n"]),
                str(result["examples"]),
            ]
        counted = [str(result.get("unscorable", "-")), str(result["missing"])]
        lines.append([result["label"], *measured, share(result.get("refused_frac")), *counted])
    return table([*columns, "refused", "unscorable", "missing"], lines)


def title_of(changes: Sequence[Figures]) -> str:
    """What is above the differences of a task's models."""
    return f"Difference of pass@1 to {changes[0]['baseline_label']}, same examples"


def difference_cells(changes: Sequence[Figures]) -> Cells:
    """The differences of a task's models to the first."""
    lines = []
    for one in changes:
        value, low, high = (f"{100 * number:+.1f}" for number in (one["difference"], *one["ci95"]))
        lines.append([one["label"], f"{value} ({low} to {high})", *(str(one[n]) for n in ("better", "worse", "same"))])
    return ["model", "points (95 %)", "examples better", "worse", "same"], lines


def together_cells(scores: Sequence[Figures]) -> Cells:
    """The scores of the models on several tasks together."""
    shown = ", ".join(f"{share(part)} {task}" for task, part in scores[0]["shares"].items())
    lines = [[one["label"], interval_text(one["pass@1"], one["ci95"])] for one in scores]
    return ["model", f"pass@1 of {shown} (95 %)"], lines


def category_cells(of_task: Sequence[Figures]) -> Cells:
    """pass@1 of a task's models by category; without lines where there are no categories."""
    names = list(dict.fromkeys(name for result in of_task for name in result.get("by_category", ())))
    measured = [result for result in of_task if "by_category" in result]
    lines = []
    for name in names:
        cells = [result["by_category"].get(name) for result in measured]
        texts = ["-" if cell is None else interval_text(cell["pass@1"], cell["ci95"]) for cell in cells]
        lines.append([name, str(max(cell["examples"] for cell in cells if cell)), *texts])
    return ["category", "examples", *(result["label"] for result in measured)], lines


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is aligned to the left, the others to the right."""
    rule = ["---", *["--:"] * (len(columns) - 1)]
    escaped = [[re.sub(r"[\[|<]", r"\\\g<0>", one_line(cell)) for cell in line] for line in (columns, rule, *lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def interval_text(value: float, ci95: Sequence[float]) -> str:
    """A share with its interval, in per cent."""
    return f"{value:.1%} ({ci95[0]:.1%} to {ci95[1]:.1%})"


def share(value: float | None) -> str:
    """A share in per cent; a dash for None."""
    return "-" if value is None else f"{value:.1%}"
