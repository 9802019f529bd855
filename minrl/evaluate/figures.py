"""From scores to figures: pass@1 and pass@k with intervals, by category, and the difference between two models.

Unscorable completions, and those that a server refused, count as not solved; the share of refusals stands beside the
figure. Without any score there is no figure. A failed call is no completion: it counts as missing.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minrl.evaluate.plan import GREEDY, SAMPLED, EvaluationPlan, PlannedTask
from minrl.evaluate.rows import Key, Row
from minrl.evaluate.score import CATEGORY, NOBODY, PART
from minrl.types import Reward
from minrl.utils.statistics import (
    bootstrap,
    by_category,
    is_solved,
    lost_roles,
    part_means,
    pass_at_one,
    percentiles,
    resampled,
    shares,
    summarize,
    weighted_score,
    wilson,
)
from minrl.utils.task_names import task_key
from minrl.utils.text import plain


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
    category: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, line: Row) -> "Score":
        """The score on a line."""
        parts, category = ({n.removeprefix(p): v for n, v in line.items() if n.startswith(p)} for p in (PART, CATEGORY))
        return cls(
            index=line["index"],
            example_id=line["example"],
            role=line["role"],
            reward=None if line["reward"] is None else Reward(line["reward"], parts, line["maximum"], line["solved"]),
            num_sampled=math.nan if line["tokens"] is None else float(line["tokens"]),
            truncated=line["finish_reason"] == "length",
            refused=bool(line["refused"]),
            category=category,
        )


Scores = Mapping[tuple[str, str, str], Sequence[Score]]
"""By model, task and mode."""


def scores_of(lines: Iterable[Row]) -> Scores:
    """The scores, with each lost episode once for each role that the model would have played."""
    found: dict[tuple[str, str, str], list[Score]] = {}
    for line in lines:
        found.setdefault((line["model"], line["task"], line["mode"]), []).append(Score.of(line))
    return {key: in_roles(scores) for key, scores in found.items()}


def in_roles(scores: Sequence[Score]) -> list[Score]:
    """The scores of one model on one task, with each lost episode once for each role."""
    played, lost = [one for one in scores if one.role != NOBODY], [one for one in scores if one.role == NOBODY]
    roles = lost_roles([(one.example_id, one.role) for one in played], [one.example_id for one in lost])
    return [*played, *(replace(one, role=role) for one in lost for role in roles[one.example_id])]


def results(plan: EvaluationPlan, lines: Sequence[Row], rows: Mapping[Key, Row]) -> list[dict[str, Any]]:
    """The figures of each model on each task, in the plan's order. A pair without scores has counts only."""
    scores, found = scores_of(lines), []
    reasons = {(line["model"], line["task"]): line["unscorable"] for line in reversed(lines) if line["unscorable"]}
    for model, task in itertools.product(plan.models, plan.tasks):
        keys = list(task.keys(model))
        missing = sum("error" in rows.get(key, {"error": ""}) for key in keys)
        result: dict[str, Any] = {"model": model.name, "label": model.label, "task": task.name}
        if task.task.frozen_opponent:
            result["opponent"] = plan.config.opponent or model.name
        if model.step is not None:
            result.update({"run": model.run, "step": model.step})
        sampled, greedy = (scores.get((model.name, task.name, mode), ()) for mode in (SAMPLED, GREEDY))
        if sampled or greedy:
            result.update(pair_figures(plan, task, sampled, greedy))
        if reason := reasons.get((model.name, task.name)):
            result["first_unscorable"] = reason
        found.append(plain({**result, "completions": len(keys) - missing, "missing": missing}))
    return found


def pair_figures(
    plan: EvaluationPlan, task: PlannedTask, sampled: Sequence[Score], greedy: Sequence[Score]
) -> dict[str, Any]:
    """The figures of one model on one task. pass@1 is that of the task's first mode, even if that has no scores."""
    main = greedy if task.modes[0].name == GREEDY else sampled
    unscorable = sum(one.reward is None for one in (main if main is greedy else [*main, *greedy]))
    refused_frac = float(np.mean([one.refused for one in main])) if main else None
    if all(one.reward is None for one in main):
        return {"n": len(main), "unscorable": unscorable, "refused_frac": refused_frac}
    figures = summarize(task.examples, main, greedy).to_json()
    if any(math.isnan(one.num_sampled) and one.reward is not None for one in [*main, *greedy]):
        figures["completion_tokens_mean"] = None  # some were not counted, and the others' mean is biased
    categories = {}
    for name, of_it in by_category(task.examples, main).items():
        rewards = [one.reward for one in of_it if one.reward is not None]
        if rewards:
            value, ci95, examples = pass_figure(of_it, 1)
            mean = float(np.mean([reward.value for reward in rewards]))
            figure = {"pass@1": value, "ci95": ci95, "n": len(of_it), "examples": examples}
            categories[name] = {**figure, "reward": mean, "parts": part_means(rewards)}
    passes = {}
    for k in plan.config.pass_at or powers_of_two(task.modes[0].samples):
        value, ci95, examples = pass_figure(main, k)
        if examples:
            passes[str(k)] = {"value": value, "ci95": ci95, "examples": examples}
    return {
        **figures,
        "refused_frac": refused_frac,
        "examples": len({one.index for one in main}),
        "pass@1_greedy_ci95": pass_figure(greedy, 1)[1] if any(one.reward is not None for one in greedy) else None,
        "pass@k": passes,
        "by_category": categories,
        "unscorable": unscorable,
    }


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


def example_values(scores: Sequence[Score], k: int) -> dict[int, float]:
    """pass@k of each example that has k samples, the mean over its roles."""
    found = {index: [s for s in roles if len(s) >= k] for index, roles in by_example(scores).items()}
    return {i: float(np.mean([pass_at_k(len(s), sum(s), k) for s in roles])) for i, roles in found.items() if roles}


def pass_figure(scores: Sequence[Score], k: int) -> tuple[float, list[float], int]:
    """pass@k, its 95 % interval (Wilson's if each example has one sample, else a bootstrap), number of examples."""
    if k == 1 and scores:
        value, ci95 = pass_at_one(scores, [str(one.index) for one in scores])
        return value, list(ci95), len({one.index for one in scores})
    values = np.array(list(example_values(scores, k).values()))
    if not len(values):
        return math.nan, [math.nan, math.nan], 0
    return float(values.mean()), list(bootstrap(values)), len(values)


def pass_at_k(n: int, solved: int, k: int) -> float:
    """The unbiased estimate of the probability that one of k samples solves, from n samples of which some did: equation
    1 of Chen et al. 2021 (arXiv:2107.03374), 1 - C(n - solved, k) / C(n, k), as a product. n must be at least k.

    >>> pass_at_k(4, 2, 1), round(pass_at_k(4, 2, 2), 4), pass_at_k(4, 2, 3)
    (0.5, 0.8333, 1.0)
    """
    assert 1 <= k <= n and 0 <= solved <= n, f"pass@{k} of {solved} solved among {n}"
    return 1.0 - math.prod(1.0 - k / i for i in range(n - solved + 1, n + 1))


def together(plan: EvaluationPlan, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The score of each model on several tasks with weights, from its results on each. Left out where one has none."""
    parts, scores = shares(plan.config.weights), []
    for model in plan.models if parts else ():
        of_tasks = {one["task"]: one for one in found if one["model"] == model.name and "pass@1" in one}
        if of_tasks.keys() >= parts.keys():
            value, ci95 = weighted_score(
                [(part, of_tasks[key]["pass@1"], of_tasks[key]["ci95"]) for key, part in parts.items()]
            )
            counts = {name: sum(of_tasks[key][name] for key in parts) for name in ("n", "examples")}
            about: dict[str, Any] = {"model": model.name, "label": model.label, "task": task_key(plan.config.task)}
            if model.step is not None:
                about.update({"run": model.run, "step": model.step})
            scores.append({**about, "shares": parts, "pass@1": value, "ci95": list(ci95), **counts})
    return plain(scores)


def differences(plan: EvaluationPlan, lines: Iterable[Row]) -> list[dict[str, Any]]:
    """pass@1 of each further model minus that of the first, for each task, over the examples of both."""
    scores, first, found = scores_of(lines), plan.models[0], []
    for task, model in itertools.product(plan.tasks, plan.models[1:]):
        pair = [scores.get((one.name, task.name, task.modes[0].name), ()) for one in (first, model)]
        if all(any(one.reward is not None for one in of_model) for of_model in pair):
            before, after = (
                {index: [one for role in roles for one in role] for index, roles in by_example(of_model).items()}
                for of_model in pair
            )
            both = [index for index in before if index in after]
            if both:
                about = {"task": task.name, "model": model.name, "label": model.label}
                change = paired_difference([before[index] for index in both], [after[index] for index in both])
                found.append({**about, "baseline": first.name, "baseline_label": first.label, **change})
    return plain(found)


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
