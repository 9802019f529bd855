"""One step of overlap (--overlap): the groups of the next step are sampled while this one's are trained on.

Step 1 is sampled before anything is trained, and step 2 during the update of step 1, with the same weights. From step 2
on the weights that sampled are one step behind those that are trained, which importance weights correct for as for an
engine of other probabilities (minrl/losses.py). Examples are chosen by the solve rates of the steps before this one.

Everything but the update waits for the sampling: nothing is synced, evaluated or saved beside it. What was sampled is a
part of the trainer's state, and of its checkpoint, so that a resumed run trains on it.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

from minrl.rollout import Rollouts
from minrl.run.setup import Parts
from minrl.sampling import sample_groups
from minrl.tracking.timers import TIMERS, timed

THREAD = "sampling ahead"
"""The name of the thread."""


@contextmanager
def sampling_ahead(parts: Parts) -> Iterator[None]:
    """With --overlap the next step is sampled while the work inside is done, for `state.ahead`. What ends the sampling,
    such as a server that is gone, is raised after the work. After the last step there is no next one.
    """
    config, state, engine, workers, task = parts.config, parts.state, parts.engine, parts.workers, parts.task
    if not config.overlap or state.step >= config.steps:
        yield
        return
    TIMERS.move("rollout", "reward", workers.take_seconds())  # of this step
    # Its version stays, and it does not share the cache of prompts: an update encodes those of a teacher.
    policy = replace(parts.policy, processes=parts.policy.processes.beside, _encoded={})
    ahead = replace(state, step=state.step + 1)  # the memory of each of several tasks is shared
    found = _in_thread(lambda: sample_groups(policy, engine, workers, task, config, ahead))
    yield
    with timed("rollout"):
        state.ahead, seconds = found.result()
    state.examples_drawn = ahead.examples_drawn
    TIMERS.note("overlap/rollout_s", seconds)
    TIMERS.note("overlap/reward_s", workers.take_seconds())


def _in_thread(work: Callable[[], Rollouts]) -> Future[tuple[Rollouts, float]]:
    """What the work returns and the seconds that it takes. It ends with the engine and the workers, and the interpreter
    does not wait for it.
    """
    future = Future[tuple[Rollouts, float]]()

    def run() -> None:
        started = time.perf_counter()
        try:
            future.set_result((work(), time.perf_counter() - started))
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, name=THREAD, daemon=True).start()
    return future
