"""One episode in progress: what it waits for, its rewards, or why it failed.

An engine, a server or the record of an earlier play answers what is `pending`.
"""

import traceback
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from random import Random
from typing import Any

from minrl.dataflow import Example, Job, Mistake, Prompt, Reward, Turn, TurnReward
from minrl.rewards.groups import run_grouped
from minrl.rewards.workers import Failure, Workers
from minrl.tasks import Task
from minrl.tasks.checked import mistaken


class Play:
    """A task's generator while it is played. `pending` is None once there are `rewards` or a `failure`.

    `roles` are those that have taken a turn, each with whether it is frozen, and `turn_rewards` what turns of theirs
    earned themselves, by number. Plays of one `group` are of one prompt.
    """

    def __init__(self, task: Task, example: Example, rng: Random, group: Hashable = None) -> None:
        self.group = self if group is None else group
        self.generator = task.play(example, rng)
        self._named = task.name, example
        self.pending: Turn | Job | None = None
        self.future: Future | None = None  # of the pending job, if it was submitted
        self.rewards: Mapping[str, Reward] = {}
        self.failure: str | None = None
        self.roles: dict[str, bool] = {}
        self.turns = Counter[str]()
        self.turn_rewards: dict[str, dict[int, float]] = {}

    def advance(self, value: Any) -> None:  # noqa: ANN401 - a completion's text or a job's result
        """Send the value into the episode (None: begin) and see what it waits for next."""
        self.future = None
        if isinstance(value, Failure):
            return self.fail(value.reason)
        if isinstance(self.pending, Turn):
            self.roles[self.pending.role] = self.pending.frozen
            self.turns[self.pending.role] += 1
        try:
            step = self.generator.send(value)
            while isinstance(step, TurnReward):
                self._reward_turn(step)
                step = next(self.generator)
            self.pending = step
        except StopIteration as end:
            self._end(end.value)
        except Mistake as error:
            self.fail(str(error))
        except (Exception, SystemExit):  # the task's own code: its rollouts become unscorable and are counted
            self.fail(traceback.format_exc())

    def _reward_turn(self, earned: TurnReward) -> None:
        """Add the reward of a role's last turn."""
        if earned.role not in self.roles:
            what = f"the episode rewarded a turn of {earned.role!r}, which took none: {_names(self.roles)} did"
            raise mistaken(*self._named, what)
        own, last = self.turn_rewards.setdefault(earned.role, {}), self.turns[earned.role] - 1
        own[last] = own.get(last, 0.0) + earned.value

    def fail(self, reason: str) -> None:
        """End the episode without rewards."""
        self.failure, self.pending, self.rewards = reason, None, {}
        self.generator.close()

    @property
    def lost(self) -> bool:
        """Whether it failed before the policy's first turn, so that it has no rollout."""
        return self.failure is not None and all(self.roles.values())

    @property
    def problem(self) -> str | None:
        """What is wrong with the rewards: a role of the policy that took a turn has none, or a role that took no turn
        has one. None if they are right.
        """
        policys = [role for role, frozen in self.roles.items() if not frozen]
        return self.failure or next(filter(None, map(self.unscorable, [*policys, *self.rewards])), None)

    def unscorable(self, role: str) -> str | None:
        """Why a role has no reward, or has one and took no turn; None if it has one and took a turn."""
        if self.failure is not None or role in self.rewards.keys() & self.roles.keys():
            return self.failure
        if role in self.rewards:
            return self._mistaken(
                f"the episode returned a reward for {role!r}, which took no turn: {_names(self.roles)} did"
            )
        what = f"the episode returned no reward for {role!r}, which took a turn: it rewarded {_names(self.rewards)}"
        return self._mistaken(what)

    def _end(self, rewards: Mapping[str, Reward]) -> None:
        """Keep the rewards of a finished episode."""
        self.pending = None
        self.rewards = {role: with_turns(paid, self.turn_rewards.get(role, {})) for role, paid in rewards.items()}
        if all(self.roles.values()):
            self.fail(self._mistaken("the episode ended before the policy took a turn"))

    def _mistaken(self, what: str) -> str:
        return str(mistaken(*self._named, what))


def with_turns(reward: Reward, earned: Mapping[int, float]) -> Reward:
    """The reward with those of the role's turns, by number. It counts as solved if it did without them.

    >>> with_turns(Reward(1.0), {0: 0.25, 2: 0.5})
    Reward(value=1.75, parts={}, maximum=1.75, full=True)
    """
    if not earned:
        return reward
    value = reward.value + sum(earned.values())
    return replace(reward, value=value, maximum=max(reward.maximum, value), full=reward.solved)


def run_jobs(plays: Sequence[Play], workers: Workers) -> bool:
    """Run the jobs that plays wait for; returns whether there were any. A reward that sees a group waits until no play
    of the group waits for anything else.
    """
    waiting = [(play, play.pending) for play in plays if play.pending is not None]
    early = {play.group for play, pending in waiting if not (isinstance(pending, Job) and pending.group)}
    ready = [
        (play, pending)
        for play, pending in waiting
        if isinstance(pending, Job) and not (pending.group and play.group in early)
    ]
    if ready:
        results = run_grouped([(play.group, play.future or job) for play, job in ready], workers)
        for (play, _), result in zip(ready, results, strict=True):
            play.advance(result)
    return bool(ready)


def first_message(task: Task, example: Example) -> Prompt:
    """What a policy that plays the example is shown first; the example's prompt if that depends on a job or on others'
    turns.
    """
    play = Play(task.members[example.task], example, Random(0))
    play.advance(None)
    turn = play.pending
    play.fail("not played")
    return turn.message if isinstance(turn, Turn) and not turn.frozen else example.prompt


def _names(roles: Iterable[str]) -> str:
    return ", ".join(map(repr, roles)) or "nobody"
