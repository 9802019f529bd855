"""The defaults of what is trained, and the name of a run by what is not at them.

Defaults follow from the number of weights and the kind of device: never from timing, so that they repeat.

Learning rates of reinforcement learning: 3e-4 for the million weights of MinRL's own base model (docs/lessons.md), 2e-5
for SmolLM2-135M (docs/benchmarks.md, two tasks), and above, where it cannot be measured on a processor, the
1e-6 of DeepSeekMath (arXiv:2402.03300, section 4.2), DAPO (arXiv:2503.14476, section 4.1), TinyZero (0.5B to 3B),
nano-aha-moment (3B) and TRL's GRPOConfig. Fine-tuning takes 2e-5, as TRL's SFTConfig. Adapters take about ten times the
rate of all weights (Schulman et al. 2025, "LoRA Without Regret", thinkingmachines.ai/blog/lora; QLoRA,
arXiv:2305.14314, appendix B.2).

Sizes on a processor are such that a step takes about half a minute on two cores, and the first held-out score comes
within three minutes. On a GPU completions may have the 1024 tokens of DeepSeekMath, TinyZero and nano-aha-moment.
"""

import re
from collections.abc import Collection
from dataclasses import fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from loguru import logger

from minrl.config import (
    BaseModelConfig,
    EngineConfig,
    EvaluationConfig,
    JudgeConfig,
    LoggingConfig,
    ModelConfig,
    TaskOptions,
    TrainerConfig,
)
from minrl.utils.cli import Command, plain_options, to_dict, without_options
from minrl.utils.settings import flag_of
from minrl.utils.task_names import option_keys, weights_of

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


def sizes_of(name: str, model: ModelConfig, runs_dir: str) -> Sizes:
    """The same for the model of a name, on the configured device."""
    import torch  # not before the command line is read

    return sizes_for(num_weights(name, runs_dir), model.device != "cpu" and torch.cuda.is_available())


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


def defaults(settings: Any) -> dict[str, Any]:  # noqa: ANN401 - of any program
    """The defaults that depend on what the settings train, by name. Some are of other programs."""
    config, fine_tuning = settings.trainer, not isinstance(settings, TrainerConfig)
    name, adapted, runs_dir = config.model.model_id, config.lora.lora_rank > 0, config.logging.runs_dir
    rates = rates_for(num_weights(name, runs_dir) if name else OWN_BASE)
    sizes = sizes_of(name, config.model, runs_dir) if name else sizes_for(OWN_BASE, on_gpu=False)
    rate = rates[2 * fine_tuning + adapted]
    return {"learning_rate": rate, **sizes._asdict(), "samples_per_example": sizes.group_size}


def with_defaults(command: Command[T]) -> Command[T]:
    """The command with these defaults where nothing else is given. A run's config.json as --config file holds every
    default: those of another model or of adapters are replaced.
    """
    stored: Any = type(command.config)(**without_options(command.file))
    before, own = defaults(stored), defaults(command.config)
    held = {name: stored.settings[name] for name in own.keys() & command.file.keys()}
    replaced = {name: own[name] for name, value in held.items() if value == before[name] != own[name]}
    if replaced.keys() - command.flags.keys():
        values = ", ".join(f"{name} {value:g}" for name, value in replaced.items())
        logger.info(f"the config file has the defaults of what it trains; another is trained here, with {values}")
    kept = {name: value for name, value in command.file.items() if name not in replaced}
    known = {name: value for name, value in own.items() if name in stored.settings}
    return replace(replace(command, file=kept).over(known), file=command.file)


def num_text(weights: int) -> str:
    """A number of weights, such as 135M."""
    return f"{weights / 1e9:.3g}B" if weights >= 1e9 else f"{weights / 1e6:.3g}M"


def what_is_trained(settings: Any, weights: int) -> str:  # noqa: ANN401 - of any program
    """A line on what is trained, with the flags of the settings whose default depends on it."""
    config, values = settings.trainer, to_dict(settings, {})
    what = f"adapters of rank {config.lora.lora_rank}" if config.lora.lora_rank else "all weights"
    flags = [f"{flag_of(name)} {values[name]:g}" for name in defaults(settings) if name in values]
    return (
        f"training {what} of {config.model.model_id or 'the base model'} ({num_text(weights)}) with {' '.join(flags)}"
    )


# What a run is called: what it trains, the settings that are not at their defaults, its seed

LONGEST = 120
"""Most characters of the settings in a name; file systems allow 255 bytes for all of it."""


def _names(*groups: type) -> set[str]:
    return {one.name for group in groups for one in fields(group)}


HOUSEKEEPING = _names(LoggingConfig) | {"resume", "preflight", "preflight_only", "judge_cache"}
"""Settings of files and of the screen."""

NOT_IN_NAMES = (
    HOUSEKEEPING
    | _names(BaseModelConfig, EngineConfig, EvaluationConfig, JudgeConfig, ModelConfig)
    | {"task", "algorithm", "seed", "data", "eval_data", "sample_batch_size", "micro_batch_tokens", "lora_checkpoint"}
    | {"reward_deadline_s", "reward_workers", "max_unscorable_frac", "max_skipped_steps", "teacher_prompt"}
) - {"model_id", "judge_model", "judge_weight"}
"""Settings that a name leaves out: it has them already, or they are about measuring, memory, speed and deadlines."""


def differing(settings: Any, options: TaskOptions) -> dict[str, Any]:  # noqa: ANN401 - of any program
    """The settings that are not at the defaults of what is trained, by name; a task's option as `task.option`."""
    usual = {**to_dict(type(settings)(), {}), **defaults(settings)}
    found = {name: value for name, value in to_dict(settings, {}).items() if value != usual[name]}
    for key, own in options.items():
        start = plain_options(type(own)())
        found |= {f"{key}.{name}": value for name, value in plain_options(own).items() if value != start[name]}
    return {name: value for name, value in found.items() if name not in HOUSEKEEPING}


def full_name(settings: Any, options: TaskOptions, changing: Collection[str]) -> str:  # noqa: ANN401
    """The name that the user gave the run, or its own, such as `countdown-grpo-learning_rate=0.001-seed0`. A resume may
    change the settings `changing`, so no name has them.
    """
    if settings.logging.run_name:
        return settings.logging.run_name
    trained = [key for name in weights_of(settings.trainer.rollout.task) for key in option_keys(name)]
    alone = len(settings.trainer.rollout.weights) == 1
    parts: list[str] = []
    for name, value in differing(settings, options).items():
        task, dot, option = name.partition(".")
        if name in NOT_IN_NAMES or name in changing or (dot and task not in trained):
            continue  # the last: an option of a task that is only evaluated
        parts.append(part((option if dot and alone else name).replace("/", "-"), value))
    kept = [part for place, part in enumerate(parts) if len("-".join(parts[: place + 1])) <= LONGEST]
    more = [f"and-{len(parts) - len(kept)}-more"] * (len(kept) < len(parts))
    return "-".join([settings.what, *kept, *more, f"seed{settings.seed}"])


def part(name: str, value: Any) -> str:  # noqa: ANN401 - a setting
    """A setting in a name; of a path the last part."""
    if isinstance(value, float):
        value = f"{value:g}"
    elif isinstance(value, str) and "/" in value:
        value = Path(value).name
    text = re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")
    return text if name == "model_id" else f"{name}={text}"
