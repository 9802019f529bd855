"""What a training step asks of a GPU, counted on a machine without one: tests/test_card.py has the figures.

The code of the update and of the embedded engine runs on tensors that have a device and a shape, and no numbers
(benchmarks/card.py). What is counted for each setting: how often the host waits for the GPU, the precisions of
products, and what computes attention. A tensor on the wrong device raises.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from card import DEVICE, Card, Record
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from minrl.algorithms import choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.dataflow import Request, Reward, Rollout, TrainState
from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.loading import word_tokenizer
from minrl.models.scoring import sampled_rollout
from minrl.optimizer import make_optimizer
from minrl.policy import Policy, as_policy
from minrl.update import update_policy
from tests.parsed import sized

FEW, MANY = 16_384, 4096
"""Tokens of a micro-batch that make few of them, and many."""

PROMPT, COMPLETION = 64, 512
LONGEST = PROMPT + COMPLETION - 1
"""Tokens of the longest sequence that is computed: the last is a label only."""


@dataclass(frozen=True)
class Setting:
    """A way of training."""

    algorithm: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    checkpointing: str = "never"


def window(tokens: int) -> dict[str, Any]:
    """A sliding window in every layer."""
    return {"use_sliding_window": True, "sliding_window": tokens, "max_window_layers": 0}


SETTINGS = {
    "grpo": Setting(),
    "gspo": Setting({"algorithm": "gspo"}),
    "grpo, KL to the start": Setting({"kl_coef": 0.01}),
    "grpo, two passes": Setting({"passes_per_step": 2}),
    "grpo, activations recomputed": Setting(checkpointing="always"),
    f"grpo, window of {LONGEST}": Setting(model=window(LONGEST)),
    f"grpo, window of {LONGEST - 1}": Setting(model=window(LONGEST - 1)),
}


def rollouts_of(prompts: int, group: int = 8) -> list[Rollout]:
    """Groups of completions of different lengths, one as long as `LONGEST` allows."""
    rng, made = random.Random(0), []
    for row in range(prompts * group):
        length = rng.randint(COMPLETION // 4, COMPLETION) if row else COMPLETION
        rollout = sampled_rollout([row // group] * PROMPT, [7] * length)
        made.append(replace(rollout, group=row // group, sample=row % group, reward=Reward(row % 3 / 2)))
    return made


def make_policy(there: Card, shape: Mapping[str, Any], checkpointing: str = "never") -> Policy:
    """A policy on the GPU."""
    tokenizer = word_tokenizer([f"w{index}" for index in range(95)])
    return as_policy(_model(shape), tokenizer, sized(activation_checkpointing=checkpointing), there.processes)


def _model(shape: Mapping[str, Any]) -> Qwen3ForCausalLM | Qwen3MoeForCausalLM:
    mixture = "num_experts" in shape
    config = (Qwen3MoeConfig if mixture else Qwen3Config)(tie_word_embeddings=True, eos_token_id=2, **shape)
    with DEVICE:
        model = (Qwen3MoeForCausalLM if mixture else Qwen3ForCausalLM)(config)
    model.to = lambda device: model  # it is there already; fake weights cannot be moved in place
    return model


def update_of(
    there: Card, setting: Setting, shape: Mapping[str, Any], micro_batch_tokens: int, prompts: int = 4
) -> tuple[Record, int]:
    """What the first update of a run does, which makes the optimizer's moments too, and its micro-batches."""
    policy = make_policy(there, {**shape, **setting.model}, setting.checkpointing)
    config = sized(**setting.algorithm, micro_batch_tokens=micro_batch_tokens)
    if config.kl_coef:
        policy.reference = _model({**shape, **setting.model}).requires_grad_(False)
    optimizer, row, rollouts = make_optimizer(policy, config), choose_algorithm(config), rollouts_of(prompts)
    batch = make_batch(rollouts, compute_advantages(rollouts, row, config, TrainState()).values)
    there.taken()
    update_policy(policy, optimizer, batch, row, config, TrainState(step=1), needs_correction=True)
    taught = batch.have_advantage.nonzero().flatten().tolist()
    return there.taken(), len(policy.micro_batches(rollouts, taught, micro_batch_tokens))


def decoding_of(there: Card, shape: Mapping[str, Any], tokens: int) -> Record:
    """What the embedded engine does for completions of so many tokens."""
    engine = TorchEngine(make_policy(there, shape))
    requests = [Request([row // 8] * (32 + row // 8), row, tokens) for row in range(64)]
    there.taken()
    engine.generate(requests, Sampling(1.0, frozenset()))
    return there.taken()


def attention_of(record: Record) -> str:
    """What computes attention."""
    names = {name for name, _ in record.products if "attn" in name or name in ("bmm", "baddbmm")}
    return "flash" if names and all("varlen_attn" in name for name in names) else "padded rows"
