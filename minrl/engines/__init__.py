"""The engine protocol, and what its implementations share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from minrl.policy import Policy
from minrl.types import Completion, Request, require

PROMPT_TOKENS, PROMPT_TOKENS_COMPUTED = "prompt_tokens", "prompt_tokens_computed"
"""Facts that are summed over processes. Of all others the largest counts."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. Temperature 0 is greedy. Stop ids are part of the completion.

    Stop strings are searched in the text with its special tokens.
    """

    temperature: float
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()


Ended = Callable[[Sequence[tuple[int, Completion]]], None]
"""Hears of each completion once, as it ends, with the index of its request. Called after each step of an engine, also
where none has ended.
"""

CACHE_GIB = 4.0
"""Most key-value memory if the config sets none."""


def ended_as(ended: Ended | None, indices: Sequence[int]) -> Ended | None:
    """The same for the requests that have these indices."""
    return ended and (lambda completions: ended([(indices[index], completion) for index, completion in completions]))


def require_room(requests: Sequence[Request], context_length: int) -> None:
    """Refuse requests that might outgrow the context."""
    longest = max(len(request.ids) + request.max_tokens for request in requests)
    require(
        longest <= context_length,
        f"a prompt and its completion may take {longest} tokens, the engine takes {context_length}: "
        "lower --max-tokens, or raise --engine-context-length where the model takes more",
    )


@dataclass
class PromptReuse:
    """Prompt tokens that were requested, and how many of them were computed."""

    asked: int = 0
    computed: int = 0

    def add(self, asked: int, computed: int) -> None:
        """Add a batch."""
        self.asked += asked
        self.computed += computed

    def take(self) -> dict[str, float]:
        """Both numbers by tag since the last call; empty if both are 0.

        >>> reuse = PromptReuse()
        >>> reuse.add(asked=80, computed=20)
        >>> reuse.take(), reuse.take()
        ({'prompt_tokens': 80.0, 'prompt_tokens_computed': 20.0}, {})
        """
        asked, computed, self.asked, self.computed = self.asked, self.computed, 0, 0
        return {PROMPT_TOKENS: float(asked), PROMPT_TOKENS_COMPUTED: float(computed)} if asked else {}


@runtime_checkable
class Engine(Protocol):
    """An engine as the loop sees it. It manages memory and caches itself.

    `needs_correction`: its log-probabilities are not the policy's own, and importance weights correct for that.
    """

    needs_correction: bool

    @property
    def context_length(self) -> int:
        """Tokens that it takes, prompt and completion together."""

    @property
    def cores(self) -> int:
        """Cores of this machine that it computes on while it samples; 0 where it does so on a card or elsewhere."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order, of which `ended` has heard by then. Of several processes each ends
        a call of `rollout` without requests: it then takes part in what processes that hold an engine together still
        sample.
        """

    def sync(self, policy: Policy) -> None:
        """Hold the policy's weights from now on."""

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, for probes."""

    def take_facts(self) -> dict[str, float]:
        """Facts about sampling and syncing since the last call, by tag: counts of tokens, and extremes."""

    def sleep(self) -> None:
        """Release memory while the policy trains."""

    def wake(self) -> None:
        """Be ready to generate again."""

    def close(self) -> None:
        """Release everything."""
