"""What must not change the gradient, for every row of ALGORITHMS; and what must."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from gradients import CPU, fixed_rollouts, gradients, settings, tiny_policy, updated
from together import together

from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.batch import make_batch, pack
from minrl.dataflow import Reward, TrainState
from minrl.models.distributed import Processes
from minrl.models.scoring import score
from minrl.optimizer import learning_rate
from minrl.update import current_logprobs

BOUND = 1e-6
"""In double precision; transformers' RMSNorm computes in float32 inside."""
FIRST_RATE = learning_rate(settings("grpo"), 1, settings("grpo").steps)
PLAIN = {"passes_per_step": 1, "importance_level": "token", "importance_cap": 2.0}


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(Processes(CPU))


@pytest.fixture
def with_reference(policy):
    policy.reference = tiny_policy(policy.processes, seed=1).model.requires_grad_(False)
    yield policy
    policy.reference = None


@pytest.fixture
def rollouts():
    return fixed_rollouts()


@pytest.fixture(scope="module")
def whole(policy):
    """The gradients of each row's update, all rollouts in one stream."""
    return cache(lambda name: gradients(policy, fixed_rollouts(), settings(name))[0])


def assert_same(actual, expected, bound=BOUND):
    assert len(actual) == len(expected) > 0
    for new, old in zip(actual, expected, strict=True):
        assert max(float(gradient.abs().max()) for gradient in old.values()) > 1e-4, "a gradient of nothing"
        for name in old:
            torch.testing.assert_close(new[name], old[name], atol=bound, rtol=0, msg=name)


def norm_of(gradient):
    return math.sqrt(sum(float(one.square().sum()) for one in gradient.values()))


def with_given_token(r):
    """The rollout with a token at its end that was not sampled, and that nothing sampled can see."""
    logprobs = [*r.rollout_logprobs, 0.0]
    return replace(r, ids=[*r.ids, 6 + r.sample], loss_mask=[*r.loss_mask, False], rollout_logprobs=logprobs)


ORDER = (7, 12, 0, 9, 3, 14, 5, 10, 1, 15, 6, 2, 13, 8, 4, 11)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_does_not_depend_on_order_micro_batches_given_tokens_or_unscorable_rollouts(
    name, policy, rollouts, whole
):
    others = [with_given_token(rollouts[index]) for index in ORDER if rollouts[index].reward is not None]
    assert len(others) < len(rollouts)
    assert_same(gradients(policy, others, settings(name, micro_batch_tokens=30))[0], whole(name))


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_gradient_does_not_depend_on_packing(name, policy, rollouts, whole, monkeypatch):
    monkeypatch.setattr(policy.model, "_supports_attention_backend", False)
    assert not policy.packed
    assert_same(gradients(policy, rollouts, settings(name, micro_batch_tokens=1))[0], whole(name))


def test_the_gradient_with_kl_and_entropy_does_not_depend_on_micro_batches_or_order(with_reference, rollouts):
    changes = {"kl_gradient": "exact", "kl_coef": 0.3, "entropy_coef": 0.2}
    expected, metrics = gradients(with_reference, rollouts, settings("grpo", **changes))
    assert_same(gradients(with_reference, rollouts[::-1], settings("grpo", 30, **changes))[0], expected)
    # Group 1 has no spread and takes part all the same; the one rollout that could not be scored does not.
    scorable = sum(r.num_sampled for r in rollouts if r.reward is not None)
    assert metrics["policy/trained_token_frac"] == scorable / sum(r.num_sampled for r in rollouts)


@pytest.mark.parametrize(("name", "first", "minibatches", "count"), [("grpo", 16, 3, 3), ("reinforce", 1, 1, 3)])
def test_figures_and_weights_do_not_depend_on_the_number_of_processes(
    policy, rollouts, name, first, minibatches, count
):
    """In the last case two of the three processes have nothing to compute."""
    config = settings(name, minibatches_per_pass=minibatches, kl_coef=0.1, entropy_coef=0.01)

    def make(processes):
        made = tiny_policy(processes)
        made.reference = tiny_policy(processes, seed=1).model.requires_grad_(False)
        return made

    alone, _, weights = updated(make(policy.processes), rollouts[:first], config)
    assert alone.metrics["policy/optimizer_steps"] == config.passes_per_step * minibatches
    for found, _, moved in together(count, make, lambda member: updated(member, rollouts[:first], config)):
        for key, weight in weights.items():
            torch.testing.assert_close(moved[key], weight, atol=BOUND, rtol=0, msg=key)
        # A prompt whose rollouts two processes share is computed in both; one fills its pass up by a 16th at most.
        computed, expected = found.metrics.pop("update/computed_tokens"), dict(alone.metrics)
        assert computed >= expected.pop("update/computed_tokens") * 16 / 17
        assert found.metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
        for column in ("logprobs", "importance_weights"):
            mine, other = getattr(found, column), getattr(alone, column)
            torch.testing.assert_close(mine, other, atol=BOUND, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_a_group_without_spread_only_counts_in_the_normalizer(name, policy, rollouts, whole):
    # Group 1 has equal rewards. With its tokens replaced by others of the same number nothing changes but rounding.
    others = [r if r.group != 1 else replace(r, ids=[*r.ids[:-1], (r.ids[-1] + 7) % 40 + 5]) for r in rollouts]
    actual, metrics = gradients(policy, others, settings(name))
    assert_same(actual, whole(name))
    assert metrics["policy/trained_token_frac"] < 1
    seen, metrics = gradients(policy, [replace(r, reward=Reward(0.7)) for r in rollouts], settings(name))
    assert seen == [] and metrics["policy/optimizer_steps"] == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_on_policy_every_row_has_the_gradient_of_reinforce(name, policy, rollouts):
    row = replace(ALGORITHMS[name], to_engine=False)  # the engine's probabilities here are not the policy's
    plain = replace(ALGORITHMS["reinforce"], advantage=row.advantage, aggregation=row.aggregation)
    config = settings(name, passes_per_step=1, importance_cap=0.0)
    expected, actual = (gradients(policy, rollouts, config, one)[0] for one in (plain, row))
    assert_same(actual, expected, bound=1e-7)


@pytest.mark.parametrize("name", ["vespo", "dppo"])
def test_a_ratio_to_the_engine_is_not_corrected_for_the_engine_once_more(name, policy, rollouts, whole):
    assert_same(gradients(policy, rollouts, settings(name, importance_cap=0.0))[0], whole(name))
    assert updated(policy, rollouts, settings(name))[0].importance_weights is None


def test_a_tasks_own_limit_is_the_constant_that_its_tokens_are_divided_by(policy, rollouts):
    config = settings("dr_grpo")
    own = [replace(rollout, max_tokens=32) for rollout in rollouts]
    longer = config.with_settings(max_tokens=32)
    assert_same(gradients(policy, own, config)[0], gradients(policy, rollouts, longer)[0])


def test_what_is_left_out_does_not_count_in_the_normalizer(policy, make_rollout):
    ends = ("stop", "length", "stop", "stop")
    rollouts = [make_rollout([5, 6], [7 + n] * (n + 1), group=n // 2, finish_reason=e) for n, e in enumerate(ends)]
    # Ratios are 1 and each rollout has the mean of its tokens: -1 and 0.5 over four, or the first over three.
    for masked, expected in ((False, (-1 + 0.5) / 4), (True, -1 / 3)):
        config = settings("grpo", passes_per_step=1, mask_truncated=masked)
        update, _, _ = updated(policy, rollouts, config, advantages=[1.0, -0.5, 0.0, 0.0], needs_correction=False)
        assert update.metrics["policy/loss"] == pytest.approx(expected)


def test_the_report_of_an_update_by_hand(policy, make_rollout):
    # Three rollouts of one prompt: 2 tokens of advantage 1, 3 of 0, which are counted and not computed, and 1 of -1.
    rollouts = [make_rollout([5, 6], [7, 8]), make_rollout([5, 6], [8, 9, 10]), make_rollout([5, 6], [9])]
    with torch.no_grad():
        scores = [score(policy.model, pack([one], [0]), 1.0) for one in rollouts]
    (first, first_entropy), _, (last, last_entropy) = scores
    # The engine's log-probabilities are lower by 0.1, 1 and -0.5.
    rollouts[0].rollout_logprobs[2:] = [float(first[0]) - 0.1, float(first[1]) - 1.0]
    rollouts[2].rollout_logprobs[2:] = [float(last[0]) + 0.5]
    raw = [math.exp(0.1), math.e, math.exp(-0.5)]
    used = [raw[0], 2.0, raw[2]]  # e is above the cap of 2
    config, advantages = settings("reinforce_no_baseline", 3, **PLAIN), [1.0, 0.0, -1.0]
    update, (gradient,), _ = updated(policy, rollouts, config, advantages=advantages)
    surrogate = [-float(first[0]), -float(first[1]), float(last[0])]
    expected = {
        "policy/loss": sum(s * w for s, w in zip(surrogate, used, strict=True)) / 6,  # the mean over all six tokens
        "policy/entropy": float(first_entropy.sum() + last_entropy.sum()) / 3,
        "policy/grad_norm": norm_of(gradient),
        "policy/clip_low_frac": 0,
        "policy/clip_high_frac": 0,
        "policy/ratio_max": 1,
        "policy/optimizer_steps": 1,
        "policy/skipped_steps": 0,
        "policy/trained_token_frac": 3 / 6,
        "policy/learning_rate": FIRST_RATE,
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
    assert update.metrics == pytest.approx(expected, abs=1e-6)
    weights = [*used[:2], *[math.nan] * 3, used[2]]
    torch.testing.assert_close(update.importance_weights.tolist(), weights, equal_nan=True, atol=1e-6, rtol=0)
    assert all(weight.grad is None for weight in policy.model.parameters())
    exact, _, _ = updated(policy, rollouts, config, advantages=advantages, needs_correction=False)
    assert set(expected) - set(exact.metrics) == {"engine/importance_cap_frac", "engine/ess"}
    assert exact.metrics["policy/loss"] == pytest.approx(sum(surrogate) / 6, abs=1e-6)
    assert exact.importance_weights is None


def test_ratios_and_what_is_clipped_are_those_of_the_policy_that_has_moved(policy, rollouts):
    # The second pass is at the weights that the first one's step led to.
    changes = {"importance_cap": 0.0, "clip_low": 0.01, "clip_high": 0.02}
    _, metrics = gradients(policy, rollouts, settings("grpo", passes_per_step=2, **changes))
    moved, stream = tiny_policy(policy.processes), pack(rollouts, range(len(rollouts)))
    moved.model.load_state_dict(updated(policy, rollouts, settings("grpo", passes_per_step=1, **changes))[2])
    with torch.no_grad():
        after, before = (score(one.model, stream, 1.0)[0] for one in (moved, policy))
    ratio = (after - before).exp()
    advantages = compute_advantages(rollouts, choose_algorithm(settings("grpo")), settings("grpo"), TrainState()).values
    of_token = torch.repeat_interleave(advantages, torch.tensor([r.num_sampled for r in rollouts]))
    trained = int((of_token != 0).sum())
    low, high = int(((ratio < 0.99) & (of_token < 0)).sum()), int(((ratio > 1.02) & (of_token > 0)).sum())
    assert low > 0 and high > 0 and low != high
    assert metrics["policy/clip_low_frac"] == low / (2 * trained)
    assert metrics["policy/clip_high_frac"] == high / (2 * trained)
    assert metrics["policy/ratio_max"] == pytest.approx(float(ratio[of_token != 0].max()), abs=1e-6)
    assert metrics["policy/trained_token_frac"] == trained / len(of_token)


def test_passes_and_minibatches_multiply(policy, rollouts):
    version = policy.version
    steps, metrics = gradients(policy, rollouts, settings("grpo", passes_per_step=2, minibatches_per_pass=2))
    assert len(steps) == metrics["policy/optimizer_steps"] == policy.version - version == 4
    assert metrics["policy/grad_norm"] == pytest.approx(sum(map(norm_of, steps)) / 4)
    one_pass = settings("grpo", passes_per_step=1, minibatches_per_pass=2)
    assert gradients(policy, rollouts, one_pass)[1]["policy/ratio_max"] > 1  # the second minibatch's policy has moved
    rollouts[-1].rollout_logprobs[-1] = math.nan  # its importance weight, and the gradient of its minibatch alone
    seen, metrics = gradients(policy, rollouts, one_pass)
    assert (len(seen), metrics["policy/optimizer_steps"], metrics["policy/skipped_steps"]) == (1, 1, 1)
    assert metrics["policy/grad_norm"] == pytest.approx(norm_of(seen[0]))


def test_the_log_probabilities_and_the_teachers_preference_of_each_token_are_reported(policy, rollouts):
    rollouts, config = [one for one in rollouts if one.reward is not None], settings("distill", passes_per_step=1)
    with torch.no_grad():
        stream = pack(rollouts, range(len(rollouts)))
        own, teacher = (score(model, stream, 1.0)[0] for model in (policy.model, policy.teacher))
    update, _, _ = updated(policy, rollouts, config, needs_correction=False)
    now = current_logprobs(policy, make_batch(rollouts, torch.zeros(len(rollouts))), config, 1.0)
    for found, expected in ((update.preference, teacher - own), (update.logprobs, own), (now, own)):
        torch.testing.assert_close(found, expected, atol=BOUND, rtol=0)


def test_kl_and_entropy_are_added_to_the_loss_by_token_weight(with_reference, rollouts):
    policy, kl_coef, entropy_coef = with_reference, 0.3, 0.2
    changes = {"passes_per_step": 1, "kl_gradient": "naive", "kl_estimator": "k2", "importance_cap": 0.0}
    base, plain = gradients(policy, rollouts, settings("grpo", **changes))
    full, metrics = gradients(policy, rollouts, settings("grpo", kl_coef=kl_coef, entropy_coef=entropy_coef, **changes))
    scored = [r for r in rollouts if r.reward is not None]
    stream = pack(scored, range(len(scored)))
    logprobs, entropy = score(policy.model, stream, 1.0)
    kl = (logprobs - score(policy.reference, stream, 1.0)[0]) ** 2 / 2
    weights = [1 / (len(scored) * r.num_sampled) for r in scored for _ in range(r.num_sampled)]
    added = ((kl_coef * kl - entropy_coef * entropy) * torch.tensor(weights, dtype=torch.float64)).sum()
    parameters = dict(policy.model.named_parameters())
    for name, gradient in zip(parameters, torch.autograd.grad(added, [*parameters.values()]), strict=True):
        torch.testing.assert_close(full[0][name] - base[0][name], gradient, atol=1e-6, rtol=0)
    assert metrics["policy/ref_kl"] == pytest.approx(kl.mean().item(), abs=1e-6)
    assert "policy/ref_kl" not in plain
