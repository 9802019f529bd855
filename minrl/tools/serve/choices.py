"""A completion while it grows, and the text of it that is settled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minrl.policy import Policy
from minrl.tools.serve.asking import ApiError, Asked

HALF = "\ufffd"
"""What a decoder writes for the first bytes of a character."""


@dataclass(frozen=True)
class Token:
    """A sampled token: its text alone, and its log-probability at the temperature of the request, in nats."""

    text: str
    logprob: float


@dataclass(frozen=True)
class Begun:
    """The request was taken; its prompts have so many tokens."""

    prompt_tokens: int


@dataclass(frozen=True)
class Said:
    """What was added to a choice: text, and its tokens since the last time, of which the first begins at the character
    `offset` of all tokens' texts. The last one has a finish reason. `tokens` have texts only where these are asked for.
    """

    index: int
    text: str
    tokens: Sequence[Token]
    offset: int
    finish_reason: str


@dataclass(frozen=True)
class Failed:
    """The request cannot be answered, or not to its end."""

    error: ApiError


Event = Begun | Said | Failed


class Job:
    """A request that is being answered. `tell` is called with each event, by the thread that samples. Whoever waits for
    the answer sets `cancelled` when nobody does any more.
    """

    def __init__(self, asked: Asked, tell: Callable[[Event], None]) -> None:
        self.asked, self.tell, self.cancelled = asked, tell, False


class Choice:
    """One completion of a request, as far as it is sampled."""

    def __init__(
        self, job: Job, index: int, prompt: Sequence[int], seed: int, limit: int, stops: Sequence[str]
    ) -> None:
        self.job, self.index, self.seed, self.limit, self.stops = job, index, seed, limit, stops
        self.prompt, self.ids, self.logprobs = list(prompt), list[int](), list[float]()
        self.finish_reason = ""
        self.last_round, self.in_round = -1, 0
        self.told_at = 0.0
        self._told, self._told_tokens, self._offset = "", 0, 0

    @property
    def open(self) -> bool:
        """Whether it is still to be sampled, and somebody waits for it."""
        return not self.finish_reason and not self.job.cancelled

    def add(self, token: int, logprob: float, policy: Policy, ends: bool) -> None:
        """Add a sampled token, which may be the last: it `ends` the answer, completes a stop string or is the limit."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.in_round += 1
        if ends or self._stopped(policy):
            self.finish_reason = "stop"
        elif len(self.ids) >= self.limit:
            self.finish_reason = "length"

    def news(self, policy: Policy) -> Said:
        """What was added since the last call: everything once the completion has ended, before that what no further
        token can change.
        """
        text = until(policy.decode(self.ids), self.stops)
        if not self.finish_reason:
            text = settled(text, self.stops)
            if not text.startswith(self._told):  # a tokenizer that rewrites what is before a token: wait for the end
                text = self._told
        said, self._told = text[len(self._told) :], text
        fresh = range(self._told_tokens, len(self.ids))
        shown = (policy.decode_all([self.ids[place]]) if self.job.asked.logprobs else "" for place in fresh)
        tokens = [Token(one, self.logprobs[place]) for one, place in zip(shown, fresh, strict=True)]
        offset, self._told_tokens = self._offset, len(self.ids)
        self._offset += sum(len(token.text) for token in tokens)
        return Said(self.index, said, tokens, offset, self.finish_reason)

    def _stopped(self, policy: Policy) -> bool:
        """Whether the text of the last tokens has a stop string. It is searched with its special tokens, as engines do;
        a token has at least one byte.
        """
        if not self.stops:
            return False
        text = policy.decode_all(self.ids[-(4 * max(map(len, self.stops)) + 8) :])
        return any(stop in text for stop in self.stops)


def until(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string.

    >>> until("one, two. three", ["two", "."])
    'one, '
    """
    return text[: min((place for place in (text.find(stop) for stop in stops) if place >= 0), default=len(text))]


def settled(text: str, stops: Sequence[str]) -> str:
    """The text without what may be half a character, or the beginning of a stop string.

    >>> settled("so\\ufffd", []), settled("one, tw", ["two", "wo"])
    ('so', 'one, ')
    """
    text = text.rstrip(HALF)
    begun = [size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])]
    return text[: len(text) - max(begun, default=0)]
