"""Builds everything a run needs: tasks, policy, engine, workers, optimizer, state."""

import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from loguru import logger

from minrl.config import TrainerConfig
from minrl.engines import Engine
from minrl.engines.choice import make_engine, takes_vllm
from minrl.engines.opponent import EngineWithOpponent
from minrl.evaluation import evaluate
from minrl.models.launch import place
from minrl.models.processes import Processes
from minrl.optimizer import make_optimizer
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.run import checkpoint
from minrl.run.base_model import require_demonstrations
from minrl.run.defaults import what_is_trained
from minrl.run.folder import owned
from minrl.run.overall import together
from minrl.run.preflight import leave_out_unusable
from minrl.run.room import require_room
from minrl.run.run import Run, in_common
from minrl.run.start import frozen_opponent, no_frozen_role, prepare_policy
from minrl.run.teacher import teacher_prompt
from minrl.run.unknown_words import check_task_words
from minrl.tasks import Task, load_task
from minrl.tasks.mixture import mixture
from minrl.types import TrainState, UserError, require
from minrl.utils.console import Screen
from minrl.utils.files import require_writable
from minrl.utils.progress import activity
from minrl.utils.statistics import Evaluation
from minrl.utils.task_names import task_key


@dataclass
class Parts:
    """What a run needs. `tasks` holds the trained tasks and those that are only evaluated, by `task_key`."""

    run: Run
    config: TrainerConfig
    tasks: dict[str, Task]
    policy: Policy
    engine: Engine
    workers: Workers
    optimizer: torch.optim.Optimizer
    state: TrainState
    screen: Screen

    @cached_property
    def task(self) -> Task:
        """The task that is trained; of several, their mixture."""
        return mixture(self.tasks, self.config.rollout.weights)

    @property
    def scored(self) -> list[str]:
        """What has a held-out score: the tasks, and where several are trained all of them together."""
        name = task_key(self.config.rollout.task)
        return [*self.tasks, *([name] if self.tasks and name not in self.tasks else [])]

    def evaluate(self) -> dict[str, Evaluation]:
        """The held-out figures of every task, and of several that are trained together."""
        config, evaluations = self.config, {}
        with activity("evaluation", len(self.tasks)) as report:
            for name, task in self.tasks.items():
                evaluations[name] = evaluate(
                    self.policy, self.engine, self.workers, task, config.evaluation, config.rollout, config.seed
                )
                report(len(evaluations))
        if len(weights := config.rollout.weights) > 1:
            evaluations[task_key(config.rollout.task)] = together(evaluations, weights)
        return evaluations


@contextmanager
def assemble(run: Run) -> Iterator[Parts]:
    """Everything a run needs, released at the end. Only what is trained is judged."""
    config = run.config
    with (
        Processes(config.model, partial(in_common, run)).open() as processes,
        Screen(config.logging.quiet, show=processes.main) as screen,
        owned(run, processes) as run,
    ):
        with activity("reading the examples"):
            tasks = load_tasks(run) if config.rollout.task else {}
        with judging(config, processes) as judged:
            takes_vllm(config.engine, processes.device.type)  # refused now, not after the base model is made
            yield from _on_screen(run, tasks, judged, processes, screen)


@contextmanager
def judging(config: TrainerConfig, processes: Processes) -> Iterator[Callable[[Task], Task]]:
    """A function that adds the judge's part to a task's rewards. All processes share the limit of concurrent calls."""
    if not config.judge.judge_model:
        yield lambda task: task
        return
    from minrl.rewards.judge import judged, open_judge

    concurrency = processes.split(config.judge.judge_concurrency)
    with open_judge(replace(config.judge, judge_concurrency=concurrency), ask=processes.main) as judge:
        yield partial(judged, judge=judge)


def _on_screen(
    run: Run, tasks: dict[str, Task], judged: Callable[[Task], Task], processes: Processes, screen: Screen
) -> Iterator[Parts]:
    """The parts of a run, released when the caller is done with them."""
    config = run.config
    for folder in (run.folder, run.checkpoints):
        require_writable(folder)  # before anything slow
    policy, state = prepare_policy(run, tasks, processes, screen)
    for line in filter(
        None, [str(place(os.environ)), str(processes.launch), what_is_trained(run.settings, policy.num_weights)]
    ):
        logger.info(line)
    optimizer = make_optimizer(policy, config.optimizer)
    require_room(policy, config, run.checkpoints)
    if run.checkpoint is not None:
        checkpoint.restore_optimizer(run.checkpoint, policy, optimizer)
    given = config.rollout.reward_workers
    workers = Workers(processes.split(given) if given else processes.cores, config.rollout.reward_deadline_s)
    prompts = math.ceil(config.rollout.prompts_per_step / processes.count) if tasks else 0
    sequences = prompts * config.rollout.group_size
    opponent = frozen_opponent(run, tasks, processes, screen)
    engine = make_engine(config.engine, policy, sequences, lambda: how_to_go_on(run))
    if opponent is not None:
        engine = EngineWithOpponent(engine, opponent, policy, config.engine.engine_cache_gib)
    try:
        for name, task in tasks.items():
            check_task_words(policy, name, task)
        tasks = {name: leave_out_unusable(policy, engine, name, task) for name, task in tasks.items()}
        trained = config.rollout.weights
        policy.teacher_reads = teacher_prompt(policy, config, mixture(tasks, trained)) if tasks else None
        tasks = {name: judged(task) if name in trained else task for name, task in tasks.items()}
        yield Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen)
    finally:
        engine.close()
        workers.close()


def how_to_go_on(run: Run) -> str:
    """The last complete checkpoint and the command that resumes from it."""
    last = checkpoint.newest_complete(run.checkpoints)
    return f"last checkpoint {last or 'none yet, it starts again from step 1'}; go on with: {run.resume_command}"


def load_tasks(run: Run) -> dict[str, Task]:
    """The trained tasks, refused if no model can play them, and the tasks to evaluate."""
    config, tasks = run.config, dict[str, Task]()
    for name in config.task_names:
        key = task_key(name)
        if key in tasks:
            continue
        task = load_task(name, run.options, config.data_of(key))
        tasks[key] = replace(task, max_tokens=config.limit_of(key))
        trained = key in config.rollout.weights
        if trained and not config.model.model_id:
            require_demonstrations(name, task)
        training, held_out = task.dataset.sizes()  # what cannot be read is refused now, not at the first evaluation
        require(
            training > 0 or not trained,
            f"the data of {name!r} has {held_out} held-out examples and none to train on: "
            "evaluate.py takes it, training needs a --data-path or a dataset with a training split",
        )
        require_sendable(name, task)
    for task in tasks.values():
        task.notes()  # raises if the task cannot run on this machine
    frozen = any(one.frozen_opponent for one in tasks.values())
    require(frozen or not config.rollout.opponent, no_frozen_role(task_key(config.rollout.task)))
    return tasks


def require_sendable(name: str, task: Task) -> None:
    """Refuse a reward that no worker process can be sent, which the first completions would show."""
    if task.reward is None or task.cheap:
        return
    try:
        pickle.dumps(task.paid("", task.dataset.held_out[0]).function)
    except Exception as error:  # pickling a task's objects may raise anything
        raise UserError(
            f"the reward of {name} cannot be sent to a worker process ({error}): define it at the top level of its "
            "module, and bind options to it with functools.partial"
        ) from error
