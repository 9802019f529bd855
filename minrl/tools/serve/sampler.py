"""Samples the answers of many requests at a time, in rounds, with any engine.

A round is one call of the engine for the choices of one temperature that waited longest. What is sampled so far is part
of the prompt of the next round, and `seed_after` continues the seed: with the embedded engine a choice has the tokens
that one whole call would have given it, whatever rounds it was sampled in and whatever else they held. That engine
tells each token as it is sampled and ends a round early when others wait. Other engines are asked for a fixed number of
tokens, so that the rounds of a choice, and with them its seeds, depend on the choice alone.
"""

import secrets
import time
from http import HTTPStatus
from queue import Empty, Queue
from threading import Lock

from minrl.engines import Engine, Sampling
from minrl.engines.seeds import WORD, seed_after
from minrl.engines.torch_engine import TorchEngine
from minrl.policy import Policy
from minrl.rollout import completion_seed
from minrl.run.base_model import check_words, shown_text
from minrl.tools.serve.asking import ApiError, Asked, Given
from minrl.tools.serve.choices import Begun, Choice, Failed, Job
from minrl.types import Request, UserError

MOST_ROWS = 64
"""Choices that are sampled at the same time."""

MOST_WAITING = 4096
"""Choices of all requests that are not answered yet. A further request is to come again later."""

SHORT_ROUND, LONG_ROUND = 16, 64
"""Tokens of a choice after which the embedded engine's round ends for a new request, and for another choice that has
been sampled less.
"""

ROUND = 256
"""Most tokens of a round of the embedded engine, whose cache has room for so many; as many as the prompt has if that is
longer, so that the prompts that are computed again are at most a constant share of the work.
"""

FIXED_ROUND = 16
"""Tokens of a round of other engines."""

TOLD_EVERY_S = 0.03
"""Least time between two parts of a stream."""


class Sampler:
    """Answers requests with an engine. `submit` may be called by any thread, everything else by one."""

    def __init__(self, policy: Policy, engine: Engine, max_tokens: int, stop_strings: tuple[str, ...] = ()) -> None:
        self.policy, self.engine = policy, engine
        self._max_tokens, self._stops = max_tokens, (*stop_strings, *policy.stop_strings)
        self._stop_ids, self._vocabulary = policy.stop_ids, policy.model.get_input_embeddings().num_embeddings
        self._new: Queue[Job] = Queue()
        self._choices: list[Choice] = []
        self._rounds = self._waiting = 0
        self._closed, self._lock = False, Lock()

    def submit(self, job: Job) -> None:
        """Take a request. Raises `ApiError` if there are too many."""
        count = job.asked.choices
        with self._lock:
            if self._closed:
                raise _ended()
            if self._waiting + count > MOST_WAITING:
                raise ApiError(f"{self._waiting} completions are waiting: ask later", HTTPStatus.TOO_MANY_REQUESTS)
            self._waiting += count
            self._new.put(job)

    def serve(self) -> None:
        """Answer requests until a signal comes."""
        while True:
            self.step()

    def step(self) -> None:
        """Take what is new, waiting for it where nothing else is to do, and sample a round."""
        if not self._choices:
            self._admit(self._new.get())
        while not self._new.empty():
            self._admit(self._new.get())
        still = [choice for choice in self._choices if choice.open]
        self._leave(len(self._choices) - len(still))
        self._choices = still
        if still:
            self._round()

    def close(self) -> None:
        """Refuse what is not answered yet, and what comes."""
        with self._lock:
            self._closed = True
        jobs = {id(choice.job): choice.job for choice in self._choices if choice.open}
        try:
            while True:
                job = self._new.get_nowait()
                jobs[id(job)] = job
        except Empty:
            for job in jobs.values():
                job.tell(Failed(_ended()))

    def _admit(self, job: Job) -> None:
        """The choices of a new request; it fails if a prompt cannot be taken."""
        asked = job.asked
        try:
            prompts = [self._encoded(prompt, asked) for prompt in asked.prompts]
        except ApiError as error:
            self._leave(asked.choices)
            job.tell(Failed(error))
            return
        job.tell(Begun(sum(map(len, prompts))))
        seed = secrets.randbits(63) if asked.seed is None else asked.seed % WORD
        room = self.engine.context_length
        for index in range(asked.choices):
            ids = prompts[index // asked.n]
            limit = asked.max_tokens or min(self._max_tokens, room - len(ids))
            own = completion_seed(seed, index) if index else seed
            self._choices.append(Choice(job, index, ids, own, limit, (*asked.stop, *self._stops)))

    def _encoded(self, prompt: Given, asked: Asked) -> list[int]:
        """The ids of a prompt. Raises `ApiError` if the model does not take it."""
        param = "messages" if asked.chat else "prompt"
        if isinstance(prompt, str) or not all(isinstance(one, int) for one in prompt):
            try:
                ids = self.policy.encode_prompt(prompt)  # type: ignore[arg-type]
                check_words(self.policy, "the prompt", [(ids, shown_text(prompt))])  # type: ignore[arg-type]
            except UserError as error:
                raise ApiError(str(error), param=param) from error
        else:
            ids = [one for one in prompt if isinstance(one, int)]
            if not all(0 <= one < self._vocabulary for one in ids):
                raise ApiError(f"token ids are from 0 to {self._vocabulary - 1}", param=param)
        room = self.engine.context_length - len(ids)
        if not ids:
            raise ApiError("a prompt has no tokens", param=param)
        if room < max(1, asked.max_tokens):
            most = f" and max_tokens is {asked.max_tokens}" if asked.max_tokens else ""
            raise ApiError(
                f"the model takes {self.engine.context_length} tokens, prompt and completion together: the prompt has "
                f"{len(ids)}{most}",
                param=param,
                code="context_length_exceeded",
            )
        return ids

    def _round(self) -> None:
        """Sample some tokens of the choices that waited longest."""
        waited = sorted(self._choices, key=lambda choice: choice.last_round)
        temperature = waited[0].job.asked.temperature
        rows = [choice for choice in waited if choice.job.asked.temperature == temperature][:MOST_ROWS]
        self._rounds += 1
        for choice in waited:
            choice.in_round = 0
        for choice in rows:
            choice.last_round = self._rounds
        sampling = Sampling(temperature, self._stop_ids)
        if isinstance(self.engine, TorchEngine):
            requests = [_request(choice, max(ROUND, len(choice.prompt) + len(choice.ids))) for choice in rows]
            self.engine.generate(requests, sampling, lambda index, *token: self._hear(rows[index], *token))
            return
        for choice, completion in zip(
            rows, self.engine.generate([_request(choice, FIXED_ROUND) for choice in rows], sampling), strict=True
        ):
            for token, logprob in zip(completion.ids, completion.logprobs, strict=True):
                if choice.open:
                    self._hear(choice, token, logprob)

    def _hear(self, choice: Choice, token: int, logprob: float) -> bool:
        """Add a token to a choice; returns whether it goes on in this round."""
        if not choice.open:
            return False
        choice.add(token, logprob, self.policy, token in self._stop_ids)
        now = time.monotonic()
        if choice.finish_reason or (choice.job.asked.stream and now - choice.told_at >= TOLD_EVERY_S):
            choice.told_at = now
            choice.job.tell(choice.news(self.policy))
        return not choice.finish_reason and not self._others_wait(choice)

    def _others_wait(self, choice: Choice) -> bool:
        """Whether the round is to end for this choice, because of a new request or of a choice that has had less."""
        if choice.in_round % SHORT_ROUND:
            return False
        if not self._new.empty():
            return True
        return choice.in_round >= LONG_ROUND and any(
            one.open and one.in_round + 1 < choice.in_round for one in self._choices
        )

    def _leave(self, count: int) -> None:
        with self._lock:
            self._waiting -= count


def _request(choice: Choice, most: int) -> Request:
    """The rest of a choice, up to `most` tokens."""
    left = choice.limit - len(choice.ids)
    return Request(choice.prompt + choice.ids, seed_after(choice.seed, len(choice.ids)), min(left, most))


def _ended() -> ApiError:
    return ApiError("the server is ending: ask the next one", HTTPStatus.SERVICE_UNAVAILABLE)
