"""Which examples a step samples, in how many rounds, at which temperature.

The memory is in `TrainState`, equal in all processes: a resumed run samples what the uninterrupted one would have.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from loguru import logger

from minrl.config import TrainerConfig
from minrl.dataflow import ABOVE_MAXIMUM, Example, Rollout, TrainState, UserError, require, same_reward
from minrl.engines import Engine
from minrl.policy import Policy
from minrl.rewards.length import with_length
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, Rollouts, joined, rollout
from minrl.tasks import Task
from minrl.tasks.checked import refuse_mistakes
from minrl.tracking.timers import timed
from minrl.utils.files import imported_file

RATE_DECAY = 0.5
"""Decay of an example's remembered solve rate per observation."""

RATE_FLOOR = 0.1
"""Weight of an example that is always or never solved; 1 is that of one solved half of the time, or untried."""

TEMPERATURE_GAIN = 0.5
"""Step size in log temperature, as a share of log(target / std)."""

LARGEST_CHANGE = 1.1
"""Largest factor, up or down, by which one step changes the temperature."""

TRACKED_EXAMPLES = 4
"""Held-out examples that are sampled throughout the run, divided among its tasks, at least one of each."""

T = TypeVar("T")


@timed("rollout")
def sample_groups(
    policy: Policy, engine: Engine, workers: Workers, task: Task, config: TrainerConfig, state: TrainState
) -> Rollouts:
    """The rollouts of a step: a group for each example and role, with groups without spread replaced by
    `refill_rounds`: DAPO's dynamic sampling, arXiv:2503.14476, equation 11.

    An example counts by the share of its groups (one per role) with spread. Departures: any difference of rewards
    beyond rounding, before an overlong penalty, is spread; the rounds are bounded; groups without spread stay among the
    rollouts, and cost no forward pass unless another term has a gradient.
    """
    if state.ahead is not None:  # sampled during the step before
        sampled, state.ahead = state.ahead, None
        return sampled
    schedule = task.schedule(config.seed, state.step, config.prompts_per_step)
    sampled, drawn, due = Rollouts([], []), list[Example](), list(schedule)
    for _ in range(1 + config.refill_rounds):
        examples = next_examples(task, due, config, state, drawn)
        found = rollout(policy, engine, workers, task, examples, training_plan(config, state, len(drawn)))
        sampled = joined([sampled, replace(found, rollouts=with_length(found.rollouts, config))])
        drawn += examples
        due = [name for name in dict.fromkeys(schedule) for _ in range(missing(name, schedule, sampled.rollouts))]
        if not due:
            break
    require_rewards(sampled, config.max_unscorable_frac, state.step)
    return sampled


def missing(task: str, schedule: Sequence[str], rollouts: Sequence[Rollout]) -> int:
    """How many of the task's scheduled examples lack groups with spread."""
    own = [rollout for rollout in rollouts if rollout.task == task]
    with_spread = sum(not same_reward(max(rewards), min(rewards)) for rewards in _rewards_by_group(own).values())
    roles = max(1, len({rollout.role for rollout in own}))
    return max(0, schedule.count(task) - with_spread // roles)


def next_examples(
    task: Task, due: Sequence[str], config: TrainerConfig, state: TrainState, drawn: Sequence[Example] = ()
) -> list[Example]:
    """The next examples of each task in `due`, in its order. `drawn` are those of the step so far."""
    chosen = {}
    for name in dict.fromkeys(due):
        used = {example.id for example in drawn if example.task == name}
        examples = task.members[name].dataset.train
        chosen[name] = iter(choose_examples(examples, due.count(name), config, state.of(name), used))
    return [replace(next(chosen[name]), task=name) for name in due]


def choose_examples(
    examples: Sequence[Example],
    count: int,
    config: TrainerConfig,
    state: TrainState,
    used: Collection[str] = (),
) -> list[Example]:
    """The next `count` examples: in order, by the config's `sampler`, or with `curriculum` by solve rate.

    An example of solve rate p weighs max(4 p (1 - p), 0.1). They are drawn without replacement, by the largest
    u^(1 / weight) with u uniform (Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003); those whose id is among
    the `used` come last.
    """
    if config.sampler:
        return sampled_examples(examples, count, config, state, used)
    if not config.curriculum:
        return draw_examples(examples, count, config.seed, state)
    rng = random.Random(f"{config.seed}/curriculum/{state.examples_drawn}")
    rates = [state.solve_rates.get(example.id, 0.5) for example in examples]
    keys = [rng.random() ** (1 / max(4 * rate * (1 - rate), RATE_FLOOR)) for rate in rates]
    order = sorted(range(len(keys)), key=lambda index: (examples[index].id in used, -keys[index]))
    state.examples_drawn += count
    return [examples[order[draw % len(order)]] for draw in range(count)]


def sampled_examples(
    examples: Sequence[Example], count: int, config: TrainerConfig, state: TrainState, used: Collection[str]
) -> list[Example]:
    """The examples that the function of `--sampler` chooses, of those not `used` in this step while there are enough.
    It must be a function of its arguments, so that all processes, and a resumed run, choose the same.
    """
    left = [one for one in examples if one.id not in used] if used else examples
    rng = random.Random(f"{config.seed}/sampler/{state.examples_drawn}")
    rates = MappingProxyType(state.solve_rates)
    chosen = sampler_in_file(config.sampler)(left if len(left) >= count else examples, count, rates, rng)
    state.examples_drawn += count
    listed = isinstance(chosen, list) and all(isinstance(one, Example) for one in chosen)
    got = f"{len(chosen)}" if listed else f"{chosen!r:.80}"
    require(listed and len(chosen) == count, f"{config.sampler} must return a list of {count} examples, got {got}")
    return chosen


@cache
def sampler_in_file(name: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:name` names. A run reads its file once: `cache_clear` forgets it."""
    path, _, function = name.rpartition(":")
    found = getattr(imported_file(path, f"--sampler {name}"), function, None)
    require(callable(found), f"--sampler {name}: {path} has no function {function!r}")
    return found  # type: ignore[return-value]


def require_sampler(config: TrainerConfig) -> None:
    """Read the file of `--sampler` as it is now. Raises `UserError` if it has no such function."""
    sampler_in_file.cache_clear()
    if config.sampler:
        sampler_in_file(config.sampler)


def every(steps: int, step: int) -> bool:
    """Whether this step is one of every `steps`; 0: never."""
    return steps > 0 and step % steps == 0


def require_rewards(sampled: Rollouts, max_unscorable_frac: float, step: int) -> None:
    """Report failed rewards. Raise `UserError` if too many of the step's completions are unscorable."""
    warn_of_failures("episodes", sampled.failures)
    if not sampled.rollouts:
        raise UserError(f"no episode of step {step} came to its first turn: fix the task's episode")
    share = 1 - sum(one.reward is not None for one in sampled.rollouts) / len(sampled.outcomes)
    if share > max_unscorable_frac:
        raise UserError(
            f"{share:.0%} of the rollouts of step {step} could not be rewarded, more than max_unscorable_frac "
            f"({max_unscorable_frac:.0%}): fix the task's reward; the first failure is shown above"
        )


def warn_of_failures(episodes: str, failures: Sequence[str]) -> None:
    """Report how many episodes could not be rewarded, and the reason of the first. A reward above its maximum is a
    mistake in the task's code and ends the run: the best completions would be the unscorable ones.
    """
    refuse_mistakes(reason for reason in failures if ABOVE_MAXIMUM in reason)
    if failures:
        count, first = len(failures), failures[0]
        logger.warning(f"{count} {episodes} could not be rewarded as they were played, the first because:\n{first}")


def adapt_sampling(state: TrainState, config: TrainerConfig, rollouts: Sequence[Rollout]) -> None:
    """Adapt the temperature and the solve rates, by which the next step may sample, to the step's rollouts."""
    settings = config
    groups = _rewards_by_group(rollouts)
    if settings.target_reward_std and groups:
        temperature = state.temperature or config.temperature
        spread = float(np.mean([np.std(rewards) for rewards in groups.values()]))
        state.temperature = adapted_temperature(temperature, spread, settings)
    solved: dict[tuple[str, str], list[bool]] = {}
    for one in rollouts:
        if one.reward is not None:
            solved.setdefault((one.task, one.example_id), []).append(one.reward.solved)
    for (task, example_id), outcomes in solved.items():
        rate, rates = sum(outcomes) / len(outcomes), state.of(task).solve_rates
        rates[example_id] = RATE_DECAY * rates.get(example_id, rate) + (1 - RATE_DECAY) * rate


def adapted_temperature(temperature: float, std: float, settings: TrainerConfig) -> float:
    """The next temperature after rewards with this mean standard deviation inside groups were sampled at this one:

        log T' = log T + 1/2 log(target / std), by at most log 1.1 either way, and inside [T_min, T_max].

    Where std grows like T^a, the distance of log T from its fixed point shrinks by 1 - a/2 a step: it converges from
    both sides without overshooting for every a in (0, 2], and damps noise. With std 0 it rises by a tenth.
    """
    change = (settings.target_reward_std / std) ** TEMPERATURE_GAIN if std > 0 else np.inf
    adapted = temperature * np.clip(change, 1 / LARGEST_CHANGE, LARGEST_CHANGE)
    return float(np.clip(adapted, settings.min_temperature, settings.max_temperature))


def draw_examples(examples: Sequence[T], count: int, seed: int, state: TrainState) -> list[T]:
    """The next `count` examples. Their order is a function of the seed and the epoch alone."""
    draws, size = range(state.examples_drawn, state.examples_drawn + count), len(examples)
    state.examples_drawn = draws.stop
    epochs = {draw // size for draw in draws}
    orders = {epoch: random.Random(f"{seed}/{epoch}").sample(range(size), size) for epoch in epochs}
    return [examples[orders[draw // size][draw % size]] for draw in draws]


def training_plan(config: TrainerConfig, state: TrainState, drawn: int = 0) -> Plan:
    """How the step's examples are sampled, after the first `drawn`."""
    settings = config
    return Plan(
        settings.group_size,
        settings.max_tokens,
        state.temperature or config.temperature,
        config.seed,
        "train",
        state.step,
        first_slot=drawn,
        stop_strings=settings.stop_strings,
    )


def tracked_plan(task: Task, config: TrainerConfig) -> tuple[list[Example], Plan]:
    """A few held-out examples of each task, or of those that it trains on, sampled greedily, to be compared across
    steps.
    """
    settings, members = config, task.members.items()
    share = max(1, TRACKED_EXAMPLES // len(members))
    plan = Plan(1, settings.max_tokens, 0.0, config.seed, "tracked", 0, stop_strings=settings.stop_strings)
    shown = [(name, member.dataset.held_out or member.dataset.train) for name, member in members]
    return [replace(one, task=name) for name, examples in shown for one in examples[:share]], plan


def _rewards_by_group(rollouts: Sequence[Rollout]) -> dict[int, list[float]]:
    """The scorable rewards of each group."""
    groups: dict[int, list[float]] = {}
    for one in rollouts:
        if one.reward is not None:
            groups.setdefault(one.group, []).append(one.reward.value)
    return groups
