"""One improvement of the policy from a batch of rollouts.

N rollouts, S sampled tokens of the step.

The gradient is the same for every micro-batch size, packing, order of rollouts and number of processes: each token's
weight is fixed for the whole optimizer step before its rollouts are shared among the processes and cut into
micro-batches, and gradients add up. Every process knows the whole batch, so that all agree on what a step is made of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minrl.algorithms import Algorithm
from minrl.batch import Batch, Stream, micro_batches, pack, share_of_tokens, split_groups
from minrl.config import OptimizerConfig, TrainerConfig
from minrl.losses import LEVELS, clipped_fractions, importance_weights, kl_penalty
from minrl.optimizer import clipped_step, learning_rate
from minrl.policy import Policy
from minrl.scoring import score
from minrl.system.progress import activity
from minrl.token_totals import TokenTotals
from minrl.types import CausalModel


def optimizer_step(policy: Policy, optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> float:
    """Sum the gradients over the processes and take a `clipped_step`, the same in each. The norm before clipping."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if policy.processes.count > 1:
        for weight in weights:
            weight.grad = policy.processes.sum(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    return clipped_step(policy, optimizer, config)


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    algorithm: Algorithm,
    config: TrainerConfig,
    step: int,
    correct_engine: bool,
) -> "Updated":
    """Train on the batch, which is the same in all processes: `passes_per_step` x `minibatches_per_pass` optimizer
    steps, of each of which a process computes a share of the gradient, perhaps nothing.

    With a single optimizer step the old log-probabilities are the current ones, detached: no second forward. With
    more they are scored once, before the first; so are the reference's, where there is a KL term. Where no rollout has
    an advantage, and neither KL nor entropy is in the loss, nothing is computed, the gradient is exactly 0 and no
    optimizer step is taken.
    """
    settings = config.algorithm
    single = settings.passes_per_step * settings.minibatches_per_pass == 1
    update = _Update(policy, batch, algorithm, config, correct_engine)
    if not single:
        update.old_logprobs = update.score_frozen(policy.model)
    if settings.kl_coef:
        with policy.as_reference() as reference:
            update.ref_logprobs = update.score_frozen(reference)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config.optimizer, step, config.steps)
    for _ in range(settings.passes_per_step):
        for minibatch in update.minibatches:
            if update.teaches[minibatch].any():  # in some process: all must step together
                update.accumulate(minibatch)
                update.apply(optimizer)
    metrics = update.metrics()
    metrics["policy/learning_rate"] = learning_rate(config.optimizer, step, config.steps)
    metrics["rollout/temperature"] = config.rollout.temperature
    logprobs, importance_weights = update.per_token()
    return Updated(metrics, logprobs, importance_weights if update.cap else None)


@dataclass(frozen=True)
class Updated:
    """Metrics by tag, and the log-probabilities (S,) that the policy gave the sampled tokens when it first scored
    them: NaN where a rollout had nothing to teach and was not computed. So for the importance weights (S,) that the
    tokens were corrected by last; None where the engine needs no correction.
    """

    metrics: dict[str, float]
    logprobs: Float[Tensor, " S"]
    importance_weights: Float[Tensor, " S"] | None = None


class _Update:
    """The working state of one call of `update_policy`."""

    def __init__(
        self, policy: Policy, batch: Batch, algorithm: Algorithm, config: TrainerConfig, correct_engine: bool
    ) -> None:
        self.policy, self.batch, self.algorithm, self.config = policy, batch, algorithm, config
        self.cap = config.algorithm.importance_cap if correct_engine else 0.0
        self.lengths = batch.completion_lengths
        self.counted = self._counted()  # (N,)
        self.teaches = self.counted & ((batch.advantages != 0) | config.algorithm.regularized)  # (N,)
        self.minibatches = split_groups(batch.rollouts, config.algorithm.minibatches_per_pass)
        self.advantages = batch.advantages[batch.rollout_of]  # (S,)
        self.old_logprobs: Tensor | None = None  # (S,)
        self.ref_logprobs: Tensor | None = None  # (S,)
        self.logprobs = torch.full_like(batch.rollout_logprobs, torch.nan)  # (S,)
        self.importance_weights = torch.full_like(self.logprobs, torch.nan)  # (S,)
        self.totals = TokenTotals()
        self.grad_norms: list[float] = []

    @torch.no_grad()
    def score_frozen(self, model: CausalModel) -> Float[Tensor, " S"]:
        """The log-probabilities of the sampled tokens under a model as it is now; 0 where this process learns nothing
        from them.
        """
        scored = torch.zeros_like(self.batch.rollout_logprobs, dtype=torch.float64)
        streams = self._streams(sorted(index for minibatch in self.minibatches for index in self._share(minibatch)))
        with self.policy.processes.autocast():
            scores = [score(model, stream, self.config.rollout.temperature)[0] for stream in streams]
        for stream, logprobs in zip(streams, scores, strict=True):
            scored[stream.token_index.cpu()] = logprobs.cpu().double()
        return scored

    def accumulate(self, minibatch: Sequence[int]) -> None:
        """Add up the gradients of this process's share of one optimizer step's rollouts."""
        weights = self._token_weights(minibatch)
        streams = self._streams(self._share(minibatch))
        with activity("update", len(streams)) as report, self.policy.casts_kept():
            for number, stream in enumerate(streams, 1):
                logprobs, entropy = self.policy.score(stream, self.config.rollout.temperature)
                loss = self._loss(stream, logprobs, entropy, weights)
                loss.backward()
                report(number)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum the gradients over the processes, clip, step."""
        self.grad_norms.append(optimizer_step(self.policy, optimizer, self.config.optimizer))

    def metrics(self) -> dict[str, float]:
        """Means over the trained tokens of all processes and over the optimizer steps, by tag. What nothing was
        measured of is left out: a 0 would read as a collapse.
        """
        totals = TokenTotals.over(self.policy.processes.gather([self.totals]))
        norms = [norm for norm in self.grad_norms if math.isfinite(norm)]
        passes = self.config.algorithm.passes_per_step
        metrics = {
            **totals.metrics(),
            "policy/loss": totals.loss / max(1, len(self.grad_norms)),
            "update/computed_tokens": totals.computed_tokens,
            "policy/optimizer_steps": len(norms),
            "policy/skipped_steps": len(self.grad_norms) - len(norms),
            "policy/trained_token_frac": totals.tokens / max(1, passes * len(self.advantages)),
        }
        if norms or not self.grad_norms:  # without an optimizer step the gradient is 0
            metrics["policy/grad_norm"] = sum(norms) / max(1, len(norms))
        if self.ref_logprobs is not None and totals.tokens:
            metrics["policy/ref_kl"] = totals.ref_kl / totals.tokens
        if self.cap:
            metrics.update(totals.corrections())
        return metrics

    def per_token(self) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """The log-probabilities and importance weights that the processes computed, together."""
        own = torch.stack([self.logprobs, self.importance_weights])
        computed = ~own.isnan()
        sums = torch.stack([torch.where(computed, own, 0.0), computed.to(own.dtype)]).to(self.policy.device)
        values, counts = self.policy.processes.sum(sums).cpu()  # each token was computed by one process
        logprobs, importance_weights = torch.where(counts > 0, values, torch.nan)
        return logprobs, importance_weights

    def _share(self, minibatch: Sequence[int]) -> list[int]:
        """What this process computes of an optimizer step's rollouts. Those of advantage 0 have something to teach
        only where KL or entropy count.
        """
        teaching = [index for index in minibatch if self.teaches[index]]
        processes = self.policy.processes
        return share_of_tokens(self.batch.rollouts, teaching, processes.rank, processes.count)

    def _streams(self, indices: Sequence[int]) -> list[Stream]:
        """Streams of the rollouts, each with as many as fit in a micro-batch."""
        budget = self.config.optimizer.micro_batch_tokens if self.policy.packed else 0  # 0: each rollout by itself
        parts = micro_batches(self.batch.rollouts, indices, budget)
        return [pack(self.batch.rollouts, part).to(self.policy.device) for part in parts]

    def _counted(self) -> Bool[Tensor, " N"]:
        """Which rollouts the normaliser counts: those that could be scored, but for masked truncated ones and, where
        they are dropped, those of groups in which nobody has an advantage.
        """
        settings, rollouts = self.config.algorithm, self.batch.rollouts
        taught = {r.group for r, a in zip(rollouts, self.batch.advantages.tolist(), strict=True) if a}
        masked = torch.tensor([settings.overlong == "mask" and r.truncated for r in rollouts], dtype=torch.bool)
        dropped = torch.tensor(
            [settings.drop_equal_groups and r.group not in taught for r in rollouts], dtype=torch.bool
        )
        return self.batch.scorable & ~masked & ~dropped

    def _token_weights(self, minibatch: Sequence[int]) -> Float[Tensor, " N"]:
        """The weight of each rollout's tokens in this optimizer step, if it takes part; those of advantage 0 are
        counted.
        """
        counted = torch.zeros(len(self.lengths), dtype=torch.bool)
        counted[minibatch] = True
        counted &= self.counted
        num_rollouts, num_tokens = int(counted.sum()), int(self.lengths[counted].sum())
        return self.algorithm.aggregation(self.lengths, num_rollouts, num_tokens, self.config.rollout.max_tokens)

    def _loss(
        self, stream: Stream, logprobs: Float[Tensor, " S"], entropy: Float[Tensor, " S"], weights: Tensor
    ) -> Tensor:
        """The weighted sum over the stream's sampled tokens of the surrogate, corrected for the engine, and of the
        KL and entropy terms, which are not.
        """
        index, device, dtype = stream.token_index.cpu(), logprobs.device, logprobs.dtype
        rollout_of = self.batch.rollout_of[index].to(device)
        current = logprobs.detach()
        old = current if self.old_logprobs is None else self.old_logprobs[index].to(device, dtype)
        gap = old - self.batch.rollout_logprobs[index].to(device, dtype)
        advantages = self.advantages[index].to(device, dtype)
        ratio = LEVELS[self.algorithm.ratio_level](logprobs - old, rollout_of).exp()
        per_token = self.algorithm.surrogate(logprobs, ratio, advantages, self.algorithm.limits)
        correction = self._engine_correction(gap, rollout_of)
        if self.cap:
            self.importance_weights[index] = correction.cpu().to(self.logprobs.dtype)
            per_token = per_token * correction
        settings = self.config.algorithm
        if self.ref_logprobs is not None:
            reference = self.ref_logprobs[index].to(device, dtype)
            kl = kl_penalty(logprobs, old, reference, settings.kl_estimator, settings.kl_gradient)
            per_token = per_token + settings.kl_coef * kl
            self.totals.ref_kl += float(kl.detach().sum())
        if settings.entropy_coef:
            per_token = per_token - settings.entropy_coef * entropy
        unseen = self.logprobs[index].isnan()
        self.logprobs[index[unseen]] = current.cpu().to(self.logprobs.dtype)[unseen]
        token_weights = weights[self.batch.rollout_of[index]].to(device, dtype)
        loss = (per_token * token_weights).sum()
        self._record(stream, loss.detach(), ratio.detach(), gap, advantages, entropy.detach())
        return loss

    def _engine_correction(self, gap: Tensor, rollout_of: Tensor) -> Tensor:
        """The importance weight (S,) of each token, at the level of the algorithm's ratio where none is named.

        It is measured, raw and capped, also where an exact engine needs no correction.
        """
        settings, t = self.config.algorithm, self.totals
        level = self.algorithm.ratio_level if settings.importance_level == "auto" else settings.importance_level
        log_weight = LEVELS[level](gap, rollout_of)
        raw = log_weight.exp()
        t.raw_weight += float(raw.sum())
        t.raw_weight_min = min(t.raw_weight_min, float(raw.min()))
        t.raw_weight_max = max(t.raw_weight_max, float(raw.max()))
        weight, exceeds = importance_weights(log_weight, self.cap, settings.importance_mode)
        t.weight += float(weight.sum())
        t.weight_squared += float((weight**2).sum())
        t.capped += float(exceeds.sum())
        return weight

    def _record(
        self, stream: Stream, loss: Tensor, ratio: Tensor, gap: Tensor, advantages: Tensor, entropy: Tensor
    ) -> None:
        """Add the stream's sums to the totals."""
        t = self.totals
        low, high = clipped_fractions(ratio, advantages, self.algorithm.limits)
        t.tokens += len(ratio)
        t.computed_tokens += len(stream.input_ids)
        t.loss += float(loss)
        t.entropy += float(entropy.sum())
        t.clip_low += float(low.sum())
        t.clip_high += float(high.sum())
        t.ratio_max = max(t.ratio_max, float(ratio.max()))
        t.gap += float(gap.abs().sum())
        t.gap_max = max(t.gap_max, float(gap.abs().max()))
        t.kl += float((gap.exp() - 1 - gap).sum())
