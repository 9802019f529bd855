"""Several tasks as one: every step has whole groups of each, by weights.

The schedule is a function of the weights, the seed and the number of the group alone, so that a resumed run goes on in
it and several processes agree.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from minrl.dataflow import Episode, Example
from minrl.tasks.task import Dataset, DeferredDataset, Task


@lru_cache(maxsize=8)
def cycle(weights: Sequence[tuple[str, Fraction]], seed: int) -> list[str]:
    """The task of each group, after which the schedule repeats. The next group is of the task that is the furthest
    behind its share; the seed decides between equals. So no task is ever a whole group ahead of its share.
    """
    scale = math.lcm(*(weight.denominator for _, weight in weights))
    whole = {name: int(weight * scale) for name, weight in weights}
    divisor = math.gcd(*whole.values())
    order = random.Random(f"{seed}/tasks").sample(sorted(whole), len(whole))
    given, period, found = dict.fromkeys(order, 0), sum(whole.values()) // divisor, list[str]()
    for number in range(1, period + 1):
        found.append(max(order, key=lambda name: whole[name] // divisor * number - given[name] * period))
        given[found[-1]] += 1
    return found


@dataclass(frozen=True)
class Mixture(Task):
    """Several tasks, by their keys, and how much each weighs. `Example.task` says of which task an example is.

    Its dataset holds the examples of all.
    """

    tasks: Mapping[str, Task] = field(default_factory=dict)
    weights: Mapping[str, Fraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.tasks) > 1 and self.tasks.keys() == self.weights.keys()

    @property
    def members(self) -> Mapping[str, Task]:
        """The tasks."""
        return self.tasks

    def schedule(self, seed: int, step: int, groups: int) -> list[str]:
        """The task of each group of a step, spread evenly over it."""
        order = cycle(tuple(self.weights.items()), seed)
        return [order[number % len(order)] for number in range((step - 1) * groups, step * groups)]

    def play(self, example: Example, rng: random.Random) -> Episode:
        """One episode of the example, by its own task."""
        return self.tasks[example.task].play(example, rng)


def mixture(tasks: Mapping[str, Task], weights: Mapping[str, Fraction]) -> Task:
    """The tasks with these weights as one; a single one is itself."""
    members = {key: tasks[key] for key in weights}
    if len(members) == 1:
        return next(iter(members.values()))
    return Mixture(
        DeferredDataset(lambda: _together(members)),
        None,
        frozen_opponent=any(task.frozen_opponent for task in members.values()),
        stop_strings=tuple(dict.fromkeys(stop for task in members.values() for stop in task.stop_strings)),
        name="+".join(members),
        tasks=members,
        weights=weights,
    )


def _together(members: Mapping[str, Task]) -> Dataset:
    """The examples of all tasks. Equal identities are different problems in different tasks."""
    train, held_out = (
        [replace(one, task=key) for key, task in members.items() for one in getattr(task.dataset, split)]
        for split in ("train", "held_out")
    )
    keys = {key: task.dataset.key for key, task in members.items()}
    return Dataset(train, held_out, lambda one: f"{one.task}/{keys[one.task](one)}")
