"""The parts that a run is put together from: tasks, policy, engine, workers, optimizer, state."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from minrl import checkpoint
from minrl.base_model import base_model_path, make_base_model, require_demonstrations
from minrl.checkpoint import TrainState
from minrl.command_line import read_config_file
from minrl.config import TrainerConfig, task_key
from minrl.engines import Engine
from minrl.engines.choice import make_engine, takes_vllm
from minrl.engines.opponent import EngineWithOpponent
from minrl.evaluation import Evaluation, evaluate
from minrl.judge import judged, open_judge
from minrl.lora import Adapters
from minrl.optimizer import make_optimizer
from minrl.policy import Policy, load_policy
from minrl.processes import Processes
from minrl.progress import activity
from minrl.run import RUN_RECORD, Run
from minrl.screen import Screen
from minrl.tasks import TASK_DEFINITIONS, Task, find_definition, load_task, source_outside
from minrl.types import UserError, require
from minrl.workers import Workers


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
    tasks, trained = load_tasks(run) if config.rollout.task else {}, task_key(config.rollout.task)
    with open_judge(config.judge) as judge:
        tasks = {name: judged(task, judge if name == trained else None) for name, task in tasks.items()}
        processes = Processes(config.model)
        if config.rollout.prompts_per_step % processes.count:
            raise UserError(
                f"{run.program.draws} ({config.rollout.prompts_per_step}) must be a multiple of the number of "
                f"processes ({processes.count}): each draws whole groups"
            )
        takes_vllm(config.engine, processes.device.type)  # refused now, not after the base model is made
        with Screen(config.logging.quiet, show=processes.main) as screen:
            yield from _on_screen(run, tasks, processes, screen)


def _on_screen(run: Run, tasks: dict[str, Task], processes: Processes, screen: Screen) -> Iterator[Parts]:
    """The parts of a run whose tasks, processes and screen are there; released when the caller is done with them."""
    config = run.config
    policy, state = prepare_policy(run, tasks, processes, screen)
    optimizer = make_optimizer(policy, config.optimizer)
    if run.checkpoint is not None:
        checkpoint.restore_optimizer(run.checkpoint, policy, optimizer)
    workers = Workers(config.rollout.reward_workers, config.rollout.reward_deadline_s)
    sequences = config.rollout.prompts_per_step * config.rollout.group_size // processes.count
    opponent = frozen_opponent(run, tasks, processes, screen)
    engine = make_engine(config.engine, policy, sequences, lambda: how_to_go_on(run))
    if opponent is not None:
        engine = EngineWithOpponent(engine, opponent, policy)
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
    policy.version = state.policy_version
    if adapted:
        policy.adapters = Adapters(policy.model, config.lora, start, config.seed)
        if run.checkpoint is not None:
            policy.adapters.load(run.checkpoint)
    elif config.algorithm.kl_coef:
        policy.reference = load_policy(start, config.model, processes).model.requires_grad_(False)
    return policy, state


def start_model(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> str:
    """Where the model is that the run starts from: the one the user named, or the task's embedded base model."""
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
        return load_policy(resolve_model(config.rollout.opponent), config.model, processes)
    return load_policy(start_model(run, tasks, processes, screen), config.model, processes)


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
    source = source_outside(find_definition(config.rollout.task))
    folder = base_model_path(config.base, name, run.options[name], words, config.logging.checkpoints_dir, source)
    if not folder.exists() and processes.main:
        with screen.progress("making the base model", config.base.base_steps) as report:
            make_base_model(folder, config.base, config.model, tasks[name], words, processes, report)
    processes.wait()
    return str(folder)


def resolve_model(name: str) -> str:
    """Where the model is that a user named: a checkpoint, a folder of them, a run, or what transformers knows."""
    folder = model_folder(name)
    return name if folder is None else str(checkpoint.find_checkpoint(folder))


def model_folder(name: str) -> Path | None:
    """The checkpoint, or the folder of checkpoints, that a user named by its path or by its run; None: neither."""
    for folder in (Path(name), *_checkpoints_of_run(name), Path("checkpoints") / Path(name).name):
        if folder.is_dir() and (any(folder.glob("step_*")) or (folder / checkpoint.MANIFEST).exists()):
            return folder
    return None


def _checkpoints_of_run(name: str) -> Iterator[Path]:
    """Where a run, named by its folder or its name, says that its checkpoints are."""
    for folder in (Path(name), Path("runs") / name):
        if (folder / "config.json").exists() and (folder / "config.json").read_text().startswith(RUN_RECORD):
            kept_in = read_config_file(folder / "config.json").get("checkpoints_dir", "checkpoints")
            yield Path(kept_in) / folder.resolve().name
