"""The held-out score of several tasks together."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from minrl.utils.statistics import Evaluation

Share = tuple[float, float, Sequence[float]]
"""A weight, and a score with its interval."""


def together(evaluations: Mapping[str, Evaluation], weights: Mapping[str, Fraction]) -> Evaluation:
    """The means of the tasks' figures by their weights: what an example that is drawn as in training scores. NaN where
    a task has none.
    """
    parts = [(weight, evaluations[key]) for key, weight in shares(weights).items()]

    def mean(name: str) -> float:
        return math.fsum(weight * getattr(one, name) for weight, one in parts)

    pass_at_1, ci95 = weighted_score([(weight, one.pass_at_1, one.ci95) for weight, one in parts])
    return Evaluation(
        pass_at_1=pass_at_1,
        ci95=ci95,
        n=sum(one.n for _, one in parts),
        num_examples=sum(one.num_examples for _, one in parts),
        greedy_pass_at_1=mean("greedy_pass_at_1"),
        reward_mean=mean("reward_mean"),
        completion_tokens_mean=mean("completion_tokens_mean"),
        truncated_frac=mean("truncated_frac"),
        unscorable_frac=mean("unscorable_frac"),
        greedy_unscorable_frac=mean("greedy_unscorable_frac"),
        rollouts=[rollout for _, one in parts for rollout in one.rollouts],
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
