"""One episode in progress: what it waits for, its rewards, or why it failed.

An engine, a server or the record of an earlier play answers what is `pending`.
"""

import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from minrl.rewards.workers import Failure
from minrl.types import Episode, Job, Reward, Turn


class Play:
    """A task's generator while it is played. `pending` is None once there are `rewards` or a `failure`.

    `roles` are those that have taken a turn, each with whether it is frozen.
    """

    def __init__(self, episode: Episode) -> None:
        self.generator = episode
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
        except Exception:  # the task's own code: its rollouts become unscorable and are counted
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
            f"the episode returned a reward for {role!r}, which took no turn: {_names(self.roles)} did"
            for role in self.rewards
            if role not in self.roles
        ]
        return self.failure or next(filter(None, reasons), None)

    def unscorable(self, role: str) -> str | None:
        """Why a role that took a turn has no reward; None if it has one."""
        if self.failure is not None or role in self.rewards:
            return self.failure
        return f"the episode returned no reward for {role!r}, which took a turn: it paid {_names(self.rewards)}"

    def _end(self, rewards: Any) -> None:  # noqa: ANN401 - the task's own code may return anything
        """Check and keep the rewards of a finished episode."""
        self.pending = None
        if not isinstance(rewards, Mapping):
            return self.fail(f"an episode must return the reward of each role, got {rewards!r}")
        if all(self.roles.values()):
            return self.fail("the episode ended before the policy took a turn")
        for role, reward in rewards.items():
            if not isinstance(reward, Reward):
                return self.fail(f"the reward of {role!r} must be a Reward, got {reward!r}")
        self.rewards = rewards


def _names(roles: Iterable[str]) -> str:
    return ", ".join(map(repr, roles)) or "nobody"
