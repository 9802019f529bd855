"""What would go wrong, said before step 1.

A few training examples are sampled and rewarded; each finding is one line: what is wrong and how to mend it.
"""

from collections.abc import Sequence

from minrl.config import TrainerConfig
from minrl.engines import Engine
from minrl.policy import Policy
from minrl.rollout import Plan, rollout
from minrl.tasks import Task
from minrl.types import Rollout
from minrl.workers import Workers

EXAMPLES = 8
SLOW_REWARD_S = 1.0
BYTES_PER_WEIGHT = 16
"""float32 weight, gradient and AdamW's two moments."""


def preflight(policy: Policy, engine: Engine, workers: Workers, task: Task, config: TrainerConfig) -> list[str]:
    """Findings, one line each; empty when all is well."""
    findings = memory_findings(policy)
    settings = config.rollout
    plan = Plan(
        settings.group_size,
        settings.max_tokens,
        settings.temperature,
        config.seed,
        "preflight",
        0,
        stop_strings=settings.stop_strings,
    )
    workers.take_seconds()
    sampled = rollout(policy, engine, workers, task, list(task.dataset.train)[:EXAMPLES], plan)
    findings += rollout_findings(sampled.rollouts, sampled.failures, policy, settings.max_tokens)
    per_reward = workers.take_seconds() / max(1, len(sampled.rollouts))
    if per_reward > SLOW_REWARD_S:
        findings.append(
            f"a reward takes {per_reward:.1f} s: it will dominate each step; raise --reward-workers or make it faster"
        )
    return findings


def rollout_findings(
    rollouts: Sequence[Rollout], failures: Sequence[str], policy: Policy, max_tokens: int
) -> list[str]:
    """What the sampled rollouts give away."""
    findings = []
    truncated = sum(rollout.truncated for rollout in rollouts) / max(1, len(rollouts))
    ends = sum(any(i in policy.stop_ids for i in rollout.ids[rollout.prompt_length :]) for rollout in rollouts)
    if rollouts and ends == 0:
        findings.append(
            f"no completion produced an end token {sorted(policy.stop_ids)}: the model may not be tuned for this "
            "chat template; choose an instruction-tuned model, or give --stop-strings"
        )
    elif truncated > 0.5:
        findings.append(
            f"{truncated:.0%} of the completions were cut off at {max_tokens} tokens: raise --max-tokens, or ask "
            "for shorter answers in the prompt"
        )
    if failures:
        last_line = failures[0].strip().splitlines()[-1]
        findings.append(
            f"{len(failures)} of {len(rollouts)} rewards failed, the first with: {last_line}; mend the task's reward"
        )
    values = {rollout.reward.value for rollout in rollouts if rollout.reward is not None}
    if len(values) == 1:
        findings.append(
            f"every completion was rewarded {values.pop():g}: nothing can be learned from equal rewards; choose an "
            "easier task or a stronger model, raise --temperature, or check the reward"
        )
    return findings


def memory_findings(policy: Policy) -> list[str]:
    """Whether weights, gradients and optimizer fit beside what is used."""
    weights = sum(weight.numel() for weight in policy.model.parameters())
    trained = sum(weight.numel() for weight in policy.model.parameters() if weight.requires_grad)
    needed, free = trained * BYTES_PER_WEIGHT + (weights - trained) * 4, policy.free_memory()
    if free is None or needed - weights * 4 < free:
        return []
    return [
        f"training {weights / 1e9:.1f}B weights needs about {needed / 2**30:.0f} GiB and {free / 2**30:.0f} GiB are "
        "free: choose a smaller model or a larger machine, or train adapters with --lora-rank 16"
    ]
