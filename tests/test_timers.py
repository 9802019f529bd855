"""Every second of a step belongs to one phase, and what the process and its children use is measured."""

import time

import pytest
import torch

from minrl.tracking import timers
from minrl.tracking.timers import Timers, Usage


@pytest.fixture
def ticking():
    """Timers whose time is set by hand."""
    at = [0.0]
    return at, Timers(lambda: at[0])


def test_phases_and_what_no_phase_claims_add_up_to_the_step(ticking):
    at, timers = ticking
    at[0] = 1.0
    with timers.timed("rollout"):
        at[0] = 4.0
    at[0] = 4.5

    @timers.timed("update")
    def update():
        at[0] = 5.0
        with pytest.raises(KeyError), timers.timed("log"):  # one inside another counts once, also where it raises
            at[0] = 5.75
            raise KeyError
        at[0] = 6.0

    update()
    with timers.timed("rollout"):
        at[0] = 7.0
    phases = {"time/rollout_s": 4.0, "time/update_s": 0.75, "time/log_s": 0.75, "time/other_s": 1.5}
    assert timers.take()[0] == {**phases, "time/step_s": 7.0}
    # What comes after the step's line belongs to the next step.
    with timers.timed("save"):
        at[0] = 9.0
    assert timers.take()[0] == {"time/other_s": 0.0, "time/save_s": 2.0, "time/step_s": 2.0}


def test_processor_time_is_a_share_of_the_cores_since_the_last_call(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timers, "cpu_cores", lambda: 4)
    used, seconds = iter([(5.0, 1), (25.0, 3 * 2**30), (25.0, 1)]), iter([100.0, 110.0, 112.0])
    monkeypatch.setattr(timers, "cpu_and_memory", lambda: next(used))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    measured = Usage()
    taken = measured.take()  # 20 s within 10 s, on 4 cores
    assert (taken["system/cpu_percent"], taken["system/memory_gib"]) == (50.0, 3.0)
    assert measured.take()["system/cpu_percent"] == 0.0
