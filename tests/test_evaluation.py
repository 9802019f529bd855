"""Held-out figures: the share that is solved, and how sure we are of it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from together import together

from minrl import evaluation
from minrl.dataflow import Example, LostEpisode, Reward, Turn
from minrl.engines.torch_engine import TorchEngine
from minrl.evaluate.statistics import Z95, bootstrap, interval, pass_at_k, summarize, wilson
from minrl.evaluation import evaluate
from minrl.rollout import Plan
from tests.parsed import sized


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (4, 4), (50, 100), (511, 512)])
def test_wilsons_bounds_solve_wilsons_equation(successes, n):
    # The interval is where |p - successes/n| = z sqrt(p (1 - p) / n).
    low, high = wilson(float(successes), n)
    assert low <= successes / n <= high and high - low > 0.003
    for bound in (low, high):
        assert abs(bound - successes / n) == pytest.approx(Z95 * math.sqrt(bound * (1 - bound) / n), abs=1e-9)


def test_the_bootstrap_is_of_examples_and_has_a_fixed_seed():
    # Half solved always and half never: 0.5 / sqrt(100). Each solved in 4 or 6 of 10 samples: 0.1 / sqrt(100).
    for means, error, within in (([0.0, 1.0] * 50, 0.05, 0.012), ([0.4, 0.6] * 50, 0.01, 0.003)):
        assert bootstrap(np.array(means)) == pytest.approx((0.5 - 1.96 * error, 0.5 + 1.96 * error), abs=within)
    means = np.sqrt(np.arange(30.0))  # of which no two samples have the same mean
    resampled = np.random.default_rng(0).choice(means, size=(2000, 30)).mean(axis=1)
    assert bootstrap(means) == tuple(np.quantile(resampled, [0.025, 0.975]))


def test_several_samples_of_an_example_are_not_independent():
    # Ten examples with 50 samples each that all agree: what counts is ten, not 500.
    ids = [str(n) for n in range(10) for _ in range(50)]
    solved = np.array([float(n < 5) for n in range(10) for _ in range(50)])
    low, high = interval(solved, ids)
    assert high - low > 0.5  # 2 x 1.96 x 0.5 / sqrt(10) = 0.62; over 500 it would be 0.09
    # One sample each, examples that all agree, and a single example, which differs from no other: Wilson's.
    assert interval(solved, [str(n) for n in range(500)]) == wilson(250.0, 500)
    assert interval(np.ones(40), [str(n // 4) for n in range(40)]) == wilson(10.0, 10)
    assert interval(np.array([1.0, 0.0]), ["a", "a"]) == wilson(0.5, 1)


@pytest.mark.parametrize(("n", "solved"), [(5, 0), (5, 2), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(n, solved):
    samples = [True] * solved + [False] * (n - solved)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(n, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_at_k(10_000, solved, 100) == pytest.approx(1 - (1 - 0.01) ** solved, abs=1e-4)  # nor does it overflow
    # Some k samples hold a solution where fewer than k do not solve: exactly 1.
    assert pass_at_k(10_000, 9_901, 100) == 1.0
    with pytest.raises(AssertionError, match="pass@3 of 1 solved among 2"):
        pass_at_k(2, 1, 3)


def test_a_summary_by_hand(make_rollout):
    examples = [Example("a", "", {}, {"size": "3"}), Example("b", "", {}, {"size": "4"})]

    def made(example_id, value, **changes):
        reward = None if value is None else Reward(value, {"legal": 1.0})
        return make_rollout([1, 2], [3, 4], example_id=example_id, reward=reward, **changes)

    sampled = [made("a", 1.0), made("a", 0.2), made("b", 0.999), made("b", None, finish_reason="length")]
    found = summarize(examples, sampled, [made("a", 1.0), made("b", 0.0)])
    assert (found.n, found.num_examples, found.categories) == (4, 2, {"size=3": 0.5, "size=4": 0.0})
    assert found.parts == {"legal": 1.0}
    plain = found.to_json()
    assert (plain["pass@1"], plain["n"], plain["ci95"]) == (0.25, 4, list(found.ci95))
    assert found.metrics("hanoi") == {
        "eval/hanoi/pass@1": 0.25,  # almost is not solved, and unscorable is not solved
        "eval/hanoi/pass@1_low": found.ci95[0],
        "eval/hanoi/pass@1_high": found.ci95[1],
        "eval/hanoi/pass@1_greedy": 0.5,
        "eval/hanoi/reward_mean": pytest.approx((1.0 + 0.2 + 0.999) / 3),
        "eval/hanoi/completion_tokens_mean": 2.0,
        "eval/hanoi/truncated_frac": 0.25,
        "eval/hanoi/unscorable_frac": 0.25,
        "eval/hanoi/greedy_unscorable_frac": 0.0,
    }


def test_what_could_not_be_scored_is_not_solved_and_stands_beside_the_figure(make_rollout):
    examples = [Example("a", "", {}), Example("b", "", {})]
    scored, failed = (make_rollout([1], [2], example_id="a", reward=reward) for reward in (Reward(1.0), None))
    greedy = [LostEpisode("a"), make_rollout([1], [2], example_id="b")]
    found = summarize(examples, [scored, failed, LostEpisode("b"), LostEpisode("b")], greedy)
    assert (found.pass_at_1, found.n, found.unscorable_frac) == (0.25, 4, 0.75)
    assert (found.greedy_pass_at_1, found.greedy_unscorable_frac) == (0.5, 0.5)
    assert found.reward_mean == 1.0 and found.completion_tokens_mean == 1.0  # of those that there are
    assert found.metrics("x")["eval/x/unscorable_frac"] == found.to_json()["unscorable_frac"] == 0.75


def play(policy, engine, workers, task, **config):
    return evaluate(policy, engine, workers, task, sized(**config), sized(max_tokens=3), 0)


def test_held_out_examples_are_sampled_the_same_every_time(policy, engine, workers, sevens, monkeypatch):
    calls, usual, held_out = [], evaluation.rollout, list(sevens.dataset.held_out)
    monkeypatch.setattr(evaluation, "rollout", lambda *given: calls.append(given[4:]) or usual(*given))
    sampling = sized(max_tokens=3, temperature=0.7, stop_strings=("stop",))
    config = sized(eval_samples=2, eval_temperature=0.4)
    first, again = (evaluate(policy, engine, workers, sevens, config, sampling, seed=9) for _ in range(2))
    plan = Plan(2, 3, 0.4, 9, "evaluation", 0, stop_strings=("stop",))
    assert calls == [(held_out, plan), (held_out, replace(plan, group_size=1, temperature=0.0))] * 2
    assert [r.ids for r in first.rollouts] == [r.ids for r in again.rollouts]
    assert first.n == 2 * len(held_out) == len({r.seed for r in first.rollouts})
    greedy = first.results[0]
    assert greedy["prompt"] == held_out[0].prompt and greedy["category"] == held_out[0].category
    assert [one["mode"] for one in first.results] == ["greedy"] * len(held_out) + ["sampled"] * first.n
    for line, one in zip(first.results[len(held_out) :], first.rollouts, strict=True):
        assert (line["example_id"], line["sample"], line["truncated"]) == (one.example_id, one.sample, one.truncated)
        assert (line["completion"], line["tokens"]) == (one.text, one.num_sampled)
        assert Reward(line["reward"], line["parts"]) == one.reward and line["solved"] == one.reward.solved
    few = play(policy, engine, workers, sevens, eval_examples=4)  # at least 500 samples are behind a figure
    assert few.n == 4 * 125 and {r.example_id for r in few.rollouts} == {one.id for one in held_out[:4]}


def test_several_processes_evaluate_as_one_and_share_the_work(make_policy, workers, sevens):
    def evaluated(policy):
        seen = []
        counted = replace(sevens, reward=lambda text, example: seen.append(text) or sevens.reward(text, example))
        return play(policy, TorchEngine(policy), workers, counted, eval_samples=3), len(seen)

    alone, rewarded = evaluated(make_policy())
    results = together(3, lambda member: replace(make_policy(), processes=member), evaluated)
    for found, _ in results:
        assert replace(found, rollouts=(), results=()) == replace(alone, rollouts=(), results=())
        assert [r.ids for r in found.rollouts] == [r.ids for r in alone.rollouts]
    assert [found.results for found, _ in results] == [alone.results, [], []]  # the main process writes them
    held_out = len(sevens.dataset.held_out)
    assert sum(seen for _, seen in results) == rewarded == 4 * held_out
    assert max(seen for _, seen in results) == 4 * math.ceil(held_out / 3)


def test_an_evaluation_counts_the_episodes_that_never_began(policy, engine, workers, sevens):
    def episode(example, rng):
        if example.id != sevens.dataset.held_out[0].id:
            raise RuntimeError("no board")
        yield Turn("player", example.prompt)
        return {"player": Reward(1.0)}

    episodes = 2 * len(sevens.dataset.held_out)
    found = play(policy, engine, workers, replace(sevens, episode=episode), eval_samples=2)
    assert (found.n, len(found.rollouts)) == (episodes, 2) and "no board" in found.failures[0]
    lost = found.results[-1]
    assert (lost["completion"], lost["reward"], lost["solved"], lost["parts"]) == (None, None, None, {})
    assert lost["prompt"] == sevens.dataset.held_out[-1].prompt
    assert (found.unscorable_frac, found.pass_at_1) == (1 - 2 / episodes, 2 / episodes)
    found = summarize(sevens.dataset.held_out, [LostEpisode(sevens.dataset.held_out[0].id)], [])
    assert math.isnan(found.pass_at_1) and "eval/x/pass@1" not in found.metrics("x")  # none could be scored
