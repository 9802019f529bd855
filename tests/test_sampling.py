"""The order of the data, dynamic sampling, adaptive temperature and curriculum."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from minrl import sampling
from minrl.dataflow import Example, LostEpisode, Reward, TrainState, UserError
from minrl.rollout import Plan, Rollouts
from minrl.sampling import (
    adapt_sampling,
    choose_examples,
    draw_examples,
    every,
    next_examples,
    require_rewards,
    require_sampler,
    sample_groups,
    tracked_plan,
    training_plan,
    warn_of_failures,
)
from minrl.tasks import Task
from minrl.tasks.task import split
from tests.parsed import sized


def config_of(prompts=4, **sampling):
    return sized(prompts_per_step=prompts, **sampling)


def examples_of(count):
    return [Example(str(n), str(n), {}) for n in range(count)]


TASK = Task(split(examples_of(30), 0.35), lambda completion, example: Reward(0.0), cheap=True)


@pytest.fixture
def groups(make_rollout):
    """Rollouts of groups 0, 1, ... with these rewards."""
    return lambda *rewards: [
        make_rollout([5], [6], group=group, reward=None if value is None else Reward(float(value)))
        for group, values in enumerate(rewards)
        for value in values
    ]


@pytest.fixture
def rounds(policy, engine, workers, monkeypatch):
    """Samples a step whose rounds have these rollouts. The rollouts, and (first slot, examples) of each round."""

    def sample(config, *given):
        left, sampled = list(given), []

        def rollout(policy, engine, workers, task, examples, plan):
            sampled.append((plan.first_slot, [example.id for example in examples]))
            return Rollouts(left.pop(0), ["why"])

        monkeypatch.setattr(sampling, "rollout", rollout)
        return sample_groups(policy, engine, workers, TASK, config, TrainState(step=1)), sampled

    return sample


def test_groups_without_spread_are_replaced_in_a_bounded_number_of_rounds(rounds, groups):
    # One of four groups has spread; 0.1 + 0.2 and 0.3 differ by rounding alone; a group of one scorable has none.
    first = groups([1, 0], [1, 1], [0.1 + 0.2, 0.3], [0, None])
    second, third = groups([1, 0], [0.3, 0.3 + 1e-6], [0, 0]), groups([0, 0])
    found, sampled = rounds(config_of(prompts=4, refill_rounds=2, curriculum=True), first, second, third)
    # Still one short, but that was the second refill. A refill has slots of its own, and examples too.
    assert [(slot, len(examples)) for slot, examples in sampled] == [(0, 4), (4, 3), (7, 1)]
    assert len({example for _, examples in sampled for example in examples}) == 8
    assert [r.group for r in found.rollouts] == [n for n in range(8) for _ in range(2)]
    assert found.failures == ["why"] * 3


@pytest.mark.parametrize(("refill_rounds", "rewards"), [(5, ([1, 0], [0, 1])), (0, ([1, 1], [0, 0]))])
def test_a_step_with_enough_or_without_refills_has_one_round(rounds, groups, refill_rounds, rewards):
    _, sampled = rounds(config_of(prompts=2, refill_rounds=refill_rounds), groups(*rewards))
    assert [len(examples) for _, examples in sampled] == [2]


def test_a_reward_above_its_maximum_ends_the_run():
    above = "mistake in task a: a reward must be at most its maximum, got 2 of 1"
    with pytest.raises(UserError, match="got 2 of 1"):
        warn_of_failures("episodes", ["mistake in task a, example '1': the reward is None", above])


@pytest.mark.parametrize(("rewards", "lost"), [([1, None], 0), ([1, 0], 2), ([], 1)])
def test_too_many_unscorable_completions_end_the_run(groups, said, rewards, lost):
    failures = ["why"] * rewards.count(None)
    sampled = Rollouts(groups(rewards), failures, [], [LostEpisode("x")] * lost)
    if rewards:
        require_rewards(sampled, 1 / 2, 3)
        assert ("1 episodes could not be rewarded" in "".join(said)) == bool(failures)
    message = r"50% of the rollouts of step 3 .* .40%.|no episode of step 3 came to its first turn"
    with pytest.raises(UserError, match=message):
        require_rewards(sampled, 0.4 if rewards else 1, 3)


@pytest.mark.parametrize(("total", "prompts"), [(12, 5), (5, 12)])
def test_each_epoch_shows_every_example_once_in_an_order_of_seed_and_epoch_alone(total, prompts):
    examples, config, state, drawn = examples_of(total), config_of(), TrainState(), []
    while len(drawn) < 3 * total:
        drawn += [int(one.id) for one in choose_examples(examples, prompts, config, state)]
        random.seed(0)
    epochs = [drawn[start : start + total] for start in range(0, 3 * total, total)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs) and len(set(map(tuple, epochs))) == 3
    assert state == TrainState(examples_drawn=len(drawn))
    for start in range(0, len(drawn), prompts):  # a resumed run neither repeats nor skips
        later = draw_examples(range(total), prompts, config.seed, TrainState(examples_drawn=start))
        assert later == drawn[start : start + prompts]
    assert draw_examples(range(total), total, config.seed + 1, TrainState()) != epochs[0]


def test_an_interval_of_0_is_never():
    assert [[every(steps, step) for step in (1, 2)] for steps in (0, 2)] == [[False, False], [False, True]]


def test_training_and_tracked_examples_are_sampled_by_the_settings():
    config = sized(max_tokens=5, group_size=3, temperature=0.7, stop_strings=("stop",), seed=9)
    state = TrainState(step=2)
    assert training_plan(config, state) == Plan(3, 5, 0.7, 9, "train", 2, first_slot=0, stop_strings=("stop",))
    assert training_plan(config, state, drawn=4) == replace(training_plan(config, state), first_slot=4)
    examples, plan = tracked_plan(TASK, config)  # the same at every step, greedily
    assert examples == list(TASK.dataset.held_out[:4])
    assert plan == Plan(1, 5, 0.0, 9, "tracked", 0, stop_strings=("stop",))


def test_the_temperature_moves_from_where_it_is_by_half_of_what_is_missing(groups):
    # Standard deviations 0.5 and 0 (it counts): mean 0.25, and (0.27 / 0.25)^(1/2) = 1.0392305.
    config, state = config_of(temperature=0.8, target_reward_std=0.27), TrainState()
    for step in (1, 2, 3):
        adapt_sampling(state, config, groups([1, 0], [1, 1]))
        assert state.temperature == pytest.approx(0.8 * 1.0392305**step, abs=1e-6)
    before = state.temperature
    adapt_sampling(state, config, groups([1, 1], [0, None]))
    assert state.temperature == pytest.approx(1.1 * before)  # no spread at all: a little hotter
    adapt_sampling(state, config_of(target_reward_std=0.01), groups([1, 0], [1, 1]))
    assert state.temperature == pytest.approx(before)  # much too much spread: a little colder
    adapt_sampling(state, config, groups([None, None]))
    assert state.temperature == pytest.approx(before)  # nothing could be scored, so nothing is known
    for _ in range(20):
        adapt_sampling(state, config, groups([1, 1]))
    assert state.temperature == 1.5
    fixed = TrainState()
    adapt_sampling(fixed, config_of(), groups([1, 0]))  # by default
    assert fixed == TrainState(solve_rates={"example": 0.5})


def test_solve_rates_are_remembered(groups):
    config, state = config_of(), TrainState()
    adapt_sampling(state, config, groups([1, 0, None, 0.5, 1]))  # two of four solved
    assert state.solve_rates == {"example": 0.5}
    adapt_sampling(state, config, groups([1, 1]))
    assert state.solve_rates == {"example": 0.75}


def test_the_curriculum_prefers_what_is_solved_sometimes_or_was_never_tried():
    # Never solved and always: the floor of 0.1 each. A quarter of the time: 4 * 3 / 16. Half, and not tried: 1 each.
    rates, weights, draws = {"0": 0.0, "1": 1.0, "2": 0.25, "3": 0.5}, [0.1, 0.1, 0.75, 1, 1], 10_000
    examples, config, state = examples_of(5), config_of(curriculum=True), TrainState(solve_rates=rates)
    counts = Counter(choose_examples(examples, 1, config, state)[0].id for _ in range(draws))
    assert state.examples_drawn == draws
    shares = [counts[str(number)] / draws for number in range(5)]
    # 0.1 of 2.95 is 0.034, of standard deviation 0.0018.
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=0.006)


def test_the_curriculum_is_a_function_of_the_state_and_takes_all_before_it_begins_again():
    config = config_of(prompts=8, curriculum=True)

    def chosen(drawn=16, count=30):
        return [one.id for one in choose_examples(examples_of(count), 8, config, TrainState(examples_drawn=drawn))]

    assert chosen() == chosen() != chosen(drawn=24)
    first, state = [], TrainState()
    for _ in range(2):  # a refill takes what the step has not had
        first += next_examples(TASK, TASK.schedule(0, 1, 9), config, state, first)
    assert len({example.id for example in first}) == 18  # of 19
    few = chosen(count=3)
    assert sorted(few[:3]) == ["0", "1", "2"] and few == (few[:3] * 3)[:8]


SAMPLERS = """
def hardest(examples, count, rates, rng):
    first = rng.random()  # as it is of the seed and of what was drawn
    return sorted(examples, key=lambda one: (rates.get(one.id, 0.5), (int(one.id) * first) % 1))[:count]
def few(examples, count, rates, rng):
    return examples[:1]
def ids(examples, count, rates, rng):
    return [one.id for one in examples[:count]]
"""


def test_a_function_of_a_file_chooses_the_examples_by_their_solve_rates(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SAMPLERS)
    monkeypatch.chdir(tmp_path)
    examples, rates = examples_of(12), {str(n): n / 4 for n in range(5)}

    def chosen(name="hardest", drawn=0, used=()):
        state = TrainState(examples_drawn=drawn, solve_rates=rates)
        found = choose_examples(examples, 3, config_of(sampler=f"mine.py:{name}"), state, used)
        assert state.examples_drawn == drawn + 3
        return [one.id for one in found]

    assert chosen() == chosen() and chosen()[:2] == ["0", "1"]
    assert len({chosen(drawn=drawn)[2] for drawn in range(0, 60, 3)}) > 1
    assert chosen(used=["0"])[0] == "1"  # a refill takes what the step has not had
    assert chosen(used=[str(n) for n in range(10)])[:2] == ["0", "1"]  # unless too little is left
    for name, said in (("few", "of 3 examples, got 1"), ("ids", r"of 3 examples, got \['0', '1', '2'\]")):
        with pytest.raises(UserError, match=rf"mine.py:{name} must return a list {said}"):
            chosen(name)
    with pytest.raises(UserError, match="has no function 'none'"):
        require_sampler(config_of(sampler="mine.py:none"))
    with pytest.raises(UserError, match="sampler and curriculum both"):
        config_of(sampler="mine.py:hardest", curriculum=True)
