"""Held-out figures: the share that is solved, and how sure we are of it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from together import together

from minrl import evaluation
from minrl.config import EvaluationConfig, RolloutConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.figures import pass_at_k
from minrl.evaluation import evaluate
from minrl.rollout import Plan
from minrl.types import Example, LostEpisode, Reward, Turn
from minrl.utils.statistics import Z95, bootstrap, interval, summarize, wilson


def test_wilsons_interval_by_hand():
    # All of 4: the upper bound is 1, the lower n / (n + z^2) = 4 / (4 + 3.8415) = 0.51011.
    assert wilson(4.0, 4) == pytest.approx((0.51011, 1.0), abs=1e-5)
    # None of 4 is its mirror image.
    assert wilson(0.0, 4) == pytest.approx((0.0, 1 - 0.51011), abs=1e-5)
    # 50 of 100: 0.5 +- 1.96 sqrt(0.25/100 + 3.8415/40000) / (1 + 3.8415/100) = 0.5 +- 0.09617.
    assert wilson(50.0, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)


@pytest.mark.parametrize(("successes", "n"), [(0.0, 1), (1.0, 1), (3.0, 512), (511.0, 512), (200.0, 500)])
def test_wilsons_bounds_solve_wilsons_equation(successes, n):
    # The interval is where |p - successes/n| = z sqrt(p (1 - p) / n).
    for bound in wilson(successes, n):
        assert abs(bound - successes / n) == pytest.approx(Z95 * math.sqrt(bound * (1 - bound) / n), abs=1e-9)


def test_the_bootstrap_is_of_examples():
    # 100 examples, half solved always and half never: the standard error of the mean is 0.5 / sqrt(100) = 0.05.
    means = np.array([0.0, 1.0] * 50)
    low, high = bootstrap(means)
    assert low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.012)
    assert high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.012)
    # Of 2,000 resamples with a fixed seed: a figure that is computed again is what it was.
    means = np.sqrt(np.arange(30.0))  # of which no two samples have the same mean
    resampled = np.random.default_rng(0).choice(means, size=(2000, 30)).mean(axis=1)
    assert bootstrap(means) == tuple(np.quantile(resampled, [0.025, 0.975]))


@pytest.mark.parametrize(("n", "solved"), [(1, 0), (1, 1), (5, 0), (5, 2), (6, 5), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(n, solved):
    samples = [True] * solved + [False] * (n - solved)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(n, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert 0.999 < pass_at_k(10_000, 5_000, 100) <= 1.0
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    # Some k samples hold a solution where fewer than k do not solve: exactly 1.
    assert pass_at_k(10_000, 9_901, 100) == 1.0
    with pytest.raises(AssertionError, match="pass@3 of 1 solved among 2"):
        pass_at_k(2, 1, 3)


def test_the_bootstrap_knows_how_far_the_examples_differ():
    # Each of 100 examples is solved in 4 or 6 of 10 samples: the standard error is 0.1 / sqrt(100) = 0.01.
    assert bootstrap(np.array([0.4, 0.6] * 50)) == pytest.approx((0.5 - 0.0196, 0.5 + 0.0196), abs=0.003)
    # A single example differs from no other.
    assert interval(np.array([1.0, 0.0]), ["a", "a"]) == wilson(0.5, 1)


def test_several_samples_of_an_example_are_not_independent():
    # Ten examples with 50 samples each that all agree: what counts is ten, not 500.
    ids = [str(n) for n in range(10) for _ in range(50)]
    solved = np.array([float(n < 5) for n in range(10) for _ in range(50)])
    low, high = interval(solved, ids)
    assert high - low > 0.5  # 2 x 1.96 x 0.5 / sqrt(10) = 0.62; over 500 it would be 0.09
    # One sample each: Wilson's.
    assert interval(solved, [str(n) for n in range(500)]) == wilson(250.0, 500)


def test_examples_that_all_agree_are_no_certainty():
    low, high = interval(np.ones(40), [str(n // 4) for n in range(40)])
    assert (low, high) == wilson(10.0, 10)


def test_a_summary_by_hand(make_rollout):
    examples = [Example("a", "", {}, {"size": "3"}), Example("b", "", {}, {"size": "4"})]

    def made(example_id, value, **changes):
        reward = None if value is None else Reward(value, {"legal": 1.0})
        return make_rollout([1, 2], [3, 4], example_id=example_id, reward=reward, **changes)

    sampled = [made("a", 1.0), made("a", 0.2), made("b", 0.999), made("b", None, finish_reason="length")]
    greedy = [made("a", 1.0), made("b", 0.0)]
    found = summarize(examples, sampled, greedy)
    assert found.pass_at_1 == 0.25  # almost is not solved, and unscorable is not solved
    assert found.greedy_pass_at_1 == 0.5
    assert (found.n, found.num_examples) == (4, 2)
    assert found.reward_mean == pytest.approx((1.0 + 0.2 + 0.999) / 3)
    assert found.truncated_frac == 0.25
    assert found.categories == {"size=3": 0.5, "size=4": 0.0}
    assert found.parts == {"legal": 1.0}
    assert found.completion_tokens_mean == 2.0
    plain = found.to_json()
    assert (plain["pass@1"], plain["n"], plain["ci95"]) == (0.25, 4, list(found.ci95))
    assert found.text().endswith(
        "; 25.0% of the 4 sampled and 0.0% of the greedy completions could not be scored and count as not solved"
    )
    assert found.metrics("hanoi") == {
        "eval/hanoi/pass@1": 0.25,
        "eval/hanoi/pass@1_low": found.ci95[0],
        "eval/hanoi/pass@1_high": found.ci95[1],
        "eval/hanoi/pass@1_greedy": 0.5,
        "eval/hanoi/reward_mean": found.reward_mean,
        "eval/hanoi/completion_tokens_mean": 2.0,
        "eval/hanoi/truncated_frac": 0.25,
        "eval/hanoi/unscorable_frac": 0.25,
        "eval/hanoi/greedy_unscorable_frac": 0.0,
        "eval/hanoi/size=3/legal": 1.0,
        "eval/hanoi/size=4/legal": 1.0,
    }


def play(policy, engine, workers, task, seed=0, **config):
    sampling = RolloutConfig(max_tokens=3)
    return evaluate(policy, engine, workers, task, EvaluationConfig(**config), sampling, seed)


def test_what_is_evaluated_is_held_out_and_the_same_every_time(policy, engine, workers, sevens):
    first = play(policy, engine, workers, sevens, eval_samples=2)
    again = play(policy, engine, workers, sevens, eval_samples=2)
    assert {r.example_id for r in first.rollouts} == {e.id for e in sevens.dataset.held_out}
    assert [r.ids for r in first.rollouts] == [r.ids for r in again.rollouts]
    assert first.n == 2 * len(sevens.dataset.held_out)
    assert len({r.seed for r in first.rollouts[: first.n]}) == first.n


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_evaluate_as_one_and_share_the_work(make_policy, workers, sevens, count):
    def evaluated(policy):
        seen = []
        counted = replace(sevens, reward=lambda text, example: seen.append(text) or sevens.reward(text, example))
        return play(policy, TorchEngine(policy), workers, counted, eval_samples=3), len(seen)

    alone, rewarded = evaluated(make_policy())
    results = together(count, lambda member: replace(make_policy(), processes=member), evaluated)
    for found, _ in results:
        assert replace(found, rollouts=()) == replace(alone, rollouts=())
        assert [r.ids for r in found.rollouts] == [r.ids for r in alone.rollouts]
    held_out = len(sevens.dataset.held_out)
    assert sum(seen for _, seen in results) == rewarded == 4 * held_out
    assert max(seen for _, seen in results) == 4 * math.ceil(held_out / count)


def test_at_least_500_samples_are_behind_a_figure(policy, engine, workers, sevens):
    held_out = len(sevens.dataset.held_out)
    found = play(policy, engine, workers, sevens)
    assert found.n == math.ceil(500 / held_out) * held_out >= 500
    assert play(policy, engine, workers, sevens, eval_examples=5).n == 500
    assert play(policy, engine, workers, sevens, eval_examples=2, eval_samples=3).n == 6


def test_examples_are_sampled_at_the_temperature_and_once_greedily_with_seeds_of_no_step(
    policy, engine, workers, sevens, monkeypatch
):
    asked, usual = [], evaluation.rollout
    monkeypatch.setattr(evaluation, "rollout", lambda *given: asked.append(given[4:]) or usual(*given))
    sampling = RolloutConfig(max_tokens=3, temperature=0.7, stop_strings=("stop",))
    config = EvaluationConfig(eval_samples=2, eval_temperature=0.4)
    evaluate(policy, engine, workers, sevens, config, sampling, seed=9)
    plan = Plan(2, 3, 0.4, 9, "evaluation", 0, stop_strings=("stop",))
    examples = list(sevens.dataset.held_out)
    assert asked == [(examples, plan), (examples, replace(plan, group_size=1, temperature=0.0))]


def test_what_could_not_be_scored_is_not_solved_and_stands_beside_the_figure(make_rollout):
    examples = [Example("a", "", {}), Example("b", "", {})]
    sampled = [
        make_rollout([1], [2], example_id="a"),
        make_rollout([1], [2], example_id="a", reward=None),
        LostEpisode("b"),
        LostEpisode("b"),
    ]
    found = summarize(examples, sampled, [LostEpisode("a"), make_rollout([1], [2], example_id="b")])
    assert (found.pass_at_1, found.n, found.unscorable_frac) == (0.25, 4, 0.75)
    assert (found.greedy_pass_at_1, found.greedy_unscorable_frac) == (0.5, 0.5)
    assert found.reward_mean == 1.0 and found.completion_tokens_mean == 1.0  # of those that there are
    said = "75.0% of the 4 sampled and 50.0% of the greedy completions could not be scored and count as not solved"
    assert found.text().startswith("held-out pass@1 25.0% (") and found.text().endswith(f"; {said}")
    assert found.metrics("x")["eval/x/unscorable_frac"] == found.to_json()["unscorable_frac"] == 0.75


def test_where_nothing_could_be_scored_there_is_no_figure(make_rollout):
    examples = [Example("a", "", {}, {"size": "3"})]
    nothing = [make_rollout([1], [2], example_id="a", reward=None), LostEpisode("a")]
    found = summarize(examples, nothing, nothing)
    plain = found.to_json()
    assert [plain[name] for name in ("pass@1", "pass@1_greedy", "reward")] == [None] * 3
    assert (plain["ci95"], plain["categories"], plain["unscorable_frac"]) == ([None, None], {"size=3": None}, 1.0)
    assert not {"eval/x/pass@1", "eval/x/pass@1_low", "eval/x/reward_mean"} & set(found.metrics("x"))
    assert found.metrics("x")["eval/x/unscorable_frac"] == 1.0
    assert found.text().startswith("no held-out pass@1; 100.0% of the 2 sampled")


def test_without_greedy_completions_there_is_no_greedy_figure(make_rollout):
    found = summarize([Example("example", "", {})], [make_rollout([1], [2])], [])
    assert math.isnan(found.greedy_pass_at_1) and found.greedy_unscorable_frac == 0.0
    assert "greedy" not in found.text() and "eval/x/pass@1_greedy" not in found.metrics("x")


def test_an_evaluation_counts_the_episodes_that_never_began(policy, engine, workers, sevens):
    def nine_of_ten_fail(example, rng):
        if example.id != sevens.dataset.held_out[0].id:
            raise RuntimeError("no board")
        yield Turn("player", example.prompt)
        return {"player": Reward(1.0)}

    task = replace(sevens, episode=nine_of_ten_fail)
    episodes = 2 * len(sevens.dataset.held_out)
    found = play(policy, engine, workers, task, eval_samples=2)
    assert (found.n, found.pass_at_1, found.unscorable_frac) == (episodes, 2 / episodes, 1 - 2 / episodes)
    assert len(found.rollouts) == 2 and "no board" in found.failures[0]
    nothing = play(policy, engine, workers, replace(sevens, episode=never), eval_samples=2)
    assert nothing.n == episodes and math.isnan(nothing.pass_at_1) and nothing.unscorable_frac == 1.0


def never(example, rng):
    raise RuntimeError("no board")
    yield
