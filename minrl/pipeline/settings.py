"""What the results of an evaluation depend on, by the stage that reads it, and whether it is what it was."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minrl.config import TaskOptions
from minrl.evaluate_config import STAGES, Stage
from minrl.pipeline.plan import Plan, PlannedTask
from minrl.pipeline.sources import programs
from minrl.types import Example, UserError

JUDGED_BY = ("judge_model", "judge_base_url", "judge_weight", "judge_prompt", "judge_temperature", "judge_max_tokens")

SAMPLING = ("seed", "temperature", "greedy", "max_tokens", "stop_strings", "opponent", "data_path")

ENGINE = ("engine", "engine_context_length", "batch_invariant")
"""What a completion depends on of who samples it."""

NAMED_THINGS = ("models", "opponents", "tasks")
"""Settings that hold something for each model or task, and may grow by further ones."""

SAMPLES = "samples"
"""How many of each example there are. It is no difference: fewer are a part of what is there, more are added to it."""

Settings = Mapping[str, Mapping[str, Any]]
"""Plain values by stage."""


def settings_of(plan: Plan, options: TaskOptions) -> Settings:
    """What the results depend on, by the stage that reads it: plain values."""
    config = plan.config
    names = dict(zip((task.name for task in plan.tasks), config.task_names, strict=True))
    settings = {
        "generate": {
            **{name: getattr(config, name) for name in SAMPLING},
            **{name: getattr(config.engine, name) for name in ENGINE},
            "dtype": config.model.dtype,
            "device": config.model.device,
            "chat_template_options": config.model.chat_template_options,
            "tasks": {
                task.name: {
                    "examples": _examples_digest(task),
                    SAMPLES: task.held_samples,
                    "options": vars(options[task.name]),
                }
                for task in plan.tasks
            },
            "models": {model.name: model.fingerprint for model in plan.models},
            "opponents": {model.name: model.fingerprint for model in plan.opponents},
        },
        "score": {
            "reward_deadline_s": config.reward_deadline_s,
            "judge": {name: getattr(config.judge, name) for name in JUDGED_BY},
            "tasks": {
                task.name: {"references": _references_digest(task), "programs": programs(names[task.name])}
                for task in plan.tasks
            },
        },
        "report": {
            "pass_at": config.pass_at,
            "charts": config.charts,
            SAMPLES: {task.name: task.modes[0].samples for task in plan.tasks},
        },
    }
    return json.loads(json.dumps(settings, default=str))


def identity_of(plan: Plan, settings: Settings) -> str:
    """A hash that only these settings have. A model of the hub counts by its name: its commit is not known before it is
    cached.
    """
    known = dict(settings["generate"])
    for name, models in (("models", plan.models), ("opponents", plan.opponents)):
        known[name] = {model.name: "" if model.hub else model.fingerprint for model in models}
    return hashlib.sha256(json.dumps([known, settings["score"]], sort_keys=True).encode()).hexdigest()[:10]


def check_settings(folder: Path, stored: Settings, now: Settings, forced: Sequence[Stage]) -> None:
    """Refuse to mix: what was made under other settings is neither kept nor thrown away unasked."""
    first = min((STAGES.index(stage) for stage in forced), default=len(STAGES))
    for stage in STAGES[: min(first, STAGES.index("report"))]:
        differences = list(_differences(stored[stage], now[stage]))
        if differences:
            raise UserError(
                f"{folder} holds an evaluation with {'; '.join(differences[:3])}: choose another --output, or do it "
                f"again with --force {stage}"
            )


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """What was otherwise, a phrase each. A further model or task is no difference, one that is left out is. What was
    not written down is not compared.
    """
    for name in (name for name in stored if name in now and name != SAMPLES):
        if name in NAMED_THINGS and not within:
            for one in stored[name]:
                if one not in now[name]:
                    yield f"{name.removesuffix('s')} {one}, which is not named now"
                elif isinstance(stored[name][one], Mapping):
                    yield from _differences(stored[name][one], now[name][one], f"{one}: ")
                elif stored[name][one] and now[name][one] not in ("", stored[name][one]):
                    yield f"other weights of {one}"
        elif isinstance(stored[name], Mapping) and isinstance(now[name], Mapping):
            yield from _differences(stored[name], now[name], f"{within}{name} ")
        elif stored[name] != now[name]:
            yield f"{within}{name} {stored[name]!r}, now {now[name]!r}"


def _examples_digest(task: PlannedTask) -> str:
    """Of what is asked: identities and prompts, in order."""
    return f"{len(task.examples)}, sha256 {_digest([[one.id, one.prompt] for one in task.examples])}"


def _references_digest(task: PlannedTask) -> str:
    """Of what completions are judged by, and what figures are divided by."""
    return _digest([_reference(example) for example in task.examples])


def _reference(example: Example) -> list[Any]:
    return [example.id, example.fields, example.category]


def _digest(values: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(json.dumps(_text_keys(value), default=_plain).encode() + b"\n")
    return digest.hexdigest()[:16]


def _text_keys(value: Any) -> Any:  # noqa: ANN401 - whatever a task keeps in an example
    """The value with keys that JSON takes: a tuple by its text."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str | int | float | None) else str(key): _text_keys(v) for key, v in value.items()
        }
    return [_text_keys(one) for one in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a task keeps in an example
    """A value that JSON has no word for, by what it holds: the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, np.ndarray):
        return [value.shape, _text_keys(value.tolist())]
    if isinstance(value, Mapping):
        return _text_keys(dict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return _text_keys(asdict(value))
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        return [type(value).__qualname__, _text_keys(vars(value))]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
