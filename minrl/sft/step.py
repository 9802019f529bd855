"""One step of supervised fine-tuning: the policy gradient of rollouts whose advantage is 1.

The loss is the mean of -log p over the response tokens, end token included, of all rows of the optimizer step over
all processes: L = -(1/S) sum_s log p(y_s | prompt, y_<s), S response tokens. Prompt tokens have no loss.
"""

import math
from collections.abc import Sequence

import torch

from minrl.advantages import no_baseline
from minrl.batch import make_batch
from minrl.config import TrainerConfig
from minrl.dataflow import Rollout, TrainState
from minrl.evaluate.statistics import Evaluation
from minrl.losses import Algorithm, policy_gradient, token_mean
from minrl.policy import Policy
from minrl.tracking.session import Session
from minrl.update import current_logprobs, update_policy

SFT = Algorithm(no_baseline, policy_gradient, token_mean, group_relative=False)


def rows_in_all(epochs: float, rows: int) -> int:
    """The number of rows in so many epochs. Each row is trained on as often as the others, or once more.

    >>> rows_in_all(1.0, 33), rows_in_all(0.5, 10), rows_in_all(0.01, 10)
    (33, 5, 1)
    """
    return max(1, round(epochs * rows))


def sft_step(
    policy: Policy, optimizer: torch.optim.Optimizer, drawn: Sequence[Rollout], config: TrainerConfig, step: int
) -> dict[str, float]:
    """Train on the drawn rows, as step `step` of `config.steps`. Returns the metrics to log."""
    batch, state = make_batch(drawn, torch.ones(len(drawn))), TrainState(step=step, temperature=1.0)
    metrics = update_policy(policy, optimizer, batch, SFT, config, state, needs_correction=False).metrics
    kept = ("policy/grad_norm", "policy/skipped_steps", "policy/learning_rate")
    return {
        "sft/loss": metrics["policy/loss"],
        "sft/entropy": metrics["policy/entropy"],
        "sft/tokens": float(len(batch.rollout_of)),
        **{tag: metrics[tag] for tag in kept if tag in metrics},
    }


def measure(session: Session, held_out: Sequence[Rollout]) -> dict[str, Evaluation]:
    """The loss of held-out rows; pass@1 of the task's held-out examples, and the mean of -log p of what was sampled."""
    policy, config = session.parts.policy, session.parts.config
    if held_out:
        batch = make_batch(held_out, torch.zeros(len(held_out)))
        session.add({"sft/held_out_loss": -current_logprobs(policy, batch, config, temperature=1.0).mean().item()})
    evaluations = session.parts.evaluate()
    for name, evaluation in evaluations.items():
        said = evaluation.rollouts[: evaluation.n]
        nats = [-x for one in said for x, own in zip(one.rollout_logprobs, one.loss_mask, strict=True) if own]
        session.add({f"eval/{name}/entropy": math.fsum(nats) / max(1, len(nats))})
    return evaluations
