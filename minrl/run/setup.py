"""Builds everything a run needs: tasks, policy, engine, workers, optimizer, state."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from loguru import logger

from minrl.algorithms import require_lengths
from minrl.config import ENDS, TrainerConfig
from minrl.dataflow import TrainState, UserError, require
from minrl.engines import Engine, make_engine, takes_vllm
from minrl.engines.torch_engine import EngineWithOpponent
from minrl.evaluate.statistics import Evaluation, together
from minrl.evaluation import evaluate
from minrl.models.chat_templates import set_chat_template
from minrl.models.check import verify
from minrl.models.compiled import compile_layers
from minrl.models.distributed import Processes
from minrl.models.loading import load_model
from minrl.models.lora import CONFIG, Adapters, adapted_layers, base_of, merge_adapters, name_as_base, require_peft
from minrl.models.sharding import sharded_policy
from minrl.optimizer import make_optimizer
from minrl.policy import Policy, as_policy
from minrl.rewards.workers import Workers
from minrl.run.base_model import embedded_model, require_demonstrations, require_known_prompts
from minrl.run.checkpoint import load_ahead, load_state, newest, restore_optimizer, weights_sha256
from minrl.run.folder import RunFolder, resolve_model
from minrl.run.hub import require_hub
from minrl.run.preflight import leave_out_unusable
from minrl.run.records import in_common
from minrl.run.run import Run, owned
from minrl.run.sizes import what_is_trained
from minrl.run.teacher import require_same_tokens, teacher_prompt
from minrl.tasks import Task, find_definition, load_task
from minrl.tasks.mixture import mixture
from minrl.utils.console import Screen, activity
from minrl.utils.task_names import task_key

START, OPPONENT, TEACHER = "start model", "opponent", "teacher"
"""The models of a run that config.json names."""


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
        return mixture(self.tasks, self.config.task_weights)

    @property
    def scored(self) -> list[str]:
        """What has a held-out score: the tasks, and where several are trained all of them together."""
        name, found = task_key(self.config.task), list(self._evaluated)
        together = len(self.config.task_weights) > 1 and self.config.task_weights.keys() <= {*found}
        return [*found, name] if together else found

    @property
    def _evaluated(self) -> dict[str, Task]:
        """The tasks that have held-out examples."""
        return {name: task for name, task in self.tasks.items() if task.dataset.held_out}

    def evaluate(self) -> dict[str, Evaluation]:
        """The held-out figures of every task, and of several that are trained together."""
        config, evaluations = self.config, {}
        with activity("evaluation", len(self._evaluated)) as report:
            for name, task in self._evaluated.items():
                evaluations[name] = evaluate(self.policy, self.engine, self.workers, task, config, config, config.seed)
                report(len(evaluations))
        for name in self.scored[len(evaluations) :]:
            evaluations[name] = together(evaluations, config.task_weights)
        return evaluations


@contextmanager
def assemble(run: Run) -> Iterator[Parts]:
    """Everything a run needs, released at the end. Only what is trained is judged."""
    config = run.config
    require_hub(config.push_to_hub)
    with ExitStack() as held:
        processes = held.enter_context(Processes(config, partial(in_common, run)).open())
        screen = held.enter_context(Screen(config.quiet, show=processes.main))
        run = held.enter_context(owned(run, processes))
        with activity("reading the examples"):
            tasks = load_tasks(run) if config.task else {}
        judged = held.enter_context(judging(config, processes))
        takes_vllm(config, processes.device.type)  # what is refused is refused before the base model is made

        policy, state = prepare_policy(run, tasks, processes)
        trained = what_is_trained(run.settings, policy.num_weights)
        for line in filter(None, [str(processes), trained]):
            logger.info(line)
        optimizer = make_optimizer(policy, config)
        if run.checkpoint is not None:
            restore_optimizer(run.checkpoint, policy, optimizer)

        engine = held.enter_context(closing(_engine(run, tasks, policy)))
        given = config.reward_workers
        count = processes.split(given) if given else processes.cores
        workers = held.enter_context(closing(Workers(count, config.reward_deadline_s)))
        for name, task in tasks.items():
            require_known_prompts(policy, name, task)
            tasks[name] = leave_out_unusable(policy, engine, name, task)
        weights = config.task_weights
        policy.teacher_reads = teacher_prompt(policy, config, mixture(tasks, weights)) if tasks else None
        tasks = {name: judged(task) if name in weights else task for name, task in tasks.items()}
        yield Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen)


# Tasks


def load_tasks(run: Run) -> dict[str, Task]:
    """The trained tasks, refused if no model can play them, and the tasks to evaluate."""
    config, tasks = run.config, dict[str, Task]()
    for name in config.task_names:
        key = task_key(name)
        if key in tasks:
            continue
        task = tasks[key] = load_task(name, run.options, config.data_of(key))
        trained = key in config.task_weights
        if trained and config.overlap and getattr(find_definition(name), "is_environment", False):
            raise UserError(
                f"{key} plays in the main thread, which with --overlap updates at the same time: leave it out"
            )
        if trained and not config.model_id:
            require_demonstrations(name, task)
        training, held_out = task.dataset.sizes()  # what cannot be read is refused now, not at the first evaluation
        require(
            training > 0 or not trained,
            f"the data of {name!r} has {held_out} held-out examples and none to train on: "
            "evaluate.py takes it, training needs a --data-path or a dataset with a training split",
        )
    require_evaluation(tasks, config)
    for task in tasks.values():
        task.notes()  # raises if the task cannot run on this machine
    require_frozen_role(config.opponent, tasks)
    frozen = any(tasks[name].frozen_opponent for name in config.task_weights)
    beside = "this process samples the frozen role itself, and with --overlap trains at the same time: leave it out"
    require(not (config.overlap and frozen), beside)
    return tasks


def require_frozen_role(opponent: str, tasks: Mapping[str, Task]) -> None:
    """Refuse an opponent that would play nothing."""
    nobody = f"--opponent has nobody to play: no role of {' or '.join(tasks)} is frozen; leave it out or see the task's"
    require(not opponent or any(task.frozen_opponent for task in tasks.values()), f"{nobody} own options")


def require_evaluation(tasks: Mapping[str, Task], config: TrainerConfig) -> None:
    """Refuse a run in which nothing is held out, or that ends by the score of a task of which nothing is."""
    without = [name for name, task in tasks.items() if not task.dataset.held_out]
    some, name = f"no example of {' or '.join(without)} is held out", task_key(config.task)
    fix = "give more rows, hold out a larger share, or evaluate another task (--eval-tasks)"
    require(len(without) < len(tasks), f"{some}: {fix}")
    for task in tasks.values():
        if task.max_tokens and task.name in config.task_weights:
            require_lengths(config, task.max_tokens)
    for end in ENDS:
        ends = without and getattr(config, end) and {*config.task_weights} & {*without}
        require(not ends, f"{end} looks at the held-out score of {name}, and {some}: leave it out")


@contextmanager
def judging(config: TrainerConfig, processes: Processes) -> Iterator[Callable[[Task], Task]]:
    """A function that adds the judge's part to a task's rewards. All processes share the limit of concurrent calls."""
    if not config.judge_model:
        yield lambda task: task
        return
    from minrl.rewards.judge import judged, open_judge

    concurrency = processes.split(config.judge_concurrency)
    with open_judge(config.with_settings(judge_concurrency=concurrency), ask=processes.main) as judge:
        yield partial(judged, judge=judge)


# Models


def load_policy(path: str, config: TrainerConfig, processes: Processes, own: Path | None = None) -> Policy:
    """The model and tokenizer at a hub name or local path, with float32 weights on this process's device. Adapters at
    the path are merged into their base model. Refused if its log-probabilities cannot be computed here. `own` is
    the checkpoint of the run that resumes, whose tokenizer has the run's chat template.
    """
    base = base_of(path)
    if base is not None:
        require_peft(f"{path} holds LoRA adapters and")
        require(
            base_of(base) is None, f"{path} holds adapters of {base}, which are adapters too: use a merged checkpoint"
        )
    try:
        with activity(f"loading {Path(path).name}"):
            model, tokenizer = load_model(base or path)
    except UserError as error:
        where = f"{path} holds adapters of {base} (`base_model_name_or_path` in their {CONFIG}): " if base else ""
        raise UserError(f"{where}{error}") from error
    if base is not None:
        merge_adapters(model, Path(path), base)
    require(base is not None or not adapted_layers(model), f"{path} holds LoRA adapters: give the local folder of them")
    policy = as_policy(model, tokenizer, config, processes)
    set_chat_template(policy, policy.model, "" if path == str(own) else config.chat_template, path)
    with activity("verifying the model"):
        verified = verify(policy.model, processes.device.type == "cuda" and processes.dtype == torch.bfloat16)
    if not verified.method.packed:
        logger.warning(
            f"{path} is trained in padded rows, each with its own copy of the prompt, which takes longer: packed "
            f"streams are not right for it ({verified.why_not_packed})"
        )
    elif config.compile:
        compile_layers(policy.model)
    if verified.method.decoding == "recomputed":
        logger.warning(
            f"{path} is sampled without a cache by the embedded engine, which takes longer: transformers' own is not "
            f"right for it ({verified.why_not_cached})"
        )
    return policy


def prepare_policy(run: Run, tasks: Mapping[str, Task], processes: Processes) -> tuple[Policy, TrainState]:
    """The policy to train: a checkpoint's, the model that the user named, or the embedded base model.

    With adapters it is always the model that the run started from, and the checkpoint's adapters in it.
    """
    config, start = run.config, ""
    state = load_state(run.checkpoint) if run.checkpoint is not None else TrainState()
    if run.checkpoint is not None:
        state.ahead = load_ahead(run.checkpoint)
    if run.checkpoint is None or config.kl_coef or config.lora_rank:
        start = start_model(run, tasks, processes)
    if config.sharding == "none" or processes.count == 1:
        return _load(run, start, state, processes), state
    load = partial(_load, run, start, state, processes.in_main_memory())
    policy = sharded_policy(load, processes, config.sharding)
    run.models.update(processes.gather([run.models])[0])  # which the main process alone has noted
    return policy, state


def _load(run: Run, start: str, state: TrainState, processes: Processes) -> Policy:
    """The policy in this process, whole, with its adapters, its reference and its teacher."""
    config, adapted = run.config, run.config.lora_rank > 0
    require(
        config.lora_checkpoint == "merged" or name_as_base(start) is not None,
        f"--lora-checkpoint adapter: other programs cannot put adapters on {start}, which is a GGUF file or holds "
        "adapters: leave it out for merged checkpoints",
    )
    policy = load_policy(str(start if adapted else run.checkpoint or start), config, processes, run.checkpoint)
    policy.version, policy.skipped_steps = state.policy_version, state.skipped_steps
    if adapted or run.checkpoint is None:
        note_model(run, START, start, policy)
    if adapted:
        policy.adapters = Adapters(policy.model, config, start, config.seed)
        if run.checkpoint is not None:
            policy.adapters.load(run.checkpoint)
    elif config.kl_coef:
        policy.reference = frozen_model(run, START, start, config, processes).model
    if config.teacher_id:
        teacher = frozen_model(run, TEACHER, config.teacher_id, config, processes)
        require_same_tokens(policy, teacher, config.teacher_id)
        policy.teacher = teacher.model
    return policy


def frozen_model(run: Run, role: str, name: str, config: TrainerConfig, processes: Processes) -> Policy:
    """A model of the run beside its policy: the named one, and in a resumed run that with which it began."""
    path = known_model(run, role) or resolve_model(name, config.runs_dir)
    frozen = load_policy(path, config, processes)
    note_model(run, role, path, frozen)
    frozen.model.requires_grad_(False)
    return frozen


def start_model(run: Run, tasks: Mapping[str, Task], processes: Processes) -> str:
    """Where the start model is: the one the run began with, the one the user named, or the task's base model."""
    known, named = known_model(run, START), run.config.model_id
    if known or named:
        return known or resolve_model(named, run.config.runs_dir)
    task = run.config.task
    require(bool(task), "name the model to train with --model-id, or a --task whose embedded base model it is")
    return embedded_model(run, tasks, processes)


def known_model(run: Run, role: str) -> str | None:
    """Where a model of a resumed run is; None if the run recorded none."""
    path = run.models.get(role, {}).get("path")
    missing = path is not None and os.path.isabs(path) and not Path(path).exists()
    require(not missing, f"the {role} of run {run.folder}, {path}, is not there: put it back, or start a new run")
    return path


def note_model(run: Run, role: str, path: str, policy: Policy) -> None:
    """Record where a model of the run is, the hash of its weights, and the run that made it. A resumed run must find
    the same weights.
    """
    digest = weights_sha256(policy)
    known = run.models.get(role, {}).get("weights_sha256", digest)
    require(
        known == digest,
        f"the {role} of run {run.folder} in {path} has other weights than when the run began: put the former back "
        f"(sha256 {known[:12]}, now {digest[:12]}), or start a new run",
    )
    made_by = RunFolder.find(path)
    run.models[role] = {"path": os.path.abspath(path) if Path(path).exists() else path, "weights_sha256": digest}
    run.models[role] |= {"run": os.path.abspath(made_by.path)} if made_by else {}


def _engine(run: Run, tasks: Mapping[str, Task], policy: Policy) -> Engine:
    """The engine that samples, with the frozen opponent if a task has one: the model named, or the start model."""
    config, processes = run.config, policy.processes
    prompts = math.ceil(config.prompts_per_step / processes.count) if tasks else 0
    opponent, name = None, config.opponent
    if any(task.frozen_opponent for task in tasks.values()):
        role, name = (OPPONENT, name) if name else (START, start_model(run, tasks, processes))
        opponent = frozen_model(run, role, name, config.with_settings(chat_template=""), processes)
    engine = make_engine(config, policy, prompts * config.group_size, partial(how_to_go_on, run))
    if opponent is None:
        return engine
    return EngineWithOpponent(
        engine,
        opponent,
        policy,
        config.engine_cache_gib,
        temperature=config.opponent_temperature,
        max_tokens=config.opponent_max_tokens,
    )


def how_to_go_on(run: Run) -> str:
    """The last checkpoint and the command that resumes from it."""
    last = newest(run.checkpoints)
    return f"last checkpoint {last}; resume with: {run.resume_command}" if last else "no checkpoint was saved yet"
