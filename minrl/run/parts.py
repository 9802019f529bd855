"""The parts that a run is put together from: tasks, policy, engine, workers, optimizer, state."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from loguru import logger

from minrl.config import TrainerConfig, task_key
from minrl.config.defaults import what_is_trained
from minrl.engines import Engine
from minrl.engines.choice import make_engine, takes_vllm
from minrl.engines.opponent import EngineWithOpponent
from minrl.evaluation import Evaluation, evaluate
from minrl.model.lora import Adapters
from minrl.model.processes import Processes
from minrl.optimizer import make_optimizer
from minrl.policy import Policy, load_policy
from minrl.record.wandb import require_login
from minrl.rewards.judge import Judge, judged, open_judge
from minrl.rewards.workers import Workers
from minrl.run import checkpoint
from minrl.run.base_model import base_model_path, digest_of, make_base_model, require_demonstrations, require_words
from minrl.run.folder import owned
from minrl.run.preflight import leave_out_unusable, require_room
from minrl.run.resume import resolve_model
from minrl.run.run import Run
from minrl.run.unknown_words import check_task_words
from minrl.system.cores import cpu_cores
from minrl.system.disk import require_writable
from minrl.system.progress import activity
from minrl.system.stable_text import stable_text
from minrl.tasks import TASK_DEFINITIONS, Task, load_task
from minrl.tasks.programs import programs_outside
from minrl.terminal.screen import Screen
from minrl.types import TrainState, UserError, require

START, OPPONENT = "start model", "opponent"
"""The models of a run that config.json names."""


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
    """Everything a run needs; what it holds is released at the end. The trained task alone is judged."""
    config = run.config
    with (
        closing(Processes(config.model)) as processes,
        Screen(config.logging.quiet, show=processes.main) as screen,
        owned(run, processes) as run,
    ):
        tasks = load_tasks(run) if config.rollout.task else {}
        with opened_judge(config, processes) as judge:
            takes_vllm(config.engine, processes.device.type)  # refused now, not after the base model is made
            yield from _on_screen(run, tasks, judge, processes, screen)


def opened_judge(config: TrainerConfig, processes: Processes) -> AbstractContextManager[Judge | None]:
    """The judge, of whom the processes together ask no more at a time than one would; the first asks for an answer."""
    concurrency = processes.split(config.judge.judge_concurrency)
    return open_judge(replace(config.judge, judge_concurrency=concurrency), ask=processes.main)


def _on_screen(
    run: Run, tasks: dict[str, Task], judge: Judge | None, processes: Processes, screen: Screen
) -> Iterator[Parts]:
    """The parts of a run whose tasks, processes and screen are there; released when the caller is done with them."""
    config = run.config
    require_places(run)
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
        tasks = {name: judged(task, judge if name == trained else None) for name, task in tasks.items()}
        yield Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen)
    finally:
        engine.close()
        workers.close()


def require_places(run: Run) -> None:
    """Refuse, before anything slow, a run that could not write down what it does."""
    for folder in (run.folder, run.checkpoints):
        require_writable(folder)
    if run.config.logging.logger == "wandb":
        require_login()


def how_to_go_on(run: Run) -> str:
    """The last complete checkpoint and the command that continues from it."""
    last = checkpoint.newest_complete(run.checkpoints)
    return f"last checkpoint {last or 'none yet, it starts again from step 1'}; go on with: {run.resume_command}"


def load_tasks(run: Run) -> dict[str, Task]:
    """The trained task, refused where no model can play it, and the tasks to evaluate."""
    name, config = run.config.rollout.task, run.config
    task = load_task(name, run.options, config.data_path)
    if not config.model.model_id:
        require_demonstrations(name, task)
    require_training_examples(name, task)
    tasks = {task_key(name): task}
    for other in config.evaluation.other_tasks:
        if task_key(other) not in tasks:
            tasks[task_key(other)] = load_task(other, run.options)
            tasks[task_key(other)].dataset.sizes()  # what cannot be read is refused now, not at the first evaluation
    frozen = any(one.frozen_opponent for one in tasks.values())
    require(frozen or not config.rollout.opponent, no_frozen_role(name))
    return tasks


def require_training_examples(name: str, task: Task) -> None:
    """Read the task's data, and refuse what is for evaluation only."""
    training, held_out = task.dataset.sizes()
    if not training:
        raise UserError(
            f"the data of {name!r} has {held_out} held-out examples and none to train on: "
            "evaluate.py takes it, training needs a --data-path or a dataset with a training split"
        )


def prepare_policy(
    run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen
) -> tuple[Policy, TrainState]:
    """The policy to train: a checkpoint's, the model that the user named, or the embedded base model.

    With adapters it is always the model that the run started from, and the checkpoint's adapters in it.
    """
    config, state, start = run.config, TrainState(), ""
    adapted = config.lora.lora_rank > 0
    if run.checkpoint is not None:
        state = checkpoint.load_state(run.checkpoint)
    if run.checkpoint is None or config.algorithm.kl_coef or adapted:
        start = start_model(run, tasks, processes, screen)
    policy = load_policy(str(start if adapted else run.checkpoint or start), config.model, processes)
    policy.version, policy.skipped_steps = state.policy_version, state.skipped_steps
    if adapted or run.checkpoint is None:
        note_model(run, START, start, policy)
    if adapted:
        policy.adapters = Adapters(policy.model, config.lora, start, config.seed)
        if run.checkpoint is not None:
            policy.adapters.load(run.checkpoint)
    elif config.algorithm.kl_coef:
        reference = load_policy(start, config.model, processes)
        note_model(run, START, start, reference)
        policy.reference = reference.model.requires_grad_(False)
    return policy, state


def note_model(run: Run, role: str, path: str, policy: Policy) -> None:
    """Write down where a model of the run is and the hash of its weights; a run that goes on must find the same."""
    digest = checkpoint.weights_sha256(policy)
    known = run.models.get(role, {}).get("weights_sha256", digest)
    if known != digest:
        raise UserError(
            f"the {role} of run {run.folder} in {path} has other weights than when the run began: put the former back "
            f"(sha256 {known[:12]}, now {digest[:12]}), or start a new run"
        )
    run.models[role] = {"path": os.path.abspath(path) if Path(path).exists() else path, "weights_sha256": digest}


def known_model(run: Run, role: str) -> str | None:
    """Where a model of a run that goes on is: where it was, or under the same name among the run's checkpoints, where
    these were moved. None where the run has none written down.
    """
    if role not in run.models:
        return None
    path = Path(run.models[role]["path"])
    moved = Path(run.config.logging.checkpoints_dir) / path.name
    if path.is_absolute() and not path.exists() and not moved.exists():
        raise UserError(f"the {role} of run {run.folder}, {path}, is not there: put it back, or start a new run")
    return str(moved if path.is_absolute() and not path.exists() else path)


def start_model(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> str:
    """Where the model is that the run starts from: the one it began with, the one the user named, or the task's
    embedded base model.
    """
    known = known_model(run, START)
    if known is not None:
        return known
    if run.config.model.model_id:
        return run.config.model.model_id
    if not run.config.rollout.task:
        raise UserError("name the model to train with --model-id, or a --task whose embedded base model it is")
    return embedded_model(run, tasks, processes, screen)


def frozen_opponent(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> Policy | None:
    """The model that plays the frozen roles, where a task has some: the one named, or the one the run started from."""
    config = run.config
    if not any(task.frozen_opponent for task in tasks.values()):
        return None
    if config.rollout.opponent:
        role, path = OPPONENT, known_model(run, OPPONENT) or resolve_model(config.rollout.opponent)
    else:
        role, path = START, start_model(run, tasks, processes, screen)
    opponent = load_policy(path, config.model, processes)
    note_model(run, role, path, opponent)
    return opponent


def no_frozen_role(name: str) -> str:
    """What is said to a user who names an opponent for nobody."""
    return f"--opponent has nobody to play: no role of {name} is frozen; leave it out or see the task's own options"


def embedded_model(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> str:
    """Where the base model for the trained task is: made now, where it is not cached.

    Its tokenizer knows the words that definitions offer for every base model, those of the trained task and those of
    the tasks that the run evaluates beside it.
    """
    config, name = run.config, task_key(run.config.rollout.task)
    offered = [word for other, d in TASK_DEFINITIONS.items() if d.words for word in d.words(run.options[other])]
    words = list(dict.fromkeys([*offered, *(word for task in tasks.values() for word in task.vocabulary)]))
    outside = programs_outside(config.rollout.task)
    shown = (stable_text(outside) if outside else "", digest_of(tasks[name]))
    folder = base_model_path(config.base, name, run.options[name], words, config.logging.checkpoints_dir, *shown)
    if not folder.exists():
        require_words(words, name, tasks, config.model)
    if not folder.exists() and processes.main:
        with screen.progress("making the base model", config.base.base_steps) as report:
            make_base_model(folder, config.base, config.model, tasks[name], words, processes, report)
    processes.wait()
    return str(folder)
