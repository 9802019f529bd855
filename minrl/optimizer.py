"""The optimizer over the master weights, its learning rate, and the clipped step."""

import logging
import math
from importlib.util import find_spec

import torch
from loguru import logger

from minrl.config import TrainerConfig
from minrl.dataflow import UserError, require
from minrl.models.sharding import full_tensor, named_weights
from minrl.policy import Policy

MOST_SKIPPED = 5
"""The run stops after this many optimizer steps in a row were skipped."""


def make_optimizer(policy: Policy, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW over the trainable float32 master weights. Only matrices have weight decay.

    adamw8bit (arXiv:2110.02861) stores both moments in 8 bits, quantized in blocks of 256. bitsandbytes keeps the
    moments of weights with fewer than 4096 elements in float32.
    """
    weights = [weight for weight in named_weights(policy.model).values() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    betas = config.adam_beta1, config.adam_beta2
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)
    if find_spec("bitsandbytes") is None:
        raise UserError(
            f"--optimizer {config.optimizer} needs bitsandbytes, which is not installed: run "
            "`make setup EXTRA=optim8bit` or `pip install bitsandbytes` (Linux), or use --optimizer adamw"
        )
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # it misses a kernel for 4-bit products
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(groups, lr=config.learning_rate, betas=betas)


def learning_rate(config: TrainerConfig, step: int, steps: int) -> float:
    """Linear warmup to the peak, then constant, or decay to `final_learning_rate_frac` of it at the last of `steps`.

    `step` counts from 1.
    """
    warmup = min(1.0, step / max(1, config.warmup_steps))
    done = min(1.0, max(0, step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[config.schedule]
    final = config.final_learning_rate_frac
    return config.learning_rate * warmup * (final + (1 - final) * left)


def clipped_step(policy: Policy, optimizer: torch.optim.Optimizer, config: TrainerConfig) -> float:
    """Clip the gradient to `max_grad_norm` (L2; 0: off) and step. Returns the norm before clipping.

    A gradient with a norm that is not finite is dropped: weights, moments and the policy's version do not change.
    Raises `UserError` after `MOST_SKIPPED` of these in a row.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm or float("inf"))))
    if math.isfinite(norm):
        optimizer.step()
        policy.version += 1
        policy.skipped_steps = 0
    else:
        policy.skipped_steps += 1
        in_a_row = f"{policy.skipped_steps} in a row; the run stops at {MOST_SKIPPED}"
        logger.warning(f"optimizer step skipped: the norm of its gradient is {norm} ({in_a_row})")
        require(
            policy.skipped_steps < MOST_SKIPPED,
            f"the gradient of {MOST_SKIPPED} optimizer steps in a row was not finite: start a new run from the last "
            "checkpoint (--model-id) with a lower --learning-rate or with --dtype float32",
        )
    optimizer.zero_grad()
    return norm
