"""Surrogates, aggregations and corrections against numbers worked out by hand, and their gradients."""

import math
from dataclasses import replace

import pytest
import torch

from minrl.algorithms import ALGORITHMS
from minrl.dataflow import UserError
from minrl.losses import (
    KL_ESTIMATORS,
    LEVELS,
    WEIGHT,
    WEIGHT_SQUARED,
    Limits,
    Tokens,
    clipped_fractions,
    clipped_surrogate,
    clipped_weight,
    constant_length,
    divergence_mask,
    dual_clipped_surrogate,
    gamma_weight,
    importance_weights,
    kl_penalty,
    policy_gradient,
    policy_loss,
    sequence_mean,
    sequence_sum,
    soft_gate,
    token_mean,
)
from tests.parsed import sized


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


LIMITS = Limits(clip_low=0.2, clip_high=0.28, clip_dual=3.0)
# (ratio, advantage) inside, below and above the bounds 0.8 and 1.28, and beyond 3; away from the kinks. The bounds go
# by an advantage's sign, however small it is.
PAIRS = [*((ratio, advantage) for advantage in (2, -2) for ratio in (1.1, 0.5, 1.5, 4.0)), (4.0, 0.5), (0.5, 0.5)]
RATIOS, ADVANTAGES = tensor(*(ratio for ratio, _ in PAIRS)), tensor(*(advantage for _, advantage in PAIRS))
OLD = torch.full_like(RATIOS, -1.5)


SURROGATES = {
    # -A log π, with log π = log ρ - 1.5
    policy_gradient: [-a * (math.log(r) - 1.5) for r, a in PAIRS],
    # A = 2: -min(2ρ, 2 clip ρ): 2.2, 1.0 (the smaller), 2.56, 2.56.
    # A = -2: -min(-2ρ, -2 clip ρ) = max(2ρ, 2 clip ρ): 2.2, 1.6 (clipped from below), 3.0, 8.0.
    clipped_surrogate: [-2.2, -1.0, -2.56, -2.56, 2.2, 1.6, 3.0, 8.0, -0.64, -0.25],
    # Where A < 0 at most 3 * 2 = 6.
    dual_clipped_surrogate: [-2.2, -1.0, -2.56, -2.56, 2.2, 1.6, 3.0, 6.0, -0.64, -0.25],
    # -min(ρ, 1.28) A log π
    clipped_weight: [-min(r, 1.28) * a * (math.log(r) - 1.5) for r, a in PAIRS],
    # -φ(ρ) A log π: ρ^2 exp(3 (1 - ρ)) for A > 0, ρ^3 exp(2 (1 - ρ)) for A < 0
    gamma_weight: [
        -(r**k) * math.exp(fade * (1 - r)) * a * (math.log(r) - 1.5)
        for r, a in PAIRS
        for k, fade in ([(2, 3)] if a > 0 else [(3, 2)])
    ],
    # -(4/τ) sigmoid(τ (ρ - 1)) A with τ = 1 for A > 0, 1.05 for A < 0
    soft_gate: [-4 / tau / (1 + math.exp(tau * (1 - r))) * a for r, a in PAIRS for tau in (1.0 if a > 0 else 1.05,)],
}


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_surrogates_by_hand_and_their_gradients_by_finite_differences(surrogate):
    def loss_at(logprobs, weighing):
        """`weighing` are the log-probabilities that a factor without gradient is computed from."""
        source = weighing if surrogate in (clipped_weight, gamma_weight) else logprobs
        return surrogate(logprobs, (source - OLD).exp(), ADVANTAGES, LIMITS)

    base, step = RATIOS.log() + OLD, 1e-6
    logprobs = base.clone().requires_grad_()
    losses = loss_at(logprobs, logprobs)
    torch.testing.assert_close(losses.tolist(), SURROGATES[surrogate], atol=1e-12, rtol=0)
    losses.sum().backward()
    differences = (loss_at(base + step, base) - loss_at(base - step, base)) / (2 * step)
    torch.testing.assert_close(logprobs.grad, differences, atol=1e-7, rtol=0)


def test_a_sequence_whose_ratio_is_infinite_has_no_gradient():
    losses = gamma_weight(tensor(-1, -1), tensor(math.inf, 0), tensor(1, -1), Limits())
    assert losses.tolist() == [0, 0]


def test_the_divergence_mask_by_hand():
    # π and π_rollout, with both bounds 0.15. The third ratio is 11 at a rare token, which has hardly moved.
    probabilities = [(0.5, 0.3), (0.5, 0.36), (0.11, 0.01), (0.3, 0.5), (0.5, 0.3), (0.3, 0.5), (0.36, 0.5)]
    policy, engine = (tensor(*column) for column in zip(*probabilities, strict=True))
    advantages = tensor(2, 2, 2, 2, -2, -2, -2)  # away from the engine's: the first three and the last two
    tokens = tokens_of(
        policy.log().requires_grad_(), policy.log(), engine.log(), advantages, advantages**0, [*range(7)]
    )
    loss, curves = policy_loss(tokens, ALGORITHMS["dppo"], sized(algorithm="dppo"))
    # -ρ A, but for the first (π rose by 0.2) and the sixth (it fell by 0.2).
    expected = [0, -2 * 0.5 / 0.36, -22, -1.2, 2 * 0.5 / 0.3, 0, 1.44]
    assert loss.item() == pytest.approx(sum(expected))
    loss.backward()
    assert tokens.logprobs.grad.tolist() == pytest.approx(expected)  # ρ's gradient is ρ
    assert curves["policy/clip_high_frac"].tolist() == [True] + [False] * 6
    assert curves["policy/clip_low_frac"].tolist() == [False] * 5 + [True, False]
    narrow = divergence_mask(policy.log(), policy / engine, advantages, Limits(0.13, 0.25))[0]
    assert narrow.tolist() == pytest.approx([-2 * 0.5 / 0.3, *expected[1:5], 0, 0])


def test_a_ratio_to_the_engine_is_of_the_whole_sequence_and_has_no_importance_weight():
    # w = 1.5 * 0.8 = 1.2 of both tokens of the first rollout, 0.5 of the second; what π_old is does not matter.
    logprobs, zeros = tensor(-1, -2, -3), tensor(0, 0, 0)
    engine = logprobs - tensor(1.5, 0.8, 0.5).log()
    tokens = tokens_of(logprobs, zeros, engine, tensor(1, 1, -1), zeros + 1, [0, 0, 1])
    loss, _ = policy_loss(tokens, ALGORITHMS["vespo"], sized(algorithm="vespo"))
    up, down = 1.2**2 * math.exp(3 * -0.2), 0.5**3 * math.exp(2 * 0.5)
    assert loss.item() == pytest.approx(up + 2 * up - 3 * down)


def test_completions_below_average_that_the_policy_has_left_behind_are_masked():
    # Means of log π_rollout / π: 0.6, 0.6, 0.4 and -0.6. The threshold is 0.5, for negative advantages alone.
    gaps = tensor(0.2, 1.0, 0.6, 0.4, 0.4, -0.6)
    logprobs = tensor(-1, -1, -1, -1, -1, -1).requires_grad_()
    advantages, ones = tensor(-1, -1, 0.5, -2, -2, -4), torch.ones_like(gaps)
    tokens = tokens_of(logprobs, -ones, gaps - 1, advantages, ones, [3, 3, 1, 0, 0, 2], importance_cap=9.0)
    loss, curves = policy_loss(tokens, ALGORITHMS["grpo"], sized(off_policy_mask=0.5, importance_floor=0.6))
    loss.backward()
    # The engine's correction is applied to what is left: exp(-0.6) = 0.55 is below its floor.
    weights = [0.6, math.exp(-0.4), math.exp(0.6)]
    expected = [0, 0, -0.5 * weights[0], 2 * weights[1], 2 * weights[1], 4 * weights[2]]
    assert logprobs.grad.tolist() == pytest.approx(expected)
    assert curves["policy/off_policy_mask_frac"].tolist() == [True, True, False, False, False, False]


LOW, HIGH, DUAL = {5}, {2, 3, 8}, {7}  # of PAIRS


@pytest.mark.parametrize(
    ("surrogate", "limits", "low", "high"),
    [
        (clipped_surrogate, Limits(0.2, 0.28), LOW, HIGH),
        (dual_clipped_surrogate, LIMITS, LOW, HIGH | DUAL),
        (policy_gradient, Limits(), set(), set()),
        (None, Limits(clip_high=0.28, either_sign=True), set(), HIGH | {6, 7}),  # whose weight is bounded
    ],
)
def test_the_clipped_fractions_count_the_tokens_without_a_gradient(surrogate, limits, low, high):
    found = clipped_fractions(RATIOS, ADVANTAGES, limits)
    assert [set(of.nonzero()[:, 0].tolist()) for of in found] == [low, high]
    assert not torch.stack(clipped_fractions(RATIOS, 0 * ADVANTAGES, limits)).any()  # 0 whatever the ratio
    if surrogate is not None:
        logprobs = (RATIOS.log() + OLD).requires_grad_()
        surrogate(logprobs, (logprobs - OLD).exp(), ADVANTAGES, limits).sum().backward()
        assert set((logprobs.grad == 0).nonzero()[:, 0].tolist()) == low | high


@pytest.mark.parametrize(
    ("aggregation", "lengths", "limits", "num_rollouts", "num_tokens", "expected"),
    [
        # Three rollouts of 2, 4 and 1 tokens among 4 rollouts of 10 tokens in all processes; they may have 8, 8 and 4.
        (sequence_mean, [2, 4, 1], [8, 8, 4], 4, 10, [1 / 8, 1 / 16, 1 / 4]),
        (sequence_sum, [2, 4, 1], [8, 8, 4], 4, 10, [1 / 4] * 3),
        (token_mean, [2, 4, 1], [8, 8, 4], 4, 10, [1 / 10] * 3),
        (constant_length, [2, 4, 1], [8, 8, 4], 4, 10, [1 / 32, 1 / 32, 1 / 16]),
        # A completion and a step without tokens.
        (sequence_mean, [0], [8], 4, 0, [1 / 4]),
        (sequence_sum, [0], [8], 0, 0, [1.0]),
        (token_mean, [0], [8], 4, 0, [1.0]),
        (token_mean, [0], [8], 4, 1, [1.0]),
    ],
)
def test_aggregations_by_hand(aggregation, lengths, limits, num_rollouts, num_tokens, expected):
    weights = aggregation(torch.tensor(lengths), torch.tensor(limits), num_rollouts, num_tokens)
    torch.testing.assert_close(weights.tolist(), expected)


def test_levels_by_hand():
    # Rollout 3 has log ratios 0.1, 0.3; rollout 5 has 0.2, 0.2, -0.1, in any order; rollout 0 has one token.
    log_ratios, rollout_of = tensor(0.1, 0.2, 0.3, 0.2, -0.1, 0.7), torch.tensor([3, 5, 3, 5, 5, 0])
    found = {level: of_tokens(log_ratios, rollout_of).tolist() for level, of_tokens in LEVELS.items()}
    assert found["token"] == log_ratios.tolist()
    assert found["sequence"] == pytest.approx([0.4, 0.3, 0.4, 0.3, 0.3, 0.7])
    assert found["geometric"] == pytest.approx([0.2, 0.1, 0.2, 0.1, 0.1, 0.7])


@pytest.mark.parametrize(("mode", "above", "below"), [("truncate", 2.0, 0.5), ("mask", 0.0, 0.0)])
def test_importance_weights_by_hand(mode, above, below):
    raw = tensor(0.1, 0.5, 1.9, 2.0, 2.1, 8.0)
    weights, outside = importance_weights(raw, 2.0, mode)
    assert weights.tolist() == [0.1, 0.5, 1.9, 2.0, above, above]
    assert outside.tolist() == [False, False, False, False, True, True]
    weights, outside = importance_weights(raw, 2.0, mode, floor=0.5)  # IcePop, with "mask"
    assert weights.tolist() == [below, 0.5, 1.9, 2.0, above, above]
    assert outside.tolist() == [True, False, False, False, True, True]


def test_kl_estimators_by_hand():
    # π = 0.5, 0.2 and π_ref = 0.25, 0.4: log ratios log 2 and -log 2; π_ref / π = 1/2 and 2.
    logprobs, reference, log2 = tensor(0.5, 0.2).log(), tensor(0.25, 0.4).log(), math.log(2)
    expected = {"k1": [log2, -log2], "k2": [log2**2 / 2, log2**2 / 2], "k3": [1 / 2 - 1 + log2, 2 - 1 - log2]}
    for name, estimator in KL_ESTIMATORS.items():
        torch.testing.assert_close(estimator(logprobs, reference).tolist(), expected[name], atol=1e-12, rtol=0)
        assert estimator(logprobs, logprobs).tolist() == [0, 0]


# A vocabulary of four: the expectation over the sampled token is a sum, so the expected gradient is exact.
LOGITS = tensor(0.3, -0.8, 1.1, 0.2)
ON_POLICY, OLD_POLICY = LOGITS.log_softmax(0), tensor(0.1, -0.2, 0.6, 0.5).log_softmax(0)
REFERENCE = tensor(0.9, 0.1, -0.4, 0.3).log_softmax(0)


DIVERGENCES = {
    "KL(π, π_ref)": lambda logprobs: (logprobs.exp() * (logprobs - REFERENCE)).sum(),
    "KL(π_ref, π)": lambda logprobs: (REFERENCE.exp() * (REFERENCE - logprobs)).sum(),
    "none": lambda logprobs: 0 * logprobs.sum(),
}


@pytest.mark.parametrize(
    ("estimator", "gradient", "old", "divergence"),
    [
        *((name, "exact", old, "KL(π, π_ref)") for name in KL_ESTIMATORS for old in (ON_POLICY, OLD_POLICY)),
        ("k1", "naive", ON_POLICY, "none"),
        ("k2", "naive", ON_POLICY, "KL(π, π_ref)"),
        ("k3", "naive", ON_POLICY, "KL(π_ref, π)"),
    ],
)
def test_expected_kl_gradients_are_those_of_a_divergence(estimator, gradient, old, divergence):
    divergence = DIVERGENCES[divergence]

    def expected_penalty(logprobs):
        return (old.exp() * kl_penalty(logprobs, old, REFERENCE, estimator, gradient)).sum()

    def gradient_of(function):
        logits = LOGITS.clone().requires_grad_()
        function(logits.log_softmax(0)).backward()
        return logits.grad

    torch.testing.assert_close(gradient_of(expected_penalty), gradient_of(divergence), atol=1e-12, rtol=0)
    if gradient == "exact" and estimator != "k2":  # k1 and k3 are unbiased
        torch.testing.assert_close(expected_penalty(ON_POLICY), divergence(ON_POLICY), atol=1e-12, rtol=0)


def tokens_of(logprobs, old, rollout, advantages, weights, rollout_of, **changes):
    columns = {"logprobs": logprobs, "old_logprobs": old, "rollout_logprobs": rollout, "entropy": torch.zeros_like(old)}
    columns |= {"advantages": advantages, "token_weights": weights, "rollout_of": torch.tensor(rollout_of)}
    return Tokens(**{**columns, "ref_logprobs": None, "teacher_logprobs": None, "importance_cap": 0.0, **changes})


def test_the_loss_of_a_policy_by_hand():
    # Three tokens of two rollouts: π, π_old and π_rollout, so that ρ = 2, 1, 1/2 and w = 2, 1, 1, of which 1.5 is left.
    tokens = tokens_of(
        tensor(0.5, 0.25, 0.5).log().requires_grad_(),
        tensor(0.25, 0.25, 1.0).log(),
        tensor(0.125, 0.25, 1.0).log(),
        tensor(1, 1, -1),
        tensor(0.25, 0.25, 0.5),
        [0, 0, 1],
        entropy=tensor(0.7, 0.6, 0.5),
        ref_logprobs=tensor(0.25, 0.25, 0.5).log(),
        importance_cap=1.5,
    )
    settings = sized(kl_coef=0.1, kl_gradient="naive", kl_estimator="k3", entropy_coef=0.01)
    loss, curves = policy_loss(tokens, ALGORITHMS["grpo"], settings)
    # Surrogates clipped to [0.8, 1.2]: -1.2, -1, 0.8. k3 = 1/2 - 1 + log 2, 0, 0.
    log2 = math.log(2)
    kl = 0.5 - 1 + log2
    expected = 0.25 * (1.5 * -1.2 + 0.1 * kl - 0.007) + 0.25 * (-1 - 0.006) + 0.5 * (0.8 - 0.005)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    of_tokens = {
        "policy/entropy": [0.7, 0.6, 0.5],
        "policy/ref_kl": [kl, 0, 0],
        "policy/clip_low_frac": [0, 0, 1],
        "policy/clip_high_frac": [1, 0, 0],
        "policy/ratio_max": [2, 1, 0.5],
        **{f"engine/logprob_gap_{how}": [log2, 0, 0] for how in ("mean", "max")},
        "engine/kl": [2 - 1 - log2, 0, 0],
        **{f"engine/importance_weight_{how}": [2, 1, 1] for how in ("mean", "min", "max")},
        "engine/importance_cap_frac": [1, 0, 0],
        WEIGHT: [1.5, 1, 1],
        WEIGHT_SQUARED: [2.25, 1, 1],
    }
    assert curves.keys() == of_tokens.keys()
    for tag, values in curves.items():
        assert values.double().tolist() == pytest.approx(of_tokens[tag], abs=1e-7), tag
    # Only the second token's surrogate has a gradient, -A ρ; k3's is 1 - π_ref / π.
    loss.backward()
    assert tokens.logprobs.grad.tolist() == pytest.approx([0.25 * 0.1 * 0.5, -0.25, 0], abs=1e-12)

    # An exact engine is measured and not corrected; without a reference and without entropy only the surrogate is left.
    exact = replace(tokens, importance_cap=0.0, ref_logprobs=None)
    loss, curves = policy_loss(exact, ALGORITHMS["grpo"], sized())
    assert loss.item() == pytest.approx(0.25 * -1.2 + 0.25 * -1 + 0.5 * 0.8, abs=1e-12)
    gone = {"policy/ref_kl", "engine/importance_cap_frac", WEIGHT, WEIGHT_SQUARED}
    assert curves.keys() == of_tokens.keys() - gone


def test_a_teachers_preference_is_added_to_the_advantage_times_its_weight():
    # It prefers the first token by 1/2, and the second by -2.
    old = tensor(-1, -1)
    tokens = tokens_of(old, old, old, tensor(1, 0.25), tensor(1, 1), [0, 1], teacher_logprobs=tensor(-0.5, -3))
    loss, curves = policy_loss(tokens, ALGORITHMS["grpo"], sized(teacher_id="a", teacher_weight=0.5))
    assert loss.item() == pytest.approx(-(1 + 0.25) - (0.25 - 1))
    assert curves["teacher/kl"].tolist() == [-0.5, 2.0]
    assert curves["teacher/preferred_frac"].tolist() == [True, False]


@pytest.mark.parametrize(("level", "weights"), [("auto", [0.005, 0.005, 0.03]), ("sequence", [0.01, 0.01, 0.03])])
def test_a_sequences_ratio_and_its_importance_weight_are_of_all_its_tokens(level, weights):
    log_ratios, zeros = tensor(0.02, -0.01, 0.03), tensor(0, 0, 0)
    tokens = tokens_of(log_ratios, zeros, -log_ratios, zeros + 1, zeros + 1, [0, 0, 1], importance_cap=10.0)
    row = replace(ALGORITHMS["gspo"], limits=Limits(0.5, 0.5))
    loss, curves = policy_loss(tokens, row, sized(importance_level=level))
    assert curves[WEIGHT].log().tolist() == pytest.approx(weights, abs=1e-12)
    products = [math.exp(ratio + weight) for ratio, weight in zip([0.005, 0.005, 0.03], weights, strict=True)]
    assert loss.item() == pytest.approx(-sum(products), abs=1e-12)


def test_a_surrogate_that_returns_no_loss_of_each_token_is_refused_by_its_row():
    row = replace(ALGORITHMS["rloo"], surrogate=lambda *given: policy_gradient(*given).mean())
    message = r"the surrogate of rloo must return the loss of each token, shape \(3,\), got \(\)"
    with pytest.raises(UserError, match=message):
        policy_loss(tokens_of(*[tensor(1, 1, 1)] * 5, [0, 0, 0]), row, sized(algorithm="rloo"))
