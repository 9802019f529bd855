"""Held-out evaluation: fixed examples, sampled with fixed seeds at a temperature, and once greedily."""

import math
from dataclasses import replace
from typing import Any

from minrl.config import TrainerConfig
from minrl.dataflow import LostEpisode, Prompt, Rollout
from minrl.engines import Engine
from minrl.evaluate.statistics import Evaluation, summarize
from minrl.policy import Policy
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, rollout
from minrl.tasks import Task

MIN_SAMPLES = 500
"""Completions of an evaluation with an automatic number of samples."""


def samples_of(examples: int, config: TrainerConfig) -> int:
    """Sampled completions of each of so many examples, beside the greedy one."""
    return config.eval_samples or math.ceil(MIN_SAMPLES / examples)


def evaluate(
    policy: Policy,
    engine: Engine,
    workers: Workers,
    task: Task,
    config: TrainerConfig,
    sampling: TrainerConfig,
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
    shown = {example.id: example for example in examples}
    results = [
        {"category": dict(shown[one.example_id].category), **result_line(mode, one, shown[one.example_id].prompt)}
        for mode, played in {"greedy": greedy, "sampled": sampled}.items()
        for one in (played.outcomes if policy.processes.main else ())
    ]
    failures = [*sampled.failures, *greedy.failures]
    return replace(figures, rollouts=sampled.rollouts, results=results, failures=failures)


def result_line(mode: str, one: Rollout | LostEpisode, prompt: Prompt = "") -> dict[str, Any]:
    """A completion, its problem and its reward as values for JSON. What could not be scored has no reward, and an
    episode that failed before the policy's first turn, where `prompt` may be the problem's, no completion.
    """
    played, reward = one if isinstance(one, Rollout) else None, one.reward
    return {
        "example_id": one.example_id,
        "mode": mode,
        "sample": played and played.sample,
        "role": one.role,
        "prompt": played.message if played and played.message else prompt,
        "completion": played and played.text,
        "tokens": played and played.num_sampled,
        "truncated": one.truncated,
        "reward": reward and reward.value,
        "solved": reward and reward.solved,
        "parts": dict(reward.parts) if reward else {},
    }
