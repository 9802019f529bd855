"""What the next step samples, given what the last ones showed: examples, temperature, rounds.

What is remembered lives in `TrainState` and is the same in every process, so that a resumed run samples what the
uninterrupted one would have. With the default settings nothing here changes anything.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from minrl.checkpoint import TrainState
from minrl.config import TrainerConfig
from minrl.processes import Processes
from minrl.rollout import Rollouts, draw_examples
from minrl.types import Example, Rollout

RATE_DECAY = 0.5
"""Share of an example's remembered solve rate that a new observation keeps."""

RATE_FLOOR = 0.1
"""Weight of an example that is always or never solved. One solved half of the time, or never tried, has 1."""


class Draw:
    """The rollouts of a step, in one round or more: DAPO's dynamic sampling, arXiv:2503.14476, equation 11.

    After each round as many examples are drawn anew as the step still lacks: an example counts by the share of its
    groups, one for each role, that have spread (exactly max > min), over all processes, up to `refill_rounds` times.
    Departures: any difference of rewards is spread, not of correctness alone; the number of rounds is bounded; and
    groups without spread stay among the rollouts: they are measured, cost no forward pass and weigh what
    drop_equal_groups says.
    """

    def __init__(self, config: TrainerConfig, processes: Processes) -> None:
        self._config, self._processes = config, processes
        self._rounds_left = config.sampling.refill_rounds
        self.prompts = config.rollout.prompts_per_step
        self.drawn = 0
        self.sampled = Rollouts([], [])

    @property
    def config(self) -> TrainerConfig:
        """The config of the next round, which draws `prompts` examples."""
        return replace(self._config, rollout=replace(self._config.rollout, prompts_per_step=self.prompts))

    def add(self, sampled: Rollouts) -> None:
        """Take a round's rollouts, and see how many examples are still wanted."""
        first_group = 1 + max((rollout.group for rollout in self.sampled.rollouts), default=-1)
        for rollout in sampled.rollouts:
            rollout.group += first_group
        self.sampled = Rollouts(self.sampled.rollouts + sampled.rollouts, self.sampled.failures + sampled.failures)
        self.drawn += self.prompts
        self.prompts = self._missing() if self._rounds_left else 0
        self._rounds_left -= 1

    def _missing(self) -> int:
        """Examples without spread, rounded up to whole shares of the processes."""
        groups = _rewards_by_group(self.sampled.rollouts)
        roles = max(1, len({rollout.role for rollout in self.sampled.rollouts}))
        useful = sum(max(rewards) > min(rewards) for rewards in groups.values())
        count = torch.tensor([useful // roles], device=self._processes.device)
        missing = self._config.rollout.prompts_per_step - int(self._processes.sum(count).item())
        return max(0, -(-missing // self._processes.count) * self._processes.count)


def choose_examples(
    examples: Sequence[Example], config: TrainerConfig, state: TrainState, processes: Processes
) -> list[Example]:
    """This process's share of the examples: in order, or with `curriculum` by solve rate.

    An example of solve rate p weighs max(4 p (1 - p), 0.1). They are drawn without replacement, by the largest
    u^(1 / weight) with u uniform (Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003).
    """
    if not config.sampling.curriculum:
        return draw_examples(examples, config, state, processes)
    total = config.rollout.prompts_per_step
    share = total // processes.count
    rng = random.Random(f"{config.seed}/curriculum/{state.examples_drawn}")
    keys = [rng.random() ** (1 / _weight(state.solve_rates.get(example.id, 0.5))) for example in examples]
    order = sorted(range(len(keys)), key=lambda index: -keys[index])
    state.examples_drawn += total
    first = processes.rank * share
    return [examples[order[draw % len(order)]] for draw in range(first, first + share)]


def at_temperature(config: TrainerConfig, state: TrainState) -> TrainerConfig:
    """The config with the temperature that the last step asked for: rollouts and update both go by it."""
    if not state.temperature:
        return config
    return replace(config, rollout=replace(config.rollout, temperature=state.temperature))


def observe(state: TrainState, config: TrainerConfig, rollouts: Sequence[Rollout]) -> None:
    """Remember what the step's rollouts, those of all processes, say about the next one.

    `config` is the run's: T' = clamp(T * target / mean std inside groups, T_min, T_max) with T its temperature, never
    the adapted one, so that adaptations do not compound. Groups without spread count as std 0.
    """
    settings = config.sampling
    if settings.target_reward_std:
        std = float(np.mean([float(np.std(r)) for r in _rewards_by_group(rollouts).values()] or [0.0]))
        wanted = config.rollout.temperature * settings.target_reward_std / std if std > 0 else np.inf
        state.temperature = float(np.clip(wanted, settings.min_temperature, settings.max_temperature))
    if settings.curriculum:
        solved: dict[str, list[bool]] = {}
        for rollout in rollouts:
            if rollout.reward is not None:
                solved.setdefault(rollout.example_id, []).append(rollout.reward.solved)
        for example_id, outcomes in solved.items():
            rate = sum(outcomes) / len(outcomes)
            before = state.solve_rates.get(example_id, rate)
            state.solve_rates[example_id] = RATE_DECAY * before + (1 - RATE_DECAY) * rate


def _weight(rate: float) -> float:
    return max(4 * rate * (1 - rate), RATE_FLOOR)


def _rewards_by_group(rollouts: Sequence[Rollout]) -> dict[int, list[float]]:
    """The rewards of each group that could be scored."""
    groups: dict[int, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            groups.setdefault(rollout.group, []).append(rollout.reward.value)
    return groups
