"""torch's threads spin less while another process takes a core, unless the user says how long they spin."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minrl.models import cpu

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waiting")

WAITING = """
import os, threading
from minrl.models.cpu import _longest_wait
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def loop():
    while True: pass
threading.Thread(target=loop, daemon=True).start()
if os.fork() == 0:
    loop()
print(max(_longest_wait(0.25) for _ in range(8)), flush=True)
os.killpg(0, 9)
"""


def test_a_thread_that_shares_its_core_with_a_process_waits_for_it():
    made = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, start_new_session=True)
    assert float(made.stdout) > cpu.BUSY


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
    wait = 1.0
    assert reaches(before + 1 + cores)
    wait = 0.0
    assert reaches(before + 1)


@pytest.mark.parametrize("name", cpu.OWN_SPINS)
def test_what_the_user_says_about_spinning_holds(monkeypatch, name):
    monkeypatch.setenv(name, "0")
    before = threading.active_count()
    cpu.spin_less_when_busy.__wrapped__()
    assert threading.active_count() == before
