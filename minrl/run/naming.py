"""What a run is called: what it trains, the settings that are not at their defaults, its seed."""

import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from minrl.config import (
    BaseModelConfig,
    EngineConfig,
    EvaluationConfig,
    JudgeConfig,
    LoggingConfig,
    ModelConfig,
    TaskOptions,
)
from minrl.run.defaults import defaults
from minrl.utils.cli import plain_options, to_dict
from minrl.utils.task_names import option_keys, weights_of

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
    own = tuple(f"{key}." for key in trained) if alone else ()
    found = differing(settings, options)
    shown = [(name, value) for name, value in found.items() if name not in NOT_IN_NAMES and name not in changing]
    short = [(name.partition(".")[2] if name.startswith(own) else name, value) for name, value in shown]
    # No option of a task that is only evaluated.
    parts = [
        part(name.replace("/", "-"), value)
        for name, value in short
        if "." not in name or name.partition(".")[0] in trained
    ]
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
