"""One episode in progress: what it waits for, its rewards, or why it failed.

An engine, a server or the record of an earlier play answers what is `pending`.
"""

import traceback
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from minrl.dataflow import Example, Job, Mistake, Reward, Turn
from minrl.rewards.workers import Failure
from minrl.tasks import Task
from minrl.tasks.checked import mistaken


class Play:
    """A task's generator while it is played. `pending` is None once there are `rewards` or a `failure`.

    `roles` are those that have taken a turn, each with whether it is frozen.
    """

    def __init__(self, task: Task, example: Example, rng: Random) -> None:
        self.generator = task.play(example, rng)
        self._named = task.name, example
        self.pending: Turn | Job | None = None
        self.rewards: Mapping[str, Reward] = {}
        self.failure: str | None = None
        self.roles: dict[str, bool] = {}

    def advance(self, value: Any) -> None:  # noqa: ANN401 - a completion's text or a job's result
        """Send the value into the episode (None: begin) and see what it waits for next."""
        if isinstance(value, Failure):
            return self.fail(value.reason)
        if isinstance(self.pending, Turn):
            self.roles[self.pending.role] = self.pending.frozen
        try:
            self.pending = self.generator.send(value)
        except StopIteration as end:
            self._end(end.value)
        except Mistake as error:
            self.fail(str(error))
        except (Exception, SystemExit):  # the task's own code: its rollouts become unscorable and are counted
            self.fail(traceback.format_exc())

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
        reasons = [self.unscorable(role) for role, frozen in self.roles.items() if not frozen]
        reasons += [
            self._mistaken(f"the episode returned a reward for {role!r}, which took no turn: {_names(self.roles)} did")
            for role in self.rewards
            if role not in self.roles
        ]
        return self.failure or next(filter(None, reasons), None)

    def unscorable(self, role: str) -> str | None:
        """Why a role that took a turn has no reward; None if it has one."""
        if self.failure is not None or role in self.rewards:
            return self.failure
        what = f"the episode returned no reward for {role!r}, which took a turn: it paid {_names(self.rewards)}"
        return self._mistaken(what)

    def _end(self, rewards: Mapping[str, Reward]) -> None:
        """Keep the rewards of a finished episode."""
        self.pending = None
        self.rewards = rewards
        if all(self.roles.values()):
            self.fail(self._mistaken("the episode ended before the policy took a turn"))

    def _mistaken(self, what: str) -> str:
        return str(mistaken(*self._named, what))


def _names(roles: Iterable[str]) -> str:
    return ", ".join(map(repr, roles)) or "nobody"
