"""From rows to figures: summary.json and .csv, tables for the terminal and summary.md, and charts.

pass@1 and pass@k have 95 % intervals, by category too, and each further model its paired difference to the first one.
What could not be scored counts as not solved, and its number stands beside the figures. What was not played, or has no
reward yet, is missing: it counts in no figure.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minrl.dataflow import Reward
from minrl.evaluate.play import GREEDY, NOBODY, Cell, Key, Row
from minrl.evaluate.statistics import (
    bootstrap,
    by_category,
    is_solved,
    lost_roles,
    part_means,
    pass_at_k,
    pass_at_one,
    percentiles,
    resampled,
    shown,
    summarize,
    wilson,
)
from minrl.report.charts import Axes, color, curve, legend_below, percent, picture
from minrl.report.page import escaped, markdown_table
from minrl.utils.console import Table
from minrl.utils.files import write_csv, write_json, write_text
from minrl.utils.text import plain

SUMMARY, MARKDOWN, CSV, CHARTS = "summary.json", "summary.md", "summary.csv", "charts"

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """What a role did in an episode, as an `Outcome` of `minrl.evaluate.statistics`."""

    example_id: str
    role: str
    reward: Reward | None
    num_sampled: float
    truncated: bool


def write_summary(
    cells: Sequence[Cell], rows: Mapping[Key, Row], folder: Path, settings: Summary, charts: bool
) -> dict[str, Any]:
    """Write everything that is made from the rows; returns the content of summary.json."""
    scored = {cell: {mode: outcomes(cell, rows, mode) for mode in cell.samples} for cell in cells}
    results = [result_of(cell, rows, *own.values()) for cell, own in scored.items()]
    complete = not any(one["missing"] or one["unscored"] for one in results)
    tasks = [cell.name for cell in cells]
    found = differences([(cell, next(iter(own.values()))) for cell, own in scored.items()])
    changes = sorted(found, key=lambda one: tasks.index(one["task"]))
    summary = plain({"complete": complete, "settings": settings, "results": results, "differences": changes})
    flat = [dict(_flat(result)) for result in summary["results"]]
    write_csv(folder / CSV, list(dict.fromkeys(column for line in flat for column in line)), flat)
    write_text(folder / MARKDOWN, markdown(summary))
    for old in (folder / CHARTS).glob("*.png"):
        old.unlink()
    if charts:
        draw(summary["results"], folder / CHARTS)
    write_json(folder / SUMMARY, summary)
    return summary


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The columns of a line, such as `pass@k.2.value`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


# Figures


def outcomes(cell: Cell, rows: Mapping[Key, Row], mode: str) -> list[Scored]:
    """What the model did on the task in this mode. A lost episode is there once for each role."""
    found = [
        Scored(
            row["example"],
            role,
            None if one["reward"] is None else Reward(one["reward"], one["parts"], one["maximum"], one["solved"]),
            math.nan if one.get("tokens") is None else one["tokens"],
            one.get("finish_reason") == "length",
        )
        for key, row in cell.scored(rows).items()
        if key.mode == mode
        for role, one in row["roles"].items()
    ]
    return in_roles(found)


def in_roles(scores: Sequence[Scored]) -> list[Scored]:
    """The outcomes, with each lost episode once for each role."""
    played, lost = [one for one in scores if one.role != NOBODY], [one for one in scores if one.role == NOBODY]
    roles = lost_roles([(one.example_id, one.role) for one in played], [one.example_id for one in lost])
    return [*played, *(replace(one, role=role) for one in lost for role in roles[one.example_id])]


def result_of(
    cell: Cell, rows: Mapping[Key, Row], main: Sequence[Scored], greedy: Sequence[Scored] = ()
) -> dict[str, Any]:
    """The figures of a model on a task. `main` are the outcomes of its first mode, of which pass@1 is."""
    mode, samples = next(iter(cell.samples.items()))
    greedy = main if mode == GREEDY else greedy
    every, scored = main if main is greedy else [*main, *greedy], cell.scored(rows)
    reasons = [one["unscorable"] for row in scored.values() for one in row["roles"].values() if one["unscorable"]]
    result: dict[str, Any] = {"model": cell.model.name, "label": cell.model.label, "task": cell.name}
    if cell.task.frozen_opponent:
        result["opponent"] = cell.made_by["opponent"] or cell.model.name
    if cell.model.step is not None:
        result |= {"run": cell.model.run, "step": cell.model.step}
    done = len(cell.done(rows))
    counts: dict[str, Any] = {"n": len(main), "unscorable": sum(one.reward is None for one in every)}
    counts |= {"completions": done, "missing": len(cell.keys) - done, "unscored": done - len(scored)}
    counts |= {"first_unscorable": reasons[0]} if reasons else {}
    if all(one.reward is None for one in main):
        return {**result, **counts}
    found = summarize(cell.examples, main, greedy).to_json()
    if any(math.isnan(one.num_sampled) and one.reward is not None for one in every):
        found["completion_tokens_mean"] = None  # some were not counted, and the others' mean is biased
    return {
        **result,
        **found,
        **counts,
        "examples": len({one.example_id for one in main}),
        "pass@1_greedy_ci95": pass_figure(greedy, 1)["ci95"] if any(one.reward for one in greedy) else None,
        "pass@k": passes(main, samples),
        "by_category": {
            name: _of_category(of_it, samples)
            for name, of_it in by_category(cell.examples, main).items()
            if any(one.reward for one in of_it)
        },
    }


def _of_category(scores: Sequence[Scored], samples: int) -> dict[str, Any]:
    rewards, figures = [one.reward for one in scores if one.reward], passes(scores, samples)
    mean = float(np.mean([reward.value for reward in rewards]))
    one, counts = figures["1"], {"n": len(scores), "reward": mean, "parts": part_means(rewards)}
    return {"pass@1": one["value"], "ci95": one["ci95"], "examples": one["examples"], **counts, "pass@k": figures}


def passes(scores: Sequence[Scored], samples: int) -> dict[str, dict[str, Any]]:
    """pass@k by k, for the k that some example has samples for."""
    figures = {str(k): pass_figure(scores, k) for k in powers_of_two(samples)}
    return {k: figure for k, figure in figures.items() if figure["examples"]}


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, and that number.

    >>> powers_of_two(6), powers_of_two(1)
    ([1, 2, 4, 6], [1])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def by_example(scores: Sequence[Scored]) -> dict[str, list[list[bool]]]:
    """Which samples of each example are solved, by role: the two players of a game are two series of samples."""
    found: dict[str, dict[str, list[bool]]] = {}
    for one in scores:
        found.setdefault(one.example_id, {}).setdefault(one.role, []).append(is_solved(one))
    return {example: list(roles.values()) for example, roles in found.items()}


def pass_figure(scores: Sequence[Scored], k: int) -> dict[str, Any]:
    """pass@k, its 95 % interval (Wilson's if each example has one sample, else a bootstrap), number of examples. The
    pass@k of an example is the mean over its roles; an example with fewer than k samples has none.
    """
    if k == 1:
        value, ci95 = pass_at_one(scores, [one.example_id for one in scores])
        return {"value": value, "ci95": list(ci95), "examples": len({one.example_id for one in scores})}
    found = ([pass_at_k(len(s), sum(s), k) for s in roles if len(s) >= k] for roles in by_example(scores).values())
    values = np.array([np.mean(roles) for roles in found if roles])
    ci95 = bootstrap(values) if len(values) else (math.nan, math.nan)
    return {"value": float(values.mean()) if len(values) else math.nan, "ci95": list(ci95), "examples": len(values)}


def differences(scored: Sequence[tuple[Cell, Sequence[Scored]]]) -> Iterator[dict[str, Any]]:
    """pass@1 of each further model minus that of the first, for each task, over the examples of both."""
    first: dict[str, tuple[Cell, Sequence[Scored]]] = {}
    for cell, own in scored:
        baseline, of_baseline = first.setdefault(cell.name, (cell, own))
        if cell is baseline or not all(any(one.reward for one in scores) for scores in (own, of_baseline)):
            continue
        before, after = (
            {example: [one for role in roles for one in role] for example, roles in by_example(scores).items()}
            for scores in (of_baseline, own)
        )
        both = [example for example in before if example in after]
        if both:
            names = {"task": cell.name, "model": cell.model.name, "label": cell.model.label}
            names |= {"baseline": baseline.model.name, "baseline_label": baseline.model.label}
            yield {**names, **paired_difference([before[one] for one in both], [after[one] for one in both])}


def paired_difference(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """The difference of two models' shares of solved samples, given which samples of the same examples each solved,
    with its 95 % interval, by bootstrap over the examples: both shares are of the same resampled examples.

    If all resamples have the same difference, the intervals of both shares are combined by the squares of their halves
    (MOVER, Zou and Donner 2008, doi:10.1002/sim.3095, without its correlation term).
    """
    means1, means2 = (np.array([np.mean(samples) for samples in solved]) for solved in (before, after))
    counts1, counts2 = (np.array([len(samples) for samples in solved]) for solved in (before, after))
    share1, share2 = np.average(means1, weights=counts1), np.average(means2, weights=counts2)
    difference, change = share2 - share1, means2 - means1
    drawn = resampled(means2, counts2) - resampled(means1, counts1)
    if np.ptp(drawn) < 1e-12:
        (low1, high1), (low2, high2) = (wilson(share * len(change), len(change)) for share in (share1, share2))
        ci95 = (
            difference - math.hypot(share2 - low2, high1 - share1),
            difference + math.hypot(high2 - share2, share1 - low1),
        )
    else:
        ci95 = percentiles(drawn)
    counts = {"better": int((change > 0).sum()), "worse": int((change < 0).sum()), "same": int((change == 0).sum())}
    return {"difference": float(difference), "ci95": [float(end) for end in ci95], "examples": len(change), **counts}


# Tables


def tables(summary: Summary) -> Iterator[Table]:
    """Each task's models, their differences, the parts of their rewards, and by category pass@1 and the pass@k of most
    samples. The other pass@k are in summary.json, summary.csv and the charts.
    """
    for task in dict.fromkeys(one["task"] for one in summary["results"]):
        results = [one for one in summary["results"] if one["task"] == task]
        scored = [one for one in results if "pass@1" in one]
        labels = [one["label"] for one in scored]
        most = max((k for one in scored for k in one["pass@k"]), key=int, default="1")
        yield _models(task, results, most)
        if changes := [one for one in summary["differences"] if one["task"] == task]:
            counted = ("better", "worse", "same")
            lines = [[one["label"], _points(one), *(str(one[name]) for name in counted)] for one in changes]
            title = f"Difference of pass@1 to {changes[0]['baseline_label']}, same examples"
            yield Table(title, ["model", "points (95 %)", "examples better", "worse", "same"], lines)
        if parts := dict.fromkeys(part for one in scored for part in one["parts"]):
            lines = [[part, *(number(one["parts"].get(part), 3) for one in scored)] for part in parts]
            yield Table("Parts of the reward, means", ["part", *labels], lines)
        names = dict.fromkeys(name for one in scored for name in one["by_category"])
        for k in dict.fromkeys(["1", most]) if names else ():
            lines = []
            for name in names:
                own = [one["by_category"].get(name, {}).get("pass@k", {}).get(k, {}) for one in scored]
                examples = max(one.get("examples", 0) for one in own)
                lines.append([name, str(examples), *(shown(one.get("value"), one.get("ci95")) for one in own)])
            yield Table(f"pass@{k} by category", ["category", "examples", *labels], lines)


def _models(task: str, results: Sequence[Summary], most: str) -> Table:
    """The figures of each model on a task, with pass@k for `most` samples."""
    last = [most] * (most != "1")
    lines = [
        [
            one["label"],
            shown(one.get("pass@1"), one.get("ci95")),
            *(shown(one.get("pass@k", {}).get(k, {}).get("value")) for k in last),
            shown(one.get("pass@1_greedy")),
            number(one.get("reward"), 3),
            number(one.get("completion_tokens_mean"), 1),
        ]
        for one in results
    ]
    columns = ["model", "pass@1 (95 %)", *(f"pass@{k}" for k in last), "greedy", "reward", "tokens"]
    counts = max(((one["n"], one["examples"]) for one in results if "pass@1" in one), default=None)
    title = f"{task}: {counts[0]} completions of {counts[1]} held-out examples" if counts else task
    return Table(title, columns, lines, list(filter(None, map(note, results))))


def number(value: float | None, digits: int) -> str:
    """A mean; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def _points(change: Summary) -> str:
    """A difference in percentage points with its interval."""
    value, low, high = (f"{100 * number:+.1f}" for number in (change["difference"], *change["ci95"]))
    return f"{value} ({low} to {high})"


def note(result: Summary) -> str:
    """What a model's figures hide: completions that are missing, truncated or unscorable; empty if there are none."""
    found = [f"{result['missing']} missing"] if result["missing"] else []
    found += [f"{result['unscored']} without a reward yet"] if result["unscored"] else []
    found += [f"{shown(result['truncated_frac'])} cut off at max_tokens"] if result.get("truncated_frac") else []
    if result["unscorable"]:
        found.append(f"{result['unscorable']} could not be scored, the first because: {result['first_unscorable']}")
    return f"{result['label']}: {', '.join(found)}" if found else ""


def markdown(summary: Summary) -> str:
    """The tables in Markdown, with the notes below."""
    blocks = [] if summary["complete"] else ["**Not complete**: the same command plays or scores what is missing."]
    for table in tables(summary):
        blocks += [f"## {escaped(table.title)}", markdown_table(table.columns, table.lines)]
        blocks += [f"- {escaped(note)}" for note in table.notes]
    return "\n\n".join(blocks) + "\n"


# Charts

Series = Mapping[str, Mapping[Any, tuple[float, float, float]]]
"""What a panel shows: by label and place, a value with its interval."""


def draw(results: Sequence[Summary], folder: Path) -> None:
    """pass@1 as bars; and where there are several of them, the parts of rewards, pass@k over k, pass@1 over steps."""
    of_tasks: dict[str, list[Summary]] = {}
    scores: dict[str, dict[str, tuple[float, float, float]]] = {}
    for one in results:
        if "pass@1" in one:
            of_tasks.setdefault(one["task"], []).append(one)
            scores.setdefault(one["label"], {})[one["task"]] = _score(one)
    if scores:
        _picture(folder / "pass_at_1.png", {"held-out": scores}, bars, "pass@1, 95 % intervals", "")
    for name, (series_of, drawn, title, x) in CHARTS_OF_TASKS.items():
        found = {task: series_of(own) for task, own in of_tasks.items()}
        several = {task: series for task, series in found.items() if any(len(points) > 1 for points in series.values())}
        if several:
            _picture(folder / f"{name}.png", several, drawn, title, x)


def _picture(
    path: Path, panels: Mapping[str, Series], drawn: Callable[[Axes, Series], None], title: str, x: str
) -> None:
    places = max(len(points) for series in panels.values() for points in series.values())
    width = max(4.5, 1.0 + 0.8 * places) if drawn is bars else 4.5
    with picture(path, width=1.0 + width * len(panels), columns=len(panels)) as (figure, every):
        for axes, (name, series) in zip(every, panels.items(), strict=True):
            drawn(axes, series)
            axes.set(title=f"{name}: {title}", xlabel=x, ylim=(0.0, 1.0))
            percent(axes)
        legend_below(figure, every[0], columns=2)


def bars(axes: Axes, series: Series) -> None:
    """A group of bars for each place, with intervals."""
    places, width = list(dict.fromkeys(place for points in series.values() for place in points)), 0.8 / len(series)
    for index, (label, points) in enumerate(series.items()):
        x = [places.index(place) + width * (index - (len(series) - 1) / 2) for place in points]
        value, low, high = zip(*points.values(), strict=True)
        errors = np.array([np.subtract(value, low), np.subtract(high, value)]).clip(0)
        axes.bar(x, value, width, yerr=errors, capsize=3, color=color(index), edgecolor="white", label=label)
    axes.set_xticks(range(len(places)), places)


def lines(axes: Axes, series: Series) -> None:
    """A curve for each label, with a band."""
    for index, (label, points) in enumerate(series.items()):
        x = sorted(points)
        value, low, high = zip(*(points[place] for place in x), strict=True)
        curve(axes, x, value, (low, high), index, label=label)


def _score(result: Summary) -> tuple[float, float, float]:
    return (result["pass@1"], *result["ci95"])


def _parts(results: Sequence[Summary]) -> Series:
    """The parts that are shares."""
    return {
        one["label"]: {part: (mean, mean, mean) for part, mean in one["parts"].items() if 0 <= mean <= 1}
        for one in results
    }


def _passes(results: Sequence[Summary]) -> Series:
    return {
        one["label"]: {int(k): (of_k["value"], *of_k["ci95"]) for k, of_k in one["pass@k"].items()} for one in results
    }


def _steps(results: Sequence[Summary]) -> Series:
    """Each run over its steps; other models are horizontal lines."""
    runs: dict[str, dict[int, tuple[float, float, float]]] = {}
    for one in results:
        if "run" in one:
            runs.setdefault(Path(one["run"]).name, {})[one["step"]] = _score(one)
    steps = [step for points in runs.values() for step in points]
    others = [one for one in results if "run" not in one and runs]
    return {**runs, **{one["label"]: dict.fromkeys((min(steps), max(steps)), _score(one)) for one in others}}


CHARTS_OF_TASKS: dict[str, tuple[Callable[[Sequence[Summary]], Series], Callable[[Axes, Series], None], str, str]] = {
    "parts": (_parts, bars, "parts of the reward", ""),
    "pass_at_k": (_passes, lines, "pass@k", "k, samples of which one must solve"),
    "steps": (_steps, lines, "pass@1", "training step"),
}
"""By the chart's name: what is shown of a task's results, how it is drawn, the title, and what the x axis is."""
