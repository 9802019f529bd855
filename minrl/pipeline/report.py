"""The third stage: figures, tables and pictures from the scores."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minrl.pipeline.figures import differences, results
from minrl.pipeline.folder import SUMMARY
from minrl.pipeline.pictures import draw_all
from minrl.pipeline.plan import Plan
from minrl.pipeline.rows import Key, Row
from minrl.pipeline.score import asked_again
from minrl.pipeline.settings import Settings
from minrl.record.tensorboard import write_pictures
from minrl.system.files import read_json, write_csv, write_json, write_text
from minrl.system.json_text import plain

TABLE, CSV, CHARTS, EVENTS = "summary.md", "summary.csv", "charts", "tensorboard"

CSV_COLUMNS = ("task", "model", "category", "figure", "value", "low", "high", "n", "examples")

NOT_ANSWERED = ("refused_frac", "unscorable", "missing")

NOT_COMPLETE = (
    "**Not complete**: some completions are missing (column `missing`), or a judge failed to say what some are worth "
    "(among the `unscorable`). The same command asks for them again."
)

Figures = Mapping[str, Any]


def report(
    plan: Plan, folder: Path, settings: Settings, lines: Sequence[Mapping[str, Any]], rows: Mapping[Key, Row]
) -> dict[str, Any]:
    """Write everything that is made from the scores; summary.json last, as the sign that all is there."""
    (folder / SUMMARY).unlink(missing_ok=True)
    found = results(plan, lines, rows)
    summary: dict[str, Any] = {
        "complete": not any(result["missing"] for result in found) and not any(map(asked_again, lines)),
        "settings": settings,
        "results": found,
        "differences": plain(differences(plan, lines)),
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


def whole_report(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """summary.json, where it is of these settings and everything that was made with it is there."""
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
            low, high = figure["ci95"]
            line = {"figure": f"pass@{k}", "value": figure["value"], "low": low, "high": high}
            yield {**shared, **line, "examples": figure["examples"]}
        greedy = result["pass@1_greedy_ci95"]
        if greedy:
            line = {"figure": "pass@1_greedy", "value": result["pass@1_greedy"], "low": greedy[0], "high": greedy[1]}
            yield {**shared, **line, "n": ""}
        for name in ("reward", "completion_tokens_mean", "truncated_frac", *NOT_ANSWERED):
            yield {**shared, "figure": name, "value": result[name]}
        for part, mean in result["parts"].items():
            yield {**shared, "figure": f"part/{part}", "value": mean}
        for category, of_it in result["by_category"].items():
            within = {**shared, "category": category, "n": of_it["n"], "examples": of_it["examples"]}
            low, high = of_it["ci95"]
            yield {**within, "figure": "pass@1", "value": of_it["pass@1"], "low": low, "high": high}
            for part, mean in of_it["parts"].items():
                yield {**within, "figure": f"part/{part}", "value": mean}
    for one in summary["differences"]:
        low, high = one["ci95"]
        line = {"figure": f"pass@1 minus that of {one['baseline']}", "value": one["difference"]}
        yield {
            "task": one["task"],
            "model": one["model"],
            **line,
            "low": low,
            "high": high,
            "examples": one["examples"],
        }


def markdown(plan: Plan, summary: Figures) -> str:
    """The tables: each task's models, their differences, and pass@1 by category."""
    blocks = [] if summary["complete"] else [NOT_COMPLETE]
    for task in plan.tasks:
        of_task = [result for result in summary["results"] if result["task"] == task.name]
        blocks += [f"## {task.name}", _models_table(of_task)]
        changes = [one for one in summary["differences"] if one["task"] == task.name]
        if changes:
            blocks += [f"Difference of pass@1 to {changes[0]['baseline_label']}, same examples:", _differences(changes)]
        categories = _categories(of_task)
        if categories:
            blocks += ["pass@1 by category:", categories]
    return "\n\n".join(blocks) + "\n"


def _models_table(of_task: Sequence[Figures]) -> str:
    ks = list(dict.fromkeys(k for result in of_task for k in result.get("pass@k", ())))
    columns = ["model", *(f"pass@{k} (95 %)" for k in ks), "greedy", "reward", "tokens", "cut off", "n", "examples"]
    lines = []
    for result in of_task:
        if "pass@1" not in result:
            unscorable = str(result.get("unscorable", "-"))
            refused = share(result.get("refused_frac"))
            lines.append([result["label"], *["-"] * (len(columns) - 1), refused, unscorable, str(result["missing"])])
            continue
        found = [result["pass@k"].get(k) for k in ks]
        passes = ["-" if one is None else interval_text(one["value"], one["ci95"]) for one in found]
        lines.append(
            [
                result["label"],
                *passes,
                share(result["pass@1_greedy"]),
                f"{result['reward']:.3f}",
                "-" if result["completion_tokens_mean"] is None else f"{result['completion_tokens_mean']:.1f}",
                share(result["truncated_frac"]),
                str(result["n"]),
                str(result["examples"]),
                share(result["refused_frac"]),
                str(result["unscorable"]),
                str(result["missing"]),
            ]
        )
    return table([*columns, "refused", "unscorable", "missing"], lines)


def _differences(changes: Sequence[Figures]) -> str:
    lines = [
        [
            one["label"],
            f"{100 * one['difference']:+.1f} ({100 * one['ci95'][0]:+.1f} to {100 * one['ci95'][1]:+.1f})",
            *(str(one[name]) for name in ("better", "worse", "same")),
        ]
        for one in changes
    ]
    return table(["model", "points (95 %)", "examples better", "worse", "same"], lines)


def _categories(of_task: Sequence[Figures]) -> str:
    names = list(dict.fromkeys(name for result in of_task for name in result.get("by_category", ())))
    measured = [result for result in of_task if "by_category" in result]
    lines = []
    for name in names:
        cells = [result["by_category"].get(name) for result in measured]
        texts = ["-" if cell is None else interval_text(cell["pass@1"], cell["ci95"]) for cell in cells]
        lines.append([name, str(max(cell["examples"] for cell in cells if cell)), *texts])
    return table(["category", "examples", *(result["label"] for result in measured)], lines) if names else ""


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    rule = ["---", *["--:"] * (len(columns) - 1)]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (columns, rule, *lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def interval_text(value: float, ci95: Sequence[float]) -> str:
    """A share with its interval, in per cent."""
    return f"{value:.1%} ({ci95[0]:.1%} to {ci95[1]:.1%})"


def share(value: float | None) -> str:
    """A share in per cent; a dash where there is none."""
    return "-" if value is None else f"{value:.1%}"
