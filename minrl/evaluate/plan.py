"""The plan of an evaluation: its models, tasks, episodes and batches.

A batch depends on the settings alone, not on the episodes already played: an episode that is sampled again has the same
neighbours, and so the same tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from minrl.config import TaskOptions
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.models import NamedModel, as_recorded, find_models
from minrl.evaluate.rows import Key
from minrl.evaluation import MIN_SAMPLES
from minrl.rewards.judge import Judge, judged
from minrl.run.setup import no_frozen_role
from minrl.tasks import Task, load_task
from minrl.tasks.programs import programs
from minrl.types import Example, UserError, require
from minrl.utils.task_names import task_key

SAMPLED, GREEDY = "sampled", "greedy"


@dataclass(frozen=True)
class Mode:
    """How completions are drawn: `samples` of each example, at a temperature."""

    name: str
    samples: int
    temperature: float


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes that are played together: some samples of some consecutive examples."""

    mode: Mode
    first: int
    examples: int
    first_sample: int
    samples: int

    @property
    def count(self) -> int:
        """The number of episodes."""
        return self.examples * self.samples

    def episodes(self) -> Iterator[tuple[int, int]]:
        """(index of the example, sample) of each."""
        for index in range(self.first, self.first + self.examples):
            for sample in range(self.first_sample, self.first_sample + self.samples):
                yield index, sample


@dataclass(frozen=True)
class PlannedTask:
    """A task, its held-out examples and the modes in which they are played. `held_samples` is the number of samples of
    each example in the finished folder, which may hold earlier ones. `programs` compute its rewards.
    """

    name: str
    task: Task
    examples: Sequence[Example]
    modes: Sequence[Mode]
    held_samples: int = 1
    programs: Mapping[str, str] = field(default_factory=dict)

    def batches(self, size: int) -> Iterator[EpisodeBatch]:
        """The episodes of the task in batches of about `size`."""
        for mode in self.modes:
            together = max(1, size // mode.samples)
            for first in range(0, len(self.examples), together):
                for sample in range(0, mode.samples, size):
                    examples = min(together, len(self.examples) - first)
                    yield EpisodeBatch(mode, first, examples, sample, min(size, mode.samples - sample))

    def all_keys(self, model: NamedModel) -> Iterator[Key]:
        """Every episode of the task by the model."""
        for mode in self.modes:
            for index in range(len(self.examples)):
                for sample in range(mode.samples):
                    yield Key(model.name, self.name, mode.name, index, sample)


@dataclass(frozen=True)
class EvaluationPlan:
    """Models and tasks, in the order in which they were named."""

    config: EvaluateConfig
    models: Sequence[NamedModel]
    tasks: Sequence[PlannedTask]
    opponents: Sequence[NamedModel] = ()

    def all_keys(self) -> Iterator[Key]:
        """Every episode, in the order of the finished file."""
        for model in self.models:
            for task in self.tasks:
                yield from task.all_keys(model)

    def with_recorded(self, models: Mapping[str, str], opponents: Mapping[str, str]) -> "EvaluationPlan":
        """The same plan, with the recorded commits of hub models that are not cached now."""
        known = [as_recorded(model, models) for model in self.models]
        return replace(self, models=known, opponents=[as_recorded(model, opponents) for model in self.opponents])

    def judged(self, judge: Judge | None) -> "EvaluationPlan":
        """The same plan, with the judge's part in the rewards."""
        return replace(self, tasks=[replace(task, task=judged(task.task, judge)) for task in self.tasks])

    def task(self, name: str) -> PlannedTask:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)


def make_plan(config: EvaluateConfig, options: TaskOptions, held: Mapping[str, int] | None = None) -> EvaluationPlan:
    """The plan for the config. Refuses what cannot be evaluated. `held` is the number of samples of each example, by
    task, that the evaluation's folder already holds.
    """
    tasks = [_planned_task(config, options, name, (held or {}).get(task_key(name), 0)) for name in config.task_names]
    names = [task.name for task in tasks]
    for name in names:
        require(names.count(name) == 1, f"--tasks names {name} more than once")
    frozen = any(task.task.frozen_opponent for task in tasks)
    require(frozen or not config.opponent, no_frozen_role(" or ".join(names)))
    models = find_models(config.model_names, config.runs_dir, config.every_checkpoint)
    if config.opponent and any(model.served for model in models):
        raise UserError("--opponent plays beside local models only: leave it out, and a server's model plays itself")
    return EvaluationPlan(config, models, tasks, find_models(filter(None, [config.opponent]), config.runs_dir))


def _planned_task(config: EvaluateConfig, options: TaskOptions, name: str, held: int) -> PlannedTask:
    key = task_key(name)
    task = replace(load_task(name, options, config.data_of(key)), max_tokens=config.limit_of(key))
    task.dataset.sizes()  # a task without its data is refused before a model is loaded
    examples = list(task.dataset.held_out)[: config.examples]
    played = modes(config, len(examples), held)
    return PlannedTask(key, task, examples, played, max(held, played[0].samples), programs(name))


def modes(config: EvaluateConfig, examples: int, held: int = 0) -> list[Mode]:
    """Samples and a greedy completion; at temperature 0 the latter alone. Without `--samples` there are as many as in
    the folder, or enough for `MIN_SAMPLES` in all.
    """
    greedy = Mode(GREEDY, 1, 0.0)
    if config.temperature == 0:
        return [greedy]
    samples = config.samples or max(held or math.ceil(MIN_SAMPLES / examples), *config.pass_at, 1)
    return [Mode(SAMPLED, samples, config.temperature), *([greedy] if config.greedy else [])]
