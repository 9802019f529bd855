"""From scores to figures: pass@k with intervals, by category, and the difference between two models.

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
from minrl.evaluate.rows import SERVED_AS, Key, Row
from minrl.evaluate.table import NOBODY
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

ROUNDING = 1e-12
"""Shares that differ by less are the same."""


@dataclass(frozen=True)
class EpisodeScore:
    """A line of the table of scores: one role in one episode."""

    model: str
    task: str
    mode: str
    index: int
    example_id: str
    role: str
    reward: Reward | None
    num_sampled: float
    truncated: bool
    refused: bool = False
    category: Mapping[str, str] = field(default_factory=dict)


def score_of(line: Mapping[str, Any]) -> EpisodeScore:
    """The score on a line of `read_table`."""
    value, tokens = line["reward"], line["tokens"]
    return EpisodeScore(
        **{name: line[name] for name in ("model", "task", "mode", "index", "role", "category")},
        example_id=line["example"],
        reward=None if value is None else Reward(value, line["parts"], line["maximum"], full=line["solved"]),
        num_sampled=math.nan if tokens is None else float(tokens),
        truncated=line["finish_reason"] == "length",
        refused=bool(line.get("refused")),
    )


def in_roles(scores: Sequence[EpisodeScore]) -> list[EpisodeScore]:
    """The scores, with each lost episode once for each role that the model would have played."""
    played, lost = [one for one in scores if one.role != NOBODY], [one for one in scores if one.role == NOBODY]
    roles = lost_roles([(one.example_id, one.role) for one in played], [one.example_id for one in lost])
    return [*played, *(replace(one, role=role) for one in lost for role in roles[one.example_id])]


def results(plan: EvaluationPlan, lines: Iterable[Mapping[str, Any]], rows: Mapping[Key, Row]) -> list[dict[str, Any]]:
    """The figures of each model on each task, in the plan's order. A pair without scores has counts only."""
    scores: dict[tuple[str, str], list[EpisodeScore]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for line in lines:
        pair = line["model"], line["task"]
        scores.setdefault(pair, []).append(score_of(line))
        if line["unscorable"]:
            reasons.setdefault(pair, line["unscorable"])
    found = []
    for model, task in itertools.product(plan.models, plan.tasks):
        keys = list(task.all_keys(model))
        missing = sum(key not in rows or "error" in rows[key] for key in keys)
        result: dict[str, Any] = {"model": model.name, "label": model.label, "task": task.name}
        if task.task.frozen_opponent:
            result["opponent"] = plan.config.opponent or model.name
        if names := {name for key in keys if key in rows for name in rows[key].get(SERVED_AS, ())}:
            result[SERVED_AS] = sorted(names)
        if model.step is not None:
            result.update({"run": model.run, "step": model.step})
        if of_pair := scores.get((model.name, task.name)):
            result.update(pair_figures(plan, task, of_pair))
        if reason := reasons.get((model.name, task.name)):
            result["first_unscorable"] = reason
        found.append(plain({**result, "completions": len(keys) - missing, "missing": missing}))
    return found


def together(plan: EvaluationPlan, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The score of each model on several tasks with weights, from its results on each. Left out where one has none."""
    parts, scores = shares(plan.config.weights), []
    for model in plan.models if parts else ():
        results = {one["task"]: one for one in found if one["model"] == model.name and "pass@1" in one}
        if results.keys() >= parts.keys():
            of_them = [(share, results[key]["pass@1"], results[key]["ci95"]) for key, share in parts.items()]
            value, ci95 = weighted_score(of_them)
            counts = {name: sum(results[key][name] for key in parts) for name in ("n", "examples")}
            about = {"model": model.name, "label": model.label, "task": task_key(plan.config.task), "shares": parts}
            scores.append({**about, "pass@1": value, "ci95": list(ci95), **counts})
    return plain(scores)


def pair_figures(plan: EvaluationPlan, task: PlannedTask, scores: Sequence[EpisodeScore]) -> dict[str, Any]:
    """The figures of one model on one task. pass@1 is that of the task's first mode, even if that has no scores."""
    greedy = in_roles([one for one in scores if one.mode == GREEDY])
    main = greedy if task.modes[0].name == GREEDY else in_roles([one for one in scores if one.mode == SAMPLED])
    unscorable = sum(one.reward is None for one in [*main, *(greedy if main is not greedy else [])])
    refused_frac = float(np.mean([one.refused for one in main])) if main else None
    if all(one.reward is None for one in main):
        return {"n": len(main), "unscorable": unscorable, "refused_frac": refused_frac}
    figures = summarize(task.examples, main, greedy).to_json()
    if any(math.isnan(one.num_sampled) for one in scores if one.role != NOBODY):
        figures["completion_tokens_mean"] = None  # some were not counted, and the others' mean is biased
    categories = {}
    for name, of_it in by_category(task.examples, main).items():
        rewards = [one.reward for one in of_it if one.reward is not None]
        if rewards:
            value, ci95, examples = pass_figure(of_it, 1)
            mean = float(np.mean([reward.value for reward in rewards]))
            figure = {"pass@1": value, "ci95": ci95, "n": len(of_it), "examples": examples}
            categories[name] = {**figure, "reward": mean, "parts": part_means(rewards)}
    return {
        **figures,
        "refused_frac": refused_frac,
        "examples": len({one.index for one in main}),
        "pass@1_greedy_ci95": pass_figure(greedy, 1)[1] if any(one.reward is not None for one in greedy) else None,
        "pass@k": pass_figures(plan, task, main),
        "by_category": categories,
        "unscorable": unscorable,
    }


def pass_figures(plan: EvaluationPlan, task: PlannedTask, scores: Sequence[EpisodeScore]) -> dict[str, dict[str, Any]]:
    """pass@k by k, each with its interval and the number of examples that have enough samples."""
    figures = {}
    for k in plan.config.pass_at or powers_of_two(task.modes[0].samples):
        value, ci95, examples = pass_figure(scores, k)
        if examples:
            figures[str(k)] = {"value": value, "ci95": ci95, "examples": examples}
    return figures


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, and that number.

    >>> powers_of_two(6), powers_of_two(1)
    ([1, 2, 4, 6], [1])
    """
    return sorted({*(2**i for i in range(most.bit_length()) if 2**i <= most), most})


def by_example(scores: Sequence[EpisodeScore]) -> dict[int, list[list[EpisodeScore]]]:
    """The samples of each example by role: the two players of a game are two series of samples."""
    found: dict[int, dict[str, list[EpisodeScore]]] = {}
    for one in scores:
        found.setdefault(one.index, {}).setdefault(one.role, []).append(one)
    return {index: list(roles.values()) for index, roles in found.items()}


def example_values(scores: Sequence[EpisodeScore], k: int) -> dict[int, float]:
    """pass@k of each example that has k samples, the mean over its roles."""
    values = {}
    for index, roles in by_example(scores).items():
        counted = [(len(samples), sum(map(is_solved, samples))) for samples in roles if len(samples) >= k]
        if counted:
            values[index] = float(np.mean([pass_at_k(n, solved, k) for n, solved in counted]))
    return values


def pass_figure(scores: Sequence[EpisodeScore], k: int) -> tuple[float, list[float], int]:
    """pass@k, its 95 % interval (Wilson's if each example has one sample, else a bootstrap), number of examples."""
    if k == 1 and scores:
        value, ci95 = pass_at_one(scores, [str(one.index) for one in scores])
        return value, list(ci95), len(by_example(scores))
    values = np.array(list(example_values(scores, k).values()))
    if not len(values):
        return math.nan, [math.nan, math.nan], 0
    return float(values.mean()), list(bootstrap(values)), len(values)


def differences(plan: EvaluationPlan, lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """pass@1 of each further model minus that of the first, for each task, over the examples of both."""
    scores = [score_of(line) for line in lines]
    mode = {task.name: task.modes[0].name for task in plan.tasks}

    def solved(model: str, task: str) -> dict[int, list[bool]]:
        chosen = in_roles([one for one in scores if (one.model, one.task, one.mode) == (model, task, mode[task])])
        if all(one.reward is None for one in chosen):
            return {}
        return {i: [is_solved(one) for role in roles for one in role] for i, roles in by_example(chosen).items()}

    found, baseline = [], {"baseline": plan.models[0].name, "baseline_label": plan.models[0].label}
    for task in plan.tasks:
        first = solved(plan.models[0].name, task.name)
        for model in plan.models[1:]:
            second = solved(model.name, task.name)
            both = [index for index in first if index in second]
            if both:
                about = {"task": task.name, "model": model.name, "label": model.label, **baseline}
                change = paired_difference([first[index] for index in both], [second[index] for index in both])
                found.append({**about, **change})
    return found


def paired_difference(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """The difference of two models' shares of solved samples, given which samples of the same examples each solved,
    with its 95 % interval, by bootstrap over the examples: both shares are of the same resampled examples.

    If all resamples have the same difference, the intervals of both shares are combined by the squares of their halves
    (MOVER, Zou and Donner 2008, doi:10.1002/sim.3095, without its correlation term).
    """
    (means1, counts1), (means2, counts2) = _means(before), _means(after)
    share1 = float(np.average(means1, weights=counts1))
    share2 = float(np.average(means2, weights=counts2))
    change = means2 - means1
    if np.all(counts1 == counts1[0]) and np.all(counts2 == counts2[0]):
        difference, alike, drawn = float(change.mean()), np.all(change == change[0]), resampled(change)
    else:
        drawn = resampled(means2, counts2) - resampled(means1, counts1)
        difference, alike = share2 - share1, np.ptp(drawn) < ROUNDING
    if alike:
        (low1, high1), (low2, high2) = (wilson(share * len(change), len(change)) for share in (share1, share2))
        ci95 = (
            difference - math.hypot(share2 - low2, high1 - share1),
            difference + math.hypot(high2 - share2, share1 - low1),
        )
    else:
        ci95 = percentiles(drawn)
    counts = {"better": int((change > 0).sum()), "worse": int((change < 0).sum()), "same": int((change == 0).sum())}
    return {"difference": difference, "ci95": list(ci95), "examples": len(change), **counts}


def _means(solved: Sequence[Sequence[bool]]) -> tuple[np.ndarray, np.ndarray]:
    """The share of each example's samples that solve it, and the number of its samples."""
    return np.array([float(np.mean(of_one)) for of_one in solved]), np.array([len(of_one) for of_one in solved])


def pass_at_k(n: int, solved: int, k: int) -> float:
    """The unbiased estimate of the probability that one of k samples solves, from n samples of which some did: equation
    1 of Chen et al. 2021 (arXiv:2107.03374), 1 - C(n - solved, k) / C(n, k), as a product. n must be at least k.

    >>> pass_at_k(4, 2, 1), round(pass_at_k(4, 2, 2), 4), pass_at_k(4, 2, 3)
    (0.5, 0.8333, 1.0)
    """
    assert 1 <= k <= n and 0 <= solved <= n, f"pass@{k} of {solved} solved among {n}"
    return 1.0 - math.prod(1.0 - k / i for i in range(n - solved + 1, n + 1))
