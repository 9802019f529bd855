"""Several tasks in one run: each has its share of the groups, and what it is compared with is its own."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from minrl.__main__ import main
from minrl.algorithms import ALGORITHMS, compute_advantages
from minrl.dataflow import Reward, TrainState
from minrl.evaluate.statistics import weighted_score
from minrl.sampling import draw_examples, next_examples, tracked_plan
from minrl.tasks.mixture import cycle, mixture
from minrl.utils.task_names import weights_of
from tests import say_sevens
from tests.parsed import sized
from tests.runs import Run
from tests.say_duel import DUEL
from tests.test_sampling import TASK

WEIGHTS = {"sevens": Fraction(2), "odd": Fraction(1)}


def both(sevens):
    """Two thirds of `sevens` and a third of test_sampling's task."""
    return mixture({"sevens": sevens, "odd": TASK}, WEIGHTS)


@pytest.mark.parametrize("said", ["a:2,b:1", "a:1,b:10,c:100,d:37"])
def test_after_every_group_each_task_has_its_share_to_within_one_group(said):
    weights = weights_of(said)
    total, given = sum(weights.values()), dict.fromkeys(weights, 0)
    order = cycle(tuple(weights.items()), 7)
    for number, name in enumerate((order * 300)[:300], 1):
        given[name] += 1
        ahead = [given[one] - number * weight / total for one, weight in weights.items()]
        assert max(map(abs, ahead)) < 1


def test_a_step_of_a_mixture_has_whole_groups_of_each_task_in_its_own_order(sevens):
    task, config = both(sevens), sized(prompts_per_step=4, seed=5)
    state, drawn = TrainState(), []
    for step in range(1, 7):
        due = task.schedule(config.seed, step, 4)
        drawn.append(next_examples(task, due, config, state))
        assert [example.task for example in drawn[-1]] == due and due.count("sevens") in (2, 3)
    of_odd = [replace(example, task="") for step in drawn for example in step if example.task == "odd"]
    assert of_odd == draw_examples(TASK.dataset.train, 8, 5, TrainState())  # 24 groups, a third of them
    assert (state.examples_drawn, state.of("sevens").examples_drawn, state.of("odd").examples_drawn) == (0, 16, 8)
    examples, _ = tracked_plan(task, config)
    assert [example.task for example in examples] == ["sevens"] * 2 + ["odd"] * 2


def of(make_rollout, task, *rewards, first=0, **changes):
    paid = [(group, value) for group, values in enumerate(rewards, first) for value in values]
    made = [make_rollout([5], [6], group=group, task=task, **changes) for group, _ in paid]
    rewarded = [None if value is None else Reward(float(value)) for _, value in paid]
    return [replace(one, reward=reward) for one, reward in zip(made, rewarded, strict=True)]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "spiral", "gpg"])
def test_the_advantages_of_a_task_are_those_that_it_has_alone(name, make_rollout):
    config = sized(task="a,b", group_size=4, algorithm=name)
    first = of(make_rollout, "a", [1, 0, 0, None], [1, 1, 1, 1], [0.5, 0.25, 0, 1])
    second = of(make_rollout, "b", [0, 1, 0.5, 0.25], [0, 0, 0, 0], first=3)
    before = {"a/policy": 0.5, "b/policy": 0.125}
    mixed = [rollout for pair in zip(first, [*second, *[None] * 4], strict=True) for rollout in pair if rollout]

    def compared(rollouts, config, baselines):
        state = TrainState(baselines=dict(baselines))
        return compute_advantages(rollouts, ALGORITHMS[name], config, state), state.baselines

    found, after = compared(mixed, config, before)
    for task, rollouts in (("a", first), ("b", second)):
        alone, _ = compared(rollouts, config, before)
        whole = sized(algorithm=name, task=task, group_size=4)
        baseline = {"policy": before[f"{task}/policy"]}
        single, moved = compared([replace(one, task="") for one in rollouts], whole, baseline)
        own = torch.tensor([rollout.task == task for rollout in mixed])
        torch.testing.assert_close(found.values[own], alone.values, atol=0, rtol=0)
        torch.testing.assert_close(found.values[own], single.values, atol=0, rtol=0)
        assert after[f"{task}/policy"] == moved["policy"]
    assert found.metrics["reward/zero_spread_group_frac"] == pytest.approx(2 / 5)


def test_the_score_of_all_weighs_their_intervals():
    # Two equal halves: the half of the mean's interval is sqrt(0.1^2 + 0.1^2) / 2.
    value, (low, high) = weighted_score([(0.5, 0.4, (0.3, 0.5)), (0.5, 0.8, (0.7, 0.9))])
    assert value == pytest.approx(0.6)
    assert (value - low, high - value) == (pytest.approx(0.02**0.5 / 2), pytest.approx(0.02**0.5 / 2))


FLAGS = str.split(f"""--task {say_sevens.TASK}:2,{DUEL}:1 --sevens.max-tokens 3 --prompts-per-step 3 --group-size 4
    --save-every 1 --eval-every 2 --eval-examples 4 --eval-samples 2 --rollouts-every 2 --learning-rate 1e-2 --threads 1
    --device cpu --quiet --no-preflight --steps 2 --keep-checkpoints 0""")


def test_a_run_and_an_evaluation_of_a_task_and_a_game_score_each_and_both(tmp_path, monkeypatch):
    run = Run(tmp_path, [*say_sevens.SIZES, *FLAGS, "--base-steps", "16"])
    assert run.here() == 0
    found, lines = run.summary, run.metrics
    assert found["task"] == "sevens+duel" and found["other_tasks"].keys() == {"sevens", "duel"}
    scores = [line for line in lines if "eval/sevens+duel/pass@1" in line]
    assert [line["step"] for line in scores] == [0, 2]
    for line in scores:
        mean = (2 * line["eval/sevens/pass@1"] + line["eval/duel/pass@1"]) / 3
        assert line["eval/sevens+duel/pass@1"] == pytest.approx(mean)
    assert max(line["task/sevens/rollout/completion_tokens_max"] for line in lines[1:]) == 3  # its own limit
    assert max(line["task/duel/rollout/completion_tokens_max"] for line in lines[1:]) > 3
    monkeypatch.chdir(run.place)
    flags = str.split("--examples 4 --samples 2 --device cpu --threads 1 --quiet --no-charts --output")
    assert main(["evaluate", "--checkpoint", "runs/run", *flags, "out"]) == 0
    found = json.loads(Path("out/summary.json").read_text())
    scores = {result["task"]: result["pass@1"] for result in found["results"]}
    assert scores == {key: one["eval_after"]["pass@1"] for key, one in run.summary["other_tasks"].items()}
