"""Dynamic sampling, adaptive temperature, curriculum, overlong completions."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from gradients import CPU, fixed_rollouts, gradients, settings, tiny_policy

from minrl.advantages import overlong_penalty
from minrl.algorithms import choose_algorithm
from minrl.checkpoint import TrainState
from minrl.config import AlgorithmConfig, RolloutConfig, SamplingConfig, TrainerConfig
from minrl.processes import Processes
from minrl.rollout import Rollouts, training_plan
from minrl.sampling import Draw, at_temperature, choose_examples, observe
from minrl.types import Example, Reward, UserError


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


def test_groups_without_spread_are_replaced_in_a_bounded_number_of_rounds(make_rollout, processes):
    draw = Draw(config_of(prompts=4, refill_rounds=2), processes)
    assert draw.prompts == draw.config.rollout.prompts_per_step == 4
    # One of four groups has spread; 0.1 + 0.2 is not 0.3 and spread is exact; a group of one scorable has none.
    draw.add(Rollouts(groups(make_rollout, [1, 0], [1, 1], [0.3, 0.3], [0, None]), ["why"]))
    assert draw.prompts == draw.config.rollout.prompts_per_step == 3
    assert draw.drawn == 4
    draw.add(Rollouts(groups(make_rollout, [1, 0], [0.1 + 0.2, 0.3], [0, 0]), []))
    assert (draw.prompts, draw.drawn) == (1, 7)
    draw.add(Rollouts(groups(make_rollout, [0, 0]), []))
    assert (draw.prompts, draw.drawn) == (0, 8)  # still one short, but that was the second refill
    assert [r.group for r in draw.sampled.rollouts] == [n for n in range(8) for _ in range(2)]
    assert draw.sampled.failures == ["why"]


def test_a_full_draw_is_not_refilled(make_rollout, processes):
    draw = Draw(config_of(prompts=2, refill_rounds=5), processes)
    draw.add(Rollouts(groups(make_rollout, [1, 0], [0, 1]), []))
    assert draw.prompts == 0


def test_without_refill_one_round_is_enough(make_rollout, processes):
    draw = Draw(config_of(prompts=2), processes)
    draw.add(Rollouts(groups(make_rollout, [1, 1], [0, 0]), []))
    assert draw.prompts == 0


def test_a_refill_has_slots_and_examples_of_its_own(processes):
    config, state = config_of(prompts=4, refill_rounds=1), TrainState(step=3)
    assert training_plan(config, state, processes).first_slot == 0
    assert training_plan(config, state, processes, drawn=4).first_slot == 4


def test_the_temperature_follows_the_spread_and_never_compounds(make_rollout):
    # Standard deviations 0.5 and 0 (it counts): mean 0.25. T' = 0.8 * 0.3 / 0.25 = 0.96.
    config, state = config_of(temperature=0.8, target_reward_std=0.3), TrainState()
    rollouts = groups(make_rollout, [1, 0], [1, 1])
    assert at_temperature(config, state) is config
    for _ in range(3):
        observe(state, config, rollouts)
        assert state.temperature == pytest.approx(0.96, abs=1e-12)
        assert at_temperature(config, state).rollout.temperature == state.temperature
    observe(state, config, groups(make_rollout, [1, 1]))
    assert state.temperature == 1.5  # no spread at all: as hot as it may be
    observe(state, replace(config, sampling=replace(config.sampling, target_reward_std=0.01)), rollouts)
    assert state.temperature == 0.5


def test_the_temperature_is_fixed_by_default(make_rollout):
    config, state = config_of(), TrainState()
    observe(state, config, groups(make_rollout, [1, 0]))
    assert state == TrainState()


def test_solve_rates_are_remembered_and_survive_a_checkpoint(make_rollout):
    config, state = config_of(curriculum=True), TrainState()
    observe(state, config, groups(make_rollout, [1, 0, None, 0.5, 1]))  # two of four solved
    assert state.solve_rates == {"example": 0.5}
    observe(state, config, groups(make_rollout, [1, 1]))
    assert state.solve_rates == {"example": 0.75}
    assert TrainState.from_dict(json.loads(json.dumps(asdict(state)))) == state


def test_the_curriculum_prefers_what_is_solved_sometimes(processes):
    examples = [Example(str(n), str(n), {}) for n in range(100)]
    config = config_of(prompts=20, curriculum=True)
    state = TrainState(solve_rates={str(n): (0.0, 1.0, 0.5, 0.5)[n % 4] for n in range(100)})
    sometimes = never = 0
    for _ in range(20):
        chosen = choose_examples(examples, config, state, processes)
        assert len({example.id for example in chosen}) == 20
        sometimes += sum(int(example.id) % 4 >= 2 for example in chosen)
        never += sum(int(example.id) % 4 == 0 for example in chosen)
    assert state.examples_drawn == 400
    assert sometimes > 300  # half of the examples would be 200
    assert never > 0  # the floor: what was never solved is tried again


def test_the_curriculum_is_a_function_of_the_state(processes):
    examples = [Example(str(n), str(n), {}) for n in range(30)]
    config = config_of(prompts=8, curriculum=True)
    first = choose_examples(examples, config, TrainState(examples_drawn=16), processes)
    again = choose_examples(examples, config, TrainState(examples_drawn=16), processes)
    later = choose_examples(examples, config, TrainState(examples_drawn=24), processes)
    assert first == again != later


def test_the_overlong_penalty_by_hand():
    # max_tokens 100, buffer 20: nothing up to 80, -1/2 at 90, -1 at 100.
    penalty = overlong_penalty(torch.tensor([1, 80, 90, 100]), 100, 20)
    torch.testing.assert_close(penalty.tolist(), [0.0, 0.0, -0.5, -1.0])
    assert overlong_penalty(torch.tensor([100]), 100, 0).tolist() == [0]


def test_the_overlong_penalty_makes_long_completions_worse(make_rollout):
    config = TrainerConfig(
        rollout=RolloutConfig(group_size=2, max_tokens=4),
        algorithm=AlgorithmConfig(algorithm="dr_grpo", overlong="penalize", overlong_buffer=2),
    )
    pair = [make_rollout([5], [6]), make_rollout([5], [6, 7, 8])]  # rewards 1 and 1 - 1/2, mean 3/4
    assert choose_algorithm(config).compare(pair, {}).advantages.tolist() == [0.25, -0.25]
    assert pair[1].reward.value == 1.0


def test_masked_truncated_rollouts_weigh_nothing_but_keep_their_place_in_the_baseline(policy):
    rollouts = fixed_rollouts()
    row = choose_algorithm(settings("grpo"))
    masked, _ = gradients(policy, rollouts, settings("grpo", overlong="mask"))
    # By hand: the same advantages, computed with them, on the batch without them.
    advantages = row.compare(rollouts, {}).advantages
    kept = [index for index, rollout in enumerate(rollouts) if not rollout.truncated]
    assert len(kept) == 12

    given = replace(row, advantage=lambda *_: (advantages[kept], {}))
    expected, _ = gradients(policy, [rollouts[i] for i in kept], settings("grpo"), row=given)
    for new, old in zip(masked, expected, strict=True):
        for name in old:
            torch.testing.assert_close(new[name], old[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_dropped_groups_do_not_dilute_the_rest(name, policy):
    rollouts = fixed_rollouts()
    dropped, _ = gradients(policy, rollouts, settings(name, drop_equal_groups=True))
    expected, _ = gradients(policy, [r for r in rollouts if r.group != 1], settings(name))
    for new, old in zip(dropped, expected, strict=True):
        for weight in old:
            torch.testing.assert_close(new[weight], old[weight], atol=1e-6, rtol=0)


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
