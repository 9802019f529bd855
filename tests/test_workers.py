"""Rewards in processes: in order, under deadlines, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial

import psutil
import pytest

from minrl.dataflow import Job
from minrl.rewards import worker_process
from minrl.rewards.worker import Failure, call
from minrl.rewards.workers import Workers
from minrl.tasks.grader import Grader, OutOfTime
from minrl.utils.processor import cpu_cores
from tests import jobs
from tests.runs import until

DEADLINES_S = (0.3, 60.0)
"""For what is to miss its deadline, beside something that is not to: the second where the machine is slow."""


@pytest.fixture(scope="module")
def pool():
    """One for all: a worker that a test loses is replaced."""
    workers = Workers(2, deadline_s=60.0)
    yield workers
    workers.close()


@pytest.fixture
def make():
    """Makes pools, which are closed at the end."""
    pools = []

    def made(count=1, deadline_s=60.0):
        pools.append(Workers(count, deadline_s))
        return pools[-1]

    yield made
    for one in pools:
        one.close()


def gone_soon(pid):
    """Wait until a process has ended, as a zombie has."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        until(lambda: process.status() == psutil.STATUS_ZOMBIE, seconds=60)
    return True


def test_results_come_in_the_order_of_the_jobs_from_other_processes_and_cheap_ones_from_this(pool):
    slow = [Job(jobs.after, (0.1, "slow"))]  # it ends after the others
    results = pool.run([*slow, *(Job(jobs.after, (0.0, n)) for n in range(7)), Job(os.getpid, (), cheap=True)])
    assert results == ["slow", *range(7), os.getpid()]
    assert os.getpid() not in pool.run([Job(os.getpid)] * 4)


def test_a_pool_has_as_many_workers_as_it_needs_and_no_more_than_it_may(make):
    assert make(0).count == cpu_cores()
    pool = make(2)
    assert len(set(pool.run([Job(os.getpid)]))) == len(pool._threads) == 1
    pool.run([Job(jobs.after, (0.1, n)) for n in range(5)])
    assert len(pool._threads) == 2


def test_beside_an_engine_so_many_compute_and_all_once_somebody_waits(make):
    pool = make(2)
    for free, most in ((0, 0), (1, 1), (9, 2)):
        pool.limit(free)
        futures, seen = [pool.submit(Job(jobs.after, (0.05, n))) for n in range(3)], set()
        ends = time.monotonic() + (0.1 if most == 0 else 20)
        while time.monotonic() < ends and not all(one.done() for one in futures):
            seen.add(len(pool._running))
            time.sleep(0.001)
        assert max(seen) == most and all(one.done() for one in futures) == (most > 0)
        assert pool.run(futures) == [0, 1, 2]
    pool.limit(0)
    waits = pool.submit(Job(jobs.after, (0.0, 7)))
    time.sleep(0.05)
    assert not waits.done()  # the limit is that of before


def test_seconds_are_those_of_waiting_and_of_cheap_jobs(make):
    pool = make()
    assert pool.take_seconds() == 0
    pool.run([Job(int)])
    pool.take_seconds()
    future = pool.submit(Job(jobs.after, (0.2, 1)))
    time.sleep(0.1)  # sampling, meanwhile
    started = time.perf_counter()
    pool.submit(Job(jobs.after, (0.05, 1), cheap=True))
    pool.results([future])
    assert 0.05 <= pool.take_seconds() <= time.perf_counter() - started


def test_deadlines_are_those_of_each_completion_and_of_a_graders_own_limits(make):
    pool, grader = make(1, 3.0), Grader(abs, jobs.loss, seconds=5.0)
    made = [Job(work, ([1, 2],), group=group) for work in (abs, grader) for group in (False, True)]
    assert list(map(pool._deadline_s, made)) == [3.0, 6.0, 5.0, 10.0]


def test_workers_have_the_callers_path_and_one_thread_and_load_nothing_that_only_the_trainer_needs(make, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, "/a/path/of/this/process"])
    path, threads, loaded = make().run([Job(jobs.path), Job(os.getenv, ("OMP_NUM_THREADS",)), Job(jobs.modules)])
    assert "/a/path/of/this/process" in path and "" not in path
    assert threads == "1"
    assert "minrl.tasks.grader" in loaded and not loaded & {"loguru", "minrl.rewards.workers", "torch"}


def test_jobs_that_wait_do_so_at_the_same_time_in_this_process(pool):
    # Three that wait for each other: one after another none would end.
    barrier = threading.Barrier(3)
    waits = [Job(barrier.wait, (60,), waits=True) for _ in range(3)]
    assert sorted(pool.run([Job(int, ("7",), cheap=True), *waits])[1:]) == [0, 1, 2]


def test_a_job_that_raises_and_one_whose_worker_dies_fail_alone(pool):
    good, bad, dead, also_good = pool.run(
        [Job(int, (word,)) for word in ("7", "seven")] + [Job(os._exit, (0,)), Job(int)]
    )
    assert (good, also_good) == (7, 0)
    assert isinstance(bad, Failure) and "ValueError: invalid literal for int() with base 10: 'seven'" in bad.reason
    assert isinstance(dead, Failure) and "the worker died (exit status 0)" in dead.reason
    assert isinstance(call(Job(int, ("seven",), cheap=True)), Failure)


def test_a_hanging_job_is_killed_at_its_deadline_with_what_it_started_and_its_worker_replaced(make, tmp_path):
    pid_file, workers = tmp_path / "pid", make()
    for deadline_s in DEADLINES_S:
        workers.deadline_s = 60.0
        before = workers.run([Job(os.getpid)])[0]
        workers.deadline_s = deadline_s
        hung, good = workers.run([Job(jobs.start_a_child_and_hang, (str(pid_file),)), Job(int, ("7",))])
        assert isinstance(hung, Failure) and f"no reward within its deadline of {deadline_s} s" in hung.reason
        assert gone_soon(before)
        if pid_file.exists() and good == 7:
            break
    assert good == 7 and gone_soon(int(pid_file.read_text()))


def test_an_idle_worker_that_dies_is_replaced(pool):
    for pid in set(pool.run([Job(os.getpid)] * 4)):
        os.kill(pid, signal.SIGKILL)
        assert gone_soon(pid)
    assert pool.run([Job(int, ("9",))] * 3) == [9, 9, 9]


def test_a_job_or_result_that_cannot_be_sent_fails_and_says_so(make):
    pool = make()
    before, returned = pool.run([Job(os.getpid), Job(threading.Lock)])
    assert isinstance(returned, Failure) and "lock" in returned.reason
    (failed,) = pool.run([Job(lambda: 1)])
    assert isinstance(failed, Failure) and "cannot be sent to a worker" in failed.reason
    assert pool.run([Job(os.getpid)]) == [before]  # no worker is lost over it


def test_nothing_runs_after_close(make, tmp_path):
    workers = make(2)
    pids = set(workers.run([Job(jobs.after, (0.1, None))] * 2 + [Job(os.getpid)] * 6)) - {None}
    made = [workers.submit(Job(jobs.runs, (tmp_path / name, time.sleep, 600))) for name in "aabb"]
    until((tmp_path / "a").exists)
    workers.close()
    assert not any(thread.is_alive() for thread in workers._threads) and all(gone_soon(pid) for pid in pids)
    assert not (tmp_path / "b").exists() and all(one.cancelled() for one in made)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_workers_end_when_the_process_that_started_them_is_killed():
    code = (
        "import os; from minrl.dataflow import Job; from minrl.rewards.workers import Workers\n"
        "pool = Workers(1, 4000.0); print(pool.run([Job(os.getpid)])[0], flush=True)\n"
        "pool.run([Job(exec, (f'import os, time; os.kill({os.getpid()}, 9); time.sleep(3600)',))])"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert gone_soon(int(killed.stdout))


def test_what_is_given_up_ends_and_its_worker_is_replaced(make, tmp_path):
    pool, pid_file = make(1, 4000.0), tmp_path / "pid"
    hanging = pool.submit(Job(jobs.start_a_child_and_hang, (str(pid_file),)))
    queued = pool.submit(Job(jobs.runs, (tmp_path / "runs", int)))
    until(pid_file.exists)
    pool.give_up([hanging, queued])
    assert pool.run([Job(int, ("7",))]) == [7]
    assert gone_soon(int(pid_file.read_text())) and not (tmp_path / "runs").exists()


def test_what_cannot_be_begun_is_raised_where_its_result_is_asked_for(make, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(FileNotFoundError):
        make().run([Job(int)])


def graded(*work, deadline_s=60.0, warm=None):
    """What a grader pays: its result, or the name of the loss."""
    pool = Workers(1, deadline_s)
    try:
        (paid,) = pool.run([Job(Grader(work[0], jobs.loss, warm), work[1:])])
    finally:
        pool.close()
    return paid


@pytest.mark.parametrize(
    ("work", "paid", "runs"),
    [
        ((os._exit, 3), "crash", 2),  # it may have been the machine the first time
        ((jobs.power_in_bounds, 0.1), "timeout", 1),  # which no alarm interrupts: long before its deadline
    ],
)
def test_a_grader_that_dies_is_paid_for_its_loss(work, paid, runs, tmp_path):
    assert graded(jobs.runs, tmp_path / "runs", *work) == f"lost: {paid}"
    assert len((tmp_path / "runs").read_text()) == runs


def test_a_grader_that_was_killed_by_the_machine_is_run_again(tmp_path):
    assert graded(jobs.dies_the_first_time, tmp_path / "runs") == "graded"


@pytest.mark.parametrize(("share", "runs"), [(0.2, 2), (0.6, 1)])
def test_a_grader_that_missed_its_deadline_is_run_again_unless_it_computed_for_half_of_it(
    share, runs, tmp_path, monkeypatch
):
    measured = worker_process.processor_s
    for deadline_s in DEADLINES_S:
        file, computed_s = tmp_path / f"{deadline_s}", share * deadline_s
        computed = lambda pid, children, s=computed_s: measured(pid, children=children) + s  # noqa: E731
        monkeypatch.setattr(worker_process, "processor_s", computed)
        assert graded(jobs.runs, file, time.sleep, 600, deadline_s=deadline_s) == "lost: timeout"
        if file.exists():
            break
    assert len(file.read_text()) == runs


def test_what_a_new_worker_loads_takes_nothing_from_the_deadline():
    for deadline_s in DEADLINES_S:
        loading = partial(time.sleep, deadline_s + 0.3)
        if graded(str, "graded", deadline_s=deadline_s, warm=loading) == "graded":
            return
    pytest.fail("loading counted")


def test_second_runs_take_one_deadline_together(make, tmp_path):
    for deadline_s in DEADLINES_S:
        file, pool = tmp_path / f"{deadline_s}", make(2, deadline_s)
        hang = Job(Grader(jobs.runs, jobs.loss), (file, time.sleep, 600))
        results = pool.run([hang] * 2 + [Job(int, ("7",)), hang])
        runs = len(file.read_text()) if file.exists() else 0
        if runs == 3 + 2:
            break
    assert results[:3] == ["lost: timeout", "lost: timeout", 7] and runs == 3 + 2  # two workers, one deadline more
    assert results[3].reason == "it missed its deadline, and no time was left for a second run"


@pytest.mark.parametrize(("error", "paid"), [(MemoryError, "memory"), (OutOfTime, "timeout")])
def test_what_a_completion_makes_a_grader_raise_is_paid(error, paid):
    assert Grader(jobs.raises, jobs.loss)(error) == f"lost: {paid}"
