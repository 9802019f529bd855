"""Dynamic sampling, adaptive temperature, curriculum, overlong completions."""

import itertools
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from gradients import CPU, fixed_rollouts, gradients, settings, tiny_policy
from together import together
from two_samplers import STEPS, TASK, sampled_steps, single_precision

from minrl import sampling
from minrl.algorithms import ALGORITHMS, choose_algorithm, compute_advantages
from minrl.config import AlgorithmConfig, RolloutConfig, SamplingConfig, TrainerConfig
from minrl.models.processes import Processes
from minrl.rollout import Rollouts
from minrl.sampling import (
    adapt_sampling,
    adapted_temperature,
    choose_examples,
    draw_examples,
    every,
    sample_groups,
    warn_of_failures,
)
from minrl.types import Example, Reward, TrainState, UserError


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(Processes(CPU))


def config_of(prompts=4, temperature=1.0, **sampling):
    return TrainerConfig(
        rollout=RolloutConfig(prompts_per_step=prompts, temperature=temperature), sampling=SamplingConfig(**sampling)
    )


def groups(make_rollout, *rewards):
    """Rollouts of groups 0, 1, ... with these rewards."""
    return [
        make_rollout([5], [6], group=group, reward=None if value is None else Reward(float(value)))
        for group, values in enumerate(rewards)
        for value in values
    ]


@pytest.fixture
def rounds(policy, engine, workers, monkeypatch):
    """Samples a step whose rounds have these rollouts. The rollouts, and (first slot, examples) of each round."""

    def sample(config, *given):
        left, asked = list(given), []

        def rollout(policy, engine, workers, task, examples, plan):
            asked.append((plan.first_slot, [example.id for example in examples]))
            return Rollouts(left.pop(0), ["why"])

        monkeypatch.setattr(sampling, "rollout", rollout)
        return sample_groups(policy, engine, workers, TASK, config, TrainState(step=1)), asked

    return sample


@pytest.mark.parametrize("curriculum", [False, True])
def test_groups_without_spread_are_replaced_in_a_bounded_number_of_rounds(rounds, make_rollout, curriculum):
    # One of four groups has spread; 0.1 + 0.2 is not 0.3 and spread is exact; a group of one scorable has none.
    first = groups(make_rollout, [1, 0], [1, 1], [0.3, 0.3], [0, None])
    second, third = groups(make_rollout, [1, 0], [0.1 + 0.2, 0.3], [0, 0]), groups(make_rollout, [0, 0])
    found, asked = rounds(config_of(prompts=4, refill_rounds=2, curriculum=curriculum), first, second, third)
    # Still one short, but that was the second refill. A refill has slots of its own, and examples too.
    assert [(slot, len(examples)) for slot, examples in asked] == [(0, 4), (4, 3), (7, 1)]
    assert len({example for _, examples in asked for example in examples}) == 8
    assert [r.group for r in found.rollouts] == [n for n in range(8) for _ in range(2)]
    assert found.failures == ["why"] * 3


def test_with_several_roles_an_example_counts_by_the_share_of_its_groups_that_have_spread(rounds, make_rollout):
    # Groups 0, 2, ... are of one role, groups 1, 3, ... of the other. Three of eight have spread: one whole example.
    rollouts = groups(make_rollout, [1, 0], [0, 1], [1, 0], [0, 0], *[[0, 0]] * 4)
    for rollout in rollouts:
        rollout.role = ("white", "black")[rollout.group % 2]
    _, asked = rounds(config_of(prompts=4, refill_rounds=1), rollouts, groups(make_rollout, [0, 0]))
    assert len(asked[1][1]) == 3


@pytest.mark.parametrize(
    ("refill_rounds", "rewards"), [(5, ([1, 0], [0, 1])), (5, ([1, 0], [0, 1], [1, 0])), (0, ([1, 1], [0, 0]))]
)
def test_a_step_with_enough_or_without_refills_has_one_round(rounds, make_rollout, refill_rounds, rewards):
    _, asked = rounds(config_of(prompts=2, refill_rounds=refill_rounds), groups(make_rollout, *rewards))
    assert [len(examples) for _, examples in asked] == [2]


def test_a_reward_above_its_maximum_ends_the_run_and_another_mistake_is_counted():
    unscorable = "mistake in task a, example '1': the reward is None"
    warn_of_failures("episodes", [unscorable])
    above = "mistake in task a, example '1': a reward must be at most its maximum, got 2 of 1"
    with pytest.raises(UserError, match="got 2 of 1"):
        warn_of_failures("episodes", [unscorable, above])


def test_the_temperature_goes_on_from_where_it_is_by_half_of_what_is_missing(make_rollout):
    # Standard deviations 0.5 and 0 (it counts): mean 0.25, and (0.27 / 0.25)^(1/2) = 1.0392305.
    config, state = config_of(temperature=0.8, target_reward_std=0.27), TrainState()
    rollouts = groups(make_rollout, [1, 0], [1, 1])
    for step in (1, 2, 3):
        adapt_sampling(state, config, rollouts)
        assert state.temperature == pytest.approx(0.8 * 1.0392305**step, abs=1e-6)
    before = state.temperature
    adapt_sampling(state, config, groups(make_rollout, [1, 1], [0, None]))
    assert state.temperature == pytest.approx(1.1 * before)  # no spread at all: a little hotter
    adapt_sampling(state, replace(config, sampling=replace(config.sampling, target_reward_std=0.01)), rollouts)
    assert state.temperature == pytest.approx(before)  # much too much spread: a little colder
    adapt_sampling(state, config, groups(make_rollout, [None, None]))
    assert state.temperature == pytest.approx(before)  # nothing could be scored, so nothing is known
    for _ in range(20):
        adapt_sampling(state, config, groups(make_rollout, [1, 1]))
    assert state.temperature == 1.5


def adapted(power, start, target=0.3, coefficient=0.3, steps=200, noise=lambda step: 1.0):
    """The temperatures where rewards inside groups have the std `coefficient` T^`power`, times noise."""
    limits = SamplingConfig(target_reward_std=target, min_temperature=0.05, max_temperature=20.0)
    temperatures = [start]
    for step in range(steps):
        std = coefficient * temperatures[-1] ** power * noise(step)
        temperatures.append(adapted_temperature(temperatures[-1], std, limits))
    return temperatures


@pytest.mark.parametrize("start", [0.05, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("power", [1.0, 0.5, 2.0])
def test_the_temperature_settles_where_the_spread_is_the_target(power, start):
    # 0.3 T^power is 0.45 at T = 1.5^(1 / power). It gets there from one side, with no swing past it.
    wanted = 1.5 ** (1 / power)
    temperatures = adapted(power, start, target=0.45)
    assert temperatures[-1] == pytest.approx(wanted, rel=1e-6)
    distances = [abs(math.log(temperature / wanted)) for temperature in temperatures]
    assert all(later <= before + 1e-12 for before, later in itertools.pairwise(distances))
    assert all((temperature - wanted) * (start - wanted) >= -1e-9 for temperature in temperatures)
    changes = [later / before for before, later in itertools.pairwise(temperatures)]
    assert max(changes) <= 1.1 + 1e-12 and min(changes) >= 1 / 1.1 - 1e-12


def test_a_target_out_of_reach_ends_at_the_limit():
    assert adapted(1.0, 1.0, target=100.0)[-1] == 20.0
    assert adapted(1.0, 1.0, target=1e-4)[-1] == 0.05


def test_every_so_many_steps_or_never():
    assert [step for step in range(1, 8) if every(3, step)] == [3, 6] and not any(every(0, step) for step in range(8))


def test_the_temperature_is_fixed_by_default(make_rollout):
    config, state = config_of(), TrainState()
    adapt_sampling(state, config, groups(make_rollout, [1, 0]))
    assert state == TrainState()


def test_without_a_curriculum_examples_come_in_the_order_of_the_data():
    examples = [Example(str(n), str(n), {}) for n in range(30)]
    state, other = TrainState(examples_drawn=28), TrainState(examples_drawn=28)
    config = config_of(prompts=8)
    assert choose_examples(examples, 8, config, state) == draw_examples(examples, 8, config.seed, other)
    assert state == other == TrainState(examples_drawn=36)


def test_solve_rates_are_remembered_and_survive_a_checkpoint(make_rollout):
    config, state = config_of(curriculum=True), TrainState()
    adapt_sampling(state, config, groups(make_rollout, [1, 0, None, 0.5, 1]))  # two of four solved
    assert state.solve_rates == {"example": 0.5}
    adapt_sampling(state, config, groups(make_rollout, [1, 1]))
    assert state.solve_rates == {"example": 0.75}
    assert TrainState(**json.loads(json.dumps(asdict(state)))) == state


def test_the_curriculum_prefers_what_is_solved_sometimes():
    examples = [Example(str(n), str(n), {}) for n in range(100)]
    config = config_of(prompts=20, curriculum=True)
    state = TrainState(solve_rates={str(n): (0.0, 1.0, 0.5, 0.5)[n % 4] for n in range(100)})
    sometimes = never = 0
    for _ in range(20):
        chosen = choose_examples(examples, 20, config, state)
        assert len({example.id for example in chosen}) == 20
        sometimes += sum(int(example.id) % 4 >= 2 for example in chosen)
        never += sum(int(example.id) % 4 == 0 for example in chosen)
    assert state.examples_drawn == 400
    assert sometimes > 300  # half of the examples would be 200
    assert never > 0  # the floor: what was never solved is tried again


def test_the_curriculum_is_a_function_of_the_state():
    examples = [Example(str(n), str(n), {}) for n in range(30)]
    config = config_of(prompts=8, curriculum=True)
    first = choose_examples(examples, 8, config, TrainState(examples_drawn=16))
    again = choose_examples(examples, 8, config, TrainState(examples_drawn=16))
    later = choose_examples(examples, 8, config, TrainState(examples_drawn=24))
    assert first == again != later
    assert choose_examples(examples, 8, replace(config, seed=1), TrainState(examples_drawn=16)) != first


def test_the_curriculum_takes_all_of_a_small_dataset_before_it_begins_again():
    examples = [Example(str(n), str(n), {}) for n in range(3)]
    chosen = [e.id for e in choose_examples(examples, 8, config_of(prompts=8, curriculum=True), TrainState())]
    assert sorted(chosen[:3]) == sorted(chosen[3:6]) == ["0", "1", "2"]
    assert chosen[6:] == chosen[:2]


def test_the_curriculum_prefers_what_was_never_tried():
    examples = [Example(str(n), str(n), {}) for n in range(100)]
    config, state = config_of(prompts=20, curriculum=True), TrainState(solve_rates={str(n): 1.0 for n in range(50)})
    chosen = [int(e.id) for _ in range(10) for e in choose_examples(examples, 20, config, state)]
    assert sum(number >= 50 for number in chosen) > 150  # without preference 100 of 200


def test_masked_truncated_rollouts_weigh_nothing_but_keep_their_place_in_the_baseline(policy):
    rollouts = fixed_rollouts()
    row = choose_algorithm(settings("grpo"))
    masked, _ = gradients(policy, rollouts, settings("grpo", overlong="mask"))
    # By hand: the same advantages, computed with them, on the batch without them.
    advantages = compute_advantages(rollouts, row, settings("grpo"), TrainState()).values
    kept = [index for index, rollout in enumerate(rollouts) if not rollout.truncated]
    assert len(kept) == 12

    given = replace(row, advantage=lambda _: advantages[kept])
    expected, _ = gradients(policy, [rollouts[i] for i in kept], settings("grpo"), row=given)
    for new, old in zip(masked, expected, strict=True):
        for name in old:
            torch.testing.assert_close(new[name], old[name], atol=1e-6, rtol=0)


DROPPING = [name for name, row in ALGORITHMS.items() if row.group_relative and not row.makes_up_for_equal_groups]


@pytest.mark.parametrize(
    ("algorithm", "sampling", "message"),
    [
        ({"algorithm": "reinforce"}, {"refill_rounds": 1}, "leave out drop_equal_groups and refill_rounds"),
        ({"algorithm": "reinforce", "drop_equal_groups": True}, {}, "leave out drop_equal_groups"),
        ({"overlong": "penalize", "overlong_buffer": 500}, {}, "must be below max_tokens"),
        ({"overlong": "penalize"}, {}, "go together"),
        ({"overlong_buffer": 5}, {}, "go together"),
        ({}, {"min_temperature": 2.0}, "min_temperature <= max_temperature"),
    ],
)
def test_impossible_sampling_is_refused_in_one_line(algorithm, sampling, message):
    with pytest.raises(UserError, match=message):
        choose_algorithm(TrainerConfig(algorithm=AlgorithmConfig(**algorithm), sampling=SamplingConfig(**sampling)))


@pytest.fixture(scope="module")
def two():
    """What each of two processes saw of a run, by rounds of refill."""
    return together(2, single_precision, lambda policy: {rounds: sampled_steps(rounds, policy) for rounds in (0, 2)})


@pytest.mark.parametrize("refill_rounds", [0, 2])
def test_two_processes_remember_the_same_and_sample_different_shares(two, refill_rounds):
    first, second = (seen[refill_rounds] for seen in two)
    assert len(first) == STEPS
    for mine, other in zip(first, second, strict=True):
        for shared in ("state", "rounds", "all"):
            assert mine[shared] == other[shared]
        seeds = [seed for _, _, seed, _ in mine["all"]]
        assert len(set(seeds)) == len(seeds)
        assert sorted(mine["mine"] + other["mine"]) == sorted(seeds)
        # Of each round half of the examples, the odd one to the second; two completions each.
        assert len(mine["mine"]) == sum(2 * (wanted // 2) for wanted in mine["rounds"])
    assert first[-1]["state"]["examples_drawn"] == sum(sum(step["rounds"]) for step in first)


@pytest.mark.parametrize(("count", "refill_rounds"), [(2, 0), (2, 2), (3, 2), (8, 2)])
def test_several_processes_sample_what_one_does(processes, count, refill_rounds):
    alone = [{**step, "mine": None} for step in sampled_steps(refill_rounds, single_precision(processes))]
    for seen in together(count, single_precision, lambda policy: sampled_steps(refill_rounds, policy)):
        assert [{**step, "mine": None} for step in seen] == alone
    if refill_rounds:
        assert {len(step["rounds"]) for step in alone} & {2, 3}
        assert any(wanted % count for step in alone for wanted in step["rounds"])


def test_two_processes_learn_solve_rates_and_temperature_from_all_rollouts(two):
    rates, temperature = {}, 1.0
    for step in two[1][2]:
        solved, groups = {}, {}
        for group, example, _, reward in step["all"]:
            solved.setdefault(example, []).append(reward == 1)
            groups.setdefault(group, []).append(reward)
        for example, outcomes in solved.items():
            rate = sum(outcomes) / len(outcomes)
            rates[example] = (rates.get(example, rate) + rate) / 2
        assert step["state"]["solve_rates"] == pytest.approx(rates)
        # A pair has std 1/2 where its rewards differ, else 0.
        mean = sum(0.5 * (a != b) for a, b in groups.values()) / len(groups)
        change = min(1.1, (0.3 / mean) ** 0.5) if mean else 1.1
        temperature = min(1.5, temperature * max(1 / 1.1, change))
        assert step["state"]["temperature"] == pytest.approx(temperature)
