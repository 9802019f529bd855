"""The last stage: from scores to figures, as one table in Markdown, as CSV, on the terminal and in four charts.

pass@1 and pass@k have 95 % intervals, by category too, and each further model its paired difference to the first one.
Unscorable completions, and those that a server refused, count as not solved; their shares stand beside the figures.
Without any score there is no figure. A failed call is no completion: it counts as missing.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from minrl.dataflow import Reward
from minrl.evaluate.generate import GREEDY, SAMPLED, EvaluatedTask, EvaluationPlan, Key, Row
from minrl.evaluate.score import NOBODY, facts_of, judge_failed
from minrl.report.charts import (
    INK,
    PALETTE,
    Axes,
    color,
    curve,
    legend_below,
    line_style,
    percent,
    picture,
    wrapped,
)
from minrl.report.page import escaped, markdown_table
from minrl.utils.console import Table
from minrl.utils.files import write_json, write_jsonl, write_text
from minrl.utils.statistics import (
    bootstrap,
    by_category,
    is_solved,
    lost_roles,
    part_means,
    pass_at_k,
    pass_at_one,
    percentiles,
    resampled,
    shares,
    summarize,
    weighted_score,
    wilson,
)
from minrl.utils.task_names import task_key
from minrl.utils.text import plain, printable

SUMMARY, MARKDOWN, CSV, SCORES, CHARTS = "summary.json", "summary.md", "summary.csv", "scores.jsonl", "charts"

COLUMNS = ("task", "model", "category", "figure", "value", "low", "high", "n", "examples")
"""The columns of summary.csv."""

PASS = r"pass@\d+"

NOT_COMPLETE = (
    "**Not complete**: some completions are missing, or a judge failed to say what some are worth. The same command "
    "asks for them again."
)

Summary = Mapping[str, Any]


def report(plan: EvaluationPlan, folder: Path, settings: Mapping[str, Any], rows: Mapping[Key, Row]) -> dict[str, Any]:
    """Write everything that is made from the scored rows; returns the content of summary.json."""
    lines = [line for key in plan.all_keys() if key in rows for line in lines_of(rows[key])]
    scores = scores_of(lines)
    found = list(results(plan, scores, lines, rows))
    undecided = any(judge_failed(rows[key]) for key in plan.all_keys() if key in rows)
    summary: dict[str, Any] = {
        "complete": not undecided and not any(result["missing"] for result in found),
        "settings": settings,
        "results": found,
        "differences": list(differences(plan, scores)),
    }
    if weighted := list(weighted_scores(plan, found)):
        summary["together"] = weighted
    summary = plain(summary)
    frame = frame_of(summary)
    write_jsonl(folder / SCORES, lines)
    write_text(folder / MARKDOWN, markdown(summary))
    write_text(folder / CSV, frame.to_csv(columns=COLUMNS, index=False))
    for old in (folder / CHARTS).glob("*.png"):
        old.unlink()
    drawn = draw(frame, folder / CHARTS) if plan.config.charts else []
    summary["charts"] = [str(path.relative_to(folder)) for path in drawn]
    write_json(folder / SUMMARY, summary)
    return summary


# Figures


def lines_of(row: Row) -> Iterator[Row]:
    """The lines of scores.jsonl: one for each role of an episode, every value in a column of its own."""
    facts = facts_of(row) if "error" not in row else {}
    for verdict in row.get("scores", ()):
        yield {
            **{name: row[name] for name in Key._fields},
            "example": row["example"],
            **{name: value for name, value in verdict.items() if name != "parts"},
            **{"tokens": None, "finish_reason": None, **facts.get(verdict["role"], {})},
            "refused": row.get("refused"),
            **{f"category/{name}": value for name, value in row["category"].items()},
            **{f"part/{name}": value for name, value in verdict["parts"].items()},
        }


@dataclass(frozen=True)
class Score:
    """A line of scores.jsonl as an `Outcome` of `minrl.utils.statistics`."""

    index: int
    example_id: str
    role: str
    reward: Reward | None
    num_sampled: float
    truncated: bool
    refused: bool = False


def scores_of(lines: Iterable[Row]) -> dict[tuple[str, str, str], list[Score]]:
    """The scores by model, task and mode, with each lost episode once for each role."""
    found: dict[tuple[str, str, str], list[Score]] = {}
    for line in lines:
        parts = {name.removeprefix("part/"): value for name, value in line.items() if name.startswith("part/")}
        score = Score(
            index=line["index"],
            example_id=line["example"],
            role=line["role"],
            reward=None if line["reward"] is None else Reward(line["reward"], parts, line["maximum"], line["solved"]),
            num_sampled=math.nan if line["tokens"] is None else float(line["tokens"]),
            truncated=line["finish_reason"] == "length",
            refused=line["refused"] is not None,
        )
        found.setdefault((line["model"], line["task"], line["mode"]), []).append(score)
    return {key: in_roles(scores) for key, scores in found.items()}


def in_roles(scores: Sequence[Score]) -> list[Score]:
    """The scores of one model on one task, with each lost episode once for each role."""
    played, lost = [one for one in scores if one.role != NOBODY], [one for one in scores if one.role == NOBODY]
    roles = lost_roles([(one.example_id, one.role) for one in played], [one.example_id for one in lost])
    return [*played, *(replace(one, role=role) for one in lost for role in roles[one.example_id])]


def results(
    plan: EvaluationPlan, scores: Mapping[Any, Sequence[Score]], lines: Sequence[Row], rows: Mapping[Key, Row]
) -> Iterator[dict[str, Any]]:
    """The figures of each model on each task, in the plan's order. A pair without scores has counts only."""
    reasons = {(line["model"], line["task"]): line["unscorable"] for line in reversed(lines) if line["unscorable"]}
    for model, task in itertools.product(plan.models, plan.tasks):
        result: dict[str, Any] = {"model": model.name, "label": model.label, "task": task.name}
        if task.task.frozen_opponent:
            result["opponent"] = plan.config.opponent or model.name
        if model.step is not None:
            result.update({"run": model.run, "step": model.step})
        sampled, greedy = (scores.get((model.name, task.name, mode), ()) for mode in (SAMPLED, GREEDY))
        if sampled or greedy:
            result.update(figures(plan, task, sampled, greedy))
        if reason := reasons.get((model.name, task.name)):
            result["first_unscorable"] = reason
        total, missing = sum(1 for _ in task.keys(model)), len(plan.missing(model, task, rows))
        yield {**result, "completions": total - missing, "missing": missing}


def figures(
    plan: EvaluationPlan, task: EvaluatedTask, sampled: Sequence[Score], greedy: Sequence[Score]
) -> dict[str, Any]:
    """The figures of one model on one task. pass@1 is that of the task's first mode, even if that has no scores."""
    mode, samples = next(iter(task.samples.items()))
    main = greedy if mode == GREEDY else sampled
    every = main if main is greedy else [*main, *greedy]
    counts = {
        "n": len(main),
        "unscorable": sum(one.reward is None for one in every),
        "refused_frac": float(np.mean([one.refused for one in main])) if main else None,
    }
    if all(one.reward is None for one in main):
        return counts
    found = {**summarize(task.examples, main, greedy).to_json(), **counts}
    if any(math.isnan(one.num_sampled) and one.reward is not None for one in every):
        found["completion_tokens_mean"] = None  # some were not counted, and the others' mean is biased
    passes = {str(k): pass_figure(main, k) for k in plan.config.pass_at or powers_of_two(samples)}
    return {
        **found,
        "examples": len({one.index for one in main}),
        "pass@1_greedy_ci95": pass_figure(greedy, 1)[1] if any(one.reward is not None for one in greedy) else None,
        "pass@k": {k: {"value": value, "ci95": ci95, "examples": n} for k, (value, ci95, n) in passes.items() if n},
        "by_category": {
            name: _of_category(of_it)
            for name, of_it in by_category(task.examples, main).items()
            if any(one.reward is not None for one in of_it)
        },
    }


def _of_category(scores: Sequence[Score]) -> dict[str, Any]:
    rewards = [one.reward for one in scores if one.reward is not None]
    value, ci95, examples = pass_figure(scores, 1)
    mean = float(np.mean([reward.value for reward in rewards]))
    parts = part_means(rewards)
    return {"pass@1": value, "ci95": ci95, "n": len(scores), "examples": examples, "reward": mean, "parts": parts}


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, and that number.

    >>> powers_of_two(6), powers_of_two(1)
    ([1, 2, 4, 6], [1])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def by_example(scores: Sequence[Score]) -> dict[int, list[list[bool]]]:
    """Which samples of each example are solved, by role: the two players of a game are two series of samples."""
    found: dict[int, dict[str, list[bool]]] = {}
    for one in scores:
        found.setdefault(one.index, {}).setdefault(one.role, []).append(is_solved(one))
    return {index: list(roles.values()) for index, roles in found.items()}


def pass_figure(scores: Sequence[Score], k: int) -> tuple[float, list[float], int]:
    """pass@k, its 95 % interval (Wilson's if each example has one sample, else a bootstrap), number of examples. The
    pass@k of an example is the mean over its roles; an example with fewer than k samples has none.
    """
    if k == 1 and scores:
        value, ci95 = pass_at_one(scores, [str(one.index) for one in scores])
        return value, list(ci95), len({one.index for one in scores})
    found = ([pass_at_k(len(s), sum(s), k) for s in roles if len(s) >= k] for roles in by_example(scores).values())
    values = np.array([np.mean(roles) for roles in found if roles])
    if not len(values):
        return math.nan, [math.nan, math.nan], 0
    return float(values.mean()), list(bootstrap(values)), len(values)


def weighted_scores(plan: EvaluationPlan, found: Sequence[Summary]) -> Iterator[dict[str, Any]]:
    """The score of each model on several tasks with weights, from its results on each. Left out where one has none."""
    parts = shares(plan.config.weights)
    for model in plan.models if parts else ():
        of_tasks = {one["task"]: one for one in found if one["model"] == model.name and "pass@1" in one}
        if of_tasks.keys() >= parts.keys():
            value, ci95 = weighted_score(
                [(part, of_tasks[key]["pass@1"], of_tasks[key]["ci95"]) for key, part in parts.items()]
            )
            result: dict[str, Any] = {"model": model.name, "label": model.label, "task": task_key(plan.config.task)}
            if model.step is not None:
                result.update({"run": model.run, "step": model.step})
            counts = {name: sum(of_tasks[key][name] for key in parts) for name in ("n", "examples")}
            yield {**result, "shares": parts, "pass@1": value, "ci95": list(ci95), **counts}


def differences(plan: EvaluationPlan, scores: Mapping[Any, Sequence[Score]]) -> Iterator[dict[str, Any]]:
    """pass@1 of each further model minus that of the first, for each task, over the examples of both."""
    first = plan.models[0]
    for task, model in itertools.product(plan.tasks, plan.models[1:]):
        pair = [scores.get((one.name, task.name, next(iter(task.samples))), ()) for one in (first, model)]
        if not all(any(one.reward is not None for one in of_model) for of_model in pair):
            continue
        before, after = (
            {index: [one for role in roles for one in role] for index, roles in by_example(of_model).items()}
            for of_model in pair
        )
        both = [index for index in before if index in after]
        if both:
            change = paired_difference([before[index] for index in both], [after[index] for index in both])
            baseline = {"baseline": first.name, "baseline_label": first.label}
            yield {"task": task.name, "model": model.name, "label": model.label, **baseline, **change}


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


def frame_of(summary: Summary) -> pd.DataFrame:
    """A line for each figure of each model on each task and category."""
    frame = pd.DataFrame(_figures(summary), columns=[*COLUMNS, "label", "run", "step", "baseline"])
    return frame.astype({"value": float, "low": float, "high": float, "n": "Int64", "examples": "Int64"})


def _figures(summary: Summary) -> Iterator[dict[str, Any]]:
    def line(
        one: Summary,
        figure: str,
        value: float,
        ci95: Sequence[float | None] = (None, None),
        **more: Any,  # noqa: ANN401 - further columns
    ) -> dict[str, Any]:
        shared = {name: one.get(name) for name in ("task", "model", "label", "run", "step", "n", "examples")}
        return {**shared, "category": "", "figure": figure, "value": value, "low": ci95[0], "high": ci95[1], **more}

    for one in summary["results"]:
        yield from (line(one, name, one.get(name, 0)) for name in ("refused_frac", "unscorable", "missing"))
        if "pass@1" not in one:
            continue
        for k, found in one["pass@k"].items():
            yield line(one, f"pass@{k}", found["value"], found["ci95"], examples=found["examples"])
        if interval := one["pass@1_greedy_ci95"]:
            yield line(one, "pass@1_greedy", one["pass@1_greedy"], interval, n=None)
        yield from (line(one, name, one[name]) for name in ("reward", "completion_tokens_mean", "truncated_frac"))
        yield from (line(one, f"part/{part}", mean) for part, mean in one["parts"].items())
        for category, found in one["by_category"].items():
            within = {"category": category, "n": found["n"], "examples": found["examples"]}
            yield line(one, "pass@1", found["pass@1"], found["ci95"], **within)
            yield from (line(one, f"part/{part}", mean, **within) for part, mean in found["parts"].items())
    yield from (line(one, "pass@1", one["pass@1"], one["ci95"]) for one in summary.get("together", ()))
    for one in summary["differences"]:
        figure = f"pass@1 minus that of {one['baseline']}"
        yield line(one, figure, one["difference"], one["ci95"], baseline=one["baseline_label"])


def tables(summary: Summary, narrow: bool = False) -> Iterator[Table]:
    """Each task's models, their differences, and pass@1 by category. `narrow`: the first and the last pass@k alone."""
    frame = frame_of(summary)
    frame["text"] = [_shown(one.figure, one.value, one.low, one.high) for one in frame.itertuples()]
    for task, figures in frame.groupby("task", sort=False):
        results = [one for one in summary["results"] if one["task"] == task]
        if not results:  # the score of several tasks together
            parts = ", ".join(f"{share(part)} {name}" for name, part in summary["together"][0]["shares"].items())
            yield Table(
                str(task), ["model", f"pass@1 of {parts} (95 %)"], figures[["label", "text"]].to_numpy().tolist()
            )
            continue
        counts = max(((one["n"], one["examples"]) for one in results if "pass@1" in one), default=None)
        title = task if counts is None else f"{task}: {counts[0]} completions of {counts[1]} held-out examples"
        yield Table(title, *_models(figures[figures.category == ""], narrow), list(filter(None, map(_note, results))))
        changes = [one for one in summary["differences"] if one["task"] == task]
        if changes:
            title = f"Difference of pass@1 to {changes[0]['baseline_label']}, same examples"
            counted = ("better", "worse", "same")
            lines = [[one["label"], _points(one), *(str(one[name]) for name in counted)] for one in changes]
            yield Table(title, ["model", "points (95 %)", "examples better", "worse", "same"], lines)
        within = figures[(figures.category != "") & (figures.figure == "pass@1")]
        if len(within):
            table = within.pivot(index="category", columns="label", values="text")
            table = table.reindex(index=within.category.unique(), columns=within.label.unique()).fillna("-")
            table.insert(0, "examples", within.groupby("category").examples.max().astype(str))
            columns = ["category", *map(str, table.columns)]
            yield Table("pass@1 by category", columns, table.reset_index().to_numpy().tolist())


def _models(figures: pd.DataFrame, narrow: bool) -> tuple[list[str], list[list[str]]]:
    """The columns and the lines of a task's models."""
    passes = sorted(figures.figure[figures.figure.str.fullmatch(PASS)].unique(), key=lambda name: int(name[5:]))
    titles = {name: f"{name} (95 %)" for name in passes}
    if narrow and len(passes) > 1:  # the last without its interval
        figures = figures.assign(text=figures.text.where(figures.figure != passes[-1], figures.value.map(share)))
        titles = {passes[0]: titles[passes[0]], passes[-1]: passes[-1]}
    titles |= {"pass@1_greedy": "greedy", "reward": "reward", "completion_tokens_mean": "tokens"}
    table = figures[figures.baseline.isna()].pivot(index="label", columns="figure", values="text")
    table = table.reindex(index=figures.label.unique(), columns=list(titles), fill_value="-").fillna("-")
    return ["model", *titles.values()], table.reset_index().to_numpy().tolist()


def _shown(figure: str, value: float, low: float, high: float) -> str:
    """A figure as its cell has it, with its interval where the columns have room for one."""
    if math.isnan(value):
        return "-"
    if figure in ("reward", "completion_tokens_mean"):
        return f"{value:.3f}" if figure == "reward" else f"{value:.1f}"
    return share(value) if math.isnan(low) or figure == "pass@1_greedy" else interval_text(value, (low, high))


def _note(result: Summary) -> str:
    """What a model's figures hide: completions that are missing, refused, truncated or unscorable."""
    found = [f"{result['missing']} missing"] if result["missing"] else []
    for name, what in (("refused_frac", "refused"), ("truncated_frac", "cut off at the longest completion")):
        found += [f"{share(result[name])} {what}"] if result.get(name) else []
    if result.get("unscorable"):
        found.append(f"{result['unscorable']} could not be scored, the first because: {result['first_unscorable']}")
    return f"{result['label']}: {', '.join(found)}" if found else ""


def _points(change: Summary) -> str:
    """A difference in percentage points with its interval."""
    value, low, high = (f"{100 * number:+.1f}" for number in (change["difference"], *change["ci95"]))
    return f"{value} ({low} to {high})"


def unscorable(summary: Summary) -> Iterator[str]:
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


def interval_text(value: float, ci95: Sequence[float]) -> str:
    """A share with its interval, in per cent."""
    return f"{value:.1%} ({ci95[0]:.1%} to {ci95[1]:.1%})"


def share(value: float | None) -> str:
    """A share in per cent; a dash for None."""
    return "-" if value is None else f"{value:.1%}"


# Charts


def draw(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw every chart that has figures."""
    whole = frame[frame.category == ""]
    pass_at_1, pass_at_k = whole[whole.figure == "pass@1"], whole[whole.figure.str.fullmatch(PASS)]
    charts = {
        "pass_at_1": (_pass_at_1, pass_at_1, True),
        "pass_at_k": (_pass_at_k, pass_at_k, pass_at_k.figure.nunique() > 1),
        "steps": (_over_steps, pass_at_1, pass_at_1.groupby("run").step.nunique().max() > 1),
        "differences": (_differences, whole[whole.baseline.notna()], True),
    }
    charts = {name: chart for name, chart in charts.items() if chart[2] and len(chart[1])}
    for name, (function, figures, _) in charts.items():
        function(folder / f"{name}.png", figures)
    return [folder / f"{name}.png" for name in charts]


def _pass_at_1(path: Path, figures: pd.DataFrame) -> None:
    """Bars with intervals, a group for each task."""
    tasks, labels = figures.task.unique(), figures.label.unique()
    value, low, high = (
        figures.pivot(index="task", columns="label", values=name).reindex(index=tasks, columns=labels)
        for name in ("value", "low", "high")
    )
    errors = np.stack([(value - low).T.clip(lower=0), (high - value).T.clip(lower=0)], axis=1)  # (models, 2, tasks)
    width = min(14.0, max(5.5, 3.5 + 0.6 * value.size))
    with picture(path, width=width, height=4.5) as (figure, (axes,)):
        value.plot.bar(ax=axes, yerr=errors, capsize=3, width=0.8, edgecolor="white", color=list(PALETTE), legend=False)
        axes.set_xticks(range(len(tasks)), list(map(wrapped, tasks)), rotation=0)
        axes.grid(axis="x", visible=False)
        axes.set_title("held-out pass@1, 95 % intervals")
        axes.set(xlabel="", ylim=(0.0, 1.0))
        percent(axes)
        legend_below(figure, axes, columns=2)


def _panels(path: Path, figures: pd.DataFrame, what: str, x: str) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """A picture with a panel for each task, which is drawn by whoever iterates: the axes, and the task's figures."""
    tasks = list(figures.task.unique())
    with picture(path, width=1.0 + 4.5 * len(tasks), height=4.2, columns=len(tasks)) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            yield axes, figures[figures.task == task]
            axes.set_xlabel(x)
            axes.set_title(f"{task}: {what}")
            axes.set_ylim(0.0, 1.0)
            percent(axes)
        legend_below(figure, panels[0], columns=2)


def _pass_at_k(path: Path, figures: pd.DataFrame) -> None:
    """pass@k over k."""
    labels = list(figures.label.unique())
    figures = figures.assign(k=figures.figure.str.removeprefix("pass@").astype(float))
    for axes, of_task in _panels(path, figures, "pass@k", "k, samples of which one must solve"):
        for label, found in of_task.groupby("label", sort=False):
            curve(axes, found.k, found.value, (found.low, found.high), labels.index(label), label=label)
        axes.set_xscale("log", base=2)
        # Where the last k is close to a power of two, such as 18 to 16, their labels would run into each other.
        shown = [k for k, after in itertools.pairwise([*sorted(of_task.k.unique()), math.inf]) if after / k >= 1.5]
        axes.set_xticks(shown, [f"{k:g}" for k in shown])
        axes.minorticks_off()


def _over_steps(path: Path, figures: pd.DataFrame) -> None:
    """pass@1 over the training steps of each run; other models are horizontal lines."""
    runs, others = list(figures.run.dropna().unique()), list(figures[figures.step.isna()].label.unique())
    for axes, of_task in _panels(path, figures, "pass@1", "training step"):
        for run, found in of_task[of_task.step.notna()].sort_values("step").groupby("run", sort=False):
            band = (found.low, found.high)
            curve(axes, found.step.astype(float), found.value, band, runs.index(run), label=Path(run).name)
        for other in of_task[of_task.step.isna()].itertuples():
            style = {**line_style(len(runs) + others.index(other.label)), "marker": "none", "linestyle": "--"}
            axes.axhline(other.value, label=other.label, **style, linewidth=1.3)


def _differences(path: Path, figures: pd.DataFrame) -> None:
    """The paired differences with their intervals, a row for each model and task, around a line at 0."""
    labels, names = list(figures.label.unique()), [f"{one.task}: {one.label}" for one in figures.itertuples()]
    with picture(path, width=8.0, height=1.6 + 0.45 * len(figures)) as (figure, (axes,)):
        for row, one in enumerate(figures[::-1].itertuples()):
            style = {"color": color(1 + labels.index(one.label)), "capsize": 4, "fmt": "o", "markersize": 7}
            axes.errorbar(one.value, row, xerr=[[one.value - one.low], [one.high - one.value]], **style)
            place = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 9}
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # or the line at 0 would cross the number
            axes.annotate(f"{100 * one.value:+.1f}", (one.value, row), **place, bbox=behind)
        axes.axvline(0.0, color=INK, linewidth=1.2)
        axes.set_yticks(range(len(names)), names[::-1])
        axes.set_ylim(-0.6, len(names) - 0.4)
        percent(axes, "x")
        axes.set_xlabel("on the same examples, 95 % interval")
        title = f"pass@1 minus that of {figures.baseline.iloc[0]}"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
