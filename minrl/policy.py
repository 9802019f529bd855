"""The network being trained.

A `Policy` is a transformers model with float32 master weights and its tokenizer. Every completion records its version.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from minrl.batch import Stream, micro_batches, pack
from minrl.config import TrainerConfig
from minrl.dataflow import CausalModel, Rollout
from minrl.models.attention_cpu import LONGEST
from minrl.models.chat import ChatTokenizer
from minrl.models.cpu import free_bytes
from minrl.models.distributed import Processes
from minrl.models.experts import use_cast_experts
from minrl.models.lora import Adapters
from minrl.models.modules import speed_up
from minrl.models.scoring import (
    LARGEST_SHARE,
    filled_size,
    kept_bytes,
    method_of,
    row_batches,
    row_tokens,
    sampled_rollout,
    score,
)
from minrl.models.shape import cached_numbers, context_length
from minrl.models.sharding import equal_passes
from minrl.models.structure import decoder_of, layers_of


@dataclass(kw_only=True)
class Policy(ChatTokenizer):
    """The trained model and its tokenizer. `version` counts the updates, `skipped_steps` the last consecutive optimizer
    steps with a gradient that was not finite. `reference` is the frozen model of a KL term without adapters, `teacher`
    that of a teacher but the policy itself; `teacher_reads` puts the teacher's own prompt in front of a rollout.
    """

    model: CausalModel
    processes: Processes
    version: int = 0
    skipped_steps: int = 0
    reference: CausalModel | None = None
    teacher: CausalModel | None = None
    teacher_reads: Callable[[Rollout], Rollout] | None = None
    adapters: Adapters | None = None
    activation_checkpointing: Literal["auto", "always", "never"] = "auto"

    def score(
        self, stream: Stream, temperature: float, model: CausalModel | None = None
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """`minrl.models.scoring.score` of the policy or another model, in the policy's precision. If a backward pass
        follows and the activations do not fit into the free memory, they are recomputed.
        """
        recompute = torch.is_grad_enabled() and self._recomputes(stream)
        with self.processes.autocast():
            return score(model or self.model, stream, temperature, recompute)

    def passes(self, count: int, model: CausalModel | None = None) -> AbstractContextManager[None]:
        """Inside, `score` is called so many times, and weights are cast once for all calls; nothing else computes in
        that precision. No optimizer step may happen inside, and no pass without a gradient before one with a gradient.
        """
        blank = partial(self.score, self._any_tokens(1), 1.0, model)
        return equal_passes(model or self.model, self.processes, count, blank)

    @contextmanager
    def as_reference(self) -> Iterator[CausalModel]:
        """The reference model of a KL term: the policy without its adapters, or a frozen copy."""
        if self.adapters is None:
            assert self.reference is not None, "a KL term needs the reference that it is taken to"
            yield self.reference
        else:
            with self.adapters.off():
                yield self.model

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.processes.device

    @property
    def num_weights(self) -> int:
        """The number of weights, with adapters."""
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def packed(self) -> bool:
        """Whether the update packs rollouts into streams."""
        return method_of(self.model).packed

    def micro_batches(self, rollouts: Sequence[Rollout], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
        """The indices in lists for one forward pass each, of at most `max_tokens` or a single rollout."""
        return (micro_batches if self.packed else row_batches)(rollouts, indices, max_tokens)

    @property
    def context_length(self) -> int:
        """Longest sequence of the model and its teacher, prompt and completions together."""
        return min(context_length(model) for model in (self.model, self.teacher) if model is not None)

    def computed_tokens(self, stream: Stream) -> int:
        """Tokens of a forward pass of the stream, with padding."""
        return filled_size(len(stream.input_ids), stream.input_ids.device) if self.packed else row_tokens(stream)

    def activation_bytes(self, stream: Stream) -> float:
        """Approximate bytes that a forward pass of the stream keeps for the backward pass."""
        longest = max(one.prompt_length + one.length for one in stream.segments)
        repeated = sum(one.prompt_length for one in stream.segments) if self.packed else 0
        keys = 4 * cached_numbers(self.model.config) * repeated  # a prompt's are copied for each of its suffixes
        return self.activation_bytes_of(self.computed_tokens(stream), longest) + keys

    def activation_bytes_of(self, tokens: int, length: int) -> float:
        """The same for so many tokens, of which each sees at most `length`."""
        linear, quadratic = self._activation_growth
        if self.packed and self.device.type == "cpu":
            length = min(length, LONGEST)  # scores of longer rows are not kept
        return linear * tokens + quadratic * tokens * length

    @cached_property
    def _activation_growth(self) -> tuple[float, float]:
        """Bytes kept per token and per pair of tokens, measured on three short streams."""

        def kept(length: int) -> int:
            with self.processes.autocast():
                return kept_bytes(partial(score, self.model, self._any_tokens(length), 1.0))

        short = 16 if self.packed else 64  # recurrent layers compute whole chunks of 64 tokens
        sizes = [kept(length) for length in (short, 2 * short, 4 * short)]
        first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
        quadratic = (second - 2 * first) / (6 * short**2)
        return first / short - 3 * short * quadratic, quadratic

    def _any_tokens(self, length: int) -> Stream:
        """A short prompt and so many tokens behind it, which teach nothing."""
        return pack([sampled_rollout([0], [0] * length)], [0]).to(self.device)

    def _recomputes(self, stream: Stream) -> bool:
        """Whether the activations of the stream are recomputed in the backward pass."""
        if self.activation_checkpointing != "auto":
            return self.activation_checkpointing == "always"
        short = self.activation_bytes(stream) > LARGEST_SHARE * self.free_memory()
        return short and bool(layers_of(decoder_of(self.model)))

    def free_memory(self) -> int:
        """Free bytes on the device for this process."""
        free = free_bytes(self.device)
        return free // self.processes.local_count if self.device.type == "cpu" else free

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end tokens of the generation config, of the tokenizer and of its chat template."""
        named = self.model.generation_config.eos_token_id
        ids = {*super().stop_ids, *(named if isinstance(named, list) else [named])}
        return frozenset(i for i in ids | {self.tokenizer.eos_token_id} if i is not None)


@torch.no_grad()
def round_embedding_scale(model: CausalModel) -> None:
    """Round the factor of Gemma's embeddings to bfloat16, as Google's code and vLLM have it: 33.94 to 34 where the
    hidden size is 1152.
    """
    for module in model.modules():
        if isinstance(scale := getattr(module, "embed_scale", None), Tensor):
            scale.copy_(scale.bfloat16())


def as_policy(model: CausalModel, tokenizer: Any, config: TrainerConfig, processes: Processes) -> Policy:  # noqa: ANN401
    """A policy of a model and tokenizer in memory."""
    model.to(processes.device).eval()  # dropout would make the trained probabilities differ from the sampled ones
    speed_up(model)
    use_cast_experts(model)
    if processes.dtype == torch.bfloat16:
        round_embedding_scale(model)
    return Policy(
        model=model,
        tokenizer=tokenizer,
        processes=processes,
        chat_template_options=config.template_options,
        activation_checkpointing=config.activation_checkpointing,
    )
