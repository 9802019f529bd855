"""The small base model that MinRL makes if no --model-id is given.

A Qwen3-shaped model of about a million parameters with a tokenizer of whole words and a chat template of its own,
warm-started by supervised fine-tuning on a task's imperfect demonstrations. It is cached by the hash of all that it is
made from. It never sees held-out problems.

Its chat template renders user and assistant turns only: system messages explain the task to models that can read.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from loguru import logger

from minrl.batch import pack
from minrl.config import BaseModelConfig, ModelConfig, OptimizerConfig
from minrl.models.chat import ChatTokenizer, as_rollout
from minrl.models.loading import CHAT_TEMPLATE, small_qwen3, word_tokenizer
from minrl.models.processes import Processes
from minrl.models.scoring import score
from minrl.optimizer import clipped_step
from minrl.policy import Policy, as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.unknown_words import check_task_words, check_words, shown_text
from minrl.tasks import Task
from minrl.types import Example, Prompt, Rollout, UserError
from minrl.utils import text
from minrl.utils.files import lock_in_turn, whole_folder

VERSION = 1
"""Increased when the recipe changes, so that a cached model of the old recipe is not used."""

DEMONSTRATIONS_READ = 64
"""Demonstrations that are searched for words that the vocabulary lacks."""

DIGESTED = 64
"""Demonstrations that represent all in the hash of what a model is made from."""

Progress = Callable[[int, str], None]


def require_demonstrations(name: str, task: Task) -> None:
    """Refuse a task without demonstrations or vocabulary."""
    if task.demonstrations is None or not task.vocabulary:
        raise UserError(
            f"the embedded base model cannot play {name!r}: the task offers no demonstrations and vocabulary; "
            "name a model with --model-id (a hub name or a local folder)"
        )


def base_model_path(
    config: BaseModelConfig, name: str, options: object, words: Sequence[str], checkpoints_dir: str, *shown: str
) -> Path:
    """Where the base model of this recipe is cached: a folder named by the hash of all that it is made from.

    `shown` is `digest_of` the task, and the program of a task from outside the package, whose demonstrations may change
    at any time.
    """
    made_from = [VERSION, name, repr(options), asdict(config), list(words), CHAT_TEMPLATE, *filter(None, shown)]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    return Path(checkpoints_dir) / f"base-{name.replace('/', '-')}-{digest[:12]}"


def require_words(words: Sequence[str], trained: Iterable[str], tasks: Mapping[str, Task], config: ModelConfig) -> None:
    """Before a base model is made, refuse what it could not read with these words: the tasks' prompts, and the
    demonstrations of the tasks that it is trained on, from which it would learn to say `<unk>`.
    """
    reader = ChatTokenizer(tokenizer=word_tokenizer(words), chat_template_options=config.template_options)
    for other, task in tasks.items():
        check_task_words(reader, other, task)
    for name in trained:
        rng, read = random.Random(0), []
        for _ in range(DEMONSTRATIONS_READ):
            example, turns = _demonstrated(tasks[name], rng)
            said = " ".join(f"{shown_text(prompt)} {text}" for prompt, text in turns)
            read.append((as_rollout(reader, example.id, turns, reader.tokenizer.eos_token_id).ids, said))
        check_words(reader, f"the demonstrations of {name}", read)


def digest_of(task: Task) -> str:
    """A hash of the training examples with their fields, and of some demonstrations. It changes with the split, the
    answers and the demonstrations' form.
    """
    assert task.demonstrations is not None
    rng = random.Random(0)
    shown = [[example.id, example.prompt, example.fields] for example in task.dataset.train]
    return text.digest_of([*shown, *(task.demonstrations(one, rng) for one in task.dataset.train[:DIGESTED])])


def make_base_model(
    folder: Path,
    config: BaseModelConfig,
    model_config: ModelConfig,
    task: Task,
    words: Sequence[str],
    processes: Processes,
    progress: Progress,
) -> None:
    """Make the model and write it to the folder, which appears only when it is whole.

    If another process is making it, wait and use that one.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.with_name(f".{folder.name}.lock")
    with lock_in_turn(place, lambda by: logger.info(f"{by} is making the base model {folder.name}: waiting for it")):
        if not folder.exists():
            tokenizer = word_tokenizer(words)
            width, layers, heads = config.base_hidden_size, config.base_layers, config.base_heads
            model = small_qwen3(tokenizer, width, layers, heads, config.base_seed)
            policy = as_policy(model, tokenizer, model_config, processes)
            warm_start(policy, task, config, progress)
            with whole_folder(folder) as temporary:
                save_policy(policy, temporary)
        place.unlink(missing_ok=True)  # the model exists: nobody waits for the lock


def warm_start(policy: Policy, task: Task, config: BaseModelConfig, progress: Progress) -> None:
    """Supervised fine-tuning on demonstrations of training examples, those of several tasks in equal shares: the loss
    is the mean over completion tokens.
    """
    rng = random.Random(config.base_seed)
    end = policy.tokenizer.eos_token_id
    weights = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(
        weights, lr=config.base_learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.base_learning_rate, total_steps=config.base_steps + 1, pct_start=0.1, div_factor=10
    )
    for step in range(config.base_steps):
        rollouts = [_demonstration(policy, task, rng, end) for _ in range(config.base_batch_size)]
        stream = pack(rollouts, range(len(rollouts))).to(policy.device)
        logprobs, _ = score(policy.model, stream, temperature=1.0)
        loss = -logprobs.mean()
        loss.backward()
        clipped_step(policy, optimizer, OptimizerConfig(max_grad_norm=1.0))
        schedule.step()
        progress(step + 1, f"loss {loss.item():.3f}")


def _demonstration(policy: Policy, task: Task, rng: random.Random, end: int) -> Rollout:
    """One demonstration of a training example as a rollout whose completion tokens are scored."""
    example, turns = _demonstrated(task, rng)
    return as_rollout(policy, example.id, turns, end)


def _demonstrated(task: Task, rng: random.Random) -> tuple[Example, Sequence[tuple[Prompt, str]]]:
    """A training example, and the prompt and response of each turn of its demonstration."""
    members = list(task.members.values())
    task = rng.choice(members) if len(members) > 1 else task
    example = rng.choice(task.dataset.train)
    assert task.demonstrations is not None
    shown = task.demonstrations(example, rng)
    return example, [(example.prompt, shown)] if isinstance(shown, str) else shown
