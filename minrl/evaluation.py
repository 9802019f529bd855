"""Held-out evaluation: fixed examples, sampled with fixed seeds at a temperature, and once greedily."""

import math
from dataclasses import replace

from minrl.config import EvaluationConfig, RolloutConfig
from minrl.engines import Engine
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.tasks import Task
from minrl.utils.statistics import Evaluation, summarize

MIN_SAMPLES = 500
"""Completions of an evaluation with an automatic number of samples."""


def samples_of(examples: int, config: EvaluationConfig) -> int:
    """Sampled completions of each of so many examples, beside the greedy one."""
    return config.eval_samples or math.ceil(MIN_SAMPLES / examples)


def evaluations_after(step: int, steps: int, config: EvaluationConfig) -> int:
    """Evaluations that are due after a step, in a run of so many: that after the last step is one."""
    if step >= steps:
        return 0
    period = config.eval_every or steps
    return (steps - 1) // period - step // period + 1


def evaluate(
    policy: Policy,
    engine: Engine,
    workers: Workers,
    task: Task,
    config: EvaluationConfig,
    sampling: RolloutConfig,
    seed: int,
) -> Evaluation:
    """Sampled and greedy completions of the same held-out examples. `rollouts` are the sampled ones."""
    examples = list(task.dataset.held_out)[: config.eval_examples]
    samples = samples_of(len(examples), config)

    def play(samples: int, temperature: float) -> Rollouts:
        stop = sampling.stop_strings
        plan = Plan(samples, sampling.max_tokens, temperature, seed, "evaluation", 0, stop_strings=stop)
        return rollout(policy, engine, workers, task, examples, plan)

    sampled, greedy = play(samples, config.eval_temperature), play(1, 0.0)
    figures = summarize(examples, sampled.outcomes, greedy.outcomes)
    return replace(figures, rollouts=sampled.rollouts, failures=[*sampled.failures, *greedy.failures])
