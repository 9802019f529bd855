"""Every second of a step belongs to one phase, and what the process and its children use is measured."""

import resource
import subprocess
import sys
import time

import pytest
import torch

from minrl.tracking import timers
from minrl.tracking.timers import Timers, Usage, cpu_and_memory, peak_memory


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


def test_seconds_are_moved_and_never_made(ticking):
    at, timers = ticking
    timers.move("rollout", "reward", 1.0)  # nothing was sampled
    with timers.timed("rollout"):
        at[0] = 2.0
    timers.move("rollout", "reward", 0.5)
    assert timers._seconds == {"rollout": 1.5, "reward": 0.5, "other": 0.0}
    timers.move("rollout", "reward", 9.0)  # more than there is
    assert timers.take()[0] == {"time/rollout_s": 0, "time/reward_s": 2, "time/step_s": 2, "time/other_s": 0}


def test_gpu_memory_is_read_after_the_phases_that_use_it(ticking, monkeypatch):
    taken = iter([2, 5])  # of 80 GiB
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((80 - next(taken)) * 2**30, 80 * 2**30))
    for phase in ("rollout", "save", "update"):
        with ticking[1].timed(phase):
            pass
    assert ticking[1].take()[1] == {"memory/rollout_gib": 2, "memory/update_gib": 5}
    assert ticking[1].take()[1] == {}


@pytest.mark.parametrize(("platform", "unit"), [("linux", 2**10), ("darwin", 1)])
def test_the_peak_of_a_process_is_in_bytes_whatever_the_system_counts_in(platform, unit, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 3 * 2**30 // unit}))
    assert peak_memory() == 3 * 2**30


HOLD = """if True:
    import sys, time
    held = b"x" * 200_000_000
    while time.process_time() < 0.3:
        pass
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_children_count_while_they_live_and_after_they_were_waited_for():
    cpu_before, memory_before = cpu_and_memory()
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(5) == b"ready"
        cpu_with, memory_with = cpu_and_memory()
    cpu_after, memory_after = cpu_and_memory()
    assert cpu_with - cpu_before > 0.25 and memory_with - memory_before > 150e6
    assert cpu_after >= cpu_with - 0.05 and memory_after < memory_with - 150e6


def test_processor_time_is_a_share_of_the_cores_since_the_last_call(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timers, "cpu_cores", lambda: 4)
    used, seconds = iter([(5.0, 1), (25.0, 3 * 10**9), (25.0, 1)]), iter([100.0, 110.0, 112.0])
    monkeypatch.setattr(timers, "cpu_and_memory", lambda: next(used))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    measured = Usage()
    taken = measured.take()  # 20 s within 10 s, on 4 cores
    assert (taken["system/cpu_percent"], taken["system/memory_gb"]) == (50.0, 3.0)
    assert measured.take()["system/cpu_percent"] == 0.0
