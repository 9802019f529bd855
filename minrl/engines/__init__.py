"""Who samples: the engine protocol, and the choice between its implementations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from minrl.policy import Policy
from minrl.types import Completion, Request


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. Temperature 0 is greedy. Stop ids are part of the completion."""

    temperature: float
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()


@dataclass
class PromptReuse:
    """Prompt tokens that were asked for, and how many of them were computed."""

    asked: int = 0
    computed: int = 0

    def add(self, asked: int, computed: int) -> None:
        """Count another batch."""
        self.asked += asked
        self.computed += computed

    def take(self) -> dict[str, float]:
        """The share that was not computed again, by tag, since this was last asked; nothing where nothing was.

        >>> reuse = PromptReuse()
        >>> reuse.add(asked=80, computed=20)
        >>> reuse.take(), reuse.take()
        ({'engine/prompt_reuse_frac': 0.75}, {})
        """
        asked, computed, self.asked, self.computed = self.asked, self.computed, 0, 0
        return {"engine/prompt_reuse_frac": 1 - computed / asked} if asked else {}


@runtime_checkable
class Engine(Protocol):
    """What the loop knows of an engine. It manages memory and caches itself.

    `exact` says whether its log-probabilities are the policy's own, so that no correction is needed.
    """

    exact: bool

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each request, in order."""

    def sync(self, policy: Policy) -> None:
        """Hold the policy's weights from now on."""

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, for probes."""

    def take_facts(self) -> dict[str, float]:
        """What sampling and syncing were like since this was last asked, by tag."""

    def sleep(self) -> None:
        """Give memory back while the policy trains."""

    def wake(self) -> None:
        """Be ready to generate again."""

    def close(self) -> None:
        """Release everything."""
