"""What an evaluation consists of: models x tasks x modes x examples x samples, and the settings that results depend on.

An episode has a `Key`. Its seeds depend on the settings alone, so that it is sampled alike whenever it is sampled.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minrl.config import TaskOptions
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import NamedModel, find_models
from minrl.evaluate.rows import Key, Row
from minrl.evaluation import MIN_SAMPLES
from minrl.rewards.judge import Judge, asked_by, judged
from minrl.run.setup import no_frozen_role
from minrl.tasks import Task, load_task
from minrl.tasks.programs import programs
from minrl.types import Example, UserError, require
from minrl.utils.cli import plain_options
from minrl.utils.task_names import option_keys, task_key
from minrl.utils.text import digest_of

SAMPLED, GREEDY = "sampled", "greedy"

Settings = Mapping[str, Mapping[str, Any]]
"""Plain values by stage."""

SAMPLING = ("seed", "temperature", "greedy", "max_tokens", "task_max_tokens", "stop_strings", "opponent")
ENGINE = ("engine", "engine_context_length", "batch_invariant")
JUDGE = ("judge_model", "judge_base_url", "judge_weight", "judge_prompt", "judge_temperature", "judge_max_tokens")


@dataclass(frozen=True)
class Mode:
    """How completions are drawn: `samples` of each example, at a temperature."""

    name: str
    samples: int
    temperature: float


@dataclass(frozen=True)
class Batch:
    """Episodes that are played together: some samples of some consecutive examples."""

    mode: Mode
    first: int
    examples: int
    first_sample: int
    samples: int

    def episodes(self) -> Iterator[tuple[int, int]]:
        """(index of the example, sample) of each."""
        for index in range(self.first, self.first + self.examples):
            for sample in range(self.first_sample, self.first_sample + self.samples):
                yield index, sample


@dataclass(frozen=True)
class PlannedTask:
    """A task, its held-out examples, and the modes in which they are played. `programs` compute its rewards."""

    name: str
    task: Task
    examples: Sequence[Example]
    modes: Sequence[Mode] = ()
    programs: Mapping[str, str] = field(default_factory=dict)

    def keys(self, model: NamedModel) -> Iterator[Key]:
        """Every episode of the task by the model."""
        for mode in self.modes:
            for index in range(len(self.examples)):
                for sample in range(mode.samples):
                    yield Key(model.name, self.name, mode.name, index, sample)

    def missing(self, model: NamedModel, rows: Mapping[Key, Row], size: int) -> Iterator[Batch]:
        """Batches of at most `size` with the episodes that have no completion. A failed call is none."""
        for mode in self.modes:
            together = max(1, size // mode.samples)
            for start in range(0, len(self.examples), together):
                lacking = [
                    (index, sample)
                    for index in range(start, min(start + together, len(self.examples)))
                    for sample in range(mode.samples)
                    if "error" in rows.get(Key(model.name, self.name, mode.name, index, sample), {"error": ""})
                ]
                if lacking:
                    indices, samples = zip(*lacking, strict=True)
                    count, end = max(indices) - min(indices) + 1, max(samples) + 1
                    for sample in range(min(samples), end, size):
                        if any(sample <= one < sample + size for one in samples):
                            yield Batch(mode, min(indices), count, sample, min(size, end - sample))


@dataclass(frozen=True)
class EvaluationPlan:
    """Models and tasks, in the order in which they were named."""

    config: EvaluateConfig
    models: Sequence[NamedModel]
    tasks: Sequence[PlannedTask]
    opponents: Sequence[NamedModel] = ()

    def all_keys(self) -> Iterator[Key]:
        """Every episode, in the order of the finished files."""
        for model in self.models:
            for task in self.tasks:
                yield from task.keys(model)

    def task(self, name: str) -> PlannedTask:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def judged(self, judge: Judge | None) -> "EvaluationPlan":
        """The plan with the judge's part in the rewards of episodes of several turns, which are paid when played."""
        played = [replace(t, task=judged(t.task, judge)) if t.task.episode is not None else t for t in self.tasks]
        return replace(self, tasks=played)

    def with_samples(self, rows: Mapping[Key, Row]) -> "EvaluationPlan":
        """The plan with its numbers of samples. Where the user named none, there are as many as in the rows."""
        held = {task.name: 0 for task in self.tasks}
        for key in rows:
            if key.mode == SAMPLED and key.task in held:
                held[key.task] = max(held[key.task], key.sample + 1)
        planned = [replace(t, modes=modes(self.config, len(t.examples), held[t.name])) for t in self.tasks]
        return replace(self, tasks=planned)


def modes(config: EvaluateConfig, examples: int, held: int = 0) -> list[Mode]:
    """Samples and a greedy completion; at temperature 0 the latter alone. Without `--samples` there are `held` ones, or
    enough for `MIN_SAMPLES` in all.
    """
    greedy = Mode(GREEDY, 1, 0.0)
    if config.temperature == 0:
        return [greedy]
    samples = config.samples or max(held or math.ceil(MIN_SAMPLES / examples), *config.pass_at, 1)
    return [Mode(SAMPLED, samples, config.temperature), *([greedy] if config.greedy else [])]


def make_plan(config: EvaluateConfig, options: TaskOptions) -> EvaluationPlan:
    """The plan for the config, without numbers of samples. Refuses what cannot be evaluated."""
    tasks = []
    for name in config.task_names:
        key = task_key(name)
        task = replace(load_task(name, options, config.data_of(key)), max_tokens=config.limit_of(key))
        task.dataset.sizes()  # a task without its data is refused before a model is loaded
        examples = list(task.dataset.held_out)[: config.examples]
        tasks.append(PlannedTask(key, task, examples, programs=programs(name)))
    names = [task.name for task in tasks]
    for name in names:
        require(names.count(name) == 1, f"--tasks names {name} more than once")
    frozen = any(task.task.frozen_opponent for task in tasks)
    require(frozen or not config.opponent, no_frozen_role(" or ".join(names)))
    models = find_models(config.model_names, config.runs_dir, config.every_checkpoint)
    if config.opponent and any(model.served for model in models):
        raise UserError("--opponent plays beside local models only: leave it out, and a server's model plays itself")
    return EvaluationPlan(config, models, tasks, find_models(filter(None, [config.opponent]), config.runs_dir))


def settings_of(plan: EvaluationPlan, options: TaskOptions) -> Settings:
    """The settings that completions and scores depend on. Episodes of several turns are paid as they are played: what
    pays them is among the settings of their completions.
    """
    config = plan.config
    judge = {**{name: getattr(config.judge, name) for name in JUDGE}, "words": asked_by(config.judge)}
    rewards = {
        task.name: {
            "references": digest_of([[one.id, one.fields, one.category] for one in task.examples]),
            "programs": task.programs,
            "judge": judge,
        }
        for task in plan.tasks
    }
    settings = {
        "generate": {
            **{name: getattr(config, name) for name in SAMPLING},
            **{name: getattr(config.engine, name) for name in ENGINE},
            "dtype": config.model.dtype,
            "device": config.model.device,
            "chat_template": config.model.template_name,
            "chat_template_options": config.model.chat_template_options,
            "models": {model.name: model.fingerprint for model in (*plan.models, *plan.opponents)},
            "tasks": {
                task.name: {
                    "examples": f"{len(task.examples)}, {digest_of([[one.id, one.prompt] for one in task.examples])}",
                    "options": options_of(task.name, options),
                    **(rewards[task.name] if task.task.episode is not None else {}),
                }
                for task in plan.tasks
            },
        },
        "score": {
            "reward_deadline_s": config.reward_deadline_s,
            "judge": judge,
            "tasks": {task.name: rewards[task.name] for task in plan.tasks if task.task.episode is None},
        },
    }
    return json.loads(json.dumps(settings, default=str))


def options_of(task: str, options: TaskOptions) -> dict[str, Any]:
    """The task's options by name, and those of its tool as `tool.option`."""
    own, *tools = option_keys(task)
    of_tools = {f"{tool}.{name}": value for tool in tools for name, value in plain_options(options[tool]).items()}
    return {**plain_options(options[own]), **of_tools}
