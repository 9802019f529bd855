"""torch's threads spin less while another process takes a core, unless the user says how long they spin."""

import os
import time
from pathlib import Path

import pytest

from minrl.models import cpu

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waiting")


def test_a_second_team_is_there_while_the_cores_are_taken(monkeypatch):
    wait = 1.0

    def longest_wait(period_s):
        time.sleep(0.001)
        return wait

    def reaches(count):
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/task")) != count and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(os.listdir("/proc/self/task")) == count

    before, cores = len(os.listdir("/proc/self/task")), len(os.sched_getaffinity(0))
    monkeypatch.setattr(cpu, "_longest_wait", longest_wait)
    for name in cpu.OWN_SPINS:
        monkeypatch.delenv(name, raising=False)
    cpu.spin_less_when_busy.__wrapped__()
    assert reaches(before + 1 + cores)  # the watching thread is one of a team of one more than there are cores
    wait = 0.0
    assert reaches(before + 1)
