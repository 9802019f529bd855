"""Jobs on their way, and the threads of those that wait for a server."""

from collections.abc import Callable
from threading import BoundedSemaphore, Event, Thread
from typing import Any

from minrl.dataflow import Job
from minrl.rewards.worker import call

SLOTS = BoundedSemaphore(256)
"""Concurrent jobs that wait for a server."""


class Begun:
    """A job on its way. `whose` belongs to who began it; `ended` hears of the job when its result is there."""

    def __init__(self, job: Job, whose: Any = None, ended: Callable[[Any], None] = lambda _: None) -> None:  # noqa: ANN401
        self.job, self.whose, self._ended = job, whose, ended
        self.result: Any = None
        self.given_up = False
        self._there = Event()

    @property
    def there(self) -> bool:
        """Whether it has a result."""
        return self._there.is_set()

    def end(self, result: Any) -> None:  # noqa: ANN401 - whatever the job returned
        """Set its result."""
        self.result = result
        self._there.set()
        self._ended(self)

    def wait(self) -> Any:  # noqa: ANN401 - whatever the job returned
        """Its result, when it is there."""
        self._there.wait()
        return self.result

    def begin_thread(self) -> None:
        """Run the job in a thread, for which the interpreter's exit does not wait, unless it is given up meanwhile."""
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with SLOTS:
            if not self.given_up:
                self.end(call(self.job))
