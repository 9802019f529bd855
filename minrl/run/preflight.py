"""Checks before step 1, each finding in one line with how to fix it, as soon as it is known.

What needs no completion comes first: learning rate, memory, disk, examples. Then rollouts of training examples, drawn
with the run's seed, are sampled and rewarded: at most as many tokens as a default step of a model of this size, so that
it takes no longer than that. A reward that fails for all of them ends the run.
"""

import math
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from loguru import logger

import minrl
from minrl.batch import pack
from minrl.config import TrainerConfig
from minrl.dataflow import Example, Rollout, require
from minrl.engines import Engine, takes_vllm
from minrl.evaluation import evaluations_after, samples_of
from minrl.models.cpu import resident_bytes
from minrl.models.scoring import LARGEST_SHARE
from minrl.models.sharding import master_weights
from minrl.models.structure import decoder_of, layers_of
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.run.sizes import OWN_BASE, num_text, rates_for, sizes_for
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import refuse_mistakes
from minrl.utils.files import free_bytes
from minrl.utils.task_names import task_key
from minrl.utils.text import cut

PACKAGE = Path(minrl.__file__ or "").parent
MEASURED = 512
"""Examples of each split whose prompts and shortest answers are measured."""
FEW_SAMPLED = 8
"""Examples that are sampled of a task whose rewards take time."""
SLOW_REWARD_S = 1.0
SHOWN = 400
"""Characters of a prompt and of a completion that are shown."""
TRUNCATED_SHARE = 0.1
"""Largest share of completions that may be cut off: their reward says nothing about their answer."""
MOMENT_BYTES = {"adamw": 8, "adamw8bit": 2}
"""Bytes of both moments of a weight, in memory and in a checkpoint."""
UPDATE_PASSES = 3.0
"""Forward passes without gradient that take as long as an update's forward and backward pass (measured: 2.5 to 4)."""


class Sampled(NamedTuple):
    """Rollouts of a task, sampled as in a step, with completions of at most `limit` tokens."""

    rollouts: list[Rollout]
    limit: int
    seconds: float


def preflight(policy: Policy, engine: Engine, workers: Workers, task: Task, config: TrainerConfig) -> Iterator[str]:
    """Findings as soon as they are known. Raises `UserError` if no completion could be rewarded. On a CPU the end logs
    what the run is expected to take.
    """
    resident, sampled = resident_bytes(policy.device), dict[str, Sampled]()
    members = {key or task_key(config.task): member for key, member in task.members.items()}
    yield from rate_findings(policy, config)
    yield from memory_findings(policy, config)
    yield from disk_findings(policy, config)
    for name, member in members.items():
        yield from dataset_findings(policy, engine, name, member, config)
    for name, member in members.items():
        examples, plan = sampled_as(policy, name, member, config, len(members))
        workers.take_seconds()
        started = time.perf_counter()
        played = rollout(policy, engine, workers, member, examples, plan)
        sampled[name] = Sampled(played.rollouts, plan.max_tokens, time.perf_counter() - started)
        reward_s = max(policy.processes.gather([workers.take_seconds()]))
        refuse_mistakes(played.failures)
        if lines := best_and_worst(policy, name, played.rollouts):
            logger.info("\n".join(lines))
        for finding in sample_findings(policy, engine, name, member, played, plan.max_tokens, reward_s, config):
            yield finding if len(members) == 1 else f"{name}: {finding}"
    if policy.device.type == "cpu":
        logger.info(f"preflight: {estimate(policy, members, sampled, config, resident)}")


def leave_out_unusable(policy: Policy, engine: Engine, name: str, task: Task) -> Task:
    """The task without the examples whose prompts are empty or leave no room for a completion; reports their number.

    The first prompt of an episode of the task's own is known when it is played. If it does not fit, it is unscorable.
    """
    if task.episode is not None:
        return task
    limit, kept = engine.context_length, {}
    for split, examples in (("training", task.dataset.train), ("held-out", task.dataset.held_out)):
        kept[split] = [one for one in examples if policy.fits(one.prompt, limit)]
        left_out = len(examples) - len(kept[split])
        if not left_out:
            continue
        require(
            bool(kept[split]),
            f"no {split} example of {name} leaves room for a completion in the {limit} tokens that the model takes "
            "behind a prompt that is not empty: choose others, or a longer context (another model; "
            "--engine-context-length)",
        )
        logger.warning(
            f"{name}: {left_out} of {len(examples)} {split} examples are left out: their prompts are empty, or alone "
            f"fill the {limit} tokens that the model takes"
        )
    return replace(task, dataset=Dataset(kept["training"], kept["held-out"], task.dataset.key))


# What needs no completion


def rate_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the learning rate is far from the default for the size of the model and for what is trained. Adapters of
    large models are trained at up to 1e-3.
    """
    weights = policy.num_weights if config.model_id else OWN_BASE
    rate, adapted = config.learning_rate, config.lora_rank > 0
    usual = rates_for(weights)[adapted]
    trained = f"{'adapters of a model of' if adapted else 'all'} {num_text(weights)} weights"
    found = f"{trained} are trained at a learning rate of {rate:g}, where {usual:g} is usual"
    if rate < usual / 10:
        yield f"{found}: little will be learned; raise it, such as to --learning-rate {usual:g}"
    if rate > max(10.01 * usual, 1e-3 * adapted):  # 10 * 1e-6 is rounded to below 1e-5
        yield f"{found}: the model may be destroyed; lower it, such as to --learning-rate {usual:g}"


def dataset_findings(policy: Policy, engine: Engine, name: str, task: Task, config: TrainerConfig) -> Iterator[str]:
    """The findings of a task's examples: how many there are, and whether prompts and answers have room."""
    held_out, limit = len(task.dataset.held_out), task.max_tokens or config.max_tokens
    if 0 < held_out < 20:
        yield (
            f"{name} has {held_out} held-out examples: with fewer than 20 the interval of the score says little; give "
            "the task more examples, or hold out a larger share"
        )
    splits = [drawn(examples, MEASURED, config.seed) for examples in (task.dataset.train, task.dataset.held_out)]
    for examples in splits:
        yield from answer_findings(policy, name, task, examples, limit)
    if task.episode is None:
        prompts = [len(policy.encode_prompt(example.prompt)) for examples in splits for example in examples]
        yield from context_findings(name, prompts, limit, engine.context_length)


def drawn(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """At most so many of the examples, at random: neighbours in a file are alike."""
    return random.Random(seed).sample(list(examples), min(count, len(examples)))


def answer_findings(
    policy: Policy, name: str, task: Task, examples: Sequence[Example], max_tokens: int
) -> Iterator[str]:
    """Whether the shortest answers fit in a completion, if the task knows them."""
    if task.shortest_answer is None or not examples:
        return
    answers = [task.shortest_answer(example) for example in examples]
    needed = [len(ids) + 1 for ids in policy.tokenizer(answers, add_special_tokens=False)["input_ids"]]  # 1: the end
    too_long = sum(count > max_tokens for count in needed)
    if too_long:
        yield (
            f"{too_long} of {len(needed)} examples of {name} have no answer of {max_tokens} tokens or less, written as "
            f"its demonstrations are: set --max-tokens {max(needed)}, or choose easier examples"
        )


def context_findings(name: str, prompts: Sequence[int], max_tokens: int, limit: int) -> Iterator[str]:
    """Whether prompts of these lengths leave room for the longest completion in the tokens that the model takes."""
    cut = sum(length + max_tokens > limit for length in prompts)
    if cut:
        yield (
            f"{cut} of {len(prompts)} prompts of {name} leave no room for the {max_tokens} tokens of --max-tokens in "
            f"the {limit} that the model takes; the longest has {max(prompts)}: set --max-tokens "
            f"{limit - max(prompts)}, or choose shorter prompts or a model with a longer context"
        )


# Completions and their rewards


def sampled_as(
    policy: Policy, name: str, task: Task, config: TrainerConfig, num_tasks: int
) -> tuple[list[Example], Plan]:
    """The examples that are sampled of a task, and how: as in a step, but with at most as many tokens as a default step
    of a model of this size, in completions of at most twice its limit. Never by timing: all processes take the same.
    """
    settings = config
    usual = sizes_for(policy.num_weights, policy.device.type == "cuda")
    limit = min(task.max_tokens or config.max_tokens, 2 * usual.max_tokens)
    most = max(1, usual.prompts_per_step * usual.group_size * usual.max_tokens // (num_tasks * limit))
    group_size = min(settings.group_size, most)
    count = min(most // group_size, settings.prompts_per_step if task.cheap else FEW_SAMPLED)
    plan = Plan(
        *(group_size, limit, settings.temperature, config.seed, "preflight", 0), stop_strings=settings.stop_strings
    )
    return drawn(task.dataset.train, MEASURED, config.seed)[:count], plan


def sample_findings(
    policy: Policy,
    engine: Engine,
    name: str,
    task: Task,
    played: Rollouts,
    limit: int,
    reward_s: float,
    config: TrainerConfig,
) -> Iterator[str]:
    """The findings in the sampled rollouts of a task, whose rewards took `reward_s`. Where `limit` is below that of a
    step, completions that were cut off say nothing.
    """
    own = task.max_tokens or config.max_tokens
    if task.episode is not None:
        yield from context_findings(name, [one.prompt_length for one in played.rollouts], own, engine.context_length)
    if played.failures:
        require(
            any(one.reward is not None for one in played.rollouts) or not played.rollouts,
            f"every reward of {name} failed in the preflight, {len(played.failures)} of {len(played.failures)}, the "
            f"first with: {_reason(played.failures[0])}; fix the task's reward, or where a turn has no room give "
            "shorter prompts or a longer context (--no-preflight begins all the same)",
        )
        yield (
            f"{len(played.failures)} of {len(played.rollouts) + len(played.lost)} rewards failed, the first with: "
            f"{_reason(played.failures[0])}; fix the task's reward"
        )
    yield from rollout_findings([one for one in played.rollouts if limit == own or not one.truncated], policy, own)
    per_reward = reward_s / max(1, len(played.rollouts))
    if per_reward > SLOW_REWARD_S:
        yield (
            f"a reward takes {per_reward:.1f} s: it will dominate each step; raise --reward-workers or make it faster"
        )


def best_and_worst(policy: Policy, name: str, rollouts: Sequence[Rollout]) -> list[str]:
    """Lines that show one prompt as the model sees it, that whose rewards differ most, with its best and its worst
    completion and the parts of their rewards. Nothing where no completion was scored.
    """
    groups: dict[int, list[tuple[float, Rollout]]] = {}
    for one in rollouts:
        if one.reward is not None:
            groups.setdefault(one.group, []).append((one.reward.value, one))
    ranked = [sorted(group, key=lambda pair: pair[0]) for group in groups.values()]
    if not ranked:
        return []
    group = max(ranked, key=lambda pairs: pairs[-1][0] - pairs[0][0])
    prompt = group[0][1].ids[: group[0][1].prompt_length]
    lines = [f"a prompt of {name} as the model sees it, {len(prompt)} tokens:", *shown(policy, prompt)]
    for which, (value, one) in zip(("best", "worst"), (group[-1], group[0])[: len(group)], strict=False):
        parts = ", ".join(f"{part} {paid:.4g}" for part, paid in (one.reward.parts if one.reward else {}).items())
        lines.append(f"the {which} of its {len(group)} completions, reward {value:.4g}{f' ({parts})' * bool(parts)}:")
        lines += shown(policy, one.ids[one.prompt_length :])
    return lines


def shown(policy: Policy, ids: list[int]) -> list[str]:
    """The text of ids with their special tokens, indented."""
    return [f"    {line}" for line in cut(policy.decode_all(ids), SHOWN).split("\n")]


def rollout_findings(rollouts: Sequence[Rollout], policy: Policy, max_tokens: int) -> Iterator[str]:
    """Findings in completions and their rewards."""
    truncated = sum(rollout.truncated for rollout in rollouts) / max(1, len(rollouts))
    ended = [r for r in rollouts if not r.truncated or policy.stop_ids & set(r.ids[r.prompt_length :])]
    if rollouts and not ended:
        yield (
            f"no completion produced an end token {sorted(policy.stop_ids)} in {max_tokens} tokens: raise --max-tokens "
            "if answers are longer; if they are not, the model may not be tuned for this chat template: choose an "
            "instruction-tuned model, or name what ends an answer with --stop-strings"
        )
    elif truncated > TRUNCATED_SHARE:
        yield (
            f"{truncated:.0%} of the completions were cut off at {max_tokens} tokens: raise --max-tokens if right "
            "answers need more; where short ones are rewarded, training shortens them"
        )
    values = {rollout.reward.value for rollout in rollouts if rollout.reward is not None}
    if len(values) == 1:
        yield (
            f"every completion was rewarded {values.pop():g}: nothing can be learned from equal rewards; choose an "
            "easier task or a stronger model, raise --temperature, or check the reward"
        )


def _reason(failure: str) -> str:
    """The last line of a failure, and the last place in code, of a task from outside in its own, that led to it."""
    places = re.findall(r'File "(.+)", line (\d+)', failure)
    outside = [place for place in places if not Path(place[0]).is_relative_to(PACKAGE)]
    where = [":".join(place) for place in (outside or places)[-1:]]
    return failure.strip().splitlines()[-1] + "".join(f" ({place})" for place in where)


# Time and memory, from what was sampled


@torch.no_grad()
def forward_s(policy: Policy, rollouts: Sequence[Rollout], micro_batch_tokens: int) -> float:
    """Seconds of a forward pass of the rollouts."""
    started = time.perf_counter()
    for part in policy.micro_batches(rollouts, range(len(rollouts)), micro_batch_tokens):
        policy.score(pack(rollouts, part).to(policy.device), 1.0)
    return time.perf_counter() - started


def estimate(
    policy: Policy, tasks: Mapping[str, Task], sampled: Mapping[str, Sampled], config: TrainerConfig, resident: int
) -> str:
    """A line on the time and memory that the run is expected to take, with completions as long as the sampled ones.
    What was cut off early is taken to fill the run's own limit.
    """
    settings, step_s, evaluation_s, tokens = config, 0.0, 0.0, 0.0
    count = policy.processes.split(settings.prompts_per_step) * settings.group_size / len(tasks)
    passes = UPDATE_PASSES * config.passes_per_step
    for name, (rollouts, limit, seconds) in sampled.items():
        if not rollouts:
            continue
        own = tasks[name].max_tokens or config.max_tokens
        grows = [own / limit if one.truncated else 1.0 for one in rollouts]
        each = sum(grows) / len(rollouts) ** 2
        step_s += count * each * (seconds + passes * forward_s(policy, rollouts, config.micro_batch_tokens))
        tokens += count * each * sum(len(one.ids) for one in rollouts)
        held_out = min(len(tasks[name].dataset.held_out), config.eval_examples)
        if held_out:
            evaluation_s += held_out * (samples_of(held_out, config) + 1) * each * seconds
    evaluations = config.eval_first + evaluations_after(0, config.steps, config)
    whole = config.steps * step_s + evaluations * evaluation_s
    memory = resident + sum(held_bytes(policy, config, int(tokens)).values())
    return (
        f"about {duration(step_s)} a step, {duration(evaluation_s)} an evaluation, {duration(whole)} in all, and "
        f"{memory / 2**30:.1f} GiB of memory"
    )


def duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> duration(2.6), duration(89.0), duration(200.0), duration(20000.0)
    ('2.6 s', '89 s', '3 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


# Memory and disk, by calculation


def held_bytes(policy: Policy, config: TrainerConfig, tokens: int) -> dict[str, float]:
    """Estimate of what a process holds beside what is loaded while it trains on so many tokens. Bytes of activations
    are the policy's own measurement.
    """
    processes, sharding = policy.processes, config.sharding
    weights = list(master_weights(policy.model).values())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    full = sum(weight.numel() for weight in weights if weight.dtype == torch.float32)
    shards = {"none": 1, "full": processes.count, "hybrid": processes.local_count}[sharding]
    activations = policy.activation_bytes_of(min(tokens, config.micro_batch_tokens), min(tokens, config.max_tokens))
    layers, recompute = layers_of(decoder_of(policy.model)), config.activation_checkpointing
    if recompute == "always" or (recompute == "auto" and activations > LARGEST_SHARE * policy.free_memory()):
        activations *= 2 / max(2, len(layers))  # the inputs of all layers, and what one layer keeps
    return {
        "gradients": 4 * trained / shards,
        "moments": MOMENT_BYTES[config.optimizer] * trained / shards,
        "casts": 2 * full / shards if processes.dtype == torch.bfloat16 else 0,
        "activations": activations,
    }


def memory_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether what a process will hold fits in its free memory; the weights are loaded already."""
    rows = policy.processes.split(config.prompts_per_step * config.group_size)
    need, free = sum(held_bytes(policy, config, rows * config.max_tokens).values()), policy.free_memory()
    if policy.device.type == "cuda":
        free += returned_bytes(policy, config)
    if need >= free:
        yield (
            f"training needs about {_size(int(need))} beside the loaded weights, and {_size(free)} are free: try "
            "--micro-batch-tokens 1024, --optimizer adamw8bit, --lora-rank 16, or --sharding full in more processes, "
            "or choose a smaller model (docs/runs.md)"
        )


def returned_bytes(policy: Policy, config: TrainerConfig) -> int:
    """Bytes of the GPU that vLLM in this process has taken and gives back while the policy trains."""
    if config.engine == "vllm-server" or not config.engine_sleep or not takes_vllm(config, "cuda"):
        return 0
    whole = config.engine_memory_frac * torch.cuda.mem_get_info(policy.device)[1]
    return max(0, int(whole) - policy.processes.dtype.itemsize * policy.num_weights)


def checkpoint_bytes(policy: Policy, config: TrainerConfig) -> int:
    """Approximate bytes of a checkpoint: the weights, and the moments of the trained ones."""
    counts = {weight: weight.numel() for weight in master_weights(policy.model).values()}
    trained = sum(count for weight, count in counts.items() if weight.requires_grad)
    saved = trained if config.lora_checkpoint == "adapter" else sum(counts.values())
    return 4 * saved + MOMENT_BYTES[config.optimizer] * trained


def require_room(policy: Policy, config: TrainerConfig, folder: Path) -> None:
    """Refuse a run without room for one checkpoint."""
    needed, free = checkpoint_bytes(policy, config), free_bytes(folder)
    require(
        needed < free,
        f"a checkpoint takes about {_size(needed)} and {folder} has {_size(free)} free: make room there, or name "
        "another disk with --checkpoints-dir",
    )


def disk_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the kept checkpoints fit on the disk, with the one that is written before the oldest is removed."""
    settings = config
    saves = math.ceil(config.steps / settings.save_every) if settings.save_every else 1
    count = min(saves, settings.keep_checkpoints + 1) if settings.keep_checkpoints else saves
    count += settings.keep_best
    needed, free = count * checkpoint_bytes(policy, config), free_bytes(Path(settings.checkpoints_dir))
    if needed >= free:
        yield (
            f"{count} checkpoints take about {_size(needed)} and {settings.checkpoints_dir} has {_size(free)} free: "
            "keep fewer with --keep-checkpoints, or name another disk with --checkpoints-dir"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
