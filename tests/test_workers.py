"""Rewards in processes: in order, under deadlines, and nothing left behind."""

import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from minrl.dataflow import Job
from minrl.rewards import worker_process
from minrl.rewards import workers as workers_module
from minrl.rewards.worker import Failure, call
from minrl.rewards.worker_process import Worker
from minrl.rewards.workers import Workers
from minrl.tasks.grader import Grader, OutOfTime, bounded
from minrl.utils.processor import cpu_cores
from minrl.utils.signals import STOP_SIGNALS
from tests import jobs
from tests.apart import apart

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


def test_results_come_in_the_order_of_the_jobs_from_other_processes_and_cheap_ones_from_this(pool):
    slow = [Job(jobs.after, (0.3, "slow"))]  # it ends after the others
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
        futures, seen = [pool.submit(Job(jobs.after, (0.1, n))) for n in range(3)], set()
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
    future = pool.submit(Job(jobs.after, (0.4, 1)))
    time.sleep(0.2)  # sampling, meanwhile
    started = time.perf_counter()
    pool.submit(Job(jobs.after, (0.1, 1), cheap=True))
    pool.results([future])
    assert 0.1 <= pool.take_seconds() <= time.perf_counter() - started
    assert pool.take_seconds() == 0


def test_deadlines_are_those_of_each_completion_and_of_a_graders_own_limits(make):
    pool, grader = make(1, 3.0), Grader(abs, jobs.loss, seconds=5.0)
    made = [Job(work, ([1, 2],), group=group) for work in (abs, grader) for group in (False, True)]
    assert list(map(pool._deadline_s, made)) == [3.0, 6.0, 5.0, 10.0]


def test_a_worker_that_has_not_started_yet_does_not_heed_it_either():
    starting = Worker()
    try:
        for number in STOP_SIGNALS:  # a batch system signals every process of the job
            os.kill(starting.process.pid, number)
        assert starting.run(Job(abs, (-3,)), 60.0) == 3
    finally:
        starting.kill()


def test_workers_have_the_callers_path_and_one_thread_and_load_nothing_that_only_the_trainer_needs(make, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, "/a/path/of/this/process"])
    path, threads, loaded = make().run([Job(jobs.path), Job(os.getenv, ("OMP_NUM_THREADS",)), Job(jobs.modules)])
    assert "/a/path/of/this/process" in path and "" not in path
    assert threads == "1"
    assert "minrl.tasks.grader" in loaded and not loaded & {"loguru", "minrl.rewards.workers", "torch"}


def test_jobs_that_wait_do_so_at_the_same_time_in_this_process(pool, monkeypatch, tmp_path):
    # Three that wait for each other: one after another none would end.
    barrier = threading.Barrier(3)
    waits = [Job(barrier.wait, (60,), waits=True) for _ in range(3)]
    assert sorted(pool.run([Job(int, ("7",), cheap=True), *waits])[1:]) == [0, 1, 2]
    monkeypatch.setattr(workers_module, "SLOTS", threading.BoundedSemaphore(1))
    begun, end = threading.Event(), threading.Event()
    first = pool.submit(Job(lambda: begun.set() or end.wait(60), waits=True))
    begun.wait(60)
    others = [pool.submit(Job(jobs.runs, (tmp_path / name, int), waits=True)) for name in ("given up", "done")]
    pool.give_up(others[:1])
    end.set()
    assert pool.run([first, others[1]]) == [True, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["done"]


def test_an_exit_waits_for_no_job():
    code = (
        "import time; from minrl.dataflow import Job; from minrl.rewards.workers import Workers\n"
        "pool = Workers(1, 4000.0); [pool.submit(Job(time.sleep, (3600,), waits=waits)) for waits in (True, False)]\n"
        "while not pool._running: time.sleep(0.01)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_job_that_raises_and_one_whose_worker_dies_fail_alone(pool):
    good, bad, dead, also_good = pool.run(
        [Job(int, (word,)) for word in ("7", "seven")] + [Job(os._exit, (0,)), Job(int)]
    )
    assert (good, also_good) == (7, 0)
    assert isinstance(bad, Failure) and "ValueError: invalid literal for int() with base 10: 'seven'" in bad.reason
    assert isinstance(dead, Failure) and "the worker died (exit status 0)" in dead.reason
    assert isinstance(call(Job(int, ("seven",), cheap=True)), Failure)


def test_a_hanging_job_is_killed_at_its_deadline_with_what_it_started_and_its_worker_replaced(
    make, tmp_path, said, monkeypatch
):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr(worker_process, "PRINTED", itertools.count(1))
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
    assert said[-1] == "printed by the task: before the loop\n"


def test_an_idle_worker_that_dies_is_replaced(pool):
    for pid in set(pool.run([Job(os.getpid)] * 4)):
        os.kill(pid, signal.SIGKILL)
        assert gone_soon(pid)
    assert pool.run([Job(int, ("9",))] * 3) == [9, 9, 9]


def test_a_job_or_result_that_cannot_be_sent_fails_and_says_so(make):
    pool = make()
    before, returned = pool.run([Job(os.getpid), Job(threading.Lock)])
    assert isinstance(returned, Failure) and "lock" in returned.reason
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for job in (Job(lambda: 1), Job(jobs.identity, (deep,)), Job(jobs.identity, (jobs.Unwilling(),))):
        (failed,) = pool.run([job])
        assert isinstance(failed, Failure) and "cannot be sent to a worker" in failed.reason
    assert pool.run([Job(os.getpid)]) == [before]  # no worker is lost over it


def test_of_what_is_printed_the_first_lines_are_shown(said, monkeypatch):
    monkeypatch.setattr(worker_process, "PRINTED", itertools.count(1))
    pool = Workers(2, deadline_s=60.0)
    # Three jobs of 2,001 lines: the 200 kB of a reward that shows what it compares, and a line of its own length.
    assert pool.run([Job(jobs.prints)] * 3 + [Job(int, ("7",))]) == ["printed"] * 3 + [7]
    pool.close()  # reads what is left
    lines = [line.rstrip("\n") for line in said]
    # Each worker's lines are read by a thread of its own, so that this one may come before another's last.
    lines.remove("printed by the task: further lines are not shown")
    shown = {"printed by the task: " + "x" * 200 + " ...", "printed by the task: \t\\x1b[31m" + "y" * 96}
    assert len(lines) == 20 and set(lines) == shown


def test_nothing_runs_after_close(make, tmp_path):
    workers = make(2)
    pids = set(workers.run([Job(jobs.after, (0.1, None))] * 2 + [Job(os.getpid)] * 6)) - {None}
    made = [workers.submit(Job(jobs.runs, (tmp_path / name, time.sleep, 600))) for name in "aabb"]
    while not (tmp_path / "a").exists():
        time.sleep(0.01)
    workers.close()
    assert not any(thread.is_alive() for thread in workers._threads) and all(gone_soon(pid) for pid in pids)
    assert not (tmp_path / "b").exists() and all(one.cancelled() for one in made)
    workers.close()  # a second time is harmless


@pytest.mark.parametrize("job", ["", "time.sleep(3600)"], ids=["idle", "in a job"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_workers_end_when_the_process_that_started_them_is_killed(job):
    code = (
        "import os; from minrl.dataflow import Job; from minrl.rewards.workers import Workers\n"
        "pool = Workers(1, 4000.0); print(pool.run([Job(os.getpid)])[0], flush=True)\n"
        f"pool.run([Job(exec, (f'import os, time; os.kill({{os.getpid()}}, 9); {job}',))])"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert gone_soon(int(killed.stdout))


def test_what_is_given_up_ends_and_its_worker_is_replaced(make, tmp_path):
    pool, pid_file = make(1, 4000.0), tmp_path / "pid"
    hanging = pool.submit(Job(jobs.start_a_child_and_hang, (str(pid_file),)))
    queued = pool.submit(Job(jobs.runs, (tmp_path / "runs", int)))
    while not pid_file.exists():
        time.sleep(0.01)
    pool.give_up([hanging, queued])
    assert pool.run([Job(int, ("7",))]) == [7]
    assert gone_soon(int(pid_file.read_text())) and not (tmp_path / "runs").exists()


def test_what_cannot_be_begun_is_raised_where_its_result_is_asked_for(make, monkeypatch):
    pool = make()
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(FileNotFoundError):
        pool.run([Job(int)])
    monkeypatch.undo()
    assert pool.run([Job(int)]) == [0]


def graded(*work, deadline_s=60.0, warm=None):
    """What a grader pays: its result, or the name of the loss."""
    pool = Workers(1, deadline_s)
    try:
        (paid,) = pool.run([Job(Grader(work[0], jobs.loss, warm), work[1:])])
    finally:
        pool.close()
    return paid


def test_a_grader_that_dies_again_is_paid_for_its_loss(tmp_path):
    assert graded(jobs.runs, tmp_path / "runs", os._exit, 3) == "lost: crash"
    assert len((tmp_path / "runs").read_text()) == 2


def test_a_grader_that_was_killed_by_the_machine_is_run_again(tmp_path):
    assert graded(jobs.dies_the_first_time, tmp_path / "runs") == "graded"


@pytest.mark.parametrize(("computed_s", "runs"), [(0.1, 2), (0.3, 1)])
def test_a_grader_that_missed_its_deadline_is_run_again_unless_it_computed_for_half_of_it(
    computed_s, runs, tmp_path, monkeypatch
):
    measured = worker_process.processor_s
    for deadline_s in DEADLINES_S:
        file, share = tmp_path / f"{deadline_s}", computed_s / 0.5
        computed = lambda pid, children, s=share * deadline_s: measured(pid, children=children) + s  # noqa: E731
        monkeypatch.setattr(worker_process, "processor_s", computed)
        assert graded(jobs.runs, file, time.sleep, 600, deadline_s=deadline_s) == "lost: timeout"
        if file.exists():
            break
    assert len(file.read_text()) == runs


def test_what_no_alarm_interrupts_ends_the_worker_and_is_blamed_at_once(tmp_path):
    paid = graded(jobs.runs, tmp_path / "runs", jobs.power_in_bounds, 0.1)  # long before its deadline
    assert paid == "lost: timeout"
    assert len((tmp_path / "runs").read_text()) == 1


def test_where_no_worker_can_be_started_nothing_is_blamed_on_a_completion(make, monkeypatch):
    pool = make()
    pool.run([Job(int)])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (failed,) = pool.run([Job(Grader(os._exit, jobs.loss), (3,))])
    assert failed == Failure("the worker died (exit status 1) before it was ready")


def test_a_deadline_counts_from_the_start_of_the_job_and_not_of_the_call(make):
    # Four jobs behind one another, each of 0.3 deadlines, take longer than a deadline in all.
    workers = make()
    workers.run([Job(int, ("0",))])
    for workers.deadline_s in DEADLINES_S:
        if workers.run([Job(jobs.after, (0.3 * workers.deadline_s, n)) for n in range(4)]) == list(range(4)):
            return
    pytest.fail("the later jobs missed a deadline that is far away")


def test_what_a_new_worker_loads_takes_nothing_from_the_deadline():
    for deadline_s in DEADLINES_S:
        loading = partial(time.sleep, deadline_s + 0.3)
        if graded(jobs.identity, "graded", deadline_s=deadline_s, warm=loading) == "graded":
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


@pytest.mark.parametrize(
    ("error", "paid"), [(MemoryError, "memory"), (RecursionError, "memory"), (OutOfTime, "timeout")]
)
def test_what_a_completion_makes_a_grader_raise_is_paid(error, paid):
    assert Grader(jobs.raises, jobs.loss)(error) == f"lost: {paid}"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell it")
@apart
def test_bounds_interrupt_and_are_lifted():
    limits = [resource.getrlimit(one) for one in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    with pytest.raises(OutOfTime), bounded(0.05):
        try:
            jobs.compute()
        except Exception:
            pytest.fail("a library could catch it")
    with pytest.raises(MemoryError), bounded(60.0, memory_mib=64):
        bytearray(2**30)  # more than any heap has free
    with bounded(60.0, memory_mib=64):
        bytearray(32 * 2**20)
    with bounded(0.2):
        time.sleep(0.4)  # others' time does not count
    with bounded(60.0, memory_mib=0):
        bytearray(65 * 2**20)
    assert [resource.getrlimit(one) for one in (resource.RLIMIT_CPU, resource.RLIMIT_AS)] == limits
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
