"""Runs that differ in nothing but their seed, as one: the mean over them, and its 95 % interval."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from minrl.report.runs import RunData

Z975 = 1.959963984540054
T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % quantile of Student's t distribution with 1 to 10 degrees of freedom."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only, or a single run."""

    runs: Sequence[RunData]

    @property
    def name(self) -> str:
        """The run's name, or what the names have in common without the seed, and how many seeds there are."""
        if len(self.runs) == 1:
            return self.runs[0].name
        names = {re.sub(r"-?seed\d+(-\d+)?$", "", run.name) for run in self.runs}
        return f"{names.pop() if len(names) == 1 else f'{self.runs[0].name} and others'}, {len(self.runs)} seeds"


@dataclass(frozen=True)
class Mean:
    """The mean of a few values and the ends of its 95 % interval, which one value has not."""

    value: float
    low: float | None = None
    high: float | None = None


def groups_of(runs: Sequence[RunData]) -> list[Group]:
    """The runs in groups, in their order. Two runs of the same seed are never in one: they are no two samples."""
    found: dict[tuple[str, int], dict[object, RunData]] = {}
    for run in runs:
        config = {name: value for name, value in run.config.items() if name != "seed"}
        same, seed, number = json.dumps(config, sort_keys=True), run.config.get("seed"), 0
        while seed in found.setdefault((same, number), {}):
            number += 1
        found[same, number][seed] = run
    return [Group(list(members.values())) for members in found.values()]


def mean(values: Sequence[float]) -> Mean:
    """The mean with Student's t interval at 95 %, which assumes that seeds scatter normally.

    >>> mean([0.0, 2.0])
    Mean(value=1.0, low=-11.7062, high=13.7062)
    """
    centre, free = sum(values) / len(values), len(values) - 1
    if not free:
        return Mean(centre)
    half = student(free) * math.sqrt(sum((value - centre) ** 2 for value in values) / free / len(values))
    return Mean(centre, centre - half, centre + half)


def student(free: int) -> float:
    """The 97.5 % quantile of Student's t distribution: from the table, or beyond it by Fisher's expansion (Abramowitz
    and Stegun 26.7.5), which is right to four digits there.
    """
    if free <= len(T975):
        return T975[free - 1]
    z = Z975
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / free**power for power, term in enumerate(terms, 1))
