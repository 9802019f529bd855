"""Surrogates, aggregations and corrections against numbers worked out by hand, and their gradients."""

import math
from dataclasses import replace

import pytest
import torch

from minrl.algorithms import ALGORITHMS
from minrl.config import AlgorithmConfig
from minrl.losses import (
    KL_ESTIMATORS,
    LEVELS,
    WEIGHT,
    Limits,
    Tokens,
    clipped_fractions,
    clipped_surrogate,
    clipped_weight,
    constant_length,
    dual_clipped_surrogate,
    importance_weights,
    kl_penalty,
    policy_gradient,
    policy_loss,
    sequence_mean,
    soft_gate,
    token_mean,
)

LIMITS = Limits(clip_low=0.2, clip_high=0.28, clip_dual=3.0)
SURROGATES = [policy_gradient, clipped_surrogate, dual_clipped_surrogate, clipped_weight, soft_gate]
CLIPPED = [clipped_surrogate, dual_clipped_surrogate, clipped_weight, soft_gate]

# Ratios inside, below and above the bounds 0.8 and 1.28, and beyond 3; away from the kinks.
RATIOS = torch.tensor([1.1, 0.5, 1.5, 4.0, 1.1, 0.5, 1.5, 4.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, 2, 2, 2, -2, -2, -2, -2], dtype=torch.float64)
OLD = torch.full((8,), -1.5, dtype=torch.float64)


def loss_at(surrogate, logprobs, weighing):
    """`weighing` are the log-probabilities that a factor without gradient is computed from."""
    source = weighing if surrogate is clipped_weight else logprobs
    return surrogate(logprobs, (source - OLD).exp(), ADVANTAGES, LIMITS)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("surrogate", "expected"),
    [
        # -A log π, with log π = log ρ - 1.5
        (
            policy_gradient,
            [-a * (math.log(r) - 1.5) for r, a in zip(RATIOS.tolist(), ADVANTAGES.tolist(), strict=True)],
        ),
        # A = 2: -min(2ρ, 2 clip ρ): 2.2, 1.0 (the smaller), 2.56, 2.56.
        # A = -2: -min(-2ρ, -2 clip ρ) = max(2ρ, 2 clip ρ): 2.2, 1.6 (clipped from below), 3.0, 8.0.
        (clipped_surrogate, [-2.2, -1.0, -2.56, -2.56, 2.2, 1.6, 3.0, 8.0]),
        # Where A < 0 at most 3 * 2 = 6.
        (dual_clipped_surrogate, [-2.2, -1.0, -2.56, -2.56, 2.2, 1.6, 3.0, 6.0]),
        # -min(ρ, 1.28) A log π
        (
            clipped_weight,
            [
                -min(r, 1.28) * a * (math.log(r) - 1.5)
                for r, a in zip(RATIOS.tolist(), ADVANTAGES.tolist(), strict=True)
            ],
        ),
        # -(4/τ) sigmoid(τ (ρ - 1)) A with τ = 1 for A > 0, 1.05 for A < 0
        (
            soft_gate,
            [-4 * sigmoid(r - 1) * 2 for r in (1.1, 0.5, 1.5, 4.0)]
            + [4 / 1.05 * sigmoid(1.05 * (r - 1)) * 2 for r in (1.1, 0.5, 1.5, 4.0)],
        ),
    ],
)
def test_surrogates_by_hand(surrogate, expected):
    logprobs = RATIOS.log() + OLD
    actual = surrogate(logprobs, RATIOS, ADVANTAGES, LIMITS)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_gradients_are_the_finite_differences(surrogate):
    base = RATIOS.log() + OLD
    logprobs = base.clone().requires_grad_()
    loss_at(surrogate, logprobs, logprobs).sum().backward()
    step = 1e-6
    high, low = loss_at(surrogate, base + step, base), loss_at(surrogate, base - step, base)
    torch.testing.assert_close(logprobs.grad, (high - low) / (2 * step), atol=1e-7, rtol=0)


@pytest.mark.parametrize("surrogate", CLIPPED)
@pytest.mark.parametrize("level", LEVELS)
def test_on_policy_every_surrogate_has_the_gradient_of_reinforce(surrogate, level):
    # Two sequences of 3 and 5 tokens; all tokens of a sequence share the advantage, as they do in training. At the
    # sequence level the ratio is a product of tokens, so each token's loss has the gradient of all: divided by length.
    rollout_of = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)[rollout_of]
    weights = torch.tensor([1 / 3, 1 / 5], dtype=torch.float64)[rollout_of]
    if level == "sequence":
        weights = weights / torch.tensor([3.0, 5.0], dtype=torch.float64)[rollout_of]
    logprobs = torch.linspace(-3, -0.1, 8, dtype=torch.float64).requires_grad_()
    ratio = LEVELS[level](logprobs - logprobs.detach(), rollout_of).exp()
    (surrogate(logprobs, ratio, advantages, LIMITS) * weights).sum().backward()
    reinforce = -advantages * torch.tensor([1 / 3, 1 / 5], dtype=torch.float64)[rollout_of]
    if surrogate is clipped_weight and level == "sequence":
        reinforce = reinforce / torch.tensor([3.0, 5.0], dtype=torch.float64)[rollout_of]
    torch.testing.assert_close(logprobs.grad, reinforce, atol=1e-12, rtol=0)


def test_tokens_beyond_the_bounds_have_zero_gradient():
    logprobs = (RATIOS.log() + OLD).requires_grad_()
    ratio = (logprobs - OLD).exp()
    clipped_surrogate(logprobs, ratio, ADVANTAGES, LIMITS).sum().backward()
    # Above the upper bound with A > 0, below the lower with A < 0.
    assert (logprobs.grad == 0).tolist() == [False, False, True, True, False, True, False, False]
    logprobs.grad = None
    dual_clipped_surrogate(logprobs, (logprobs - OLD).exp(), ADVANTAGES, LIMITS).sum().backward()
    assert (logprobs.grad == 0).tolist() == [False, False, True, True, False, True, False, True]


def test_small_advantages_are_judged_by_their_sign():
    # The rows above have advantages of 2 and -2: the bounds are those of positive and negative ones, however small.
    ratios, advantages = torch.tensor([4.0, 0.5], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    for surrogate in (clipped_surrogate, dual_clipped_surrogate):
        assert surrogate(ratios.log(), ratios, advantages, LIMITS).tolist() == [-1.28 * 0.5, -0.25]
    expected = [-4 * sigmoid(r - 1) * 0.5 for r in ratios.tolist()]
    torch.testing.assert_close(soft_gate(ratios.log(), ratios, advantages, LIMITS).tolist(), expected)
    low, high = clipped_fractions(ratios, advantages, LIMITS)
    assert (low.tolist(), high.tolist()) == ([False, False], [True, False])


def test_at_the_bounds_and_without_an_advantage_nothing_is_held_back():
    ratios = torch.tensor([0.8, 1.28, 0.5, 4.0], dtype=torch.float64)
    advantages = torch.tensor([-2.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    low, high = clipped_fractions(ratios, advantages, LIMITS)
    assert not low.any() and not high.any()


def test_clipped_fractions_count_what_the_bounds_hold_back():
    low, high = clipped_fractions(RATIOS, ADVANTAGES, LIMITS)
    assert low.tolist() == [False] * 5 + [True, False, False]
    assert high.tolist() == [False, False, True, True, False, False, False, True]  # the last by clip_dual, 3
    _, high = clipped_fractions(RATIOS, ADVANTAGES, Limits(clip_high=0.28, either_sign=True))
    assert high.tolist() == [False, False, True, True] * 2
    assert Limits() == Limits(0.0, 0.0, 0.0, False)
    low, high = clipped_fractions(RATIOS, ADVANTAGES, Limits())
    assert not low.any() and not high.any()


LENGTHS, LONGEST = torch.tensor([2, 4, 1]), torch.tensor([8, 8, 4])


def test_aggregations_by_hand():
    # Three rollouts of 2, 4 and 1 tokens among 4 rollouts of 10 tokens in all processes; they may have 8, 8 and 4.
    torch.testing.assert_close(sequence_mean(LENGTHS, LONGEST, 4, 10).tolist(), [1 / 8, 1 / 16, 1 / 4])
    torch.testing.assert_close(token_mean(LENGTHS, LONGEST, 4, 10).tolist(), [1 / 10] * 3)
    torch.testing.assert_close(constant_length(LENGTHS, LONGEST, 4, 10).tolist(), [1 / 32, 1 / 32, 1 / 16])


@pytest.mark.parametrize("aggregation", [sequence_mean, token_mean])
def test_the_weights_of_all_tokens_sum_to_one(aggregation):
    weights = aggregation(LENGTHS, LONGEST, 3, 7)
    assert float((weights * LENGTHS).sum()) == pytest.approx(1, abs=1e-15)


def test_nothing_is_divided_by_a_completion_or_a_step_without_tokens():
    empty = torch.tensor([0])
    assert sequence_mean(empty, LONGEST[:1], 4, 0).tolist() == [1 / 4]
    assert token_mean(empty, LONGEST[:1], 4, 0).tolist() == [1]
    assert token_mean(empty, LONGEST[:1], 4, 1).tolist() == [1]
    for level in LEVELS.values():
        assert level(torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_levels_by_hand():
    # Rollout 3 has log ratios 0.1, 0.3; rollout 5 has 0.2, 0.2, -0.1; their tokens may stand in any order. Rollout 0
    # has one token.
    log_ratio = torch.tensor([0.1, 0.2, 0.3, 0.2, -0.1, 0.7], dtype=torch.float64)
    rollout_of = torch.tensor([3, 5, 3, 5, 5, 0])
    expected = {
        "token": [0.1, 0.2, 0.3, 0.2, -0.1, 0.7],
        "sequence": [0.4, 0.3, 0.4, 0.3, 0.3, 0.7],
        "geometric": [0.2, 0.1, 0.2, 0.1, 0.1, 0.7],
    }
    assert set(LEVELS) == set(expected)
    for name, level in LEVELS.items():
        torch.testing.assert_close(level(log_ratio, rollout_of).tolist(), expected[name], atol=1e-12, rtol=0)


def test_importance_weights_by_hand():
    ratio = torch.tensor([0.5, 1.9, 2.1, 8.0], dtype=torch.float64)
    weights, exceeds = importance_weights(ratio, 2.0, "truncate")
    torch.testing.assert_close(weights.tolist(), [0.5, 1.9, 2.0, 2.0])
    assert exceeds.tolist() == [False, False, True, True]
    weights, _ = importance_weights(ratio, 2.0, "mask")
    torch.testing.assert_close(weights.tolist(), [0.5, 1.9, 0.0, 0.0])
    weights, exceeds = importance_weights(torch.ones(1), 1.0, "mask")  # a weight of 1 at a cap of 1
    assert (weights.tolist(), exceeds.tolist()) == ([1.0], [False])


def test_kl_estimators_by_hand():
    # π = 0.5, 0.2 and π_ref = 0.25, 0.4: log ratios log 2 and -log 2; π_ref / π = 1/2 and 2.
    logprobs = torch.tensor([0.5, 0.2], dtype=torch.float64).log()
    reference = torch.tensor([0.25, 0.4], dtype=torch.float64).log()
    log2 = math.log(2)
    expected = {"k1": [log2, -log2], "k2": [log2**2 / 2, log2**2 / 2], "k3": [1 / 2 - 1 + log2, 2 - 1 - log2]}
    for name, estimator in KL_ESTIMATORS.items():
        torch.testing.assert_close(estimator(logprobs, reference).tolist(), expected[name], atol=1e-12, rtol=0)
        assert estimator(logprobs, logprobs).tolist() == [0, 0]


# A vocabulary of four: the expectation over the sampled token is a sum, so the expected gradient is exact.
LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.9, 0.1, -0.4, 0.3], dtype=torch.float64).log_softmax(0)
OLD_POLICY = torch.tensor([0.1, -0.2, 0.6, 0.5], dtype=torch.float64).log_softmax(0)


def gradient_of(function):
    logits = LOGITS.clone().requires_grad_()
    function(logits.log_softmax(0)).backward()
    return logits.grad


def forward_kl(logprobs):
    """KL(π, π_ref)."""
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


def reverse_kl(logprobs):
    """KL(π_ref, π)."""
    return (REFERENCE.exp() * (REFERENCE - logprobs)).sum()


def nothing(logprobs):
    return 0 * logprobs.sum()


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("sampled_from", ["the policy", "an older policy"])
def test_the_exact_kl_gradient_is_that_of_the_divergence(estimator, sampled_from):
    old = LOGITS.log_softmax(0) if sampled_from == "the policy" else OLD_POLICY
    expected_loss = lambda new: (old.exp() * kl_penalty(new, old, REFERENCE, estimator, "exact")).sum()  # noqa: E731
    torch.testing.assert_close(gradient_of(expected_loss), gradient_of(forward_kl), atol=1e-12, rtol=0)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator):
    for old in (LOGITS.log_softmax(0), OLD_POLICY):
        new = LOGITS.log_softmax(0)
        estimate = (old.exp() * kl_penalty(new, old, REFERENCE, estimator, "exact")).sum()
        torch.testing.assert_close(estimate, forward_kl(new), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("estimator", "is_that_of"), [("k1", nothing), ("k2", forward_kl), ("k3", reverse_kl)])
def test_what_the_naive_kl_gradients_are(estimator, is_that_of):
    policy = LOGITS.log_softmax(0)
    expected_loss = lambda new: (policy.exp() * kl_penalty(new, policy, REFERENCE, estimator, "naive")).sum()  # noqa: E731
    torch.testing.assert_close(gradient_of(expected_loss), gradient_of(is_that_of), atol=1e-12, rtol=0)


def test_the_loss_of_a_policy_by_hand():
    # Three tokens of two rollouts: π, π_old and π_rollout, so that ρ = 2, 1, 1/2 and w = 2, 1, 1, of which 1.5 is left.
    tokens = Tokens(
        logprobs=torch.tensor([0.5, 0.25, 0.5], dtype=torch.float64).log().requires_grad_(),
        old_logprobs=torch.tensor([0.25, 0.25, 1.0], dtype=torch.float64).log(),
        rollout_logprobs=torch.tensor([0.125, 0.25, 1.0], dtype=torch.float64).log(),
        ref_logprobs=torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log(),
        teacher_logprobs=None,
        entropy=torch.tensor([0.7, 0.6, 0.5], dtype=torch.float64),
        advantages=torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64),
        token_weights=torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64),
        rollout_of=torch.tensor([0, 0, 1]),
        importance_cap=1.5,
    )
    settings = AlgorithmConfig(kl_coef=0.1, kl_gradient="naive", kl_estimator="k3", entropy_coef=0.01)
    row = ALGORITHMS["grpo"]
    loss, curves = policy_loss(tokens, row, settings)
    # Surrogates clipped to [0.8, 1.2]: -1.2, -1, 0.8. k3 = 1/2 - 1 + log 2, 0, 0.
    kl, log2 = 0.5 - 1 + math.log(2), math.log(2)
    expected = 0.25 * (1.5 * -1.2 + 0.1 * kl - 0.007) + 0.25 * (-1 - 0.006) + 0.5 * (0.8 - 0.005)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    of_tokens = {
        "policy/entropy": [0.7, 0.6, 0.5],
        "policy/ref_kl": [kl, 0, 0],
        "policy/clip_low_frac": [0, 0, 1],
        "policy/clip_high_frac": [1, 0, 0],
        "policy/ratio_max": [2, 1, 0.5],
        "engine/logprob_gap_mean": [log2, 0, 0],
        "engine/logprob_gap_max": [log2, 0, 0],
        "engine/kl": [2 - 1 - log2, 0, 0],
        "engine/importance_weight_mean": [2, 1, 1],
        "engine/importance_weight_min": [2, 1, 1],
        "engine/importance_weight_max": [2, 1, 1],
        "engine/importance_cap_frac": [1, 0, 0],
        "engine/weight": [1.5, 1, 1],
        "engine/weight_squared": [2.25, 1, 1],
    }
    assert curves.keys() == of_tokens.keys()
    for tag, values in curves.items():
        assert values.double().tolist() == pytest.approx(of_tokens[tag], abs=1e-7), tag
    # Only the second token's surrogate has a gradient, -A ρ; k3's is 1 - π_ref / π.
    loss.backward()
    assert tokens.logprobs.grad.tolist() == pytest.approx([0.25 * 0.1 * 0.5, -0.25, 0], abs=1e-12)

    # An exact engine is measured and not corrected; without a reference and without entropy only the surrogate is left.
    exact = replace(tokens, importance_cap=0.0, ref_logprobs=None)
    loss, curves = policy_loss(exact, row, AlgorithmConfig())
    assert loss.item() == pytest.approx(0.25 * -1.2 + 0.25 * -1 + 0.5 * 0.8, abs=1e-12)
    assert curves["engine/importance_weight_max"].tolist() == pytest.approx([2, 1, 1])
    gone = {"policy/ref_kl", "engine/importance_cap_frac", "engine/weight", "engine/weight_squared"}
    assert curves.keys() == of_tokens.keys() - gone


def test_a_teachers_preference_is_added_to_the_advantage_times_its_weight():
    zeros = torch.zeros(2).double()
    tokens = Tokens(
        logprobs=zeros - 1,
        entropy=zeros,
        old_logprobs=zeros - 1,
        rollout_logprobs=zeros - 1,
        ref_logprobs=None,
        teacher_logprobs=torch.tensor(
            [-0.5, -3.0]
        ).double(),  # it prefers the first token by 1/2 and not the second: -2
        advantages=torch.tensor([1.0, 0.25]).double(),
        token_weights=zeros + 1,
        rollout_of=torch.tensor([0, 1]),
        importance_cap=0.0,
    )
    loss, curves = policy_loss(tokens, ALGORITHMS["grpo"], AlgorithmConfig(teacher_id="a", teacher_weight=0.5))
    assert loss.item() == pytest.approx(-(1 + 0.25) - (0.25 - 1))
    assert curves["teacher/kl"].tolist() == [-0.5, 2.0]
    assert curves["teacher/preferred_frac"].tolist() == [True, False]


def test_a_sequences_ratio_and_its_importance_weight_are_of_all_its_tokens():
    log_ratios = torch.tensor([0.02, -0.01, 0.03], dtype=torch.float64)
    zeros = torch.zeros(3).double()
    tokens = Tokens(
        logprobs=log_ratios,
        entropy=zeros,
        old_logprobs=zeros,
        rollout_logprobs=-log_ratios,
        ref_logprobs=None,
        teacher_logprobs=None,
        advantages=zeros + 1,
        token_weights=zeros + 1,
        rollout_of=torch.tensor([0, 0, 1]),
        importance_cap=10.0,
    )
    means = [0.005, 0.005, 0.03]
    row = replace(ALGORITHMS["gspo"], limits=Limits(0.5, 0.5))
    for level, expected in (("auto", means), ("sequence", [0.01, 0.01, 0.03])):
        loss, curves = policy_loss(tokens, row, AlgorithmConfig(importance_level=level))
        assert curves[WEIGHT].log().tolist() == pytest.approx(expected, abs=1e-12)
        products = [math.exp(ratio + weight) for ratio, weight in zip(means, expected, strict=True)]
        assert loss.item() == pytest.approx(-sum(products), abs=1e-12)
