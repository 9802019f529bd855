"""Checks before step 1, each finding in one line with how to fix it, as soon as it is known.

What needs no completion comes first. Then rollouts of training examples, drawn with the run's seed, are sampled and
rewarded: at most as many tokens as a default step of a model of this size, so that it takes no longer than that. A
reward that fails for all of them ends the run.
"""

import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from loguru import logger

import minrl
from minrl.batch import pack
from minrl.config import EvaluationConfig, TrainerConfig
from minrl.engines import Engine
from minrl.evaluation import evaluations_after, samples_of
from minrl.models.cpu import resident_bytes
from minrl.models.scoring import sampled_rollout
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.run.defaults import OWN_BASE, num_text, rates_for, sizes_for
from minrl.run.room import disk_findings, expected_bytes, memory_findings, save_findings
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import refuse_mistakes
from minrl.types import Example, Rollout, UserError, require
from minrl.utils.console import duration
from minrl.utils.statistics import wilson
from minrl.utils.task_names import task_key

PACKAGE = Path(minrl.__file__ or "").parent
MEASURED = 512
"""Examples of each split whose prompts and shortest answers are measured."""
FEW_SAMPLED = 8
"""Examples that are sampled of a task whose rewards take time."""
SLOW_REWARD_S = 1.0
NO_ROOM = "has no room: "
"""In the failure of an episode whose turn does not fit into the context."""
FEW_HELD_OUT = 20
TRUNCATED_SHARE = 0.1
"""Largest share of completions that may be cut off: their reward says nothing about their answer."""
LONG_STEP_S = 600.0
SHORT_STREAM = 64
"""Tokens by which the time of a forward pass is measured before anything is sampled."""
SAMPLING_PASSES = 2.0
"""Forward passes that take as long as to sample, token by token."""
UPDATE_PASSES = 3.0
"""Forward passes without gradient that take as long as an update's forward and backward pass (measured: 2.5 to 4)."""


def leave_out_unusable(policy: Policy, engine: Engine, name: str, task: Task) -> Task:
    """The task without the examples whose prompts are empty or leave no room for a completion; reports their number.

    The first prompt of an episode of the task's own is known when it is played. If it does not fit, it is unscorable.
    """
    if task.episode is not None:
        return task
    splits, limit = {"training": task.dataset.train, "held-out": task.dataset.held_out}, engine.context_length
    kept = {split: [one for one in of_it if policy.fits(one.prompt, limit)] for split, of_it in splits.items()}
    left_out = []
    for split, whole in splits.items():
        if len(kept[split]) < len(whole):
            left_out.append(f"{len(whole) - len(kept[split])} of {len(whole)} {split}")
            require(
                bool(kept[split]),
                f"no {split} example of {name} leaves room for a completion in the {limit} tokens that the model "
                "takes behind a prompt that is not empty: choose others, or a longer context (another model; "
                "--engine-context-length)",
            )
    if not left_out:
        return task
    logger.warning(
        f"{name}: {' and '.join(left_out)} examples are left out: their prompts are empty, or alone fill the {limit} "
        "tokens that the model takes"
    )
    return replace(task, dataset=Dataset(kept["training"], kept["held-out"], task.dataset.key))


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
    members = {key or task_key(config.rollout.task): member for key, member in task.members.items()}
    several = "" not in task.members
    yield from rate_findings(policy, config)
    for findings in (memory_findings, save_findings, disk_findings):
        yield from findings(policy, config)
    for name, member in members.items():
        yield from _of(name, several, dataset_findings(policy, engine, name, member, config))
    yield from time_findings(policy, config)
    for name, member in members.items():
        examples, plan = sampled_as(policy, name, member, config, len(members))
        workers.take_seconds()
        started = time.perf_counter()
        played = rollout(policy, engine, workers, member, examples, plan)
        sampled[name] = Sampled(played.rollouts, plan.max_tokens, time.perf_counter() - started)
        refuse_mistakes(played.failures)
        require_a_reward(name, played)
        reward_s = max(policy.processes.gather([workers.take_seconds()]))
        found = sample_findings(policy, engine, name, member, played, plan.max_tokens, reward_s, config)
        yield from _of(name, several, found)
    if policy.device.type == "cpu":
        logger.info(f"preflight: {estimate(policy, members, sampled, config, resident)}")


def _of(name: str, several: bool, findings: Iterable[str]) -> Iterator[str]:
    """Findings of a task; of one of several with its name and the flag that sets its own limit."""
    for finding in findings:
        named = re.sub(r"--max-tokens(?: (\d+))?", lambda flag: f"--task-max-tokens {name}:{flag[1] or 'N'}", finding)
        alone = re.search(rf"(^|of ){re.escape(name)} ", finding)
        yield finding if not several else named if alone else f"{name}: {named}"


def sampled_as(
    policy: Policy, name: str, task: Task, config: TrainerConfig, num_tasks: int
) -> tuple[list[Example], Plan]:
    """The examples that are sampled of a task, and how: as in a step, but with at most as many tokens as a default step
    of a model of this size, in completions of at most twice its limit. Never by timing: all processes take the same.
    """
    settings = config.rollout
    usual = sizes_for(policy.num_weights, policy.device.type == "cuda")
    limit = min(config.limit_of(name), 2 * usual.max_tokens)
    most = max(1, usual.prompts_per_step * usual.group_size * usual.max_tokens // (num_tasks * limit))
    group_size = min(settings.group_size, most)
    count = min(most // group_size, settings.prompts_per_step if task.cheap else FEW_SAMPLED)
    plan = Plan(
        *(group_size, limit, settings.temperature, config.seed, "preflight", 0), stop_strings=settings.stop_strings
    )
    return drawn(task.dataset.train, MEASURED, config.seed)[:count], plan


def drawn(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """At most so many of the examples, at random: neighbours in a file are alike."""
    return random.Random(seed).sample(list(examples), min(count, len(examples)))


def rate_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether the learning rate is far from the default for the size of the model and for what is trained. Adapters of
    large models are trained at up to 1e-3.
    """
    weights = policy.num_weights if config.model.model_id else OWN_BASE
    rate, adapted = config.optimizer.learning_rate, config.lora.lora_rank > 0
    usual = rates_for(weights)[adapted]
    trained = f"{'adapters of a model of' if adapted else 'all'} {num_text(weights)} weights"
    found = f"{trained} are trained at a learning rate of {rate:g}, where {usual:g} is usual"
    if rate < usual / 10:
        yield f"{found}: little will be learned; raise it, such as to --learning-rate {usual:g}"
    if rate > max(10.01 * usual, 1e-3 * adapted):  # 10 * 1e-6 is rounded to below 1e-5
        yield f"{found}: the model may be destroyed; lower it, such as to --learning-rate {usual:g}"


def dataset_findings(policy: Policy, engine: Engine, name: str, task: Task, config: TrainerConfig) -> Iterator[str]:
    """The findings of a task's examples: how many there are, and whether prompts and answers have room."""
    held_out, limit = len(task.dataset.held_out), config.limit_of(name)
    if held_out < FEW_HELD_OUT:
        yield (
            f"{name} has {held_out} held-out examples: with fewer than {FEW_HELD_OUT} the interval of the score says "
            "little; give the task more examples, or hold out a larger share"
        )
    yield from end_findings(config.evaluation, held_out)
    splits = [drawn(examples, MEASURED, config.seed) for examples in (task.dataset.train, task.dataset.held_out)]
    for examples in splits:
        yield from answer_findings(policy, name, task, examples, limit)
    if task.episode is None:
        prompts = [len(policy.encode_prompt(example.prompt)) for examples in splits for example in examples]
        yield from context_findings(name, prompts, limit, engine.context_length)


def end_findings(config: EvaluationConfig, held_out: int) -> Iterator[str]:
    """Whether a policy that solves every example would end the run by --stop-at."""
    examples = min(held_out, config.eval_examples)
    low, _ = wilson(examples, examples)
    if config.stop_at > low:
        yield (
            f"--stop-at {config.stop_at:g} may never be reached: where all of {examples} held-out examples are solved, "
            f"the lower bound of pass@1 is {low:.3f}; give less, or evaluate more (--eval-examples)"
        )


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


def time_findings(policy: Policy, config: TrainerConfig) -> Iterator[str]:
    """Whether a step takes long on a CPU if completions are as long as they may be."""
    settings = config.rollout
    if policy.device.type != "cpu":
        return
    rollouts = settings.prompts_per_step * settings.group_size
    tokens = policy.processes.split(rollouts) * settings.longest
    passes = SAMPLING_PASSES + UPDATE_PASSES * config.algorithm.passes_per_step
    short = sampled_rollout([0], [0] * SHORT_STREAM)
    seconds = passes * tokens * forward_s(policy, [short], SHORT_STREAM) / SHORT_STREAM
    if seconds > LONG_STEP_S:
        yield (
            f"a step of {rollouts} completions of up to {settings.longest} tokens takes up to about "
            f"{duration(seconds)} with {num_text(policy.num_weights)} weights on this CPU: sample less "
            "(--prompts-per-step, --group-size, --max-tokens), or choose a smaller model or a machine with a GPU"
        )


@torch.no_grad()
def forward_s(policy: Policy, rollouts: Sequence[Rollout], micro_batch_tokens: int) -> float:
    """Seconds of a forward pass of the rollouts."""
    started = time.perf_counter()
    for part in policy.micro_batches(rollouts, range(len(rollouts)), micro_batch_tokens):
        policy.score(pack(rollouts, part).to(policy.device), 1.0)
    return time.perf_counter() - started


def require_a_reward(name: str, sampled: Rollouts) -> None:
    """Raise `UserError` if every reward failed."""
    if sampled.failures and all(one.reward is None for one in sampled.rollouts):
        reason = _reason(sampled.failures[0])
        fix = "give shorter prompts, or a longer context" if NO_ROOM in reason else "fix the task's reward"
        raise UserError(
            f"every reward of {name} failed in the preflight, {len(sampled.failures)} of {len(sampled.failures)}, the "
            f"first with: {reason}; {fix} (--no-preflight begins all the same)"
        )


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
    rollouts, own = played.rollouts, config.limit_of(name)
    if task.episode is not None:
        yield from context_findings(name, [one.prompt_length for one in rollouts], own, engine.context_length)
    if played.failures:
        yield (
            f"{len(played.failures)} of {len(rollouts) + len(played.lost)} rewards failed, the first with: "
            f"{_reason(played.failures[0])}; fix the task's reward"
        )
    yield from rollout_findings([one for one in rollouts if limit == own or not one.truncated], policy, own)
    per_reward = reward_s / max(1, len(rollouts))
    if per_reward > SLOW_REWARD_S:
        yield (
            f"a reward takes {per_reward:.1f} s: it will dominate each step; raise --reward-workers or make it faster"
        )


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


def estimate(
    policy: Policy, tasks: Mapping[str, Task], sampled: Mapping[str, Sampled], config: TrainerConfig, resident: int
) -> str:
    """A line on the time and memory that the run is expected to take, with completions and groups that teach as the
    sampled ones. What was cut off early is taken to fill the run's own limit.
    """
    settings, forward, tokens, rollout_s, evaluation_s = config.rollout, 0.0, 0.0, 0.0, 0.0
    count = policy.processes.split(settings.prompts_per_step) * settings.group_size / len(tasks)
    for name, (rollouts, limit, seconds) in sampled.items():
        if not rollouts:
            continue
        rewards: dict[int, set[object]] = {}
        for one in rollouts:
            rewards.setdefault(one.group, set()).add(one.reward and one.reward.value)
        taught = [one for one in rollouts if len(rewards[one.group]) > 1]
        grows = [config.limit_of(name) / limit if one.truncated else 1.0 for one in rollouts]
        each = sum(grows) / len(rollouts) ** 2
        rollout_s += count * each * seconds
        forward += count * each * forward_s(policy, taught, config.optimizer.micro_batch_tokens)
        prompts = {one.group: one.prompt_length for one in rollouts}
        tokens += count * each * (sum(prompts.values()) + sum(one.num_sampled for one in rollouts))
        held_out = min(len(tasks[name].dataset.held_out), config.evaluation.eval_examples)
        evaluation_s += held_out * (samples_of(held_out, config.evaluation) + 1) * each * seconds
    update_s = UPDATE_PASSES * config.algorithm.passes_per_step * forward
    evaluations = config.evaluation.eval_first + evaluations_after(0, config.steps, config.evaluation)
    whole = config.steps * (rollout_s + update_s) + evaluations * evaluation_s
    memory = resident + expected_bytes(policy, config, int(tokens))
    return (
        f"about {duration(rollout_s + update_s)} a step, {duration(evaluation_s)} an evaluation, {duration(whole)} in "
        f"all, and {memory / 2**30:.1f} GiB of memory"
    )


def _reason(failure: str) -> str:
    """The last line of a failure, and the last place in code, of a task from outside in its own, that led to it."""
    places = re.findall(r'File "(.+)", line (\d+)', failure)
    outside = [place for place in places if not Path(place[0]).is_relative_to(PACKAGE)]
    where = [":".join(place) for place in (outside or places)[-1:]]
    return failure.strip().splitlines()[-1] + "".join(f" ({place})" for place in where)
