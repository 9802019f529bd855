"""Samples the completions of many requests at once with the embedded engine, in rounds.

A round is one call of the engine for completions of one temperature. It ends early where others wait. What is sampled
so far becomes part of the next round's prompt and `seed_after` continues the seed, so that a completion has the tokens
that one whole call would have given it, whatever rounds it was sampled in.
"""

import secrets
from collections.abc import Callable, Sequence
from queue import Queue

from minrl.dataflow import Request, UserError, require
from minrl.engines import Sampling
from minrl.engines.torch_engine import WORD, TorchEngine, seed_after
from minrl.policy import Policy
from minrl.rollout import completion_seed
from minrl.run.base_model import check_words, shown_text
from minrl.tools.serve.api import ApiError, ApiRequest, Delta

MOST_ROWS = 64
"""Completions that are sampled at the same time."""

TURN, ROUND = 16, 256
"""Tokens of a completion after which it leaves the round if others wait, and in any case: the engine's cache has room
for so many. The latter is at least the length of the prompt, so that recomputing it is a constant share of the work.
"""

Event = int | Delta | ApiError
"""The number of prompt tokens once a request begins, then its deltas, or the error that ends it."""


class Job:
    """A request that is being answered. `tell` is called with each event by the thread that samples; whoever waits sets
    `cancelled` when nobody does any more.
    """

    def __init__(self, request: ApiRequest, tell: Callable[[Event], object]) -> None:
        self.request, self.tell, self.cancelled = request, tell, False


class Choice:
    """One completion of a request, as far as it is sampled."""

    def __init__(self, job: Job, index: int, prompt: list[int], seed: int, limit: int, stops: Sequence[str]) -> None:
        self.job, self.index, self.prompt, self.seed, self.limit, self.stops = job, index, prompt, seed, limit, stops
        self.ids, self.finish_reason = list[int](), ""
        self._text, self._tokens = "", 0

    @property
    def open(self) -> bool:
        """Whether it is still to be sampled, and somebody waits for it."""
        return not self.finish_reason and not self.job.cancelled

    def rest(self) -> Request:
        """What the engine is asked for in the next round."""
        ids = self.prompt + self.ids
        return Request(ids, seed_after(self.seed, len(self.ids)), min(self.limit - len(self.ids), max(ROUND, len(ids))))

    def add(self, token: int, policy: Policy) -> None:
        """Add a sampled token, and tell what no further token can change."""
        self.ids.append(token)
        # Stop strings are searched in the text with its special tokens, as engines do. A token has at least one byte.
        recent = self.ids[-(4 * max(map(len, self.stops), default=0) + 8) :]
        if token in policy.stop_ids or any(stop in policy.decode_all(recent) for stop in self.stops):
            self.finish_reason = "stop"
        elif len(self.ids) >= self.limit:
            self.finish_reason = "length"
        if not (self.finish_reason or self.job.request.stream):
            return
        text = policy.decode(self.ids)
        text = text[: min((place for place in map(text.find, self.stops) if place >= 0), default=len(text))]
        if not self.finish_reason:
            text = settled(text, self.stops)
            text = text if text.startswith(self._text) else self._text  # of a tokenizer that rewrites earlier text
        added, tokens = text[len(self._text) :], len(self.ids) - self._tokens
        if added or self.finish_reason:
            self.job.tell(Delta(self.index, added, tokens, self.finish_reason or None, first=not self._tokens))
            self._text, self._tokens = text, len(self.ids)


def settled(text: str, stops: Sequence[str]) -> str:
    """The text without what may be half a character, or the beginning of a stop string.

    >>> settled("so\\ufffd", []), settled("one, tw", ["two", "wo"])
    ('so', 'one, ')
    """
    text = text.rstrip("\ufffd")
    begun = [size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])]
    return text[: len(text) - max(begun, default=0)]


class Sampler:
    """Answers requests. `submit` may be called by any thread, everything else by one."""

    def __init__(self, policy: Policy, engine: TorchEngine, max_tokens: int, stop_strings: Sequence[str] = ()) -> None:
        self.policy, self.engine, self.choices = policy, engine, list[Choice]()
        self._max_tokens, self._stops = max_tokens, (*stop_strings, *policy.stop_strings)
        self._new: Queue[Job] = Queue()

    def submit(self, job: Job) -> None:
        """Take a request."""
        self._new.put(job)

    def step(self) -> None:
        """Admit new requests, waiting for one if nothing else is to do, and sample a round."""
        if not self.choices:
            self._admit(self._new.get())
        while not self._new.empty():
            self._admit(self._new.get())
        if not self.choices:
            return
        temperature = self.choices[0].job.request.temperature
        rows = [one for one in self.choices if one.open and one.job.request.temperature == temperature][:MOST_ROWS]
        others = [one for one in self.choices if one.open and one not in rows]

        def on_token(row: int, token: int, _logprob: float) -> bool:
            choice = rows[row]
            if choice.open:
                choice.add(token, self.policy)
            return choice.open and not (len(choice.ids) % TURN == 0 and (others or not self._new.empty()))

        self.engine.generate([one.rest() for one in rows], Sampling(temperature, self.policy.stop_ids), on_token)
        self.choices = [one for one in [*others, *rows] if one.open]

    def _admit(self, job: Job) -> None:
        """The choices of a new request, or the reason why the model does not take its prompt."""
        request, room = job.request, self.engine.context_length
        try:
            ids = self.policy.encode_prompt(request.prompt)
            check_words(self.policy, "the prompt", [(ids, shown_text(request.prompt))])
            require(bool(ids), "the prompt has no tokens")
        except UserError as error:
            job.tell(ApiError(str(error), param="messages" if request.chat else "prompt"))
            return
        if room - len(ids) < max(1, request.max_tokens):
            most = f" and max_tokens is {request.max_tokens}" if request.max_tokens else ""
            message = f"the model takes {room} tokens, prompt and completion together: the prompt has {len(ids)}{most}"
            job.tell(ApiError(message, code="context_length_exceeded"))
            return
        job.tell(len(ids))
        seed = secrets.randbits(63) if request.seed is None else request.seed % WORD
        limit = request.max_tokens or min(self._max_tokens, room - len(ids))
        for index in range(request.n):
            own = completion_seed(seed, index) if index else seed
            self.choices.append(Choice(job, index, ids, own, limit, (*request.stop, *self._stops)))
