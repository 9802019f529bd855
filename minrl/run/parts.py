"""Builds everything a run needs: tasks, policy, engine, workers, optimizer, state."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from loguru import logger

from minrl.config import TrainerConfig, task_key
from minrl.config.defaults import what_is_trained
from minrl.engines import Engine
from minrl.engines.choice import make_engine, takes_vllm
from minrl.engines.opponent import EngineWithOpponent
from minrl.evaluation import Evaluation, evaluate
from minrl.model.processes import Processes
from minrl.optimizer import make_optimizer
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.run import checkpoint
from minrl.run.base_model import require_demonstrations
from minrl.run.folder import owned
from minrl.run.preflight import leave_out_unusable, require_room
from minrl.run.run import Run
from minrl.run.start import frozen_opponent, no_frozen_role, prepare_policy
from minrl.run.unknown_words import check_task_words
from minrl.system.cores import cpu_cores
from minrl.system.disk import require_writable
from minrl.system.progress import activity
from minrl.tasks import Task, load_task
from minrl.terminal.screen import Screen
from minrl.types import TrainState, require


@dataclass
class Parts:
    """What a run needs. `tasks` holds the trained task and those that are only evaluated, by `task_key`."""

    run: Run
    config: TrainerConfig
    tasks: dict[str, Task]
    policy: Policy
    engine: Engine
    workers: Workers
    optimizer: torch.optim.Optimizer
    state: TrainState
    screen: Screen

    @property
    def task(self) -> Task:
        """The task that is trained."""
        return self.tasks[task_key(self.config.rollout.task)]

    def evaluate(self) -> dict[str, Evaluation]:
        """The held-out figures of every task."""
        config, evaluations = self.config, {}
        with activity("evaluation", len(self.tasks)) as report:
            for name, task in self.tasks.items():
                evaluations[name] = evaluate(
                    self.policy, self.engine, self.workers, task, config.evaluation, config.rollout, config.seed
                )
                report(len(evaluations))
        return evaluations


@contextmanager
def assemble(run: Run) -> Iterator[Parts]:
    """Everything a run needs, released at the end. Only the trained task is judged."""
    config = run.config
    with (
        closing(Processes(config.model)) as processes,
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
    logger.info(what_is_trained(config))
    optimizer = make_optimizer(policy, config.optimizer)
    require_room(policy, config, run.checkpoints)
    if run.checkpoint is not None:
        checkpoint.restore_optimizer(run.checkpoint, policy, optimizer)
    reward_workers = processes.split(config.rollout.reward_workers or cpu_cores())
    workers = Workers(reward_workers, config.rollout.reward_deadline_s)
    sequences = math.ceil(config.rollout.prompts_per_step / processes.count) * config.rollout.group_size
    opponent = frozen_opponent(run, tasks, processes, screen)
    engine = make_engine(config.engine, policy, sequences, lambda: how_to_go_on(run))
    if opponent is not None:
        engine = EngineWithOpponent(engine, opponent, policy, config.engine.engine_cache_gib)
    try:
        for name, task in tasks.items():
            check_task_words(policy, name, task)
        tasks = {name: leave_out_unusable(policy, engine, name, task) for name, task in tasks.items()}
        trained = task_key(config.rollout.task)
        tasks = {name: judged(task) if name == trained else task for name, task in tasks.items()}
        yield Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen)
    finally:
        engine.close()
        workers.close()


def how_to_go_on(run: Run) -> str:
    """The last complete checkpoint and the command that resumes from it."""
    last = checkpoint.newest_complete(run.checkpoints)
    return f"last checkpoint {last or 'none yet, it starts again from step 1'}; go on with: {run.resume_command}"


def load_tasks(run: Run) -> dict[str, Task]:
    """The trained task, refused if no model can play it, and the tasks to evaluate."""
    name, config = run.config.rollout.task, run.config
    task = load_task(name, run.options, config.data_path)
    if not config.model.model_id:
        require_demonstrations(name, task)
    training, held_out = task.dataset.sizes()
    require(
        training > 0,
        f"the data of {name!r} has {held_out} held-out examples and none to train on: "
        "evaluate.py takes it, training needs a --data-path or a dataset with a training split",
    )
    tasks = {task_key(name): task}
    for other in config.evaluation.other_tasks:
        if task_key(other) not in tasks:
            tasks[task_key(other)] = load_task(other, run.options)
            tasks[task_key(other)].dataset.sizes()  # what cannot be read is refused now, not at the first evaluation
    for task in tasks.values():
        task.notes()  # raises if the task cannot run on this machine
    frozen = any(one.frozen_opponent for one in tasks.values())
    require(frozen or not config.rollout.opponent, no_frozen_role(name))
    return tasks
