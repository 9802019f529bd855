"""How a model can be computed: each method against plain transformers, before anything is trained.

Plain transformers is its own forward pass of one sequence at a time, with eager attention and all logits. A method that
differs from it is not used; a model that no method computes right is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from minrl.batch import pack
from minrl.dataflow import CausalModel, Rollout, UserError
from minrl.engines.decoders import has_own_decoder, make_decoder
from minrl.models.logprobs import output_head
from minrl.models.scoring import Decoding, Method, method_of, sampled_rollout, score, set_method
from minrl.models.shape import cached_numbers, context_length
from minrl.models.structure import decoder_of, layers_of
from minrl.utils.text import first_line

T = TypeVar("T")


@dataclass(frozen=True)
class Verified:
    """The method that was chosen, and why faster ones were not: their differences from plain transformers."""

    method: Method
    why_not_packed: str = ""
    why_not_cached: str = ""


def verify(model: CausalModel, in_bfloat16: bool = False) -> Verified:
    """Give the model the fastest method that computes it right, compared in float32 and, if it is to train so on a GPU,
    in bfloat16 too: flash attention takes nothing else. Raises `UserError` if there is none.
    """
    try:
        cached_numbers(model.config)
    except Exception as error:  # of sizes that the config lacks
        raise refused(model, f"its config does not tell its shape ({first_line(error)})") from error
    with narrowed(model):
        probe = Probe(model)
        expected = attempted(probe.plain)
        if isinstance(expected, str):
            raise refused(model, f"transformers' own forward pass fails: {expected}")
        if not bool(expected.logprobs.isfinite().all()):
            raise refused(model, "its log-probabilities are not finite")
        if not expected.gradients:  # Reformer's backward pass is its own
            raise refused(model, "autograd finds no gradient of its layers")
        if not probe.is_causal():
            raise refused(model, "the log-probability of a token depends on the tokens behind it")
        packed, why_not_packed = _choose_scoring(model, probe, expected, in_bfloat16)
        decoding, why_not_cached = _choose_decoding(model, probe, expected)
    method = Method(packed, decoding)
    set_method(model, method)
    return Verified(method, why_not_packed, why_not_cached)


def attempted(compute: Callable[[], T]) -> T | str:
    """What is computed, or the first line of the error: a forward pass raises whatever its code leads it to. Too little
    memory says nothing of a method: another one may need less, but is slower for ever.
    """
    try:
        return compute()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        return first_line(error)


def _choose_scoring(model: CausalModel, probe: "Probe", expected: "Computed", in_bfloat16: bool) -> tuple[bool, str]:
    """Whether rollouts are packed, and else why not. The attention implementation stays the one that is right."""
    own = decoder_of(model).config._attn_implementation
    tried: dict[tuple[bool, str], str] = {}
    for packed, attention in ((True, own), (False, own), (False, "eager")):
        if (packed and not model._supports_attention_backend) or (packed, attention) in tried:
            continue
        set_attention(model, attention)
        set_method(model, Method(packed))
        why = attempted(lambda: probe.scored().gap(expected))
        tried[packed, attention] = why or (attempted(probe.gap_in_bfloat16) if packed and in_bfloat16 else "")
        if not tried[packed, attention]:
            why = tried.get((True, own), "it does not use transformers' attention interface")
            return packed, "" if packed else why
    why = tried[False, own]
    raise refused(model, f"its last hidden states through its head are not what it says of each row alone ({why})")


def _choose_decoding(model: CausalModel, probe: "Probe", expected: "Computed") -> tuple[Decoding, str]:
    """The decoder that is right, and why a faster one is not."""
    why = ""
    decodings: tuple[Decoding, ...] = ("own", "cached", "recomputed")
    for decoding in decodings[not has_own_decoder(model) :]:
        gap = attempted(partial(probe.decoding_gap, decoding, expected))
        if not gap:
            return decoding, why
        why = why or gap
    raise refused(model, f"token by token it does not say what it says in one pass ({gap})")


def refused(model: CausalModel, why: str) -> UserError:
    """The refusal of a model that cannot be computed right."""
    return UserError(f"{type(model).__name__} cannot be trained: {why}; choose another model")


# The completions by which methods are compared

LOGPROB_GAP = 1e-3
"""Largest difference of a log-probability in float32 (nats)."""

GRADIENT_GAP = 1e-2
"""Largest difference of an element of a gradient, as a share of the largest element."""

MEAN_GAP, MEAN_SHARE = 0.25, 0.5
"""Largest mean difference of log-probabilities in bfloat16 (nats), and largest norm of a gradient's difference as a
share of its own: rounding moves a token near a router's tie to another expert, a wrong kernel moves all.
"""

NARROW = 4
"""Tokens to which windows and chunks are narrowed while a model is verified."""

NARROWED = (
    *("sliding_window", "attention_chunk_size", "chunk_size", "mamba_chunk_size", "floor_scale", "index_topk"),
    *("window_size", "attention_window_size", "local_attention", "keep_window_size", "block_size"),
)
"""Settings of a config or a layer from which on a model computes in another way."""

LINEAR_CHUNK = 64
"""Tokens in a chunk of linear attention, a constant in transformers' code."""


@dataclass(frozen=True)
class Computed:
    """Log-probabilities of the probe's completions, and gradients of a weighted sum of them by the weight's name."""

    logprobs: Tensor
    gradients: Mapping[str, Tensor]

    def gap(self, expected: "Computed") -> str:
        """How it differs from what is expected; empty where it agrees."""
        gap = float((self.logprobs - expected.logprobs).abs().max())
        if not gap <= LOGPROB_GAP:
            return f"log-probabilities differ by {gap:.2g} nats"
        for name, gradient in expected.gradients.items():
            largest = gradient.abs().max().clamp(min=torch.finfo(gradient.dtype).tiny)
            share = float((self.gradients[name] - gradient).abs().max() / largest)
            if not share <= GRADIENT_GAP:
                return f"the gradient of {name} differs by {share:.2g} of its largest element"
        return ""


class Probe:
    """Completions of two prompts, longer than what a narrowed model sees at a time, and ways to compute them."""

    def __init__(self, model: CausalModel) -> None:
        self.model, self.device = model, next(model.parameters()).device
        span = min(_span(model), context_length(model) // 4)
        tokens = iter(_tokens(model, 5 * span + 16))
        self.rollouts: list[Rollout] = []
        for prompt_length, completion_lengths in ((span + 3, (span + 2, 2)), (span // 2 + 2, (span, 1))):
            prompt = [next(tokens) for _ in range(prompt_length)]
            for length in completion_lengths:
                self.rollouts.append(sampled_rollout(prompt, [next(tokens) for _ in range(length)]))
        self.weights = _witnesses(model)

    def plain(self) -> Computed:
        """Each rollout by itself, by transformers' own forward pass with eager attention."""
        own = decoder_of(self.model).config._attn_implementation
        set_attention(self.model, "eager")
        try:
            with torch.enable_grad():
                return self._computed(torch.cat([self._plain(rollout) for rollout in self.rollouts]))
        finally:
            set_attention(self.model, own)

    def _plain(self, rollout: Rollout) -> Tensor:
        row = torch.tensor([rollout.ids], device=self.device)
        logits = self.model(input_ids=row, use_cache=False).logits[0, rollout.prompt_length - 1 : -1]
        return logits.float().log_softmax(-1).gather(1, row[0, rollout.prompt_length :, None])[:, 0]

    @torch.no_grad()
    def is_causal(self) -> bool:
        """Whether what follows a token changes nothing of its log-probability."""
        rollout = self.rollouts[0]
        half = rollout.num_sampled // 2
        shorter = sampled_rollout(rollout.ids[: rollout.prompt_length], rollout.ids[rollout.prompt_length : -half])
        gap = (self._plain(rollout)[: shorter.num_sampled] - self._plain(shorter)).abs().max()
        return bool(gap <= LOGPROB_GAP)

    def scored(self) -> Computed:
        """All rollouts together, as in training."""
        stream = pack(self.rollouts, range(len(self.rollouts))).to(self.device)
        with torch.enable_grad():
            return self._computed(score(self.model, stream, temperature=1.0)[0][stream.token_index.argsort()])

    def gap_in_bfloat16(self) -> str:
        """How all together differ from each by itself where products are in bfloat16; empty where they agree."""
        with torch.autocast(self.device.type, torch.bfloat16):
            packed, plain = self.scored(), self.plain()
        gap = float((packed.logprobs - plain.logprobs).abs().mean())
        if not gap <= MEAN_GAP:
            return f"in bfloat16 log-probabilities differ by a mean of {gap:.2g} nats"
        for name, gradient in plain.gradients.items():
            share = float((packed.gradients[name] - gradient).norm() / gradient.norm())
            if not share <= MEAN_SHARE:
                return f"in bfloat16 the gradient of {name} differs by {share:.2g} of its norm"
        return ""

    def _computed(self, logprobs: Tensor) -> Computed:
        """With the gradients of a sum whose weights are of both signs and all different."""
        factors = torch.cos(2.0 * torch.arange(len(logprobs), device=self.device))
        grads = torch.autograd.grad((logprobs * factors).sum(), list(self.weights.values()), allow_unused=True)
        named = zip(self.weights, grads, strict=True)
        return Computed(logprobs.detach(), {name: grad for name, grad in named if grad is not None})

    @torch.no_grad()
    def decoding_gap(self, decoding: Decoding, expected: Computed) -> str:
        """How it differs token by token, by the embedded engine's decoder; finished rows leave the batch."""
        set_method(self.model, replace(method_of(self.model), decoding=decoding))
        logprobs: list[list[Tensor]] = [[] for _ in self.rollouts]
        for row, logprob in self._decoded(list(range(len(self.rollouts)))):
            logprobs[row].append(logprob)
        return Computed(torch.stack([logprob for own in logprobs for logprob in own]), {}).gap(
            replace(expected, gradients={})
        )

    def _decoded(self, rows: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Each token's log-probability with the number of its rollout."""
        rollouts, head, decoder = self.rollouts, output_head(self.model).cast(), make_decoder(self.model)
        prompts = [tuple(rollouts[row].ids[: rollouts[row].prompt_length]) for row in rows]
        distinct, longest = list(dict.fromkeys(prompts)), max(rollouts[row].num_sampled for row in rows)
        hidden = decoder.prefill(distinct, longest)
        keep = [distinct.index(prompt) for prompt in prompts]
        for step in range(longest):
            if len(keep) < len(hidden) or not step:
                decoder.select(torch.tensor(keep, device=self.device))
                hidden = hidden[keep]
            labels = [rollouts[row].ids[rollouts[row].prompt_length + step] for row in rows]
            yield from zip(rows, head.logits(hidden).log_softmax(-1)[range(len(rows)), labels], strict=True)
            hidden = decoder.step(torch.tensor(labels, device=self.device))
            keep = [place for place, row in enumerate(rows) if rollouts[row].num_sampled > step + 1]
            rows = [rows[place] for place in keep]


def set_attention(model: CausalModel, name: str) -> None:
    """Let the decoder use this attention of transformers, where its class allows to change it after loading. Falcon's
    does not: it has sdpa, and adds ALiBi twice in eager attention.
    """
    if model._can_set_attn_implementation():
        decoder_of(model).config._attn_implementation = name


def _witnesses(model: CausalModel) -> dict[str, nn.Parameter]:
    """The first matrix of the first layer of each type, by name."""
    decoder = decoder_of(model)
    types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or []
    first: dict[object, nn.Module] = {}
    for index, layer in enumerate(layers_of(decoder)):
        modules = frozenset(type(module).__name__ for module in layer.modules())
        first.setdefault((modules, types[index] if index < len(types) else ""), layer)
    names = {id(weight): name for name, weight in decoder.named_parameters()}
    matrices = [[w for w in layer.parameters() if w.ndim > 1 and w.requires_grad] for layer in first.values()]
    return {names[id(weights[0])]: weights[0] for weights in matrices if weights}


def _span(model: CausalModel) -> int:
    """Tokens that are more than any narrowed window, chunk or convolution of the model."""
    types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or []
    kernels = [m.kernel_size[0] for m in decoder_of(model).modules() if isinstance(m, nn.Conv1d)]
    return max([2 * NARROW, *(2 * k for k in kernels), *(LINEAR_CHUNK for t in types if t == "linear_attention")])


def _tokens(model: CausalModel, count: int) -> list[int]:
    """Tokens from all over the vocabulary, without placeholders of images and sounds. As in any text some occur twice:
    Doge masks the one or the other of them by what a row is padded with. Tokens of ends and padding are among them, by
    which a model could count.
    """
    size = output_head(model).weight.shape[0]
    config = model.config.get_text_config(decoder=True)
    said = [getattr(config, name, None) for name in ("eos_token_id", "pad_token_id", "bos_token_id")]
    ends = [token for token in said if isinstance(token, int) and 0 <= token < size]
    named = {value for name, value in model.config.to_dict().items() if name.endswith(("token_id", "token_index"))}
    usable = [token for token in range(size) if token not in named]
    tokens = [usable[((index - 6 * (index % 4 == 3)) * 7919 + 11) % len(usable)] for index in range(count)]
    for place, token in enumerate(ends):
        tokens[1 + 2 * place :: 16] = [token] * len(tokens[1 + 2 * place :: 16])
    return tokens


@contextmanager
def narrowed(model: CausalModel) -> Iterator[None]:
    """Narrow windows and chunks that are shorter than the context to NARROW tokens inside. The config, from which a
    model makes its masks, and some layers hold them.
    """
    limit = context_length(model)
    found = [
        (holder, name, value)
        for holder in (model.config.get_text_config(decoder=True), *model.modules())
        for name in NARROWED
        if isinstance(value := vars(holder).get(name), int) and NARROW < value < limit
    ]
    try:
        for holder, name, _ in found:
            setattr(holder, name, NARROW)
        yield
    finally:
        for holder, name, value in found:
            setattr(holder, name, value)
