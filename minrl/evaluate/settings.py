"""The settings that an evaluation's results depend on, by stage, and their changes."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minrl.config import TaskOptions
from minrl.evaluate.config import STAGES, Stage
from minrl.evaluate.plan import EvaluationPlan, PlannedTask
from minrl.rewards.judge import asked_by
from minrl.types import UserError
from minrl.utils.cli import plain_options
from minrl.utils.statistics import shares
from minrl.utils.task_names import option_keys
from minrl.utils.text import digest_of

JUDGED_BY = ("judge_model", "judge_base_url", "judge_weight", "judge_prompt", "judge_temperature", "judge_max_tokens")

SAMPLING = ("seed", "temperature", "greedy", "max_tokens", "stop_strings", "opponent", "data_path")

OF_SINGLE_TASKS = ("task_max_tokens", "task_data_path")
"""Further ones, where they are given."""

ENGINE = ("engine", "engine_context_length", "batch_invariant")
"""Settings of the engine that a completion depends on."""

NAMED_THINGS = ("models", "opponents", "tasks")
"""Settings with an entry for each model or task, which may be added later."""

SAMPLES = "samples"
"""Samples of each example. Another number is no difference: fewer are a part of the stored ones, more are added."""

StageSettings = Mapping[str, Mapping[str, Any]]
"""Plain values by stage."""


def settings_of(plan: EvaluationPlan, options: TaskOptions) -> StageSettings:
    """The settings that the results depend on, by stage, as plain values."""
    config = plan.config
    settings = {
        "generate": {
            **{name: getattr(config, name) for name in SAMPLING},
            **{name: getattr(config, name) for name in OF_SINGLE_TASKS if getattr(config, name)},
            **{name: getattr(config.engine, name) for name in ENGINE},
            "dtype": config.model.dtype,
            "device": config.model.device,
            "chat_template": config.model.template_name,
            "chat_template_options": config.model.chat_template_options,
            "tasks": {
                task.name: {
                    "examples": _examples_digest(task),
                    SAMPLES: task.held_samples,
                    "options": options_of(task.name, options),
                }
                for task in plan.tasks
            },
            "models": {model.name: model.fingerprint for model in plan.models},
            "opponents": {model.name: model.fingerprint for model in plan.opponents},
        },
        "score": {
            "reward_deadline_s": config.reward_deadline_s,
            "judge": {**{name: getattr(config.judge, name) for name in JUDGED_BY}, "words": asked_by(config.judge)},
            "tasks": {
                task.name: {"references": _references_digest(task), "programs": task.programs} for task in plan.tasks
            },
        },
        "report": {
            "pass_at": config.pass_at,
            "charts": config.charts,
            SAMPLES: {task.name: task.modes[0].samples for task in plan.tasks},
            **({"shares": shares(config.weights)} if config.weights else {}),
        },
    }
    return json.loads(json.dumps(settings, default=str))


def options_of(task: str, options: TaskOptions) -> dict[str, Any]:
    """The task's options by name, and those of its tool as `tool.option`."""
    own, *tools = option_keys(task)
    of_tools = {f"{tool}.{name}": value for tool in tools for name, value in plain_options(options[tool]).items()}
    return {**plain_options(options[own]), **of_tools}


def identity_of(plan: EvaluationPlan, settings: StageSettings) -> str:
    """A hash of these settings. A hub model counts by its name: its commit is unknown until it is cached."""
    known = dict(settings["generate"])
    for name, models in (("models", plan.models), ("opponents", plan.opponents)):
        known[name] = {model.name: "" if model.hub else model.fingerprint for model in models}
    return hashlib.sha256(json.dumps([known, settings["score"]], sort_keys=True).encode()).hexdigest()[:10]


def check_settings(folder: Path, stored: StageSettings, now: StageSettings, forced: Sequence[Stage]) -> None:
    """Refuse to mix results of different settings."""
    first = min((STAGES.index(stage) for stage in forced), default=len(STAGES))
    for stage in STAGES[: min(first, STAGES.index("report"))]:
        differences = list(_differences(stored[stage], now[stage]))
        if differences:
            raise UserError(
                f"{folder} holds an evaluation with {'; '.join(differences[:3])}: choose another --output, or do it "
                f"again with --force {stage}"
            )


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """A phrase for each difference. A missing model or task is a difference, an additional one is not. Settings that
    were not stored are not compared.
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
    """The number of examples, and a digest of their identities and prompts, in order."""
    return f"{len(task.examples)}, sha256 {digest_of([[one.id, one.prompt] for one in task.examples])}"


def _references_digest(task: PlannedTask) -> str:
    """A digest of the fields that rewards read, and of the categories."""
    return digest_of([[one.id, one.fields, one.category] for one in task.examples])
