"""The models that a run starts from and plays against: named, cached, or made now."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from minrl.models.lora import Adapters
from minrl.models.processes import Processes
from minrl.policy import Policy
from minrl.run import checkpoint
from minrl.run.base_model import base_model_path, digest_of, make_base_model, require_words
from minrl.run.loading import load_policy
from minrl.run.model_names import resolve_model
from minrl.run.run import Run
from minrl.run.sharded import sharded_policy
from minrl.run.teacher import require_same_tokens
from minrl.tasks import Task, offered_words
from minrl.tasks.mixture import mixture
from minrl.tasks.programs import programs_outside
from minrl.types import TrainState, require
from minrl.utils.console import Screen
from minrl.utils.task_names import option_keys, task_key, weights_of
from minrl.utils.text import stable_text

START, OPPONENT, TEACHER = "start model", "opponent", "teacher"
"""The models of a run that config.json names."""


def note_model(run: Run, role: str, path: str, policy: Policy) -> None:
    """Record where a model of the run is and the hash of its weights. A resumed run must find the same weights."""
    digest = checkpoint.weights_sha256(policy)
    known = run.models.get(role, {}).get("weights_sha256", digest)
    require(
        known == digest,
        f"the {role} of run {run.folder} in {path} has other weights than when the run began: put the former back "
        f"(sha256 {known[:12]}, now {digest[:12]}), or start a new run",
    )
    run.models[role] = {"path": os.path.abspath(path) if Path(path).exists() else path, "weights_sha256": digest}


def known_model(run: Run, role: str) -> str | None:
    """Where a model of a resumed run is: where it was, or, if the checkpoints were moved, under the same name among
    them. None if the run recorded none.
    """
    if role not in run.models:
        return None
    path = Path(run.models[role]["path"])
    if not path.is_absolute() or path.exists():
        return str(path)
    moved = Path(run.config.logging.checkpoints_dir) / path.name
    require(moved.exists(), f"the {role} of run {run.folder}, {path}, is not there: put it back, or start a new run")
    return str(moved)


def start_model(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> str:
    """Where the start model is: the one the run began with, the one the user named, or the task's base model."""
    known, named = known_model(run, START), run.config.model.model_id
    if known or named:
        return known or (named if (Path(named) / checkpoint.MANIFEST).exists() else resolve_model(named))
    task = run.config.rollout.task
    require(bool(task), "name the model to train with --model-id, or a --task whose embedded base model it is")
    return embedded_model(run, tasks, processes, screen)


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
    if config.model.sharding != "none" and processes.count > 1:
        load = partial(_load, run, start, state, processes.in_main_memory())
        policy = sharded_policy(load, processes, config.model.sharding)
        run.models.update(processes.gather([run.models])[0])  # which the main process alone has noted
        return policy, state
    return _load(run, start, state, processes), state


def _load(run: Run, start: str, state: TrainState, processes: Processes) -> Policy:
    """The policy in this process, whole."""
    config, adapted = run.config, run.config.lora.lora_rank > 0
    require(
        config.lora.lora_checkpoint == "merged" or not Path(start).is_file(),
        f"--lora-checkpoint adapter: other programs cannot put adapters on {start}, a GGUF file: leave it out for "
        "merged checkpoints",
    )
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
    if config.algorithm.teacher_id:
        path = known_model(run, TEACHER) or resolve_model(config.algorithm.teacher_id)
        teacher = load_policy(path, config.model, processes)
        require_same_tokens(policy, teacher, path)
        note_model(run, TEACHER, path, teacher)
        policy.teacher = teacher.model.requires_grad_(False)
    return policy


def frozen_opponent(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> Policy | None:
    """The model that plays the frozen roles, if a task has any: the one named, or the start model."""
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
    """The message for an --opponent in a task without frozen roles."""
    return f"--opponent has nobody to play: no role of {name} is frozen; leave it out or see the task's own options"


def embedded_model(run: Run, tasks: Mapping[str, Task], processes: Processes, screen: Screen) -> str:
    """Where the base model for the trained tasks is. It is made now if it is not cached.

    Its tokenizer knows the words that definitions offer for every base model, those of the trained tasks and those of
    the other evaluated tasks. The weights of several tasks do not change it.
    """
    config, name = run.config, task_key(run.config.rollout.task)
    keys, trained = list(config.rollout.weights), mixture(tasks, config.rollout.weights)
    known = (word for task in tasks.values() for word in task.vocabulary)
    words = list(dict.fromkeys([*offered_words(run.options), *known]))
    outside = {
        module: code for one in weights_of(config.rollout.task) for module, code in programs_outside(one).items()
    }
    shown = (stable_text(outside) if outside else "", *(digest_of(tasks[key]) for key in keys))
    own = [run.options[option_keys(one)[0]] for one in weights_of(config.rollout.task)]
    options = own[0] if len(own) == 1 else own
    folder = base_model_path(config.base, name, options, words, config.logging.checkpoints_dir, *shown)
    if not folder.exists():
        require_words(words, keys, tasks, config.model)
    if not folder.exists() and processes.main:
        with screen.progress("making the base model", config.base.base_steps) as report:
            make_base_model(folder, config.base, config.model, trained, words, processes, report)
    processes.wait()
    return str(folder)
