"""Rewards in processes: in order, under deadlines, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from minrl.types import Job
from minrl.workers import Failure, Workers, call

DEADLINES_S = (2.0, 60.0)
"""For what is to miss its deadline, beside something that is not to: the second where the machine is slow."""


@pytest.fixture
def pool():
    workers = Workers(2, deadline_s=60.0)
    yield workers
    workers.close()


def running(pid):
    """Whether a process is there and not a zombie."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def gone_soon(pid):
    deadline = time.monotonic() + 60
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not running(pid)


def test_results_come_in_the_order_of_the_jobs(pool):
    # The first job is the slowest: it ends after the others.
    slow = [Job(_after, (0.3, "slow"))]
    fast = [Job(_after, (0.0, n)) for n in range(7)]
    assert pool.run(slow + fast) == ["slow", *range(7)]


def test_jobs_run_in_other_processes_and_cheap_ones_in_this():
    workers = Workers(1, deadline_s=60.0)
    try:
        here, there = workers.run([Job(os.getpid, (), cheap=True), Job(os.getpid)])
    finally:
        workers.close()
    assert here == os.getpid() != there


def test_workers_are_kept_from_call_to_call(pool):
    first = set(pool.run([Job(os.getpid)] * 4))
    assert set(pool.run([Job(os.getpid)] * 4)) <= first
    assert len(first) <= 2


def test_a_raising_job_fails_with_its_traceback_and_the_others_do_not(pool):
    good, bad, also_good = pool.run([Job(int, ("7",)), Job(int, ("seven",)), Job(int, ("8",))])
    assert (good, also_good) == (7, 8)
    assert isinstance(bad, Failure)
    assert "ValueError: invalid literal for int() with base 10: 'seven'" in bad.reason
    assert isinstance(call(Job(int, ("seven",), cheap=True)), Failure)


def test_a_hanging_job_is_killed_at_its_deadline_and_its_worker_replaced():
    workers = Workers(1, deadline_s=60.0)
    try:
        for deadline_s in DEADLINES_S:
            workers.deadline_s = 60.0
            before = workers.run([Job(os.getpid)])[0]
            workers.deadline_s = deadline_s
            hung, good = workers.run([Job(time.sleep, (600,)), Job(int, ("7",))])
            assert isinstance(hung, Failure) and f"no reward within its deadline of {deadline_s} s" in hung.reason
            assert gone_soon(before)
            if good == 7:
                return
        pytest.fail(f"the next job failed: {good}")
    finally:
        workers.close()


def test_a_deadline_counts_from_the_start_of_the_job_and_not_of_the_call():
    # Five jobs of 1.1 s behind one another take 5.5 s in all, longer than the deadline of each.
    workers = Workers(1, deadline_s=60.0)
    try:
        workers.run([Job(int, ("0",))])
        workers.deadline_s = 5.0
        assert workers.run([Job(_after, (1.1, n)) for n in range(5)]) == list(range(5))
    finally:
        workers.close()


def test_what_a_hanging_job_started_is_killed_too(tmp_path):
    pid_file = tmp_path / "pid"
    for deadline_s in DEADLINES_S:
        workers = Workers(1, deadline_s)
        try:
            assert isinstance(workers.run([Job(_start_a_child_and_hang, (str(pid_file),))])[0], Failure)
        finally:
            workers.close()
        if pid_file.exists():
            break
    assert gone_soon(int(pid_file.read_text()))


@pytest.mark.parametrize("status", [0, 3])
def test_a_worker_that_dies_fails_its_job_only(pool, status):
    good, dead, also_good = pool.run([Job(int, ("7",)), Job(os._exit, (status,)), Job(int, ("8",))])
    assert (good, also_good) == (7, 8)
    assert isinstance(dead, Failure) and f"the worker died (exit status {status})" in dead.reason
    assert pool.run([Job(int, ("9",))] * 3) == [9, 9, 9]


def test_a_job_that_calls_exit_fails(pool):
    assert isinstance(pool.run([Job(sys.exit, (0,))])[0], Failure)
    assert pool.run([Job(int, ("9",))]) == [9]


def test_an_idle_worker_that_dies_is_replaced(pool):
    for pid in set(pool.run([Job(os.getpid)] * 4)):
        os.kill(pid, signal.SIGKILL)
        assert gone_soon(pid)
    assert pool.run([Job(int, ("9",))] * 3) == [9, 9, 9]


def test_a_job_that_cannot_be_sent_fails(pool):
    lock, good = pool.run([Job(_identity, (threading.Lock(),)), Job(int, ("7",))])
    assert isinstance(lock, Failure) and "cannot be sent to a worker" in lock.reason
    assert good == 7
    nested = pool.run([Job(lambda: 1)])[0]
    assert isinstance(nested, Failure) and "cannot be sent to a worker" in nested.reason


def test_a_result_that_cannot_be_sent_back_fails_and_says_so(pool):
    lock, good = pool.run([Job(threading.Lock), Job(int, ("7",))])
    assert isinstance(lock, Failure) and "lock" in lock.reason
    assert good == 7


def test_a_large_job_and_a_large_result_pass(pool):
    text = "x" * 5_000_000
    assert pool.run([Job(_identity, (text,))] * 3) == [text] * 3


def test_printing_in_a_reward_does_no_harm(pool):
    assert pool.run([Job(print, ("x" * 100_000,)), Job(int, ("7",))]) == [None, 7]


def test_nothing_runs_after_close():
    workers = Workers(2, deadline_s=60.0)
    pids = set(workers.run([Job(_after, (0.2, None))] * 2 + [Job(os.getpid)] * 6)) - {None}
    workers.close()
    assert all(gone_soon(pid) for pid in pids)
    workers.close()  # a second time is harmless


def test_workers_end_when_the_process_that_started_them_is_killed():
    code = (
        "import os, signal; from minrl.types import Job; from minrl.workers import Workers\n"
        "pool = Workers(1, 60.0); print(pool.run([Job(os.getpid)])[0], flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert gone_soon(int(killed.stdout))


def _after(seconds, value):
    time.sleep(seconds)
    return value


def _identity(value):
    return value


def _start_a_child_and_hang(pid_file):
    child = subprocess.Popen(["sleep", "600"])
    Path(f"{pid_file}.tmp").write_text(str(child.pid))
    Path(f"{pid_file}.tmp").rename(pid_file)
    time.sleep(600)
