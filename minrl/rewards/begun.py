"""Jobs on their way, and the threads of those that wait for a server."""

import traceback
from collections import deque
from collections.abc import Callable, Collection
from threading import Event, Lock, Thread
from typing import Any

from minrl.rewards.worker import Failure, call
from minrl.types import Job

MOST_THREADS = 256
"""Concurrent jobs that wait for a server."""


class Begun:
    """A job on its way. `whose` belongs to who began it; `ended` hears of the job when its result is there."""

    def __init__(self, job: Job, whose: Any = None, ended: Callable[[Any], None] = lambda _: None) -> None:  # noqa: ANN401
        self.job, self.whose, self._ended = job, whose, ended
        self.result: Any = None
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


class Threads:
    """Threads in which jobs wait for a server. The interpreter's exit does not wait for them."""

    def __init__(self) -> None:
        self._waiting: deque[Begun] = deque()
        self._count, self._lock = 0, Lock()

    def begin(self, begun: Begun) -> None:
        """Run the job in a thread, as soon as there is one."""
        with self._lock:
            self._waiting.append(begun)
            if self._count == MOST_THREADS:
                return
            self._count += 1
        try:
            Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # the system has no room for another
            with self._lock:
                self._count -= 1
                if begun in self._waiting:  # else another thread has taken it
                    self._waiting.remove(begun)
                    raise

    def keep(self, wanted: Collection[Begun]) -> None:
        """Forget all others that no thread has begun yet."""
        with self._lock:
            self._waiting = deque(one for one in self._waiting if one in wanted)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._count -= 1
                    return
                begun = self._waiting.popleft()
            try:
                result = call(begun.job)
            except BaseException:  # what `call` lets pass would end the thread, and nobody would hear of it
                result = Failure(traceback.format_exc())
            begun.end(result)
