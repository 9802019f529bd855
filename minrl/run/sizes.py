"""The table of sizes: what the settings that are None become, by the model's size.

They follow from the number of weights and the kind of device: never from timing, so that they repeat.

Learning rates of reinforcement learning: 3e-4 for the million weights of MinRL's own base model (docs/lessons.md), 2e-5
for SmolLM2-135M (docs/benchmarks.md, two tasks), and above, where it cannot be measured on a processor, the
1e-6 of DeepSeekMath (arXiv:2402.03300, section 4.2), DAPO (arXiv:2503.14476, section 4.1), TinyZero (0.5B to 3B),
nano-aha-moment (3B) and TRL's GRPOConfig. Fine-tuning takes 2e-5, as TRL's SFTConfig. Adapters take about ten times the
rate of all weights (Schulman et al. 2025, "LoRA Without Regret", thinkingmachines.ai/blog/lora; QLoRA,
arXiv:2305.14314, appendix B.2).

Sizes on a processor are such that a step takes about half a minute on two cores, and the first held-out score comes
within three minutes. On a GPU completions may have the 1024 tokens of DeepSeekMath, TinyZero and nano-aha-moment.
"""

from functools import cache
from math import inf
from typing import Any, NamedTuple, TypeVar

from minrl.config import TrainerConfig
from minrl.utils.settings import flag_of, settings_of

T = TypeVar("T")


class Rates(NamedTuple):
    """Learning rates of all weights and of adapters, in reinforcement learning and in fine-tuning."""

    weights: float
    adapters: float
    fine_tuned_weights: float
    fine_tuned_adapters: float


class Sizes(NamedTuple):
    """How much a step and an evaluation sample. `batch_size` and `examples_per_round` are of fine-tuning."""

    prompts_per_step: int
    group_size: int
    max_tokens: int
    eval_examples: int
    eval_samples: int
    batch_size: int
    examples_per_round: int


OWN_BASE = 10**6
"""About as many weights as MinRL's own base model has, whose defaults do not depend on its exact size."""

RATES = {  # for models of fewer weights
    1e7: Rates(3e-4, 3e-3, 3e-4, 3e-3),
    4.5e8: Rates(2e-5, 3e-4, 2e-5, 2e-4),
    inf: Rates(1e-6, 1e-5, 2e-5, 2e-4),
}
ON_CPU = {
    1e7: Sizes(48, 8, 192, 512, 0, 32, 480),
    2e8: Sizes(4, 8, 64, 64, 2, 8, 32),
    4.5e8: Sizes(4, 4, 48, 48, 1, 4, 16),
    1e9: Sizes(4, 4, 32, 32, 1, 4, 16),
    inf: Sizes(2, 4, 32, 32, 1, 2, 8),
}
ON_GPU = {
    1e7: ON_CPU[1e7],
    inf: Sizes(48, 8, 1024, 512, 0, 32, 480),
}
UNKNOWN = 10**9
"""The number of weights of a model whose config cannot be read: loading it will say why."""


def rates_for(weights: int) -> Rates:
    """The learning rates for a model of so many weights."""
    return next(rates for limit, rates in RATES.items() if weights < limit)


def sizes_for(weights: int, on_gpu: bool) -> Sizes:
    """What a step and an evaluation sample from a model of so many weights."""
    return next(sizes for limit, sizes in (ON_GPU if on_gpu else ON_CPU).items() if weights < limit)


def sizes_of(name: str, config: TrainerConfig) -> Sizes:
    """The same for the model of a name, on the configured device. No name: MinRL's own base model."""
    if not name:
        return sizes_for(OWN_BASE, on_gpu=False)
    import torch  # not before the command line is read

    return sizes_for(num_weights(name, config.runs_dir), config.device != "cpu" and torch.cuda.is_available())


@cache
def num_weights(name: str, runs_dir: str) -> int:
    """The number of weights of a model, as --model-id takes it: from its config, before it is loaded."""
    from minrl.models.loading import count_weights
    from minrl.models.lora import base_of
    from minrl.run.folder import resolve_model

    try:
        path = resolve_model(name, runs_dir)
        return count_weights(base_of(path) or path)
    except Exception:  # transformers raises whatever a damaged file leads it to
        return UNKNOWN


def by_size(settings: T) -> dict[str, Any]:
    """What each setting of a program that is marked BY_SIZE is for its model, by name."""
    config: Any = settings
    name, fine_tuning = config.model_id, type(config) is not TrainerConfig
    rates = rates_for(num_weights(name, config.runs_dir) if name else OWN_BASE)
    sizes = sizes_of(name, config)
    found = {
        "learning_rate": rates[2 * fine_tuning + (config.lora_rank > 0)],
        "samples_per_example": sizes.group_size,
        **sizes._asdict(),
    }
    return {name: found[name] for name, one in settings_of(type(settings)).items() if one.by_size}


def with_sizes(settings: T) -> tuple[T, tuple[str, ...]]:
    """The settings without None, and the names of those that were None."""
    config: Any = settings
    unset = {name for name, one in settings_of(type(settings)).items() if one.by_size and getattr(config, name) is None}
    found = {name: value for name, value in by_size(settings).items() if name in unset} if unset else {}
    filled = config.with_settings(**found)
    object.__setattr__(filled, "_given", config.given)
    return filled, tuple(sorted(found))


def num_text(weights: int) -> str:
    """A number of weights, such as 135M."""
    return f"{weights / 1e9:.3g}B" if weights >= 1e9 else f"{weights / 1e6:.3g}M"


def what_is_trained(settings: Any, weights: int) -> str:  # noqa: ANN401 - of any program
    """A line on what is trained, with the flags of the settings that depend on it."""
    what = f"adapters of rank {settings.lora_rank}" if settings.lora_rank else "all weights"
    names = [name for name, one in settings_of(type(settings)).items() if one.by_size]
    flags = [f"{flag_of(name)} {getattr(settings, name):g}" for name in names]
    return f"training {what} of {settings.model_id or 'the base model'} ({num_text(weights)}) with {' '.join(flags)}"
