"""The parts that a run is put together from: tasks, policy, engine, workers, optimizer, state."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from minrl import checkpoint
from minrl.base_model import base_model_path, make_base_model, require_demonstrations
from minrl.checkpoint import TrainState
from minrl.config import TrainerConfig
from minrl.engines import Engine
from minrl.engines.choice import make_engine
from minrl.evaluation import Evaluation, evaluate
from minrl.policy import Policy, load_policy
from minrl.processes import Processes
from minrl.run import Run
from minrl.screen import Screen
from minrl.tasks import TASK_DEFINITIONS, Task, load_task
from minrl.types import UserError
from minrl.update import make_optimizer
from minrl.workers import Workers


@dataclass
class Parts:
    """What a run needs. `tasks` holds the trained task and those that are only evaluated."""

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
        return self.tasks[self.config.rollout.task]

    def evaluate(self) -> dict[str, Evaluation]:
        """The held-out figures of every task."""
        config = self.config
        return {
            name: evaluate(self.policy, self.engine, self.workers, task, config.evaluation, config.rollout, config.seed)
            for name, task in self.tasks.items()
        }


@contextmanager
def assemble(run: Run) -> Iterator[Parts]:
    """Everything a run needs; the engine and the workers are released at the end."""
    config = run.config
    tasks = load_tasks(run)
    processes = Processes(config.model)
    if config.rollout.prompts_per_step % processes.count:
        raise UserError(
            f"prompts_per_step ({config.rollout.prompts_per_step}) must be a multiple of the number of processes "
            f"({processes.count}): each draws whole groups"
        )
    screen = Screen(config.logging.quiet, show=processes.main)
    policy, state = prepare_policy(run, tasks[config.rollout.task], processes, screen)
    optimizer = make_optimizer(policy, config.optimizer)
    if run.checkpoint is not None:
        checkpoint.restore_optimizer(run.checkpoint, policy, optimizer)
    workers = Workers(config.rollout.reward_workers, config.rollout.reward_deadline_s)
    sequences = config.rollout.prompts_per_step * config.rollout.group_size // processes.count
    engine = make_engine(config.engine, policy, sequences, lambda: how_to_go_on(run))
    try:
        yield Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen)
    finally:
        engine.close()
        workers.close()
        processes.close()


def how_to_go_on(run: Run) -> str:
    """The last complete checkpoint and the command that continues from it."""
    last = checkpoint.newest_complete(run.checkpoints)
    return f"last checkpoint {last or 'none yet, it starts again from step 1'}; go on with: {run.resume_command}"


def load_tasks(run: Run) -> dict[str, Task]:
    """The trained task, refused where no model can play it, and the tasks to evaluate."""
    name, config = run.config.rollout.task, run.config
    if name not in TASK_DEFINITIONS:
        load_task(name)
    tasks = {name: load_task(name, run.options[name], config.data_path)}
    if not config.model.model_id:
        require_demonstrations(name, tasks[name])
    for other in config.evaluation.other_tasks:
        tasks[other] = load_task(other, run.options.get(other))
    return tasks


def prepare_policy(run: Run, task: Task, processes: Processes, screen: Screen) -> tuple[Policy, TrainState]:
    """The policy to train: a checkpoint's, the model that the user named, or the embedded base model."""
    config, state, start = run.config, TrainState(), ""
    if run.checkpoint is not None:
        state = checkpoint.load_state(run.checkpoint)
    if run.checkpoint is None or config.algorithm.kl_coef:
        start = config.model.model_id or embedded_model(run, task, processes, screen)
    policy = load_policy(str(run.checkpoint or start), config.model, processes)
    policy.version = state.policy_version
    if config.algorithm.kl_coef:
        policy.reference = load_policy(start, config.model, processes).model.requires_grad_(False)
    return policy, state


def embedded_model(run: Run, task: Task, processes: Processes, screen: Screen) -> str:
    """Where the base model for the task is: made now, where it is not cached.

    Its tokenizer knows the words of every task that offers some, so that each can be evaluated on it.
    """
    config, name = run.config, run.config.rollout.task
    everyone = [load_task(other, run.options[other]) for other in TASK_DEFINITIONS if other in run.options]
    words = list(dict.fromkeys(word for other in everyone for word in other.vocabulary))
    folder = base_model_path(config.base, name, run.options[name], words, config.logging.checkpoints_dir)
    if not folder.exists() and processes.main:
        with screen.progress("making the base model", config.base.base_steps) as report:
            make_base_model(folder, config.base, config.model, task, words, processes, report)
    processes.wait()
    return str(folder)


def resolve_model(name: str) -> str:
    """Where the model is that a user named: a checkpoint, a folder of them, a run, or what transformers knows."""
    for folder in (Path(name), Path("checkpoints") / Path(name).name):
        if folder.is_dir() and (any(folder.glob("step_*")) or (folder / checkpoint.MANIFEST).exists()):
            return str(checkpoint.find_checkpoint(folder))
    return name
