"""Settings whose default depends on what is trained: the base model that MinRL makes, a given model, or adapters.

Reinforcement learning of all weights of a given model takes 1e-6 and completions of 1024 tokens, as DeepSeekMath's GRPO
did (arXiv:2402.03300, section 4.2); DAPO (arXiv:2503.14476, section 4.1) and TRL's GRPOConfig take the same rate.
Fine-tuning takes 2e-5, as TRL's SFTConfig does. Adapters take ten times the rate of all weights: what was best for LoRA
in both (Schulman et al. 2025, "LoRA Without Regret", thinkingmachines.ai/blog/lora), and QLoRA's 2e-4
(arXiv:2305.14314, appendix B.2). The base model of a million weights takes 3e-4, by LOG.md.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from minrl.config import RolloutConfig, TrainerConfig

MAX_TOKENS = 1024
"""Longest completion of a given model."""


@dataclass(frozen=True)
class Rates:
    """Learning rates of the own base model and of a given one, each for all weights and for adapters."""

    base: float
    base_adapters: float
    given: float
    given_adapters: float


REINFORCEMENT = Rates(base=3e-4, base_adapters=3e-3, given=1e-6, given_adapters=1e-5)
FINE_TUNING = Rates(base=3e-4, base_adapters=3e-3, given=2e-5, given_adapters=2e-4)


def defaults(config: TrainerConfig, rates: Rates) -> Mapping[str, Any]:
    """The settings whose default depends on what the config trains, by name."""
    adapted = config.lora.lora_rank > 0
    if config.model.model_id:
        return {"learning_rate": rates.given_adapters if adapted else rates.given, "max_tokens": MAX_TOKENS}
    rate = rates.base_adapters if adapted else rates.base
    return {"learning_rate": rate, "max_tokens": RolloutConfig().max_tokens}


def not_chosen(stored: TrainerConfig, now: TrainerConfig, rates: Rates, given: Collection[str]) -> Mapping[str, Any]:
    """New defaults for settings of a config file that nobody chose: the file has the default of what it trains, and
    what is trained now has another one. A run's config.json holds every default.
    """
    before, own = defaults(stored, rates), defaults(now, rates)
    held = {"learning_rate": stored.optimizer.learning_rate, "max_tokens": stored.rollout.max_tokens}
    return {
        name: value
        for name, value in own.items()
        if name in given and held[name] == before[name] and value != held[name]
    }


def what_is_trained(config: TrainerConfig) -> str:
    """A line on what is trained, how fast, and how long its completions may be."""
    what = f"adapters of rank {config.lora.lora_rank}" if config.lora.lora_rank else "all weights"
    return (
        f"training {what} of {config.model.model_id or 'the base model that MinRL makes'}: peak learning rate "
        f"{config.optimizer.learning_rate:g} (--learning-rate), completions of at most {config.rollout.max_tokens} "
        "tokens (--max-tokens)"
    )
