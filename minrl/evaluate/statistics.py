"""The figures of an evaluation: pass@1 with its interval, means, and shares by category.

pass@1 is the share of completions that solve their example (`Reward.solved`). An unscorable one counts as not solved,
and their share is reported; where none could be scored the figure is NaN.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from minrl.dataflow import SOLO, Example, Reward, Rollout
from minrl.utils.text import plain


@runtime_checkable
class Outcome(Protocol):
    """A scored completion: a rollout, a stored line, or a lost episode."""

    @property
    def example_id(self) -> str:
        """The id of its example."""

    @property
    def reward(self) -> Reward | None:
        """Its reward; None if unscorable."""

    @property
    def num_sampled(self) -> float:
        """Number of sampled tokens; NaN if unknown."""

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut a turn off."""


BOOTSTRAP_RESAMPLES = 2000
Z95 = 1.959963984540054

T = TypeVar("T", bound=Outcome)

MEANS = ("reward_mean", "completion_tokens_mean", "truncated_frac", "unscorable_frac", "greedy_unscorable_frac")
"""Means over the examples, beside those of what is solved."""

SUMMARY_NAMES = {
    "pass_at_1": "pass@1",
    "num_examples": "examples",
    "greedy_pass_at_1": "pass@1_greedy",
    "reward_mean": "reward",
}


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: pass@1 with its 95 % interval over n completions, and further figures. `results` has
    a line for each completion, in the main process.
    """

    pass_at_1: float
    ci95: tuple[float, float]
    n: int
    num_examples: int
    greedy_pass_at_1: float
    reward_mean: float
    completion_tokens_mean: float
    truncated_frac: float
    unscorable_frac: float = 0.0
    greedy_unscorable_frac: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, float] = field(default_factory=dict)
    rollouts: Sequence[Rollout] = ()
    results: Sequence[Mapping[str, Any]] = ()
    failures: Sequence[str] = ()

    @property
    def measured(self) -> bool:
        """Whether any sampled completion was scorable."""
        return not math.isnan(self.pass_at_1)

    def text(self) -> str:
        """The figures in a sentence."""
        said = f"held-out pass@1 {shown(self.pass_at_1, self.ci95)}" if self.measured else "no held-out pass@1"
        if not math.isnan(self.greedy_pass_at_1):
            said += f", greedy {self.greedy_pass_at_1:.1%}"
        if self.unscorable_frac or self.greedy_unscorable_frac:
            said += (
                f"; {self.unscorable_frac:.1%} of the {self.n} sampled and {self.greedy_unscorable_frac:.1%} of the "
                "greedy completions could not be scored and count as not solved"
            )
        return said

    def to_json(self) -> dict[str, Any]:
        """Plain values with the names of summary.json; None in place of NaN."""
        shown = {name: value for name, value in vars(self).items() if name not in ("rollouts", "results", "failures")}
        return plain({SUMMARY_NAMES.get(name, name): value for name, value in shown.items()})

    def metrics(self, task: str) -> dict[str, float]:
        """Scalars by tag, without NaN."""
        low, high = self.ci95
        passes = {"": self.pass_at_1, "_low": low, "_high": high, "_greedy": self.greedy_pass_at_1}
        values = {f"pass@1{name}": value for name, value in passes.items()} | {
            name: getattr(self, name) for name in MEANS
        }
        return {f"eval/{task}/{name}": value for name, value in values.items() if not math.isnan(value)}


def shown(value: float | None, ci95: Sequence[float] | None = None) -> str:
    """A share in per cent, with its interval if it has one; a dash for None."""
    return "-" if value is None else f"{value:.1%}" + (f" ({ci95[0]:.1%} to {ci95[1]:.1%})" if ci95 else "")


def lost_roles(played: Iterable[tuple[str, str]], lost: Iterable[str]) -> dict[str, list[str]]:
    """The roles of the policy in the lost episodes of each example, from the (example id, role) of what was played:
    those of its other episodes, else those that all other examples share, else a single one.

    >>> lost_roles([("a", "x"), ("a", "o"), ("b", "x")], ["a", "c"])
    {'a': ['o', 'x'], 'c': ['x']}
    """
    roles: dict[str, set[str]] = {}
    for example_id, role in played:
        roles.setdefault(example_id, set()).add(role)
    shared = set.intersection(*roles.values()) if roles else set()
    return {example_id: sorted(roles.get(example_id, shared) or {SOLO}) for example_id in lost}


def part_means(rewards: Sequence[Reward]) -> dict[str, float]:
    """The mean of each part over the rewards that have it, by name."""
    names = sorted({name for reward in rewards for name in reward.parts})
    return {name: fmean(r.parts[name] for r in rewards if name in r.parts) for name in names}


def summarize(examples: Sequence[Example], sampled: Sequence[Outcome], greedy: Sequence[Outcome]) -> Evaluation:
    """The figures of an evaluation from its outcomes."""
    categories = by_category(examples, sampled)
    rewards = _rewards(sampled)
    tokens = [one.num_sampled for one in sampled if not math.isnan(one.num_sampled)]
    pass_at_1, ci95 = pass_at_one(sampled, [one.example_id for one in sampled])
    return Evaluation(
        pass_at_1=pass_at_1,
        ci95=ci95,
        n=len(sampled),
        num_examples=len(examples),
        greedy_pass_at_1=solved_frac(greedy),
        reward_mean=float(np.mean([reward.value for reward in rewards])) if rewards else math.nan,
        completion_tokens_mean=float(np.mean(tokens)) if tokens else math.nan,
        truncated_frac=float(np.mean([one.truncated for one in sampled])),
        unscorable_frac=_unscorable_frac(sampled),
        greedy_unscorable_frac=_unscorable_frac(greedy),
        parts=part_means(rewards),
        categories={name: solved_frac(of_it) for name, of_it in categories.items()},
    )


def _rewards(outcomes: Sequence[Outcome]) -> list[Reward]:
    return [one.reward for one in outcomes if one.reward is not None]


def _unscorable_frac(outcomes: Sequence[Outcome]) -> float:
    return 1 - len(_rewards(outcomes)) / len(outcomes) if outcomes else 0.0


def solved_frac(outcomes: Sequence[Outcome]) -> float:
    """The share of solved outcomes; unscorable ones count as not solved. NaN if none is scorable."""
    if not _rewards(outcomes):
        return math.nan
    return float(np.mean([is_solved(one) for one in outcomes]))


def pass_at_one(outcomes: Sequence[Outcome], examples: Sequence[str]) -> tuple[float, tuple[float, float]]:
    """pass@1 and its 95 % interval, given the example of each outcome. NaN if none is scorable."""
    value = solved_frac(outcomes)
    if math.isnan(value):
        return value, (math.nan, math.nan)
    return value, interval(np.array([is_solved(one) for one in outcomes], dtype=float), examples)


def pass_at_k(n: int, solved: int, k: int) -> float:
    """The unbiased estimate of the probability that one of k samples solves, from n samples of which some did: equation
    1 of Chen et al. 2021 (arXiv:2107.03374), 1 - C(n - solved, k) / C(n, k), as a product. n must be at least k.

    >>> pass_at_k(4, 2, 1), round(pass_at_k(4, 2, 2), 4), pass_at_k(4, 2, 3)
    (0.5, 0.8333, 1.0)
    """
    assert 1 <= k <= n and 0 <= solved <= n, f"pass@{k} of {solved} solved among {n}"
    return 1.0 - math.prod(1.0 - k / i for i in range(n - solved + 1, n + 1))


def by_category(examples: Sequence[Example], rollouts: Sequence[T]) -> dict[str, list[T]]:
    """The rollouts of each `name=category`, sorted. A rollout is listed under all categories of its example."""
    categories = {example.id: example.category for example in examples}
    found: dict[str, list[T]] = {}
    for one in rollouts:
        for name, category in categories[one.example_id].items():
            found.setdefault(f"{name}={category}", []).append(one)
    return dict(sorted(found.items()))


def is_solved(rollout: Outcome) -> bool:
    """Whether the outcome has the reward of a full solution."""
    return rollout.reward is not None and rollout.reward.solved


def interval(solved: np.ndarray, example_ids: Sequence[str]) -> tuple[float, float]:
    """95 % interval of the mean over the samples: Wilson's if every example has one sample, else a bootstrap over
    examples with all their samples.
    """
    groups: dict[str, list[float]] = {}
    for example_id, value in zip(example_ids, solved, strict=True):
        groups.setdefault(example_id, []).append(float(value))
    if len(groups) == len(solved):
        return wilson(float(solved.sum()), len(solved))
    counts = np.array([len(values) for values in groups.values()])
    return bootstrap(np.array([np.mean(values) for values in groups.values()]), counts)


def wilson(successes: int | float, n: int) -> tuple[float, float]:
    """Wilson's score interval at 95 % (Wilson 1927, doi:10.1080/01621459.1927.10502953).

    >>> [round(bound, 4) for bound in wilson(5.0, 10)]
    [0.2366, 0.7634]
    """
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))  # not beyond the share by rounding


def bootstrap(means: np.ndarray, counts: np.ndarray | None = None) -> tuple[float, float]:
    """Percentile interval at 95 % of the mean over the samples of all examples, by resampling the examples.

    If all examples agree, resampling has no variance; the result is then Wilson's interval over the examples.
    """
    if np.all(means == means[0]):
        return wilson(float(means.sum()), len(means))
    return percentiles(resampled(means, counts))


def resampled(means: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The mean over the samples in each resample of the examples, drawn with a fixed seed. `counts` are the numbers of
    samples of the examples (None: equal).
    """
    drawn = np.random.default_rng(0).integers(0, len(means), size=(BOOTSTRAP_RESAMPLES, len(means)))
    if counts is None or np.all(counts == counts[0]):
        return means[drawn].mean(axis=1)
    return (means * counts)[drawn].sum(axis=1) / counts[drawn].sum(axis=1)


def percentiles(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


# The held-out score of several tasks that are trained together

Share = tuple[float, float, Sequence[float]]
"""A weight, and a score with its interval."""


def together(evaluations: Mapping[str, Evaluation], weights: Mapping[str, Fraction]) -> Evaluation:
    """The means of the tasks' figures by their weights: what an example that is drawn as in training scores. NaN where
    a task has none.
    """
    parts = [(weight, evaluations[key]) for key, weight in shares(weights).items()]

    means: dict[str, Any] = {
        name: math.fsum(weight * getattr(one, name) for weight, one in parts) for name in ("greedy_pass_at_1", *MEANS)
    }
    return Evaluation(
        *weighted_score([(weight, one.pass_at_1, one.ci95) for weight, one in parts]),
        n=sum(one.n for _, one in parts),
        num_examples=sum(one.num_examples for _, one in parts),
        rollouts=[rollout for _, one in parts for rollout in one.rollouts],
        **means,
    )


def shares(weights: Mapping[str, Fraction]) -> dict[str, float]:
    """The weights as shares of their sum."""
    return {key: float(weight / sum(weights.values())) for key, weight in weights.items()}


def weighted_score(parts: Sequence[Share]) -> tuple[float, tuple[float, float]]:
    """The mean of scores by their weights, and its interval, which combines theirs by the squares of their weighted
    halves (MOVER, Zou and Donner 2008, doi:10.1002/sim.3095): the tasks' examples are independent.

    >>> weighted_score([(0.5, 0.5, (0.25, 0.75)), (0.5, 1.0, (0.75, 1.0))])
    (0.75, (0.5732233047033631, 0.875))

    Of tasks that are all solved in full it is 1, whatever rounding does to the weights.
    """
    value = math.fsum(weight * score for weight, score, _ in parts) / math.fsum(weight for weight, _, _ in parts)
    below = math.hypot(*(weight * (score - ci95[0]) for weight, score, ci95 in parts))
    above = math.hypot(*(weight * (ci95[1] - score) for weight, score, ci95 in parts))
    return value, (max(value - below, 0.0), min(value + above, 1.0))
