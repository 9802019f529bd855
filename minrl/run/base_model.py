"""The small base model that MinRL makes if no --model-id is given.

A Qwen3-shaped model of about a million parameters with a tokenizer of whole words and a chat template of its own,
warm-started by supervised fine-tuning on a task's imperfect demonstrations. It is cached by the hash of all that it is
made from. It never sees held-out problems.

Its chat template renders user and assistant turns only: system messages explain the task to models that can read.
"""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from minrl.batch import pack
from minrl.config import TrainerConfig
from minrl.dataflow import Prompt, Rollout, UserError, require
from minrl.models.chat import CHAT_TEMPLATE, ChatTokenizer, as_rollout, text_of
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.models.scoring import score
from minrl.optimizer import clipped_step
from minrl.policy import Policy, as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.run import Run
from minrl.tasks import Task, TaskOptions, base_vocabulary
from minrl.tasks.mixture import mixture
from minrl.utils import text
from minrl.utils.console import activity
from minrl.utils.files import atomic_folder
from minrl.utils.settings import between
from minrl.utils.task_names import option_keys, task_key, weights_of

SEED, BATCH_SIZE, LEARNING_RATE = 0, 80, 2e-3
"""Of the warm start: its seed, the demonstrations of a step, its peak learning rate."""

VERSION = 1
"""Increased when the recipe changes, so that a cached model of the old recipe is not used."""

DIGESTED = 64
"""Demonstrations that represent all in the hash of what a model is made from."""

Progress = Callable[[int, str], None]


def require_demonstrations(name: str, task: Task) -> None:
    """Refuse a task without demonstrations or vocabulary."""
    has = {"vocabulary": bool(task.vocabulary), "demonstrations": task.demonstrations is not None}
    missing = " and no ".join(what for what, there in has.items() if not there)
    require(
        not missing,
        f"the embedded base model cannot play {name!r}: the task offers no {missing}; name a model with --model-id (a "
        "hub name or a local folder), or add them to the task",
    )


def embedded_model(run: Run, tasks: Mapping[str, Task], processes: Processes) -> str:
    """Where the base model for the trained tasks is. It is made now if it is not cached.

    Its tokenizer knows the words that definitions offer for every base model, those of the trained tasks and those of
    the other evaluated tasks. The weights of several tasks do not change it.
    """
    config, name = run.config, task_key(run.config.task)
    keys, trained = list(config.task_weights), mixture(tasks, config.task_weights)
    known = (word for task in tasks.values() for word in task.vocabulary)
    words = list(dict.fromkeys([*base_vocabulary(run.options), *known]))
    shown = [digest_of(tasks[key]) for key in keys]
    own = [run.options[option_keys(one)[0]] for one in weights_of(config.task)]
    folder = base_model_path(config, name, own, words, config.checkpoints_dir, *shown)
    if not folder.exists() and processes.main:
        with activity("making the base model", config.base_steps) as report:
            make_base_model(folder, config, trained, words, processes, report)
    processes.wait()
    return str(folder)


def base_model_path(
    config: TrainerConfig, name: str, options: Sequence[Any], words: Sequence[str], checkpoints_dir: str, *shown: str
) -> Path:
    """Where the base model of this recipe is cached: a folder named by the hash of all that it is made from. `shown` is
    `digest_of` each task.
    """
    made = [replace(one, max_tokens=0, data_path="") if isinstance(one, TaskOptions) else one for one in options]
    recipe = {one: getattr(config, one) for one in sorted(between(TrainerConfig, "base_hidden_size", "base_steps"))}
    made_from = [VERSION, name, repr(made), recipe, list(words), CHAT_TEMPLATE, *shown]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    return Path(checkpoints_dir) / f"base-{name.replace('/', '-')}-{digest[:12]}"


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
    config: TrainerConfig,
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
    with FileLock(place, fallback_to_soft=False):
        if not folder.exists():
            tokenizer = word_tokenizer(words)
            width, layers, heads = config.base_hidden_size, config.base_layers, config.base_heads
            model = small_qwen3(tokenizer, width, layers, heads, SEED)
            policy = as_policy(model, tokenizer, config, processes)
            warm_start(policy, task, config, progress)
            with atomic_folder(folder) as temporary:
                save_policy(policy, temporary)
        place.unlink(missing_ok=True)  # the model exists: nobody waits for the lock


def warm_start(policy: Policy, task: Task, config: TrainerConfig, progress: Progress) -> None:
    """Supervised fine-tuning on demonstrations of training examples, those of several tasks in equal shares: the loss
    is the mean over completion tokens.
    """
    rng = random.Random(SEED)
    end = policy.tokenizer.eos_token_id
    weights = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=config.base_steps + 1, pct_start=0.1, div_factor=10
    )
    for step in range(config.base_steps):
        rollouts = [_demonstration(policy, task, rng, end) for _ in range(BATCH_SIZE)]
        stream = pack(rollouts, range(len(rollouts))).to(policy.device)
        logprobs, _ = score(policy.model, stream, temperature=1.0)
        loss = -logprobs.mean()
        loss.backward()
        clipped_step(policy, optimizer, TrainerConfig(max_grad_norm=1.0))
        schedule.step()
        progress(step + 1, f"loss {loss.item():.3f}")


def _demonstration(policy: Policy, task: Task, rng: random.Random, end: int) -> Rollout:
    """One demonstration of a training example as a rollout whose completion tokens are scored."""
    members = list(task.members.values())
    task = rng.choice(members) if len(members) > 1 else task
    example = rng.choice(task.dataset.train)
    assert task.demonstrations is not None
    shown = task.demonstrations(example, rng)
    return as_rollout(policy, example.id, [(example.prompt, shown)] if isinstance(shown, str) else shown, end)


# Words that a tokenizer of whole words lacks: it reads all of them as the same token, which a model learns to say

LARGEST_SHARE = 0.01
"""Largest allowed share of tokens that stand for unknown words."""

PROMPTS_READ = 64
"""Prompts that are read. They are in random order."""


def require_known_prompts(tokenizer: ChatTokenizer, name: str, task: Task) -> None:
    """Refuse a task whose prompts have too many unknown words. Those of an episode of the task's own are known only
    when it is played.
    """
    for split in (task.dataset.train, task.dataset.held_out) if task.episode is None else ():
        require_known_words(tokenizer, f"the prompts of {name}", [one.prompt for one in split[:PROMPTS_READ]])


def require_known_words(tokenizer: ChatTokenizer, what: str, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts of which too many tokens stand for unknown words."""
    reader, prompts = tokenizer.tokenizer, prompts[:PROMPTS_READ]
    unknown = reader.unk_token_id
    if unknown in (None, reader.eos_token_id, reader.bos_token_id, reader.pad_token_id):
        return  # a tokenizer of bytes, which lacks no word
    ids = [token for prompt in prompts for token in tokenizer.encode_prompt(prompt)]
    share = ids.count(unknown) / max(1, len(ids))
    if share <= LARGEST_SHARE:
        return
    shown = (one if isinstance(one, str) else text_of(one[-1]) for one in prompts)  # some templates show the last alone
    words = dict.fromkeys(word for text in shown for word in text.split())
    lacking = (word for word in words if unknown in reader(word, add_special_tokens=False)["input_ids"])
    raise UserError(
        f"{share:.2%} of the tokens of {what} stand for words that the model's tokenizer lacks "
        f"({', '.join(map(repr, islice(lacking, 3)))}); at most {LARGEST_SHARE:.0%} may: choose a model that knows "
        "these words with --model-id, or leave out what has them (a task of your own names its words in `vocabulary`)"
    )
