"""Checks before step 1, each finding in one line with how to fix it, as soon as it is known.

What needs no completion comes first: learning rate, memory, disk, held-out examples, lengths of answers. Then a few
training examples of each task are sampled and rewarded as in a step. A reward that fails for all of them ends the run.
"""

import math
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from loguru import logger

from minrl.batch import pack
from minrl.config import TrainerConfig
from minrl.dataflow import Example, Rollout, TrainState, require, same_reward
from minrl.engines import Engine, takes_vllm
from minrl.evaluate.statistics import shares
from minrl.evaluation import samples_of
from minrl.models.cpu import resident_bytes
from minrl.models.scoring import LARGEST_SHARE
from minrl.models.sharding import named_weights
from minrl.models.structure import decoder_of, layers_of
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Rollouts, rollout
from minrl.run.records import PACKAGE
from minrl.run.sizes import OWN_BASE, num_text, rates_for
from minrl.sampling import training_plan
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import equal_parts, refuse_mistakes
from minrl.utils.files import free_bytes
from minrl.utils.task_names import task_key
from minrl.utils.text import cut, end_of

MEASURED = 512
"""Examples of each task whose shortest answers are measured, at most."""
SAMPLED = 8
"""Examples of each task that are sampled, at most."""
FEW_HELD_OUT = 20
SHOWN = 400
"""Characters of a prompt and of a completion that are shown."""
TRUNCATED_SHARE = 0.1
"""Largest share of completions that may be cut off: their reward says nothing about their answer."""
MOMENT_BYTES = {"adamw": 8, "adamw8bit": 2}
"""Bytes of both moments of a weight, in memory and in a checkpoint."""
UPDATE_PASSES = 3.0
"""Forward passes without gradient that take as long as an update's forward and backward pass (measured: 2.5 to 4)."""


class Sampled(NamedTuple):
    """The rollouts of so many examples of a task, and how long they took."""

    examples: int
    rollouts: list[Rollout]
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
        held_out, train = len(member.dataset.held_out), member.dataset.train
        if 0 < held_out < FEW_HELD_OUT:
            yield (
                f"{name} has {held_out} held-out examples: with fewer than {FEW_HELD_OUT} the interval of the score "
                "says little; give the task more examples, or hold out a larger share"
            )
        rng, limit = random.Random(config.seed), member.max_tokens or config.max_tokens
        both = [*train, *member.dataset.held_out]
        measured = rng.sample(both, min(MEASURED, len(both)))
        yield from answer_findings(policy, name, member, measured, limit)
        chosen = rng.sample(list(train), min(SAMPLED, config.prompts_per_step, len(train)))
        plan, started = replace(training_plan(config, TrainState()), purpose="preflight"), time.perf_counter()
        played = rollout(policy, engine, workers, member, chosen, plan)
        sampled[name] = Sampled(len(chosen), played.rollouts, time.perf_counter() - started)
        refuse_mistakes(played.failures)
        if lines := best_and_worst(policy, name, played.rollouts):
            logger.info("\n".join(lines))
        for finding in sample_findings(policy, name, played, limit):
            yield finding if len(members) == 1 else f"{name}: {finding}"
    if policy.device.type == "cpu":
        logger.info(f"preflight: {estimate(policy, members, sampled, config, resident)}")


def leave_out_unusable(policy: Policy, engine: Engine, name: str, task: Task) -> Task:
    """The task without the examples whose prompts are empty or leave no room for a completion; reports their number.

    The first prompt of an episode of the task's own is known when it is played. If it does not fit, it is unscorable.
    """
    if task.episode is not None:
        return task
    limit, splits = engine.context_length, (task.dataset.train, task.dataset.held_out)
    train, held_out = ([one for one in split if policy.fits(one.prompt, limit)] for split in splits)
    count, left = sum(map(len, splits)), len(train) + len(held_out)
    if left == count:
        return task
    require(
        bool(train or not splits[0]) and bool(held_out or not splits[1]),
        f"no training or no held-out example of {name} leaves room for a completion in the {limit} tokens that the "
        "model takes behind a prompt that is not empty: choose others, or a longer context (another model; "
        "--engine-context-length)",
    )
    logger.warning(
        f"{name}: {count - left} of {count} examples are left out: their prompts are empty, or alone fill the {limit} "
        "tokens that the model takes"
    )
    return replace(task, dataset=Dataset(train, held_out, task.dataset.key))


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


def held_bytes(policy: Policy, config: TrainerConfig, tokens: int) -> dict[str, float]:
    """Estimate of what a process holds beside what is loaded while it trains on so many tokens. Bytes of activations
    are the policy's own measurement.
    """
    processes = policy.processes
    weights = list(named_weights(policy.model).values())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    full = sum(weight.numel() for weight in weights if weight.dtype == torch.float32)
    shards = {"none": 1, "full": processes.count, "hybrid": processes.local_count}[config.sharding]
    activations = policy.activation_bytes_of(min(tokens, config.micro_batch_tokens), config.max_tokens)
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
            f"training needs about {_size(need)} beside the loaded weights, and {_size(free)} are free: try "
            "--micro-batch-tokens 1024, --optimizer adamw8bit, --lora-rank 16, or --sharding full in more processes, "
            "or choose a smaller model (docs/models.md)"
        )


def returned_bytes(policy: Policy, config: TrainerConfig) -> int:
    """Bytes of the GPU that vLLM in this process has taken and gives back while the policy trains."""
    if config.engine == "vllm-server" or not config.engine_sleep or not takes_vllm(config, "cuda"):
        return 0
    whole = config.engine_memory_frac * torch.cuda.mem_get_info(policy.device)[1]
    return max(0, int(whole) - policy.processes.dtype.itemsize * policy.num_weights)


def disk_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the kept checkpoints fit on the disk, with the one that is written before the oldest is removed."""
    counts = {weight: weight.numel() for weight in named_weights(policy.model).values()}
    trained = sum(count for weight, count in counts.items() if weight.requires_grad)
    saved = trained if config.lora_checkpoint == "adapter" else sum(counts.values())
    saves = math.ceil(config.steps / config.save_every) if config.save_every else 1
    count = min(saves, config.keep_checkpoints + 1) if config.keep_checkpoints else saves
    count += config.keep_best
    needed = count * (4 * saved + MOMENT_BYTES[config.optimizer] * trained)
    free = free_bytes(Path(config.checkpoints_dir))
    if needed >= free:
        yield (
            f"{count} checkpoints take about {_size(needed)} and {config.checkpoints_dir} has {_size(free)} free: "
            "keep fewer with --keep-checkpoints, or name another disk with --checkpoints-dir"
        )


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


# Completions and their rewards


def answer_findings(
    policy: Policy, name: str, task: Task, examples: Sequence[Example], max_tokens: int
) -> Iterator[str]:
    """Whether solutions fit in a completion, if the task knows them."""
    answers = [text for example in examples if task.solution is not None and (text := task.solution(example))]
    if not answers:
        return
    needed = [len(ids) + 1 for ids in policy.tokenizer(answers, add_special_tokens=False)["input_ids"]]  # 1: the end
    too_long = sum(count > max_tokens for count in needed)
    if too_long:
        yield (
            f"{too_long} of {len(needed)} examples of {name} have no answer of {max_tokens} tokens or less, written as "
            f"its solutions are: set --max-tokens {max(needed)}, or choose easier examples"
        )


def sample_findings(policy: Policy, name: str, played: Rollouts, max_tokens: int) -> Iterator[str]:
    """The findings in the sampled rollouts of a task."""
    rollouts, failures = played.rollouts, played.failures
    if failures:
        first = _reason(failures[0])
        require(
            any(one.reward is not None for one in rollouts) or not rollouts,
            f"every reward of {name} failed in the preflight, {len(failures)} of {len(failures)}, the first with: "
            f"{first}; fix the task's reward, or where a turn has no room give shorter prompts or a longer context "
            "(--no-preflight begins all the same)",
        )
        yield (
            f"{len(failures)} of {len(rollouts) + len(played.lost)} rewards failed, the first with: {first}; fix the "
            "task's reward"
        )
    yield from tool_findings(name, rollouts)
    yield from equal_parts([one.reward for one in rollouts if one.reward is not None])
    truncated = sum(one.truncated for one in rollouts) / max(1, len(rollouts))
    if rollouts and not any(
        not one.truncated or policy.stop_ids & set(one.ids[one.prompt_length :]) for one in rollouts
    ):
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
    values = [one.reward.value for one in rollouts if one.reward is not None]
    if len(values) > 1 and same_reward(max(values), min(values)):
        is_text = isinstance(rollouts[0].message, str) and policy.tokenizer.chat_template
        chat = "; the prompts are texts, and this model may expect a chat: give the task's system=" if is_text else ""
        yield (
            f"every completion was rewarded {values[0]:g}: nothing can be learned from equal rewards; choose an "
            f"easier task or a stronger model, raise --temperature, or check the reward{chat}"
        )


def tool_findings(name: str, rollouts: Sequence[Rollout]) -> Iterator[str]:
    """Whether no role called a tool that it has."""
    parts = [one.reward.parts for one in rollouts if one.reward is not None]
    if parts and all(own.get("tool_calls") == 0 for own in parts):
        yield (
            f"no completion of {name} called a tool: if the prompt above shows them, train the model first on "
            "conversations that call them, with minrl sft (docs/tools.md)"
        )


def _reason(failure: str) -> str:
    """The last line of a failure, and the last place in code, of a task from outside in its own, that led to it."""
    places = re.findall(r'File "(.+)", line (\d+)', failure)
    outside = [place for place in places if not Path(place[0]).is_relative_to(PACKAGE)]
    where = [":".join(place) for place in (outside or places)[-1:]]
    return end_of(failure) + "".join(f" ({place})" for place in where)


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


# Time


@torch.no_grad()
def forward_s(policy: Policy, rollouts: Sequence[Rollout], config: TrainerConfig) -> float:
    """Seconds of a forward pass of the rollouts."""
    started = time.perf_counter()
    for part in policy.micro_batches(rollouts, range(len(rollouts)), config.micro_batch_tokens):
        policy.score(pack(rollouts, part).to(policy.device), 1.0)
    return time.perf_counter() - started


def estimate(
    policy: Policy, tasks: Mapping[str, Task], sampled: Mapping[str, Sampled], config: TrainerConfig, resident: int
) -> str:
    """A line on the time and memory that the run is expected to take, with completions as long as the sampled ones.
    Each task has its share of a step, and each process its share of an update.
    """
    step_s, evaluation_s, tokens, processes = 0.0, 0.0, 0.0, policy.processes.count
    for name, share in shares(config.task_weights).items():
        examples, rollouts, seconds = sampled[name]
        passes = UPDATE_PASSES * config.passes_per_step / processes
        scale = share * config.prompts_per_step / examples
        step_s += scale * (seconds + passes * forward_s(policy, rollouts, config))
        tokens += scale * sum(len(one.ids) for one in rollouts) / processes
        held_out = min(len(tasks[name].dataset.held_out), config.eval_examples)
        if held_out:
            completions = held_out * (samples_of(held_out, config) + 1)
            evaluation_s += completions * seconds / (examples * config.group_size)
    evaluations = config.eval_first + math.ceil(config.steps / (config.eval_every or config.steps))
    whole = config.steps * step_s + evaluations * evaluation_s
    memory = resident + sum(held_bytes(policy, config, int(tokens)).values())
    step, evaluation, run = (timedelta(seconds=math.ceil(seconds)) for seconds in (step_s, evaluation_s, whole))
    return f"about {step} a step, {evaluation} an evaluation, {run} in all, and {memory / 2**30:.1f} GiB of memory"
