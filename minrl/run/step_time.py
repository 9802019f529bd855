"""How long a step will take on a processor, from one short forward pass."""

import time

import torch

from minrl.batch import pack
from minrl.config import TrainerConfig
from minrl.policy import Policy
from minrl.scoring import sampled_rollout

SMALLEST = 10**8
"""Weights from which a model is measured. A smaller one takes minutes at most."""
MEASURED = 64
"""Tokens of the forward pass."""
LONG_STEP_S = 600.0
LEARNING = 3
"""Forward passes that a token costs in an update: its own, and a backward pass of twice as many products."""


def time_findings(policy: Policy, config: TrainerConfig) -> list[str]:
    """Whether a step takes long if completions are as long as they may be. A token costs a forward pass when it is
    sampled, and more in each pass of the update.
    """
    weights = sum(weight.numel() for weight in policy.model.parameters())
    if policy.device.type != "cpu" or weights < SMALLEST:
        return []
    settings = config.rollout
    rollouts = settings.prompts_per_step * settings.group_size
    tokens = policy.processes.split(rollouts) * settings.longest
    seconds = (1 + LEARNING * config.algorithm.passes_per_step) * tokens * seconds_per_token(policy)
    if seconds < LONG_STEP_S:
        return []
    long = f"{seconds / 3600:.1f} hours" if seconds > 3600 else f"{seconds / 60:.0f} minutes"
    return [
        f"a step of {rollouts} completions of up to {settings.longest} tokens takes about {long} with "
        f"{weights / 1e9:.1f}B weights on this processor: sample less (--prompts-per-step 4 --group-size 4 "
        "--max-tokens 128), choose a smaller model, or a machine with a card"
    ]


@torch.no_grad()
def seconds_per_token(policy: Policy) -> float:
    """Seconds of a forward pass for each token of a short stream."""
    stream = pack([sampled_rollout([0], [0] * MEASURED)], [0])
    started = time.perf_counter()
    policy.score(stream, 1.0)
    return (time.perf_counter() - started) / MEASURED
