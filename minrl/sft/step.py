"""One step of supervised fine-tuning, and the loss and entropy of rows that are not trained on.

The loss is the mean of -log p over the response tokens, end token included, of all rows of the optimizer step over
all processes: L = -(1/S) sum_s log p(y_s | prompt, y_<s), S response tokens. S is counted before the rows are cut
into micro-batches, so that the gradient is the same for every micro-batch size, packing, order and number of
processes. Prompt tokens have no loss.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minrl.batch import pack
from minrl.config import TrainerConfig
from minrl.dataflow import Rollout, TrainState
from minrl.evaluate.statistics import Evaluation
from minrl.optimizer import learning_rate
from minrl.policy import Policy
from minrl.tracking.session import Session
from minrl.update import optimizer_step
from minrl.utils.console import activity


def rows_in_all(epochs: float, rows: int) -> int:
    """The number of rows in so many epochs. Each row is trained on as often as the others, or once more.

    >>> rows_in_all(1.0, 33), rows_in_all(0.5, 10), rows_in_all(0.01, 10)
    (33, 5, 1)
    """
    return max(1, round(epochs * rows))


def sft_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    drawn: Sequence[Rollout],
    config: TrainerConfig,
    state: TrainState,
    steps: int,
) -> dict[str, float]:
    """Train on the drawn rows, as step `state.step` of `steps`. Returns the metrics to log."""
    mine = drawn[policy.processes.share(len(drawn))]
    rate = learning_rate(config, state.step, steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    totals = accumulate(policy, mine, config.micro_batch_tokens)
    norm = optimizer_step(policy, optimizer, config)
    loss, entropy, tokens = totals.tolist()
    taken = math.isfinite(norm)
    return {
        "sft/loss": loss / tokens,
        "sft/entropy": entropy / tokens,
        "sft/tokens": tokens,
        **({"policy/grad_norm": norm} if taken else {}),
        "policy/skipped_steps": float(not taken),
        "policy/learning_rate": rate,
    }


def accumulate(policy: Policy, rows: Sequence[Rollout], micro_batch_tokens: int) -> Tensor:
    """Add up the gradients of this process's rows. Returns loss, entropy and tokens, summed over processes: (3,)."""
    own = sum(row.num_sampled for row in rows)
    tokens = int(policy.processes.sum(torch.tensor(own, device=policy.device)).item())
    totals = torch.zeros(3, dtype=torch.float64, device=policy.device)
    for logprobs, entropy in _scored(policy, rows, micro_batch_tokens, temperature=1.0):
        (-logprobs.sum() / tokens).backward()
        totals += _sums(logprobs.detach(), entropy.detach())
    return policy.processes.sum(totals)


@torch.no_grad()
def mean_loss_and_entropy(
    policy: Policy, rows: Sequence[Rollout], micro_batch_tokens: int, temperature: float = 1.0
) -> tuple[float, float]:
    """Means over the response tokens of all rows, in nats; each process scores its share."""
    mine = rows[policy.processes.rank :: policy.processes.count]
    totals = torch.zeros(3, dtype=torch.float64, device=policy.device)
    for logprobs, entropy in _scored(policy, mine, micro_batch_tokens, temperature):
        totals += _sums(logprobs, entropy)
    loss, entropy_sum, tokens = policy.processes.sum(totals).tolist()
    return loss / tokens, entropy_sum / tokens


def measure(session: Session, held_out: Sequence[Rollout]) -> dict[str, Evaluation]:
    """The loss of held-out rows; pass@1 of the task's held-out examples, and the policy's entropy on them."""
    policy, config = session.parts.policy, session.parts.config
    budget, temperature = config.micro_batch_tokens, config.eval_temperature
    if held_out:
        loss, entropy = mean_loss_and_entropy(policy, held_out, budget)
        session.add({"sft/held_out_loss": loss, "sft/held_out_entropy": entropy})
    evaluations = session.parts.evaluate()
    for name, evaluation in evaluations.items():
        sampled = evaluation.rollouts[: evaluation.n]
        _, entropy = mean_loss_and_entropy(policy, sampled, budget, temperature)
        session.add({f"eval/{name}/entropy": entropy})
    return evaluations


def _scored(
    policy: Policy, rows: Sequence[Rollout], micro_batch_tokens: int, temperature: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities and entropies of the response tokens, micro-batch by micro-batch."""
    batches = policy.micro_batches(rows, range(len(rows)), micro_batch_tokens)
    with activity("scoring", len(batches)) as report, policy.passes(len(batches)):
        for number, part in enumerate(batches, 1):
            yield policy.score(pack(rows, part).to(policy.device), temperature)
            report(number)


def _sums(logprobs: Tensor, entropy: Tensor) -> Tensor:
    nats = logprobs.double()
    return torch.stack([-nats.sum(), entropy.double().sum(), nats.new_full((), len(nats))])
