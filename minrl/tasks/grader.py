"""The function of a job that grades a completion, and what it pays where the completion broke it.

What a completion causes is scored, what the machine causes is not. A completion that takes too long or too much memory
to grade, or that ends the process that grades it, is paid the worst reward: with none it would have advantage 0, which
is more than a wrong answer has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from minrl.types import Reward

Reason = Literal["timeout", "memory", "crash"]


class OutOfTime(BaseException):
    """The time limit has passed. No `Exception`, because the libraries it interrupts catch those."""


@dataclass(frozen=True)
class Grader:
    """The function of a job that judges a completion.

    `otherwise(reason)` is its result where the completion broke it. `warm()` loads what it needs, before its deadline
    counts. Both functions and `warm` must be picklable. Its own limits end it within `seconds`: no deadline is earlier.
    """

    function: Callable[..., Any]
    otherwise: Callable[[Reason], Any]
    warm: Callable[[], object] | None = None
    seconds: float = 0.0

    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """The function's result."""
        try:
            return self.function(*arguments)
        except (MemoryError, RecursionError):
            return self.otherwise("memory")
        except OutOfTime:
            return self.otherwise("timeout")


def unpaid(worst: float, reason: Reason) -> Reward:
    """The reward of a completion that broke its grader."""
    return Reward(worst, {f"grader_{reason}": 1.0})
