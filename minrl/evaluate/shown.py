"""The results on a terminal: the figures that matter of summary.md, in 80 columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minrl.evaluate.report import (
    BY_CATEGORY,
    Cells,
    category_cells,
    difference_cells,
    interval_text,
    share,
    title_of,
    together_cells,
)
from minrl.utils.console import Table
from minrl.utils.text import printable

Figures = Mapping[str, Any]

MISSING = "-"


def tables(summary: Figures) -> Iterator[Table]:
    """Each task's models, their differences, and pass@1 by category."""
    for task in dict.fromkeys(result["task"] for result in summary["results"]):
        of_task = [result for result in summary["results"] if result["task"] == task]
        notes = [note for result in of_task if (note := _not_counted(result))]
        yield Table(_title(task, of_task), *_models(of_task), notes)
        changes = [one for one in summary["differences"] if one["task"] == task]
        if changes:
            yield Table(title_of(changes), *difference_cells(changes))
        categories = category_cells(of_task)
        if categories[1]:
            yield Table(BY_CATEGORY, *categories)
    if scores := summary.get("together", ()):
        yield Table(scores[0]["task"], *together_cells(scores))


def unscored(summary: Figures) -> Iterator[str]:
    """A line for each model and task of which no completion could be scored, with the first reason."""
    for result in summary["results"]:
        if "pass@1" not in result and result.get("n"):
            about = (
                f"{result['label']} on {result['task']}: {result['n']} of {result['n']} completions could not be scored"
            )
            yield f"{about}, the first because: {printable(result['first_unscorable'])}"


def _title(task: str, of_task: Sequence[Figures]) -> str:
    counts = [(result["n"], result["examples"]) for result in of_task if "examples" in result]
    n, examples = max(counts, default=(0, 0))
    return f"{task}: {n} completions of {examples} held-out examples" if counts else task


def _models(of_task: Sequence[Figures]) -> Cells:
    """A line for each model: the first pass@k with its interval, and the last."""
    ks = list(dict.fromkeys(k for result in of_task for k in result.get("pass@k", ())))
    first, last = ks[:1], ks[1:][-1:]
    columns = [*(f"pass@{k} (95 %)" for k in first), *(f"pass@{k}" for k in last), "greedy", "reward", "tokens"]
    lines = []
    for result in of_task:
        if "pass@1" not in result:
            lines.append([result["label"], *[MISSING] * len(columns)])
            continue
        found, tokens = result["pass@k"], result["completion_tokens_mean"]
        lines.append(
            [
                result["label"],
                *(interval_text(found[k]["value"], found[k]["ci95"]) if k in found else MISSING for k in first),
                *(share(found[k]["value"] if k in found else None) for k in last),
                share(result["pass@1_greedy"]),
                f"{result['reward']:.3f}",
                MISSING if tokens is None else f"{tokens:.1f}",
            ]
        )
    return ["model", *columns], lines


def _not_counted(result: Figures) -> str:
    """What a model's figures hide: completions that are missing, refused, cut off or unscorable. Empty where none is,
    and where no completion could be scored, which is an error of its own (`unscored`).
    """
    said = [f"{result['missing']} missing"] if result["missing"] else []
    if "pass@1" in result:
        shares = {"refused": result["refused_frac"], "cut off": result["truncated_frac"]}
        said += [f"{share(value)} {what}" for what, value in shares.items() if value]
        if result["unscorable"]:
            said.append(f"{result['unscorable']} could not be scored, the first because: {result['first_unscorable']}")
    return f"{result['label']}: {', '.join(said)}" if said else ""
