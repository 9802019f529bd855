"""Checks before step 1.

A few training examples, drawn with the run's seed, are sampled and rewarded. Each finding is one line: what is wrong
and how to mend it. A reward that fails for all of them ends the run.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loguru import logger

import minrl
from minrl.config import EvaluationConfig, TrainerConfig, task_key
from minrl.engines import Engine
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.run.room import disk_findings, memory_findings, save_findings
from minrl.run.step_time import time_findings
from minrl.statistics.intervals import wilson
from minrl.tasks import Dataset, Task
from minrl.tasks.checked import refuse_mistakes
from minrl.types import Example, Rollout, UserError, require

PACKAGE = Path(minrl.__file__ or "").parent
EXAMPLES = 8
MEASURED = 512
"""Examples of each split whose prompts and shortest answers are measured."""
SLOW_REWARD_S = 1.0
NO_ROOM = "has no room: "
"""In the failure of an episode whose turn does not fit into the context."""
FEW_HELD_OUT = 20
TRUNCATED_SHARE = 0.1
"""Largest share of completions that may be cut off: their reward says nothing about their answer."""
SMALL_MODEL, LARGE_MODEL = 10**7, 10**8
"""Weights up to which a model is small, as the one that MinRL makes, and from which it is large."""
RATES = {
    # large, adapters: the lowest, a usual and the highest learning rate
    (True, False): (1e-7, 1e-6, 1e-5),
    (True, True): (1e-6, 1e-5, 1e-3),
    (False, False): (3e-5, 3e-4, 3e-3),
    (False, True): (3e-4, 3e-3, 3e-2),
}
"""A tenth and ten times the defaults of minrl.config.defaults. Adapters of large models are trained at up to a hundred
times: what is best for them varies more."""


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


def end_findings(config: EvaluationConfig, held_out: int) -> list[str]:
    """Whether a policy that solves every example would end the run by --stop-at."""
    examples = min(held_out, config.eval_examples)
    low, _ = wilson(examples, examples)
    if config.stop_at <= low:
        return []
    return [
        f"--stop-at {config.stop_at:g} may never be reached: where all of {examples} held-out examples are solved, the "
        f"lower bound of pass@1 is {low:.3f}; give less, or evaluate more (--eval-examples)"
    ]


def preflight(policy: Policy, engine: Engine, workers: Workers, task: Task, config: TrainerConfig) -> list[str]:
    """Findings, one line each; empty when all is well. Raises `UserError` if no completion could be rewarded."""
    findings = memory_findings(policy, config) + time_findings(policy, config)
    findings += save_findings(policy, config) + disk_findings(policy, config) + rate_findings(policy, config)
    for key, member in task.members.items():
        of_it = task_findings(policy, engine, workers, key or task_key(config.rollout.task), member, config)
        findings += [_of_one(key, finding) if key else finding for finding in of_it]
    return findings


def _of_one(key: str, finding: str) -> str:
    """A finding of one of several tasks, with the flag that sets its own limit."""
    named = re.sub(r"--max-tokens(?: (\d+))?", lambda flag: f"--task-max-tokens {key}:{flag[1] or 'N'}", finding)
    return named if re.search(rf"(^|of ){re.escape(key)} ", finding) else f"{key}: {named}"


def task_findings(
    policy: Policy, engine: Engine, workers: Workers, name: str, task: Task, config: TrainerConfig
) -> list[str]:
    """The findings of a task: its examples, answers and rewards."""
    settings, max_tokens, findings = config.rollout, config.limit_of(name), list[str]()
    limits = settings.group_size, max_tokens, settings.temperature
    plan = Plan(*limits, config.seed, "preflight", 0, stop_strings=settings.stop_strings)
    held_out = len(task.dataset.held_out)
    if held_out < FEW_HELD_OUT:
        findings.append(
            f"{name} has {held_out} held-out examples: with fewer than {FEW_HELD_OUT} the interval of the score says "
            "little; give the task more examples, or hold out a larger share"
        )
    findings += end_findings(config.evaluation, held_out)
    splits = [drawn(examples, MEASURED, config.seed) for examples in (task.dataset.train, task.dataset.held_out)]
    for examples in splits:
        findings += answer_findings(policy, name, task, examples, max_tokens)
    workers.take_seconds()
    sampled = rollout(policy, engine, workers, task, splits[0][:EXAMPLES], plan)
    refuse_mistakes(sampled.failures)
    prompts = [one.prompt_length for one in sampled.rollouts]
    if task.episode is None:
        prompts = [len(policy.encode_prompt(example.prompt)) for examples in splits for example in examples]
    findings += context_findings(name, prompts, max_tokens, engine.context_length)
    require_a_reward(name, sampled)
    findings += rollout_findings(sampled.rollouts, sampled.failures, policy, max_tokens, len(sampled.lost))
    per_reward = max(policy.processes.gather([workers.take_seconds()])) / max(1, len(sampled.rollouts))
    if per_reward > SLOW_REWARD_S:
        findings.append(
            f"a reward takes {per_reward:.1f} s: it will dominate each step; raise --reward-workers or make it faster"
        )
    return findings


def drawn(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """At most so many of the examples, at random: neighbours in a file are alike."""
    return random.Random(seed).sample(list(examples), min(count, len(examples)))


def require_a_reward(name: str, sampled: Rollouts) -> None:
    """Raise `UserError` if every reward failed."""
    if sampled.failures and all(one.reward is None for one in sampled.rollouts):
        reason = _reason(sampled.failures[0])
        mend = "give shorter prompts, or a longer context" if NO_ROOM in reason else "mend the task's reward"
        raise UserError(
            f"every reward of {name} failed in the preflight, {len(sampled.failures)} of {len(sampled.failures)}, the "
            f"first with: {reason}; {mend} (--no-preflight begins all the same)"
        )


def context_findings(name: str, prompts: Sequence[int], max_tokens: int, limit: int) -> list[str]:
    """Whether prompts of these lengths leave room for the longest completion in the tokens that the model takes."""
    cut = sum(length + max_tokens > limit for length in prompts)
    if not cut:
        return []
    return [
        f"{cut} of {len(prompts)} prompts of {name} leave no room for the {max_tokens} tokens of --max-tokens in the "
        f"{limit} that the model takes; the longest has {max(prompts)}: set --max-tokens {limit - max(prompts)}, or "
        "choose shorter prompts or a model with a longer context"
    ]


def rate_findings(policy: Policy, config: TrainerConfig) -> list[str]:
    """Whether the learning rate is far from what is usual for the size of the model and for what is trained."""
    weights = sum(weight.numel() for weight in policy.model.parameters())
    rate, adapted = config.optimizer.learning_rate, config.lora.lora_rank > 0
    if SMALL_MODEL < weights < LARGE_MODEL:
        return []
    lowest, usual, highest = RATES[weights >= LARGE_MODEL, adapted]
    if lowest <= rate <= highest:
        return []
    size = f"{weights / 1e9:.1f}B" if weights >= LARGE_MODEL else f"{weights / 1e6:.1f}M"
    trained = f"adapters of a model of {size} weights" if adapted else f"all {size} weights"
    if rate < lowest:
        mend = f"little will be learned; raise it, such as to --learning-rate {usual:g}"
    else:
        adapters = ", or train adapters with --lora-rank 16" if weights >= LARGE_MODEL and not adapted else ""
        mend = f"the model may be destroyed; lower it, such as to --learning-rate {usual:g}{adapters}"
    return [f"{trained} are trained at a learning rate of {rate:g}, where {usual:g} is usual: {mend}"]


def answer_findings(policy: Policy, name: str, task: Task, examples: Sequence[Example], max_tokens: int) -> list[str]:
    """Whether the shortest answers fit in a completion, if the task knows them."""
    if task.shortest_answer is None or not examples:
        return []
    answers = [task.shortest_answer(example) for example in examples]
    needed = [len(ids) + 1 for ids in policy.tokenizer(answers, add_special_tokens=False)["input_ids"]]  # 1: the end
    too_long = sum(count > max_tokens for count in needed)
    if not too_long:
        return []
    return [
        f"{too_long} of {len(needed)} examples of {name} have no answer of {max_tokens} tokens or less, written as its "
        f"demonstrations are: set --max-tokens {max(needed)}, or choose easier examples"
    ]


def rollout_findings(
    rollouts: Sequence[Rollout], failures: Sequence[str], policy: Policy, max_tokens: int, num_lost: int = 0
) -> list[str]:
    """Findings in the sampled rollouts, and in the episodes that failed."""
    findings = []
    truncated = sum(rollout.truncated for rollout in rollouts) / max(1, len(rollouts))
    ended = [r for r in rollouts if not r.truncated or policy.stop_ids & set(r.ids[r.prompt_length :])]
    if rollouts and not ended:
        findings.append(
            f"no completion produced an end token {sorted(policy.stop_ids)} in {max_tokens} tokens: raise --max-tokens "
            "if answers are longer; if they are not, the model may not be tuned for this chat template: choose an "
            "instruction-tuned model, or name what ends an answer with --stop-strings"
        )
    elif truncated > TRUNCATED_SHARE:
        findings.append(
            f"{truncated:.0%} of the completions were cut off at {max_tokens} tokens: raise --max-tokens, or ask "
            "for shorter answers in the prompt"
        )
    if failures:
        findings.append(
            f"{len(failures)} of {len(rollouts) + num_lost} rewards failed, the first with: {_reason(failures[0])}; "
            "mend the task's reward"
        )
    values = {rollout.reward.value for rollout in rollouts if rollout.reward is not None}
    if len(values) == 1:
        findings.append(
            f"every completion was rewarded {values.pop():g}: nothing can be learned from equal rewards; choose an "
            "easier task or a stronger model, raise --temperature, or check the reward"
        )
    return findings


def _reason(failure: str) -> str:
    """The last line of a failure, and the last place in code, of a task from outside in its own, that led to it."""
    places = re.findall(r'File "(.+)", line (\d+)', failure)
    outside = [place for place in places if not Path(place[0]).is_relative_to(PACKAGE)]
    where = [":".join(place) for place in (outside or places)[-1:]]
    return failure.strip().splitlines()[-1] + "".join(f" ({place})" for place in where)
