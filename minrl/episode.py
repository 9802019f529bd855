"""One episode in progress: what it waits for, what it ended with, or why it could not be ended.

Whoever plays it, an engine, a server or a record of an earlier play, answers what is `pending`.
"""

import math
import traceback
from collections.abc import Mapping
from typing import Any

from minrl.types import Episode, Job, Reward, Turn
from minrl.workers import Failure


class Play:
    """A generator of a task while it is played. `pending` is None once there are `rewards` or a `failure`."""

    def __init__(self, episode: Episode) -> None:
        self.generator = episode
        self.pending: Turn | Job | None = None
        self.rewards: Mapping[str, Reward] = {}
        self.failure: str | None = None

    def advance(self, value: Any) -> None:  # noqa: ANN401 - a completion's text or a job's result
        """Send the value into the episode (None: begin) and see what it waits for next."""
        if isinstance(value, Failure):
            return self.fail(value.reason)
        try:
            self.pending = self.generator.send(value)
        except StopIteration as end:
            self._end(end.value)
        except Exception:  # the task's own code: its rollouts become unscorable and are counted
            self.fail(traceback.format_exc())

    def fail(self, reason: str) -> None:
        """End the episode without rewards."""
        self.failure, self.pending = reason, None
        self.generator.close()

    def _end(self, rewards: Any) -> None:  # noqa: ANN401 - the task's own code may return anything
        """Take the rewards of a finished episode, where they are rewards."""
        self.pending = None
        if not isinstance(rewards, Mapping):
            return self.fail(f"an episode must return the reward of each role, got {rewards!r}")
        for role, reward in rewards.items():
            if not isinstance(reward, Reward) or not math.isfinite(reward.value):
                return self.fail(f"the reward of {role} must be a Reward with a finite value, got {reward!r}")
        self.rewards = rewards
