"""What hostile completions are tried with: the shape of one case. Each module beside this one has the cases of a room.

Every attack names its family: a family is a way of being paid unduly, of escaping, of costing without bound, or of
failing instead of losing. Tests and `benchmarks/hostile.py` run them; the latter also varies them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One completion of one problem, and what it may earn.

    `row` is the problem as a row of the task's data, `options` are flags of the task by name. An attack earns at most
    `most` and is scored (a failure that the completion caused is no unscorable rollout); an honest neighbour earns at
    least `least`. Rewards are in [0, 1].
    """

    family: str
    name: str
    task: str
    row: Mapping[str, Any]
    completion: str
    most: float = 1.0
    least: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
