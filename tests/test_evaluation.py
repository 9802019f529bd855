"""Held-out figures: the share that is solved, and how sure we are of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from together import together

from minrl.config import EvaluationConfig, RolloutConfig
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluation import Z95, bootstrap, evaluate, interval, summarize, wilson
from minrl.types import Example, LostEpisode, Reward, Turn


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
    assert bootstrap(means) == (low, high)  # with a fixed seed


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
    evaluation = summarize(examples, sampled, greedy)
    assert evaluation.pass_at_1 == 0.25  # almost is not solved, and unscorable is not solved
    assert evaluation.greedy_pass_at_1 == 0.5
    assert (evaluation.n, evaluation.num_examples) == (4, 2)
    assert evaluation.reward_mean == pytest.approx((1.0 + 0.2 + 0.999) / 3)
    assert evaluation.truncated_frac == 0.25
    assert evaluation.categories == {"size=3": 0.5, "size=4": 0.0}
    assert evaluation.parts == {"legal": 1.0}
    assert evaluation.completion_tokens_mean == 2.0
    plain = evaluation.to_json()
    assert (plain["pass@1"], plain["n"], plain["ci95"]) == (0.25, 4, list(evaluation.ci95))
    assert evaluation.metrics("hanoi")["eval/hanoi/pass@1"] == 0.25


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
    evaluation = play(policy, engine, workers, sevens)
    assert evaluation.n == math.ceil(500 / held_out) * held_out >= 500
    assert play(policy, engine, workers, sevens, eval_examples=2, eval_samples=3).n == 6


def test_what_could_not_be_scored_is_not_solved_and_stands_beside_the_figure(make_rollout):
    examples = [Example("a", "", {}), Example("b", "", {})]
    sampled = [
        make_rollout([1], [2], example_id="a"),
        make_rollout([1], [2], example_id="a", reward=None),
        LostEpisode("b"),
        LostEpisode("b"),
    ]
    evaluation = summarize(examples, sampled, [LostEpisode("a"), make_rollout([1], [2], example_id="b")])
    assert (evaluation.pass_at_1, evaluation.n, evaluation.unscorable_frac) == (0.25, 4, 0.75)
    assert (evaluation.greedy_pass_at_1, evaluation.greedy_unscorable_frac) == (0.5, 0.5)
    assert evaluation.reward_mean == 1.0 and evaluation.completion_tokens_mean == 1.0  # of those that there are
    said = "75.0% of the 4 sampled and 50.0% of the greedy completions could not be scored and count as not solved"
    assert evaluation.text().startswith("held-out pass@1 25.0% (") and evaluation.text().endswith(f"; {said}")
    assert evaluation.metrics("x")["eval/x/unscorable_frac"] == evaluation.to_json()["unscorable_frac"] == 0.75


def test_where_nothing_could_be_scored_there_is_no_figure(make_rollout):
    examples = [Example("a", "", {}, {"size": "3"})]
    nothing = [make_rollout([1], [2], example_id="a", reward=None), LostEpisode("a")]
    evaluation = summarize(examples, nothing, nothing)
    plain = evaluation.to_json()
    assert [plain[name] for name in ("pass@1", "pass@1_greedy", "reward")] == [None] * 3
    assert (plain["ci95"], plain["categories"], plain["unscorable_frac"]) == ([None, None], {"size=3": None}, 1.0)
    assert not {"eval/x/pass@1", "eval/x/pass@1_low", "eval/x/reward_mean"} & set(evaluation.metrics("x"))
    assert evaluation.metrics("x")["eval/x/unscorable_frac"] == 1.0
    assert evaluation.text().startswith("no held-out pass@1; 100.0% of the 2 sampled")


def test_all_that_could_be_scored_says_nothing_of_what_could_not(make_rollout):
    evaluation = summarize([Example("example", "", {})], *[[make_rollout([1], [2])]] * 2)
    assert evaluation.unscorable_frac == 0.0 and "scored" not in evaluation.text()


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
