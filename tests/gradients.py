"""The gradient of a fixed batch, for tests of what must not change it."""

from dataclasses import replace

import torch

from minrl.advantages import no_reward
from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import SOLO, Reward, Rollout, TrainState
from minrl.losses import Algorithm
from minrl.models.distributed import Processes
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import Policy, as_policy
from minrl.update import Update, update_policy
from tests.conftest import CPU, rollout_of
from tests.parsed import sized

WORDS = [str(number) for number in range(40)]
REWARDS = [[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, None, 1.0], [0.2, 0.8, 0.1, 0.0]]
WIDE = {name: {"clip_low": 0.2, "clip_high": 0.2} for name in ("gspo", "luspo")}
"""Their own bounds are so narrow that the second pass would be clipped away."""
TAUGHT = {name: {"teacher_id": "a model"} for name, row in ALGORITHMS.items() if row.advantage is no_reward}
"""The rows that learn from a teacher alone."""
NEEDED = {**TAUGHT, "gdpo": {"reward_parts": "whole,late:0.5"}}


class Tap(torch.optim.SGD):
    """Plain gradient descent that remembers every gradient it was given."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.0)
        self.names = [name for name, _ in model.named_parameters()]
        self.seen = []

    def step(self):
        weights = self.param_groups[0]["params"]
        self.seen.append({n: w.grad.clone() for n, w in zip(self.names, weights, strict=True)})
        super().step()


def tiny_policy(processes: Processes, seed: int = 0) -> Policy:
    """In double precision, so that what differs by more than 1e-6 differs by mistake. Its teacher is narrower."""
    tokenizer = word_tokenizer(WORDS)
    teacher = as_policy(small_qwen3(tokenizer, 16, 1, 2, seed + 100), tokenizer, CPU, processes)
    policy = as_policy(small_qwen3(tokenizer, 32, 1, 2, seed), tokenizer, CPU, processes)
    policy.model.double()
    policy.teacher = teacher.model.double().requires_grad_(False)
    return policy


def fixed_rollouts() -> list[Rollout]:
    """Four groups of four, of different lengths, one with two turns; one group has no spread."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda low, high, n: torch.randint(low, high, (n,), generator=generator).tolist()  # noqa: E731
    rollouts = []
    for group, rewards in enumerate(REWARDS):
        prompt = draw(5, 45, 3 + group)
        for sample, reward in enumerate(rewards):
            sampled = draw(5, 45, draw(1, 9, 1)[0])
            between = draw(5, 45, 2) if sample == 3 else []
            last = draw(5, 45, 3) if sample == 3 else []
            mask = [False] * len(prompt) + [True] * len(sampled) + [False] * len(between) + [True] * len(last)
            logprobs = [-3.0 - 0.1 * (position % 5) if sampled_ else 0.0 for position, sampled_ in enumerate(mask)]
            told = {"example_id": str(group), "group": group, "sample": sample, "turns": []}
            told |= {"rollout_logprobs": logprobs, "finish_reason": "length" if sample == 1 else "stop"}
            paid = None if reward is None else Reward(reward, {"whole": reward, "late": -sample * reward})
            rollouts.append(rollout_of(prompt, sampled + between + last, loss_mask=mask, reward=paid, **told))
    return rollouts


def settings(algorithm: str, micro_batch_tokens: int = 16384, **changes) -> TrainerConfig:
    """Two passes where there is a ratio: in the second the policy has moved, so that ratios differ from 1."""
    passes = 2 if ALGORITHMS[algorithm].has_ratio else 1
    changes = {"passes_per_step": passes, **WIDE.get(algorithm, {}), **NEEDED.get(algorithm, {}), **changes}
    return sized(
        algorithm=algorithm,
        **changes,
        group_size=4,
        max_tokens=16,
        learning_rate=0.05,
        warmup_steps=0,
        max_grad_norm=0.0,
        micro_batch_tokens=micro_batch_tokens,
    )


def updated(
    policy: Policy,
    rollouts: list[Rollout],
    config: TrainerConfig,
    row: Algorithm | None = None,
    advantages: list[float] | None = None,
    needs_correction: bool = True,
) -> tuple[Update, list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """An update by gradient descent: its report, the gradient of each optimizer step, and the weights after it, which
    are put back.
    """
    weights = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    algorithm = row or choose_algorithm(config)
    if advantages is None:
        values = compute_advantages(rollouts, algorithm, config, TrainState(baselines={SOLO: 0.3})).values
    else:
        values = torch.tensor(advantages, dtype=torch.float64)
    batch = make_batch(rollouts, values)
    batch = replace(batch, rollout_logprobs=batch.rollout_logprobs.double())
    tap = Tap(policy.model)
    update = update_policy(policy, tap, batch, algorithm, config, TrainState(step=1), needs_correction)
    after = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    policy.model.load_state_dict(weights)
    return update, tap.seen, after


def gradients(
    policy: Policy, rollouts: list[Rollout], config: TrainerConfig, row: Algorithm | None = None
) -> tuple[list[dict[str, torch.Tensor]], dict[str, float]]:
    """The gradient of each optimizer step of an update, by weight, and its metrics; the weights are put back."""
    update, seen, _ = updated(policy, rollouts, config, row)
    return seen, update.metrics
