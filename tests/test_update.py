"""What must not change the gradient, for every row of ALGORITHMS; and what must."""

import copy
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from gradients import CPU, Tap, fixed_rollouts, gradients, settings, tiny_policy
from together import together

from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.batch import make_batch, pack
from minrl.config import OptimizerConfig
from minrl.models.processes import Processes
from minrl.models.scoring import score
from minrl.optimizer import learning_rate
from minrl.types import Reward, TrainState
from minrl.update import optimizer_step, update_policy
from tests.casts import Casts

BOUND = 1e-6
"""In double precision; transformers' RMSNorm computes in float32 inside."""

GROUP_RELATIVE = [name for name, row in ALGORITHMS.items() if row.group_relative]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(Processes(CPU))


@pytest.fixture
def rollouts():
    return fixed_rollouts()


def assert_same(actual, expected, bound=BOUND):
    assert len(actual) == len(expected) > 0
    for new, old in zip(actual, expected, strict=True):
        assert max(float(gradient.abs().max()) for gradient in old.values()) > 1e-4, "a gradient of nothing"
        for name in old:
            torch.testing.assert_close(new[name], old[name], atol=bound, rtol=0, msg=name)


@pytest.fixture(scope="module")
def whole(policy):
    """The gradients of each row's update, all rollouts in one stream."""
    return cache(lambda name: gradients(policy, fixed_rollouts(), settings(name))[0])


@pytest.mark.parametrize(("name", "tokens"), [*((name, 30) for name in ALGORITHMS), ("grpo", 1), ("gspo", 1)])
def test_the_gradient_does_not_depend_on_micro_batches(name, tokens, policy, rollouts, whole):
    parts, _ = gradients(policy, rollouts, settings(name, micro_batch_tokens=tokens))
    assert_same(parts, whole(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_the_order_of_rollouts(name, policy, rollouts, whole):
    order = [7, 12, 0, 9, 3, 14, 5, 10, 1, 15, 6, 2, 13, 8, 4, 11]
    shuffled, _ = gradients(policy, [rollouts[i] for i in order], settings(name))
    assert_same(shuffled, whole(name))


def test_a_tasks_own_limit_is_the_constant_that_its_tokens_are_divided_by(policy, rollouts):
    config = settings("dr_grpo")
    own, longer = ({"task_max_tokens": "countdown:32"}, {"max_tokens": 32})
    expected, _ = gradients(policy, rollouts, replace(config, rollout=replace(config.rollout, **longer)))
    actual, _ = gradients(policy, rollouts, replace(config, rollout=replace(config.rollout, **own)))
    assert_same(actual, expected, bound=0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_packing(name, policy, rollouts, whole, monkeypatch):
    packed = whole(name)
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    assert not policy.packed
    alone, _ = gradients(policy, rollouts, settings(name))
    assert_same(alone, packed)


def updated(policy, rollouts, config):
    """An update by plain gradient descent: what it reports, and the weights after it."""
    algorithm = choose_algorithm(config)
    batch = make_batch(rollouts, compute_advantages(rollouts, algorithm, config, TrainState()).values)
    batch = replace(batch, rollout_logprobs=batch.rollout_logprobs.double())
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    optimizer = torch.optim.SGD(policy.model.parameters())
    found = update_policy(policy, optimizer, batch, algorithm, config, TrainState(step=1), needs_correction=True)
    after = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    policy.model.load_state_dict(before)
    return found, after


@pytest.mark.parametrize(("minibatches", "count"), [(1, 2), (2, 2), (4, 2), (3, 5)])
def test_figures_and_weights_do_not_depend_on_the_number_of_processes(policy, rollouts, minibatches, count):
    config = settings("grpo", minibatches_per_pass=minibatches, kl_coef=0.1, entropy_coef=0.01)

    def make(processes):
        made = tiny_policy(processes)
        made.reference = tiny_policy(processes, seed=1).model.requires_grad_(False)
        return made

    alone, weights = updated(make(policy.processes), rollouts, config)
    assert alone.metrics["policy/optimizer_steps"] == 2 * minibatches
    for found, moved in together(count, make, lambda member: updated(member, rollouts, config)):
        for name, weight in weights.items():
            torch.testing.assert_close(moved[name], weight, atol=BOUND, rtol=0, msg=name)
        # A prompt whose rollouts two processes share is computed in both; one fills its pass up by a 16th at most.
        computed, expected = found.metrics.pop("update/computed_tokens"), dict(alone.metrics)
        assert computed >= expected.pop("update/computed_tokens") * 16 / 17
        assert found.metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
        torch.testing.assert_close(found.logprobs, alone.logprobs, atol=BOUND, rtol=0, equal_nan=True)
        weighed = alone.importance_weights
        torch.testing.assert_close(found.importance_weights, weighed, atol=BOUND, rtol=0, equal_nan=True)


def test_a_process_with_nothing_to_compute_takes_part(policy, rollouts):
    # A single rollout: two of three processes have none.
    one, config = rollouts[:1], settings("reinforce")
    alone, weights = updated(policy, one, config)
    assert alone.metrics["policy/optimizer_steps"] == 1
    for found, moved in together(3, tiny_policy, lambda member: updated(member, one, config)):
        assert found.metrics == pytest.approx(alone.metrics, rel=1e-5, abs=1e-7)
        torch.testing.assert_close(moved["lm_head.weight"], weights["lm_head.weight"], atol=BOUND, rtol=0)


def test_a_batch_without_rollouts_teaches_nothing(policy):
    nothing, config = make_batch([], torch.zeros(0, dtype=torch.float64)), settings("grpo", minibatches_per_pass=2)
    found = update_policy(
        policy, Tap(policy.model), nothing, choose_algorithm(config), config, TrainState(step=1), needs_correction=True
    )
    assert found.metrics["policy/optimizer_steps"] == 0
    assert found.logprobs.shape == (0,)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_a_group_without_spread_only_counts_in_the_normaliser(name, policy, rollouts):
    # Group 1 has equal rewards. With its tokens replaced by others of the same number nothing changes, to the bit.
    expected, metrics = gradients(policy, rollouts, settings(name))
    others = [r if r.group != 1 else replace(r, ids=[*r.ids[:-1], (r.ids[-1] + 7) % 40 + 5]) for r in rollouts]
    actual, _ = gradients(policy, others, settings(name))
    assert_same(actual, expected, bound=0)
    assert metrics["policy/trained_token_frac"] < 1


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_nothing_to_learn_takes_no_optimizer_step(name, policy, rollouts):
    equal = [replace(r, reward=Reward(0.7)) for r in rollouts]
    seen, metrics = gradients(policy, equal, settings(name))
    assert seen == []
    assert metrics["policy/optimizer_steps"] == 0


class TwoProcesses:
    """The first of two processes, of which the other has one gradient that is not finite."""

    count = 2

    def sum_gradients(self, weights):
        for weight in weights:
            weight.grad += float("nan") if weight.shape == (45, 32) else 0


def test_a_gradient_that_is_finite_here_and_not_elsewhere_is_stepped_nowhere():
    policy = tiny_policy(Processes(CPU))
    policy.processes = TwoProcesses()
    for weight in policy.model.parameters():
        weight.grad = torch.ones_like(weight)
    before = [weight.detach().clone() for weight in policy.model.parameters()]
    assert math.isnan(optimizer_step(policy, torch.optim.SGD(policy.model.parameters(), lr=1.0), OptimizerConfig()))
    assert all(map(torch.equal, before, policy.model.parameters()))
    assert (policy.version, policy.skipped_steps) == (0, 1)


def test_one_rollout_that_cannot_be_scored_by_the_policy_skips_its_optimizer_step_alone(policy, rollouts):
    # The token's log-probability at rollout is no number, so is its importance weight; it is in the last minibatch.
    rollouts[-1].rollout_logprobs[-1] = float("nan")
    version = policy.version
    seen, metrics = gradients(policy, rollouts, settings("grpo", passes_per_step=1, minibatches_per_pass=2))
    assert len(seen) == metrics["policy/optimizer_steps"] == policy.version - version == 1
    assert metrics["policy/skipped_steps"] == 1
    assert math.isfinite(metrics["policy/grad_norm"])


def test_a_process_by_itself_takes_its_gradients_as_they_are(monkeypatch):
    policy = tiny_policy(Processes(CPU))
    monkeypatch.setattr(policy.processes, "sum", lambda values: pytest.fail("a copy for nothing"))
    first, *others = policy.model.parameters()
    first.grad = torch.ones_like(first)
    before = [weight.detach().clone() for weight in others]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1.0, weight_decay=0.1)
    assert optimizer_step(policy, optimizer, OptimizerConfig()) == pytest.approx(math.sqrt(first.numel()))
    assert all(map(torch.equal, before, others))  # what has no gradient has no decay


@pytest.mark.parametrize(("changes", "expected"), [
    # Ratios are 1 and each rollout has the mean of its tokens: -1 and 0.5 over four, three or two that count.
    ({}, (-1 + 0.5) / 4),
    ({"drop_equal_groups": True}, (-1 + 0.5) / 2),
    ({"overlong": "mask"}, -1 / 3),
    ({"drop_equal_groups": True, "overlong": "mask"}, -1 / 1),
])  # fmt: skip
def test_what_is_left_out_does_not_count_in_the_normaliser(changes, expected, policy, make_rollout):
    ends = ("stop", "length", "stop", "stop")
    rollouts = [make_rollout([5, 6], [7 + n] * (n + 1), group=n // 2, finish_reason=e) for n, e in enumerate(ends)]
    _, metrics = updated_with(policy, rollouts, [1.0, -0.5, 0.0, 0.0], "grpo", correct=False, **changes)
    assert metrics["policy/loss"] == pytest.approx(expected)


def test_the_number_of_micro_batches_done_is_reported(policy, rollouts, reported):
    gradients(policy, rollouts[:4], settings("reinforce_no_baseline", micro_batch_tokens=1, minibatches_per_pass=1))
    assert reported == [("update", 2), 1, 2]  # two of the group's four have a reward


@pytest.mark.parametrize("name", ALGORITHMS)
def test_unscorable_rollouts_have_no_gradient_and_no_weight(name, policy, rollouts, whole):
    without = [r for r in rollouts if r.reward is not None]
    assert len(without) == len(rollouts) - 1
    expected, _ = gradients(policy, without, settings(name))
    assert_same(whole(name), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tokens_that_were_not_sampled_have_no_gradient(name, policy, rollouts, whole):
    # Each rollout ends with three given tokens, which nothing sampled can see: whatever they are, as labels they
    # must not count, and the gradient is that of the rollouts without them.
    ended = [
        replace(
            r,
            ids=[*r.ids, 5, 6 + r.sample, 7],
            loss_mask=[*r.loss_mask, False, False, False],
            rollout_logprobs=[*r.rollout_logprobs, 0.0, 0.0, 0.0],
        )
        for r in rollouts
    ]
    actual, _ = gradients(policy, ended, settings(name))
    assert_same(actual, whole(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_policy_every_row_has_the_gradient_of_reinforce(name, policy, rollouts):
    row = ALGORITHMS[name]
    plain = replace(ALGORITHMS["reinforce"], advantage=row.advantage, aggregation=row.aggregation)
    config = settings(name, passes_per_step=1, importance_cap=0.0)
    expected, _ = gradients(policy, rollouts, config, row=plain)
    actual, _ = gradients(policy, rollouts, config)
    assert_same(actual, expected, bound=1e-9)


def test_the_ratio_is_at_the_level_of_the_row(policy, rollouts):
    row = ALGORITHMS["gspo"]
    wide = replace(row, limits=ALGORITHMS["grpo"].limits)
    (on_policy, moved), _ = gradients(policy, rollouts, settings("gspo", importance_cap=0.0), row=wide)
    (same, other), _ = gradients(
        policy, rollouts, settings("gspo", importance_cap=0.0), row=replace(wide, ratio_level="token")
    )
    assert_same([same], [on_policy])  # while the policy has not moved all ratios are 1
    assert max(float((moved[name] - other[name]).abs().max()) for name in moved) > 1e-4


@pytest.mark.parametrize(("level", "mode"), [("sequence", "truncate"), ("geometric", "truncate"), ("sequence", "mask")])
def test_the_engine_correction_of_a_sequence_scales_its_gradient(level, mode, policy, make_rollout):
    # One rollout, sampled by an engine that found its four tokens less likely by 0.1, 0.2, 0.3 and 0.4: the weight of
    # the sequence is e^1, of the geometric mean e^0.25.
    alone = make_rollout([5, 6], [7, 8, 9, 10])
    scored = score(policy.model, pack([alone], [0]), 1.0)[0].tolist()
    alone.rollout_logprobs[2:] = [value - gap for value, gap in zip(scored, (0.1, 0.2, 0.3, 0.4), strict=True)]
    config = {"passes_per_step": 1, "importance_level": level, "importance_mode": mode}
    expected, _ = gradients(policy, [alone], settings("reinforce_no_baseline", passes_per_step=1, importance_cap=0.0))
    for cap in (5.0, 2.0, 1.1):
        weight = {"sequence": math.e, "geometric": math.exp(0.25)}[level]
        weight = weight if weight <= cap else (cap if mode == "truncate" else 0.0)
        actual, metrics = gradients(policy, [alone], settings("reinforce_no_baseline", importance_cap=cap, **config))
        for name, gradient in actual[0].items():
            torch.testing.assert_close(gradient, weight * expected[0][name], atol=1e-6, rtol=0)
        assert metrics["engine/importance_cap_frac"] == float(weight in (0.0, cap))


def test_the_importance_weights_are_handed_over_token_by_token(policy, make_rollout):
    # Gaps of 0.1 and 1 in the first rollout (cut off at 2) and of -0.5 in the last; the second has no advantage.
    rollouts = [make_rollout([5, 6], [7, 8]), make_rollout([5, 6], [8, 9, 10]), make_rollout([5, 6], [9])]
    gaps = [[0.1, 1.0], None, [-0.5]]
    for one, gap in zip(rollouts, gaps, strict=True):
        scored = score(policy.model, pack([one], [0]), 1.0)[0].tolist()
        one.rollout_logprobs[2:] = [value - g for value, g in zip(scored, gap or [0.0] * 3, strict=True)]
    batch = make_batch(rollouts, torch.tensor([1.0, 0.0, 1.0]))
    config = settings("reinforce_no_baseline", passes_per_step=1, importance_level="token", importance_cap=2.0)
    expected = [math.exp(0.1), 2.0, *[math.nan] * 3, math.exp(-0.5)]
    for correct in (True, False):
        moved = copy.deepcopy(policy)
        found = update_policy(
            moved, Tap(moved.model), batch, choose_algorithm(config), config, TrainState(step=1), correct
        )
        if correct:
            torch.testing.assert_close(found.importance_weights.tolist(), expected, equal_nan=True, atol=1e-5, rtol=0)
        else:
            assert found.importance_weights is None


def sampled_with(policy, rollouts, gaps):
    """The rollouts' sampled tokens as an engine reports them whose log-probabilities are lower by `gaps`, and what the
    policy gives them, with the entropies."""
    scores = [score(policy.model, pack([one], [0]), 1.0) for one in rollouts]
    for one, (logprobs, _), gap in zip(rollouts, scores, gaps, strict=True):
        one.rollout_logprobs[-len(gap) :] = [value - g for value, g in zip(logprobs.tolist(), gap, strict=True)]
    return [[column.detach() for column in both] for both in scores]


def first_rate():
    config = settings("grpo")
    return learning_rate(config.optimizer, 1, config.steps)


def updated_with(policy, rollouts, advantages, row="reinforce_no_baseline", correct=True, **changes):
    """One update in float64 with these advantages: its gradients and metrics; the weights are put back."""
    weights = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    config = settings(row, **{"passes_per_step": 1, "importance_level": "token", "importance_cap": 2.0, **changes})
    batch = make_batch(rollouts, torch.tensor(advantages, dtype=torch.float64))
    batch = replace(batch, rollout_logprobs=batch.rollout_logprobs.double())
    tap = Tap(policy.model)
    metrics = update_policy(policy, tap, batch, choose_algorithm(config), config, TrainState(step=1), correct).metrics
    assert all(weight.grad is None for weight in policy.model.parameters())
    policy.model.load_state_dict(weights)
    return tap.seen, metrics


def test_the_metrics_of_an_update_by_hand(policy, make_rollout):
    # Three rollouts of one prompt: 2 tokens of advantage 1, 3 of 0, which are counted and not computed, and 1 of -1.
    rollouts = [make_rollout([5, 6], [7, 8]), make_rollout([5, 6], [8, 9, 10]), make_rollout([5, 6], [9])]
    scores = sampled_with(policy, rollouts, [[0.1, 1.0], [0.0] * 3, [-0.5]])
    (first, first_entropy), _, (last, last_entropy) = scores
    raw = [math.exp(0.1), math.e, math.exp(-0.5)]
    used = [raw[0], 2.0, raw[2]]  # e is above the cap of 2
    seen, metrics = updated_with(policy, rollouts, [1.0, 0.0, -1.0])
    surrogate = [-float(first[0]), -float(first[1]), float(last[0])]
    expected = {
        "policy/loss": sum(s * w for s, w in zip(surrogate, used, strict=True)) / 6,  # the mean over all six tokens
        "policy/entropy": float(first_entropy.sum() + last_entropy.sum()) / 3,
        "policy/grad_norm": math.sqrt(sum(float(gradient.square().sum()) for gradient in seen[0].values())),
        "policy/clip_low_frac": 0,
        "policy/clip_high_frac": 0,
        "policy/ratio_max": 1,
        "policy/optimizer_steps": 1,
        "policy/skipped_steps": 0,
        "policy/trained_token_frac": 3 / 6,
        "policy/learning_rate": first_rate(),
        "rollout/temperature": 1,
        "engine/logprob_gap_mean": (0.1 + 1.0 + 0.5) / 3,
        "engine/logprob_gap_max": 1.0,
        "engine/kl": sum(math.exp(gap) - 1 - gap for gap in (0.1, 1.0, -0.5)) / 3,
        "engine/importance_weight_mean": sum(raw) / 3,
        "engine/importance_weight_min": min(raw),
        "engine/importance_weight_max": max(raw),
        "engine/importance_cap_frac": 1 / 3,
        "engine/ess": sum(used) ** 2 / (3 * sum(w**2 for w in used)),
        "update/computed_tokens": 3,  # the prompt of two and the one suffix of one
    }
    assert metrics == pytest.approx(expected, abs=1e-6)
    _, exact = updated_with(policy, rollouts, [1.0, 0.0, -1.0], correct=False)
    assert set(expected) - set(exact) == {"engine/importance_cap_frac", "engine/ess"}
    assert exact["policy/loss"] == pytest.approx(sum(surrogate) / 6, abs=1e-6)


def test_where_nothing_is_trained_on_nothing_is_said_of_tokens(policy, make_rollout):
    rollouts = [make_rollout([5, 6], [7, 8]), make_rollout([5, 6], [9])]
    sampled_with(policy, rollouts, [[0.1, 1.0], [0.5]])
    _, metrics = updated_with(policy, rollouts, [0.0, 0.0])
    # An entropy or a ratio of 0 would be taken for a collapse; loss and gradient are 0.
    assert metrics == {
        "policy/loss": 0,
        "policy/grad_norm": 0,
        "policy/optimizer_steps": 0,
        "policy/skipped_steps": 0,
        "policy/trained_token_frac": 0,
        "policy/learning_rate": first_rate(),
        "rollout/temperature": 1,
        "update/computed_tokens": 0,
    }


def test_the_loss_is_the_mean_over_the_optimizer_steps(policy, make_rollout, monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)  # the second minibatch meets the same policy
    # Two groups of one length and the same advantages: each alone has the loss of both together, on average.
    rollouts = [make_rollout([5, 6], [7 + n, 8], group=n // 2) for n in range(4)]
    scores = sampled_with(policy, rollouts, [[0.0, 0.0]] * 4)
    expected = sum(sign * float(logprobs.sum()) for sign, (logprobs, _) in zip((-1, 1, -1, 1), scores, strict=True)) / 8
    for minibatches in (1, 2):
        _, metrics = updated_with(policy, rollouts, [1.0, -1.0, 1.0, -1.0], minibatches_per_pass=minibatches)
        assert metrics["policy/optimizer_steps"] == minibatches
        assert metrics["policy/loss"] == pytest.approx(expected, abs=1e-6)


def test_ratios_and_what_is_clipped_are_those_of_the_policy_that_has_moved(policy, rollouts):
    # The second pass is at the weights that the first one's step led to: minus the learning rate times its gradient.
    stream = pack(rollouts, range(len(rollouts)))
    before = score(policy.model, stream, 1.0)[0].detach()
    config = {"passes_per_step": 2, "importance_cap": 0.0, "clip_low": 0.01, "clip_high": 0.02}
    (gradient, _), metrics = gradients(policy, rollouts, settings("grpo", **config))
    named = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, change in gradient.items():
            named[name] -= first_rate() * change
        ratio = (score(policy.model, stream, 1.0)[0] - before).exp()
        for name, change in gradient.items():
            named[name] += first_rate() * change
    advantages = compute_advantages(rollouts, choose_algorithm(settings("grpo")), settings("grpo"), TrainState()).values
    of_token = torch.repeat_interleave(advantages, torch.tensor([r.num_sampled for r in rollouts]))
    trained = int((of_token != 0).sum())
    low, high = int(((ratio < 0.99) & (of_token < 0)).sum()), int(((ratio > 1.02) & (of_token > 0)).sum())
    assert low > 0 and high > 0 and low != high
    assert metrics["policy/clip_low_frac"] == low / (2 * trained)
    assert metrics["policy/clip_high_frac"] == high / (2 * trained)
    assert metrics["policy/ratio_max"] == pytest.approx(float(ratio[of_token != 0].max()), abs=1e-6)
    assert metrics["policy/trained_token_frac"] == trained / len(of_token)
    assert metrics["policy/optimizer_steps"] == 2


def test_passes_and_minibatches_multiply(policy, rollouts):
    version = policy.version
    steps, metrics = gradients(policy, rollouts, settings("grpo", passes_per_step=2, minibatches_per_pass=2))
    assert len(steps) == metrics["policy/optimizer_steps"] == policy.version - version == 4
    assert metrics["policy/ratio_max"] > 1
    _, one_pass = gradients(policy, rollouts, settings("grpo", passes_per_step=1, minibatches_per_pass=2))
    assert one_pass["policy/ratio_max"] > 1  # the second minibatch meets a policy that has moved
    norms = [math.sqrt(sum(float(gradient.square().sum()) for gradient in step.values())) for step in steps]
    assert metrics["policy/grad_norm"] == pytest.approx(sum(norms) / 4)


def test_without_packing_every_rollout_has_its_prompt(policy, make_rollout, monkeypatch):
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    pair = [make_rollout([5], [6]), make_rollout([5], [7])]  # one prompt of one token, and labels that nothing reads
    _, metrics = updated_with(policy, pair, [1.0, -1.0])
    assert metrics["update/computed_tokens"] == 2


REGULARIZED = {"kl_coef": 0.3, "entropy_coef": 0.2}


@pytest.fixture
def with_reference(policy):
    policy.reference = tiny_policy(policy.processes, seed=1).model.requires_grad_(False)
    yield policy
    policy.reference = None


@pytest.mark.parametrize("gradient", ["exact", "naive"])
def test_the_gradient_with_kl_and_entropy_does_not_depend_on_micro_batches_or_order(gradient, with_reference, rollouts):
    config = settings("grpo", kl_gradient=gradient, **REGULARIZED)
    whole, metrics = gradients(with_reference, rollouts, config)
    parts, _ = gradients(with_reference, rollouts[::-1], settings("grpo", 30, kl_gradient=gradient, **REGULARIZED))
    assert_same(parts, whole)
    assert metrics["policy/ref_kl"] > 0
    # Group 1 has no spread and takes part all the same; the one rollout that could not be scored does not.
    sampled = sum(r.num_sampled for r in rollouts)
    unscorable = sum(r.num_sampled for r in rollouts if r.reward is None)
    assert metrics["policy/trained_token_frac"] == pytest.approx(1 - unscorable / sampled)


def test_the_divergence_to_the_reference_is_a_mean_over_trained_tokens(with_reference, rollouts):
    scored = [r for r in rollouts if r.reward is not None]
    stream = pack(scored, range(len(scored)))
    logprobs, reference = (score(m, stream, 1.0)[0].detach() for m in (with_reference.model, with_reference.reference))
    config = settings("grpo", passes_per_step=1, kl_coef=0.3, kl_estimator="k2", importance_cap=0.0)
    _, metrics = gradients(with_reference, rollouts, config)
    assert metrics["policy/ref_kl"] == pytest.approx(float((logprobs - reference).square().mean() / 2), abs=1e-6)
    _, metrics = gradients(with_reference, rollouts, settings("grpo", passes_per_step=1))
    assert "policy/ref_kl" not in metrics


def test_kl_and_entropy_are_added_to_the_loss_by_token_weight(with_reference, rollouts):
    """The gradient of what is added, against autograd over the whole logits of each rollout by itself."""
    policy, model, coefficients = with_reference, with_reference.model, (0.3, 0.2)
    config = {"passes_per_step": 1, "kl_gradient": "naive", "kl_estimator": "k2", "importance_cap": 0.0}
    base, _ = gradients(policy, rollouts, settings("grpo", **config))
    full, _ = gradients(
        policy, rollouts, settings("grpo", kl_coef=coefficients[0], entropy_coef=coefficients[1], **config)
    )
    model.zero_grad()
    scored = [r for r in rollouts if r.reward is not None]
    for rollout in scored:
        ids, mask = torch.tensor([rollout.ids]), torch.tensor(rollout.loss_mask[1:])
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        reference = policy.reference(ids).logits[0, :-1].log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        label = ids[0, 1:, None]
        kl = (logprobs.gather(1, label) - reference.gather(1, label))[:, 0] ** 2 / 2
        added = ((coefficients[0] * kl - coefficients[1] * entropy) * mask).sum()
        (added / (len(scored) * rollout.num_sampled)).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(full[0][name] - base[0][name], weight.grad, atol=1e-6, rtol=0)
    model.zero_grad()


@pytest.mark.learns
def test_a_rewarded_completion_becomes_likelier(policy, rollouts):
    seen, _ = gradients(policy, rollouts, settings("grpo", passes_per_step=1))
    best = [i for i, r in enumerate(rollouts) if r.group == 0 and r.reward.value == 1.0]
    stream = pack(rollouts, best)
    before = score(policy.model, stream, 1.0)[0].sum()
    weights = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, gradient in seen[0].items():
            weights[name] -= 0.01 * gradient
        after = score(policy.model, stream, 1.0)[0].sum()
        for name, gradient in seen[0].items():
            weights[name] += 0.01 * gradient
    assert after > before


def test_each_weight_is_cast_once_for_all_micro_batches(rollouts, monkeypatch):
    policy = tiny_policy(Processes(CPU))  # its own: the other tests' stays in double precision
    policy.activation_checkpointing = "never"  # nothing is run to see how much memory it takes
    policy.model.float()
    monkeypatch.setattr(policy.processes, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    with Casts() as casts:
        steps, _ = gradients(policy, rollouts, settings("grpo", passes_per_step=1, micro_batch_tokens=12))
    assert len(steps) == 1
    # hidden size 32, two heads of 32, one for keys and values, an MLP of 96; one layer
    assert [casts.shapes[shape] for shape in [(64, 32), (32, 64), (32, 96)]] == [1, 1, 1]
    assert casts.shapes[32, 32] == casts.shapes[96, 32] == 2  # keys and values; gate and up
    assert all(gradient.dtype == torch.float32 for gradient in steps[0].values())


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_the_number_of_processes(policy, rollouts, whole, tmp_path):
    root = Path(__file__).parent.parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, str(root / "tests" / "gradients.py"), str(tmp_path / "two.pt"), *ALGORITHMS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    two = torch.load(tmp_path / "two.pt")
    for name in ALGORITHMS:
        assert_same(two[name], whole(name))
    for minibatches in (2, 4):
        one, _ = gradients(policy, rollouts, settings("grpo", minibatches_per_pass=minibatches))
        # Two passes; of four groups one has no spread, which alone in its minibatch takes no step.
        assert len(one) == {2: 4, 4: 6}[minibatches]
        assert_same(two[minibatches], one)
