"""The embedded engine: batched sampling on the policy's own weights, on any machine.

P prompts, N rows, V vocabulary.

A completion is a function of the weights, its prompt and its seed: the uniform number behind its token at position t
is a hash of (seed, t), whatever else is in the batch. Requests are sampled in slices whose memory is bounded. Slices
are a function of the requests, the model's shape and the configured memory, not of free memory: a resumed run
multiplies matrices of the same shapes as an uninterrupted one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from minrl.batch import to_device
from minrl.dataflow import CausalModel, Completion, Request, require
from minrl.engines import (
    CACHE_GIB,
    PROMPT_TOKENS,
    PROMPT_TOKENS_COMPUTED,
    Engine,
    OnEnd,
    Sampling,
    on_end_as,
    require_room,
)
from minrl.engines.decoders import Decoder, make_decoder
from minrl.models.cpu import bucketed
from minrl.models.logprobs import Head, output_head
from minrl.models.shape import cached_numbers
from minrl.models.sharding import gather_weights, release_weights
from minrl.policy import Policy
from minrl.tracking.timers import timed
from minrl.utils.console import activity

ROW_SIZES = 2
"""Sizes of the batch from a power of two to the next: finished rows leave it when the others are few enough for the
next smaller size. Products are compiled for each size (minrl/models/cpu.py).
"""

FEWEST_ROWS = 4
"""The smallest size: with fewer rows a product takes as long, since it reads the same weights."""

AHEAD = 32
"""Positions whose uniform numbers are drawn at once."""

BLOCK = 128
"""Tokens whose probabilities are summed before the cumulative sum."""

ACTIVATIONS = 16
"""Values that a forward pass without gradient holds at a time for each token, as a multiple of the hidden size."""

LOGITS = 4
"""Values of 4 bytes for each row and token of the vocabulary: logits, probabilities, and those of sampling."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64 from one position of a completion to the next."""

FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

OnToken = Callable[[int, int, float], bool]
"""Called with each token as it is sampled: the index of its request, the token, its log-probability. Returns whether
the completion goes on; one that does not ends there, with the finish reason `stop`.
"""


class TorchEngine:
    """Samples with the policy's own tensors, so that nothing is synced and nothing can be stale.

    In bfloat16 it is not exact: it rounds at other places than the policy's forward pass, because weights are cast, and
    adapters merged, once for each batch. The gap is measured and corrected, as any engine's.
    """

    def __init__(self, policy: Policy, cache_gib: float = 0.0, samples: bool = True) -> None:
        self.policy, self._samples = policy, samples
        self._facts = defaultdict[str, float](float)
        self.needs_correction = policy.processes.dtype != torch.float32
        self._limit = int((cache_gib or CACHE_GIB) * 2**30)
        self.sync(policy)

    @cached_property
    def context_length(self) -> int:
        """Tokens that the policy takes, which each episode asks for and its config tells layer by layer."""
        return self.policy.context_length

    @property
    def cores(self) -> int:
        """Those of torch's threads, unless the policy is on a GPU."""
        return torch.get_num_threads() if self.policy.device.type == "cpu" else 0

    @torch.no_grad()
    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        on_token: OnToken | None = None,
        *,
        on_end: OnEnd | None = None,
    ) -> list[Completion]:
        """One completion for each request, in order. Requests are sampled in slices that fit the memory, and each
        distinct prompt of a slice is prefilled once.
        """
        if not requests:
            return []
        require_room(requests, self.context_length)
        completions: list[Completion] = []
        cost = partial(footprint, self.policy.model, self.policy.processes.dtype.itemsize)
        with activity("sampling", len(requests)) as report, self.policy.processes.autocast():
            decoder = make_decoder(self.policy.model)
            head = output_head(self.policy.model).cast()
            for part in slices(requests, cost, self._limit):
                self._facts[PROMPT_TOKENS] += sum(len(request.ids) for request in part)
                self._facts[PROMPT_TOKENS_COMPUTED] += sum(map(len, {tuple(request.ids) for request in part}))
                batch = _Batch(self.policy, decoder, head, part, sampling)
                indices = range(len(completions), len(completions) + len(part))
                batch.on_token = on_token and partial(_on_token_of, on_token, indices)
                batch.on_end = on_end_as(on_end, indices)
                completions += batch.run(report, len(completions))
        return completions

    @timed("sync")
    def sync(self, policy: Policy) -> None:
        """The weights are the policy's own tensors, gathered where they are sharded; which policy it is can change."""
        self.policy = policy
        if self._samples:  # fine-tuning without a task never does, and may have no room
            gather_weights(policy.model)

    def take_facts(self) -> dict[str, float]:
        """How many prompt tokens were not computed again."""
        facts, self._facts = dict(self._facts), defaultdict(float)
        return facts

    @timed("sync")
    def sleep(self) -> None:
        """Free gathered weights. Else there is nothing to give back: the cache lives for one batch only."""
        release_weights(self.policy.model)

    def wake(self) -> None:
        """Always ready."""

    def close(self) -> None:
        """Nothing to release."""


def _on_token_of(on_token: OnToken, requests: Sequence[int], row: int, token: int, logprob: float) -> bool:
    """`on_token` of a batch's row, which is one of the requests."""
    return on_token(requests[row], token, logprob)


class _Batch:
    """The rows of one slice while they are being sampled."""

    def __init__(
        self, policy: Policy, decoder: Decoder, head: Head, requests: Sequence[Request], sampling: Sampling
    ) -> None:
        self.policy, self.decoder, self.head = policy, decoder, head
        self.requests, self.sampling = requests, sampling
        self.on_token: OnToken | None = None
        self.on_end: OnEnd | None = None
        self.seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        self.limits = np.array([request.max_tokens for request in requests])
        self.stop_ids = np.array(sorted(sampling.stop_ids))
        steps = int(self.limits.max())
        self.tokens = np.zeros((len(requests), steps), dtype=np.int64)
        self.logprobs = np.zeros((len(requests), steps), dtype=np.float32)
        self.lengths = np.zeros(len(requests), dtype=np.int64)
        self.stopped = np.zeros(len(requests), dtype=bool)

    def run(self, report: Callable[[int], None], before: int) -> list[Completion]:
        """Sample, position by position, until every row has stopped or reached its limit; report how many have, with
        those `before`.
        """
        rows = np.arange(len(self.requests))  # which request each row of the decoder's cache is
        hidden = self._prefill()
        for position in range(int(self.limits.max())):
            logits = self.head.logits(hidden)
            if position % AHEAD == 0:
                drawn = uniforms(self.seeds, range(position, position + AHEAD))
            (u,) = to_device([torch.from_numpy(drawn[rows, position % AHEAD])], logits.device)
            sampled, logprobs = sample(logits, u, self.sampling.temperature)
            going = self._record(rows, position, sampled, logprobs)
            report(before + len(self.requests) - int(going.sum()))
            if not going.any():
                break
            count = max(FEWEST_ROWS, bucketed(int(going.sum()), ROW_SIZES))
            if count < len(rows):
                kept = np.argsort(~going, kind="stable")[:count]  # those that go on, and some that have ended
                keep = torch.from_numpy(kept).to(sampled.device)
                self.decoder.select(keep)
                rows, sampled = rows[kept], sampled[keep]
            hidden = self.decoder.step(sampled)
        return [self._completion(row) for row in range(len(self.requests))]

    def _completion(self, row: int) -> Completion:
        """What was sampled for a row."""
        length = self.lengths[row]
        reason = "stop" if self.stopped[row] else "length"
        return Completion(self.tokens[row, :length].tolist(), self.logprobs[row, :length].tolist(), reason)

    def _prefill(self) -> Tensor:
        """Final hidden states (N, D) at the end of each request's prompt."""
        prompts: dict[tuple[int, ...], int] = {}
        of_row = [prompts.setdefault(tuple(request.ids), len(prompts)) for request in self.requests]
        hidden = self.decoder.prefill(list(prompts), int(self.limits.max()))
        index = torch.tensor(of_row, device=hidden.device)
        self.decoder.select(index)
        return hidden[index]

    def _record(self, rows: np.ndarray, position: int, sampled: Tensor, logprobs: Tensor) -> np.ndarray:
        """Store a token for every row that is still sampled; returns which rows go on."""
        live = ~self.stopped[rows] & (self.lengths[rows] == position) & (self.limits[rows] > position)
        live_rows = rows[live]
        tokens = sampled.to("cpu", non_blocking=True)  # it is there when the next copy is, which is waited for
        self.logprobs[live_rows, position] = logprobs.cpu().numpy()[live]
        require(
            not np.isnan(self.logprobs[live_rows, position]).any(),
            "the policy's probabilities are not numbers: its weights or activations have overflowed; resume from an "
            "earlier checkpoint with a lower --learning-rate",
        )
        self.tokens[live_rows, position] = tokens.numpy()[live]
        self.lengths[live_rows] = position + 1
        self.stopped[live_rows] = (self.tokens[live_rows, position, None] == self.stop_ids).any(1)
        for row in live_rows.tolist() if self.sampling.stop_strings else ():
            self.stopped[row] |= self._ends_with_stop_string(row)
        if self.on_token is not None:
            for row in live_rows.tolist():
                token, logprob = int(self.tokens[row, position]), float(self.logprobs[row, position])
                self.stopped[row] |= not self.on_token(row, token, logprob)
        going = live & ~self.stopped[rows] & (self.limits[rows] > position + 1)
        self._tell(rows[live & ~going].tolist())
        return going

    def _tell(self, rows: Sequence[int]) -> None:
        """Tell who listens that these rows have ended, outside the modes in which this engine computes."""
        if self.on_end is None:
            return
        device = self.policy.device.type
        before = torch.is_autocast_enabled(device)
        torch.set_autocast_enabled(device, False)  # the context of torch takes a third of a millisecond
        try:
            with torch.enable_grad():
                self.on_end([(row, self._completion(row)) for row in rows])
        finally:
            torch.set_autocast_enabled(device, before)

    def _ends_with_stop_string(self, row: int) -> bool:
        """Whether the text of the last tokens contains a stop string. A token has at least one byte."""
        window = 4 * max(map(len, self.sampling.stop_strings)) + 8
        start = max(0, int(self.lengths[row]) - window)
        text = self.policy.decode_all(self.tokens[row, start : self.lengths[row]].tolist())
        return any(stop in text for stop in self.sampling.stop_strings)


def footprint(model: CausalModel, itemsize: int, rows: int, prompt: int, limit: int) -> int:
    """Bytes that sampling holds beside the weights, for so many rows with prompts of at most `prompt` tokens and
    completions of at most `limit`, in a precision of `itemsize` bytes: keys and values, activations of prompts, logits.
    """
    config = model.config.get_text_config(decoder=True)
    tokens = (prompt + limit) * cached_numbers(config) + prompt * ACTIVATIONS * config.hidden_size
    return rows * (tokens * itemsize + 4 * LOGITS * config.vocab_size)


def slices(requests: Sequence[Request], cost: Callable[[int, int, int], int], limit: int) -> Iterator[list[Request]]:
    """The requests in order, in parts that cost at most `limit` bytes, or of a single request."""
    part: list[Request] = []
    prompt = completion = 0
    for request in requests:
        prompt, completion = max(prompt, len(request.ids)), max(completion, request.max_tokens)
        if part and cost(len(part) + 1, prompt, completion) > limit:
            yield part
            part, prompt, completion = [], len(request.ids), request.max_tokens
        part.append(request)
    if part:
        yield part


def mix(z: np.ndarray) -> np.ndarray:
    """The finalizer mix64variant13 of SplitMix64 (Steele, Lea and Flood, doi:10.1145/2714064.2660195): every bit of the
    result depends on every bit of the seed.
    """
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def mix_seed(seed: int) -> int:
    """63 bits for torch's generator on a CPU, which reads the low 32 only."""
    return int(mix(np.array([seed], dtype=np.uint64))[0]) & (2**63 - 1)


def uniforms(seeds: np.ndarray, positions: range) -> np.ndarray:
    """A number in [0, 1) for each seed (N,) at each position (P,), (N, P): the 53 high bits of SplitMix64 of seed and
    position (Steele, Lea and Flood, doi:10.1145/2714064.2660195, with its mix64variant13).
    """
    with np.errstate(over="ignore"):
        z = mix(seeds)[:, None] + (np.arange(positions.start, positions.stop, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        return (mix(z) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits: Float[Tensor, "N V"], u: Float[Tensor, " N"], temperature: float
) -> tuple[Int[Tensor, " N"], Float[Tensor, " N"]]:
    """A token for each row by inverse CDF, and its log-probability at that temperature (1 where it is 0: greedy).

    The first token whose cumulative probability exceeds u: a token of probability 0 is never drawn.
    """
    probabilities = (logits / temperature if temperature not in (0, 1) else logits).softmax(-1)
    tokens = _inverse_cdf(probabilities, u) if temperature else logits.argmax(-1)
    tokens = tokens.clamp(max=logits.shape[1] - 1)  # of probabilities that are no numbers none is passed
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def _inverse_cdf(probabilities: Float[Tensor, "N V"], u: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The token at which the cumulative probability passes u. Its block is found first, and only the tokens of that
    block are summed one by one.
    """
    if probabilities.shape[1] <= BLOCK:
        cdf = probabilities.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(cdf, _below(u.double()[:, None] * cdf[:, -1:], cdf[:, -1:]), right=True)[:, 0]
    missing = -probabilities.shape[1] % BLOCK
    padded = F.pad(probabilities, (0, missing)) if missing else probabilities  # `pad` copies for nothing too
    blocks = padded.unflatten(1, (-1, BLOCK))  # (N, B, BLOCK)
    sums = blocks.sum(-1)
    cdf = sums.double().cumsum(-1)
    threshold = _below(u.double() * cdf[:, -1], cdf[:, -1])
    block = torch.searchsorted(cdf, threshold[:, None], right=True).clamp(max=cdf.shape[1] - 1)  # (N, 1)
    size = sums.gather(1, block).double()
    share = (threshold[:, None] - (cdf.gather(1, block) - size)).clamp(min=0) / size
    within = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(-1)
    place = torch.searchsorted(within, _below(share * within[:, -1:], within[:, -1:]), right=True)
    return (block * BLOCK + place)[:, 0]


def _below(values: Tensor, limits: Tensor) -> Tensor:
    """The values, with a number just below where rounding has brought one to its limit."""
    return torch.minimum(values, limits * (1 - 2.0**-52))


class EngineWithOpponent:
    """The policy's engine, and for frozen requests the opponent's: a model that plays some roles of an episode and
    never learns. Everything but sampling is the policy's engine's.

    The opponent has its own temperature and longest turn, if they are not 0. One with another vocabulary plays by text:
    its turns are encoded and decoded by its own tokenizer and chat template. Else these are the policy's.
    """

    def __init__(
        self,
        engine: Engine,
        opponent: Policy,
        policy: Policy,
        cache_gib: float = 0.0,
        *,
        temperature: float = 0.0,
        max_tokens: int = 0,
    ) -> None:
        opponent.model.requires_grad_(False)
        self.engine, self.opponent = engine, TorchEngine(opponent, cache_gib)
        self.by_text = opponent.tokenizer.get_vocab() != policy.tokenizer.get_vocab()
        self.temperature, self.max_tokens, self._policy_stops = temperature, max_tokens, policy.stop_strings
        self.needs_correction = engine.needs_correction
        self.sync, self.take_facts = engine.sync, engine.take_facts
        self.sleep, self.wake, self.close = engine.sleep, engine.wake, engine.close

    @property
    def context_length(self) -> int:
        """Tokens that both take; those that the policy takes, if the opponent reads other tokens."""
        own = self.engine.context_length
        return own if self.by_text else min(own, self.opponent.context_length)

    @property
    def cores(self) -> int:
        """Cores that the one which takes more of them computes on."""
        return max(self.engine.cores, self.opponent.cores)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_end: OnEnd | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. It depends on weights, prompt and seed alone, so the engines may
        sample one after the other.
        """
        completions: dict[int, Completion] = {}
        for engine, frozen in ((self.engine, False), (self.opponent, True)):
            chosen = [index for index, request in enumerate(requests) if request.frozen == frozen]
            if chosen:
                own = [requests[index] for index in chosen]
                sampled = engine.generate(own, self._of(sampling, frozen), on_end=on_end_as(on_end, chosen))
                completions.update(zip(chosen, sampled, strict=True))
        return [completions[index] for index in range(len(requests))]

    def _of(self, sampling: Sampling, frozen: bool) -> Sampling:
        """How the policy's completions are drawn, or the opponent's."""
        if not frozen:
            return sampling
        sampling = replace(sampling, temperature=self.temperature or sampling.temperature)
        if not self.by_text:
            return sampling
        reader = self.opponent.policy
        stops = tuple(stop for stop in sampling.stop_strings if stop not in self._policy_stops)
        return replace(
            sampling, stop_ids=reader.stop_ids | reader.stop_tokens(stops), stop_strings=stops + reader.stop_strings
        )
