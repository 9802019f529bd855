"""One improvement of the policy from a batch of rollouts.

N rollouts, S sampled tokens of the step.

The gradient does not depend on the micro-batch size, packing, order of rollouts or number of processes: token weights
are computed for the whole optimizer step before its rollouts are divided among processes and micro-batches, and
gradients are summed. Every process has the whole batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minrl.batch import Batch, Stream, pack, share_of_tokens, split_groups, to_device
from minrl.config import TrainerConfig
from minrl.dataflow import CausalModel, TrainState
from minrl.losses import WEIGHT, WEIGHT_SQUARED, Algorithm, Tokens, policy_loss
from minrl.optimizer import clipped_step, learning_rate
from minrl.policy import Policy
from minrl.tracking.timers import timed
from minrl.utils.console import activity

COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min}


@dataclass(frozen=True)
class Update:
    """The result of an update: metrics by tag; for each sampled token its log-probability when the policy first scored
    it, its last importance weight (None without a correction), and the teacher's preference (NaN without
    one). NaN for rollouts that were skipped because they have no gradient.
    """

    metrics: dict[str, float]
    logprobs: Float[Tensor, " S"]
    importance_weights: Float[Tensor, " S"] | None = None
    preference: Float[Tensor, " S"] | None = None


@timed("update")
def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    algorithm: Algorithm,
    config: TrainerConfig,
    state: TrainState,
    needs_correction: bool,
) -> Update:
    """Train on the batch, the same in all processes, with `passes_per_step` x `minibatches_per_pass` optimizer steps.

    With a single optimizer step the old log-probabilities are the current ones, detached. With several they are scored
    once, before the first step; so are those of the reference and of the teacher, if there are any. If no rollout has
    an advantage and the loss has neither KL nor entropy nor a teacher, nothing is computed and no optimizer step is
    taken. `needs_correction`: the engine's probabilities are not the policy's own.
    """
    settings, temperature = config, state.temperature or config.temperature
    importance_cap = settings.importance_cap if needs_correction and not algorithm.to_engine else 0.0
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config, state.step, config.steps)
    counted = counted_rollouts(batch, settings)
    trained = counted & (batch.have_advantage | settings.regularized)
    minibatches = split_groups(batch.rollouts, settings.minibatches_per_pass)
    minibatches = [minibatch for minibatch in minibatches if trained[minibatch].any()]
    shares = [_share(policy, batch, minibatch, trained) for minibatch in minibatches]
    old_logprobs, ref_logprobs, teacher_logprobs = _fixed_logprobs(policy, batch, shares, config, temperature)
    rollout_of, advantages, rollout_logprobs = to_device(
        [batch.rollout_of, batch.advantages, batch.rollout_logprobs], policy.device
    )
    trace = _Trace(batch, policy)
    steps = list(zip(minibatches, shares, strict=True)) * settings.passes_per_step
    for minibatch, share in steps:
        weights = token_weights(batch, algorithm, counted, minibatch, config)
        (weights,) = to_device([weights[batch.rollout_of]], policy.device)
        streams = _streams(policy, batch, share, config)
        with activity("update", len(streams)) as report, policy.passes(len(streams)):
            for count, stream in enumerate(streams, 1):
                logprobs, entropy = policy.score(stream, temperature)
                at, dtype = stream.token_index, logprobs.dtype
                old = logprobs.detach() if old_logprobs is None else old_logprobs[at].to(dtype)
                tokens = Tokens(
                    logprobs=logprobs,
                    entropy=entropy,
                    old_logprobs=old,
                    rollout_logprobs=rollout_logprobs[at].to(dtype),
                    ref_logprobs=None if ref_logprobs is None else ref_logprobs[at].to(dtype),
                    teacher_logprobs=None if teacher_logprobs is None else teacher_logprobs[at].to(dtype),
                    advantages=advantages[at].to(dtype),
                    token_weights=weights[at].to(dtype),
                    rollout_of=rollout_of[at],
                    importance_cap=importance_cap,
                )
                loss, curves = policy_loss(tokens, algorithm, settings)
                loss.backward()
                trace.add(stream, logprobs, loss, curves)
                report(count)
        trace.norms.append(optimizer_step(policy, optimizer, config))
    metrics = trace.metrics(settings.passes_per_step)
    metrics |= {"policy/learning_rate": optimizer.param_groups[0]["lr"], "rollout/temperature": temperature}
    logprobs, importance_weights, preference = trace.per_token()
    return Update(metrics, logprobs, importance_weights if importance_cap else None, preference)


def optimizer_step(policy: Policy, optimizer: torch.optim.Optimizer, config: TrainerConfig) -> float:
    """Sum the gradients over the processes and take a `clipped_step`. Returns the norm before clipping."""
    policy.processes.sum_gradients([weight for group in optimizer.param_groups for weight in group["params"]])
    return clipped_step(policy, optimizer, config)


def counted_rollouts(batch: Batch, settings: TrainerConfig) -> Bool[Tensor, " N"]:
    """Which rollouts the normalizer counts: scorable ones, except masked truncated ones."""
    truncated = torch.tensor([r.truncated for r in batch.rollouts])
    return batch.scorable & ~(truncated & settings.mask_truncated)


def token_weights(
    batch: Batch, algorithm: Algorithm, counted: Bool[Tensor, " N"], minibatch: Sequence[int], config: TrainerConfig
) -> Float[Tensor, " N"]:
    """The weight of each rollout's tokens in an optimizer step. Rollouts of advantage 0 count in the normalizer."""
    lengths, counted_here = batch.completion_lengths, torch.zeros_like(counted)
    counted_here[minibatch] = counted[minibatch]
    longest = torch.tensor([rollout.max_tokens or config.max_tokens for rollout in batch.rollouts])
    return algorithm.aggregation(lengths, longest, int(counted_here.sum()), int(lengths[counted_here].sum()))


def _fixed_logprobs(
    policy: Policy, batch: Batch, shares: Sequence[Sequence[int]], config: TrainerConfig, temperature: float
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The log-probabilities (S,) under the old policy, the reference and the teacher, where the update needs them."""
    settings, old, ref, teacher = config, None, None, None
    own, num_tokens = sorted(chain.from_iterable(shares)), len(batch.rollout_of)
    several = settings.passes_per_step * settings.minibatches_per_pass > 1
    streams = _streams(policy, batch, own, config) if several or settings.kl_coef else []
    if several:
        old = _frozen_logprobs(policy, policy.model, streams, temperature, num_tokens)
    if settings.kl_coef:
        with policy.as_reference() as reference:
            ref = _frozen_logprobs(policy, reference, streams, temperature, num_tokens)
    if settings.has_teacher:
        reads = policy.teacher_reads
        shown = replace(batch, rollouts=[*map(reads, batch.rollouts)]) if reads else batch
        streams = _streams(policy, shown, own, config)
        teacher = _frozen_logprobs(policy, policy.teacher or policy.model, streams, temperature, num_tokens)
    return old, ref, teacher


@torch.no_grad()
def _frozen_logprobs(
    policy: Policy, model: CausalModel, streams: Sequence[Stream], temperature: float, num_tokens: int
) -> Float[Tensor, " S"]:
    """Log-probabilities of the streams' tokens under a model; 0 for all other tokens."""
    scored = torch.zeros(num_tokens, dtype=torch.float64, device=policy.device)
    with policy.passes(len(streams), model):
        for stream in streams:
            scored[stream.token_index] = policy.score(stream, temperature, model)[0].double()
    return scored


def current_logprobs(policy: Policy, batch: Batch, config: TrainerConfig, temperature: float) -> Float[Tensor, " S"]:
    """Log-probability of each sampled token under the policy as it is now, the same in all processes."""
    share = _share(policy, batch, range(len(batch.rollouts)), torch.ones(len(batch.rollouts), dtype=torch.bool))
    streams = _streams(policy, batch, share, config)
    scored = _frozen_logprobs(policy, policy.model, streams, temperature, len(batch.rollout_of))
    return policy.processes.sum(scored).cpu()  # each token is computed by one of them


def _share(policy: Policy, batch: Batch, minibatch: Sequence[int], trained: Bool[Tensor, " N"]) -> list[int]:
    """The part of an optimizer step's trained rollouts that this process computes."""
    indices = [index for index in minibatch if trained[index]]
    return share_of_tokens(batch.rollouts, indices, policy.processes.rank, policy.processes.count)


def _streams(policy: Policy, batch: Batch, indices: Sequence[int], config: TrainerConfig) -> list[Stream]:
    """The rollouts in streams of the size of a micro-batch."""
    parts = policy.micro_batches(batch.rollouts, indices, config.micro_batch_tokens)
    return [pack(batch.rollouts, part).to(policy.device) for part in parts]


class _Trace:
    """What an update computed, for curves and logs. It stays on the device until it is read, after the update."""

    def __init__(self, batch: Batch, policy: Policy) -> None:
        self.policy, self.processes, self.num_tokens = policy, policy.processes, len(batch.rollout_of)
        dtype = batch.rollout_logprobs.dtype
        self.tokens = torch.full((3, self.num_tokens), torch.nan, dtype=dtype, device=policy.device)
        self.logprobs, self.importance_weights, self.preference = self.tokens  # views; NaN where nothing was computed
        self.sums = list[dict[str, Tensor]]()
        self.sizes = list[tuple[int, int]]()
        self.norms = list[float]()

    def add(self, stream: Stream, logprobs: Tensor, loss: Tensor, curves: dict[str, Tensor]) -> None:
        """Add a micro-batch."""
        at, first = stream.token_index, self.logprobs[stream.token_index]
        self.logprobs[at] = torch.where(first.isnan(), logprobs.detach().to(first.dtype), first)
        if WEIGHT in curves:
            self.importance_weights[at] = curves[WEIGHT].to(first.dtype)
        if "teacher/kl" in curves:
            self.preference[at] = -curves["teacher/kl"].to(first.dtype)
        sums = {tag: getattr(values.double(), _reduction(tag))() for tag, values in curves.items()}
        self.sums.append({"policy/loss": loss.detach().double(), **sums})
        self.sizes.append((len(at), self.policy.computed_tokens(stream)))

    def per_token(self) -> Float[Tensor, "3 S"]:
        """Log-probabilities, importance weights and preferences of all processes."""
        computed = ~self.tokens.isnan()
        sums = torch.stack([torch.where(computed, self.tokens, 0.0), computed.to(self.tokens.dtype)])
        values, counts = self.processes.sum(sums).cpu()  # each token is computed by one of them
        return torch.where(counts > 0, values, torch.nan)

    def metrics(self, passes: int) -> dict[str, float]:
        """Means over the trained tokens of all processes and over the optimizer steps, by tag. What was not measured is
        left out: a 0 would look like a collapse.
        """
        tags = list(self.sums[0]) if self.sums else []
        values = torch.stack([torch.stack([*one.values()]) for one in self.sums]).tolist() if tags else []
        rows = self.processes.gather([dict(zip(tags, row, strict=True)) for row in values])
        sizes = self.processes.gather(self.sizes)
        tokens, norms = sum(count for count, _ in sizes), [norm for norm in self.norms if math.isfinite(norm)]
        metrics = {
            "policy/loss": sum(row.pop("policy/loss") for row in rows) / max(1, len(self.norms)),
            "update/computed_tokens": float(sum(count for _, count in sizes)),
            "policy/optimizer_steps": len(norms),
            "policy/skipped_steps": len(self.norms) - len(norms),
            "policy/trained_token_frac": tokens / max(1, passes * self.num_tokens),
        }
        if norms or not self.norms:  # without an optimizer step the gradient is 0
            metrics["policy/grad_norm"] = sum(norms) / max(1, len(norms))
        for tag in rows[0] if tokens else ():
            total = COMBINE[_reduction(tag)]([row[tag] for row in rows])
            metrics[tag] = total / tokens if _reduction(tag) == "sum" else total
        if WEIGHT in metrics:
            weight, squared = metrics.pop(WEIGHT), metrics.pop(WEIGHT_SQUARED)
            metrics["engine/ess"] = weight**2 / max(squared, 1e-30)
        return metrics


def _reduction(tag: str) -> str:
    """How a curve combines the values of tokens: a mean is made of the sum."""
    return {"max": "max", "min": "min"}.get(tag.rpartition("_")[2], "sum")
