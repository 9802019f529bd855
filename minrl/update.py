"""One improvement of the policy from a batch of rollouts.

N rollouts, S sampled tokens of the step.

The gradient does not depend on the micro-batch size, packing, order of rollouts or number of processes: token weights
are computed for the whole optimizer step before its rollouts are divided among processes and micro-batches, and
gradients are summed. Every process has the whole batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minrl.advantages import teacher_preference
from minrl.algorithms import Algorithm
from minrl.batch import Batch, Stream, pack, share_of_tokens, split_groups
from minrl.config import AlgorithmConfig, OptimizerConfig, TrainerConfig
from minrl.losses import Tokens, policy_loss
from minrl.optimizer import clipped_step, learning_rate
from minrl.policy import Policy
from minrl.types import CausalModel
from minrl.utils.copies import sent
from minrl.utils.progress import activity
from minrl.utils.timers import timed

MEANS = {
    "policy/entropy": "entropy",
    "policy/clip_low_frac": "clip_low",
    "policy/clip_high_frac": "clip_high",
    "engine/logprob_gap_mean": "gap",
    "engine/kl": "kl",
    "engine/importance_weight_mean": "raw_weight",
    "teacher/kl": "teacher_kl",
    "teacher/preferred_frac": "preferred",
}
"""Curves that are means over the trained tokens, and their sums in `policy_loss` and `_Trace.add`."""

EXTREMES = {
    "policy/ratio_max": "ratio_max",
    "engine/logprob_gap_max": "gap_max",
    "engine/importance_weight_min": "raw_weight_min",
    "engine/importance_weight_max": "raw_weight_max",
}


@dataclass(frozen=True)
class Update:
    """The result of an update: metrics by tag; for each sampled token its log-probability when the policy first scored
    it, its last importance weight (None if the engine needs no correction), and the teacher's preference (NaN without
    one). NaN for rollouts that were skipped because they teach nothing.
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
    step: int,
    correct_engine: bool,
    temperature: float = 0.0,
) -> Update:
    """Train on the batch, the same in all processes, with `passes_per_step` x `minibatches_per_pass` optimizer steps.

    `temperature` is the sampling temperature of the rollouts; 0: the config's. With a single optimizer step the old
    log-probabilities are the current ones, detached. With several they are scored once, before the first step; so are
    those of the reference and of the teacher, if there are any. If no rollout has an advantage and the loss has neither
    KL nor entropy nor a teacher, nothing is computed and no optimizer step is taken.
    """
    settings, temperature = config.algorithm, temperature or config.rollout.temperature
    cap = settings.importance_cap if correct_engine else 0.0
    counted = counted_rollouts(batch, settings)
    teaching = counted & ((batch.advantages != 0) | settings.regularized)
    minibatches = split_groups(batch.rollouts, settings.minibatches_per_pass)
    shares = [_share(policy, batch, minibatch, teaching) for minibatch in minibatches]
    known = _known(policy, batch, shares, config, temperature)
    trace = _Trace(batch, policy)
    rate = learning_rate(config.optimizer, step, config.steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    taught = [pair for pair in zip(minibatches, shares, strict=True) if teaching[pair[0]].any()]  # by any process
    for turn, (minibatch, share) in enumerate(turns := taught * settings.passes_per_step, 1):
        weights = token_weights(batch, algorithm, counted, minibatch, config.rollout.max_tokens)
        (known["token_weights"],) = sent([weights[batch.rollout_of]], policy.device)
        streams = _streams(policy, batch, share, config.optimizer)
        with activity("update", len(streams)) as report, policy.passes(len(streams)):
            for number, stream in enumerate(streams, 1):
                logprobs, entropy = policy.score(stream, temperature)
                tokens = tokens_of(stream, known, logprobs, entropy, cap, settings.teacher_weight)
                loss, importance_weights, sums = policy_loss(tokens, algorithm, settings)
                loss.backward()
                trace.add(stream, tokens, importance_weights, sums)
                report(number)
        if turn == len(turns):
            trace.leave()
        trace.norms.append(optimizer_step(policy, optimizer, config.optimizer))
    metrics = trace.metrics(settings.passes_per_step, corrected=cap > 0, regularized=settings.kl_coef > 0)
    metrics |= {"policy/learning_rate": rate, "rollout/temperature": temperature}
    logprobs, weights, preference = trace.per_token()
    return Update(metrics, logprobs, weights if cap else None, preference)


def optimizer_step(policy: Policy, optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> float:
    """Sum the gradients over the processes and take a `clipped_step`. Returns the norm before clipping."""
    policy.processes.sum_gradients([weight for group in optimizer.param_groups for weight in group["params"]])
    return clipped_step(policy, optimizer, config)


def counted_rollouts(batch: Batch, settings: AlgorithmConfig) -> Bool[Tensor, " N"]:
    """Which rollouts the normaliser counts: scorable ones, except masked truncated ones and dropped groups without any
    advantage.
    """
    taught = {r.group for r, a in zip(batch.rollouts, batch.advantages.tolist(), strict=True) if a}
    left_out = [
        (settings.overlong == "mask" and r.truncated) or (settings.drop_equal_groups and r.group not in taught)
        for r in batch.rollouts
    ]
    return batch.scorable & ~torch.tensor(left_out, dtype=torch.bool)


def token_weights(
    batch: Batch, algorithm: Algorithm, counted: Bool[Tensor, " N"], minibatch: Sequence[int], max_tokens: int
) -> Float[Tensor, " N"]:
    """The weight of each rollout's tokens in an optimizer step. Rollouts of advantage 0 count in the normaliser."""
    lengths, counted_here = batch.completion_lengths, torch.zeros_like(counted)
    counted_here[minibatch] = counted[minibatch]
    return algorithm.aggregation(lengths, int(counted_here.sum()), int(lengths[counted_here].sum()), max_tokens)


def tokens_of(
    stream: Stream,
    known: Mapping[str, Tensor],
    logprobs: Float[Tensor, " s"],
    entropy: Float[Tensor, " s"],
    importance_cap: float,
    teacher_weight: float = 1.0,
) -> Tokens:
    """The stream's s tokens: their new log-probabilities, and the `known` values of all S in the stream's order.
    Without old log-probabilities the policy has not changed since sampling, and the new ones take their place.
    A teacher's preference, times its weight, is added to the advantages.
    """
    at = {name: values[stream.token_index] for name, values in known.items()}
    rollout_of = at.pop("rollout_of")
    at = {name: values.to(logprobs.dtype) for name, values in at.items()}
    old, preference = at.get("old_logprobs", logprobs.detach()), None
    if "teacher_logprobs" in at:
        preference = teacher_preference(at["teacher_logprobs"], old)
        at["advantages"] = at["advantages"] + teacher_weight * preference
    return Tokens(
        logprobs=logprobs,
        entropy=entropy,
        old_logprobs=old,
        rollout_logprobs=at["rollout_logprobs"],
        ref_logprobs=at.get("ref_logprobs"),
        advantages=at["advantages"],
        token_weights=at["token_weights"],
        rollout_of=rollout_of,
        importance_cap=importance_cap,
        preference=preference,
    )


def _known(
    policy: Policy, batch: Batch, shares: Sequence[Sequence[int]], config: TrainerConfig, temperature: float
) -> dict[str, Tensor]:
    """Values of the S tokens that are known before the first optimizer step, on the policy's device."""
    settings, rollout_of = config.algorithm, batch.rollout_of
    values = sent([rollout_of, batch.advantages[rollout_of], batch.rollout_logprobs], policy.device)
    known = dict(zip(("rollout_of", "advantages", "rollout_logprobs"), values, strict=True))
    several = settings.passes_per_step * settings.minibatches_per_pass > 1
    own = sorted(chain.from_iterable(shares))
    if several or settings.kl_coef:
        streams = _streams(policy, batch, own, config.optimizer)
    if several:
        known["old_logprobs"] = _frozen_logprobs(policy, policy.model, streams, temperature, len(rollout_of))
    if settings.kl_coef:
        with policy.as_reference() as reference:
            known["ref_logprobs"] = _frozen_logprobs(policy, reference, streams, temperature, len(rollout_of))
    if settings.has_teacher:
        teacher, reads = policy.teacher or policy.model, policy.teacher_reads
        seen = replace(batch, rollouts=[*map(reads, batch.rollouts)]) if reads else batch
        streams = _streams(policy, seen, own, config.optimizer)
        known["teacher_logprobs"] = _frozen_logprobs(policy, teacher, streams, temperature, len(rollout_of))
    return known


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
    streams = _streams(policy, batch, share, config.optimizer)
    scored = _frozen_logprobs(policy, policy.model, streams, temperature, len(batch.rollout_of))
    return policy.processes.sum(scored).cpu()  # each token is computed by one of them


def _share(policy: Policy, batch: Batch, minibatch: Sequence[int], teaching: Bool[Tensor, " N"]) -> list[int]:
    """The part of an optimizer step's teaching rollouts that this process computes."""
    indices = [index for index in minibatch if teaching[index]]
    return share_of_tokens(batch.rollouts, indices, policy.processes.rank, policy.processes.count)


def _streams(policy: Policy, batch: Batch, indices: Sequence[int], config: OptimizerConfig) -> list[Stream]:
    """The rollouts in streams of the size of a micro-batch."""
    parts = policy.micro_batches(batch.rollouts, indices, config.micro_batch_tokens)
    return [pack(batch.rollouts, part).to(policy.device) for part in parts]


class _Trace:
    """What an update computed, for curves and logs. It stays on the device until `leave`."""

    def __init__(self, batch: Batch, policy: Policy) -> None:
        self.policy, self.processes, self.num_tokens = policy, policy.processes, len(batch.rollout_of)
        unknown = torch.full_like(batch.rollout_logprobs, torch.nan, device=policy.device)
        self.logprobs, self.importance_weights, self.preference = unknown, unknown.clone(), unknown.clone()  # (S,)
        self.rows, self.counted = torch.empty(0), torch.zeros(2, 3, self.num_tokens, dtype=unknown.dtype)
        self.sums: list[dict[str, Tensor]] = []
        self.sizes: list[tuple[int, int]] = []
        self.norms: list[float] = []

    def add(self, stream: Stream, tokens: Tokens, weights: Float[Tensor, " s"], sums: dict[str, Tensor]) -> None:
        """Add a micro-batch."""
        index, first = stream.token_index, self.logprobs[stream.token_index]
        self.logprobs[index] = torch.where(first.isnan(), tokens.logprobs.detach().to(first.dtype), first)
        if (nats := tokens.preference) is not None:
            self.preference[index] = nats.to(first.dtype)
            sums |= {"teacher_kl": -nats.double().sum(), "preferred": (nats > 0).double().sum()}
        self.importance_weights[index] = weights.to(first.dtype)
        self.sums.append(sums)
        self.sizes.append((len(index), self.policy.computed_tokens(stream)))

    def leave(self) -> None:
        """Begin to copy all to main memory. The copies are there once the gradient's norm is read, which comes next."""
        own = torch.stack([self.logprobs, self.importance_weights, self.preference])
        computed = ~own.isnan()
        sums = torch.stack([torch.where(computed, own, 0.0), computed.to(own.dtype)])
        self.counted = self.processes.sum(sums).to("cpu", non_blocking=True)  # each token is computed by one of them
        if self.sums:
            self.rows = torch.stack([torch.stack([*one.values()]) for one in self.sums]).to("cpu", non_blocking=True)

    def per_token(self) -> Float[Tensor, "3 S"]:
        """Log-probabilities, importance weights and preferences of all processes."""
        return torch.where(self.counted[1] > 0, self.counted[0], torch.nan)

    def metrics(self, passes: int, corrected: bool, regularized: bool) -> dict[str, float]:
        """Means over the trained tokens of all processes and over the optimizer steps, by tag. What was not measured is
        left out: a 0 would look like a collapse.
        """
        tokens, computed, total = self._totals()
        norms = [norm for norm in self.norms if math.isfinite(norm)]
        metrics = {
            "policy/loss": total["loss"] / max(1, len(self.norms)) if tokens else 0.0,
            "update/computed_tokens": computed,
            "policy/optimizer_steps": len(norms),
            "policy/skipped_steps": len(self.norms) - len(norms),
            "policy/trained_token_frac": tokens / max(1, passes * self.num_tokens),
        }
        if norms or not self.norms:  # without an optimizer step the gradient is 0
            metrics["policy/grad_norm"] = sum(norms) / max(1, len(norms))
        if tokens:
            metrics |= {tag: total[name] / tokens for tag, name in MEANS.items() if name in total}
            metrics |= {tag: total[name] for tag, name in EXTREMES.items()}
        if tokens and regularized:
            metrics["policy/ref_kl"] = total["ref_kl"] / tokens
        if tokens and corrected:
            metrics["engine/importance_cap_frac"] = total["capped"] / tokens
            metrics["engine/ess"] = total["weight"] ** 2 / max(tokens * total["weight_squared"], 1e-30)
        return metrics

    def _totals(self) -> tuple[int, int, dict[str, float]]:
        """Trained tokens, computed tokens, and sums and extremes over the micro-batches of all processes."""
        names = list(self.sums[0]) if self.sums else []
        rows = self.processes.gather([dict(zip(names, row, strict=True)) for row in self.rows.tolist()])
        sizes, kinds = self.processes.gather(self.sizes), {"max": max, "min": min}
        combine = {name: kinds.get(name.rpartition("_")[2], sum) for name in (rows[0] if rows else ())}
        totals = {name: float(how([row[name] for row in rows])) for name, how in combine.items()}
        return sum(size for size, _ in sizes), sum(size for _, size in sizes), totals
