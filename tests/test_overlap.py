"""Rewards of completions that have ended are computed while others are still sampled, and nothing else changes."""

import pickle
import sys
import time
from contextlib import closing, redirect_stdout
from dataclasses import replace
from fcntl import ioctl
from io import StringIO
from termios import FIONREAD
from threading import Event

import pytest
import torch

from minrl.engines import Sampling
from minrl.engines.torch_engine import TorchEngine
from minrl.models.processes import Processes
from minrl.rewards import begun
from minrl.rewards.judge import judged, with_part
from minrl.rewards.printed import caught
from minrl.rewards.worker import Failure, Lost
from minrl.rewards.worker_process import READY
from minrl.rewards.workers import Workers
from minrl.rollout import Plan, rollout
from minrl.tasks import Task
from minrl.tasks.grader import Grader
from minrl.tasks.task import Dataset
from minrl.types import SOLO, Example, Job, Request, Reward, Turn
from tests import jobs
from tests.rewards import breaks_at_odd_lengths, noted, raises_at_odd_lengths
from tests.test_workers import gone_soon, running

EXAMPLES = [Example(str(n), "numbers 1 2", {}) for n in range(3)]
DATASET = Dataset(EXAMPLES, [Example("held out", "numbers 1", {})])
STOPS = tuple("023456789")
"""A policy that has learned nothing says one of them or its end now and then: completions have all lengths."""
PLAN = Plan(group_size=6, max_tokens=12, temperature=1.0, seed=0, purpose="test", step=1, stop_strings=STOPS)


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Watched(TorchEngine):
    """After each step in which some have ended and others have not, waits until `caught_up(number of the former)`.
    It takes no cores, so that all workers may compute.
    """

    cores = 0

    def __init__(self, policy, caught_up=lambda ended: True):
        super().__init__(policy)
        self.caught_up, self.waited = caught_up, 0

    def generate(self, requests, sampling, *, ended=None):
        told = 0
        if ended is None:
            return super().generate(requests, sampling)

        def watch(completions):
            nonlocal told
            ended(completions)
            told += len(completions)
            if completions and told < len(requests):
                self.waited += 1
                until(lambda: ended([]) or self.caught_up(told))

        return super().generate(requests, sampling, ended=watch)


class Afterwards(Workers):
    """Begins nothing before everything is sampled."""

    def begin(self, job, whose=None):
        pass

    def poll(self):
        return []


def seen(folder):
    return len(list(folder.iterdir()))


def noting(folder):
    examples = [replace(one, fields={"folder": str(folder)}) for one in EXAMPLES]
    return Task(replace(DATASET, train=examples), noted)


def test_rewards_are_there_while_longer_completions_are_sampled(policy, workers, tmp_path):
    task = noting(tmp_path)
    engine = Watched(policy, lambda ended: seen(tmp_path) == ended)
    sampled = rollout(policy, engine, workers, task, task.dataset.train, PLAN)
    assert engine.waited > 3 and not sampled.failures
    assert [one.reward for one in sampled.rollouts] == [Reward(one.text.count("7")) for one in sampled.rollouts]
    assert seen(tmp_path) == len(sampled.rollouts)  # each once


def told(shown, result):
    return f"yes {shown} {result}"


def tool(example, rng):
    """A turn, a job of each kind whose results are read in the next turn, and a reward by chance."""
    first = yield Turn(SOLO, "numbers 1")
    size = yield Job(len, (first,))
    word = yield Job(str, (size,), cheap=True)
    shown = yield Job(told, (word, rng.randint(0, 9)), waits=True)
    second = yield Turn(SOLO, shown)
    if len(second) % 3 == 0:
        raise RuntimeError(f"no third turn after {second!r}")
    failed = yield Job(int, (first,))
    third = yield Turn(SOLO, f"no {failed}")
    return {SOLO: Reward(rng.random() if third else 0.0)}


def pair(example, rng):
    """Two roles; the second reads what the first said, and half of the episodes end early."""
    said = yield Turn("white", "numbers 1")
    if len(said) % 2:
        return {"white": (yield Job(Reward, (0.5,)))}
    reply = yield Turn("black", f"target {said}")
    both = yield Job(max, (len(said), len(reply)))
    return {"white": Reward(1.0 / (1 + both)), "black": Reward(rng.random())}


class Kind:
    """A judge that scores by what it is shown."""

    def reward(self, reward, prompt, completion, example):
        if completion.startswith("<"):
            raise RuntimeError("not this one")
        return with_part(reward, len(completion) % 10 / 10, 0.5)


def length(completion, example):
    return 1.0 / (1 + len(completion))


TASKS = {
    "in this process": (Task(DATASET, length, cheap=True), False),
    "in the workers": (Task(DATASET, raises_at_odd_lengths), True),
    "lost graders": (Task(DATASET, breaks_at_odd_lengths, worst=-1.0), False),
    "a judge": (judged(Task(DATASET, length, cheap=True), Kind()), True),
    "a tool": (Task(DATASET, None, episode=tool), True),
    "two roles": (Task(DATASET, None, episode=pair), False),
}
"""Each with whether some of its rollouts are unscorable."""


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_sampled_or_paid_otherwise(policy, name):
    task, fails = TASKS[name]
    limited = replace(PLAN, group_size=1 if name == "lost graders" else 4)  # those wait for new workers

    def played(workers, engine):
        with closing(workers):
            return rollout(policy, engine, workers, task, task.dataset.train, limited)

    expected = played(Afterwards(2, 120.0), TorchEngine(policy))
    assert played(Workers(2, 120.0), Watched(policy)) == expected
    assert played(Workers(1, 120.0), TorchEngine(policy)) == expected
    assert bool(expected.failures) == fails and len({str(one.reward) for one in expected.rollouts}) > 1
    if name == "lost graders":
        assert {one.reward.value for one in expected.rollouts if "grader_crash" in one.reward.parts} == {-1.0}


@pytest.mark.parametrize(("cores", "most"), [(1, 0), (2, 1), (9, 2)])
def test_beside_a_policy_on_the_cpu_only_the_cores_that_torch_leaves_compute(
    policy, workers, tmp_path, monkeypatch, cores, most
):
    """In an episode, which may wait for other jobs and so hears of its completions at once on any machine."""
    monkeypatch.setattr(Processes, "cores", property(lambda self: cores))
    busy, task = [], noting(tmp_path)
    task = replace(task, episode=task.play)

    class OnCores(Watched):
        cores = TorchEngine.cores

    engine = OnCores(policy, lambda ended: busy.append(len(workers._busy)) or not most or seen(tmp_path) == ended)
    assert (engine.cores, torch.get_num_threads()) == (1, 1)
    played = {}
    run = workers.run
    monkeypatch.setattr(workers, "run", lambda jobs: played.update(before=seen(tmp_path), jobs=len(jobs)) or run(jobs))
    sampled = rollout(policy, engine, workers, task, task.dataset.train, PLAN)
    assert engine.waited > 3 and max(busy) == most
    assert seen(tmp_path) == len(sampled.rollouts) == 18 and not sampled.failures
    if not most:
        assert played == {"before": 0, "jobs": 18}


@pytest.mark.parametrize(
    ("count", "taken", "cores", "expected"), [(3, 0, 2, 3), (3, 2, 4, 2), (3, 4, 4, 0), (1, 2, 9, 1)]
)
def test_an_engine_that_takes_no_core_leaves_all_workers(count, taken, cores, expected):
    with closing(Workers(count, 60.0)) as workers:
        workers.beside(taken, cores)
        for _ in range(5):
            workers.begin(Job(time.sleep, (600,)))
        workers.poll()
        assert len(workers._busy) == expected


def test_a_judge_is_asked_while_longer_completions_are_sampled(policy, workers):
    asked = []

    class Asked(Kind):
        def reward(self, *shown):
            asked.append(shown)
            return super().reward(*shown)

    task = judged(Task(DATASET, length, cheap=True), Asked())
    engine = Watched(policy, lambda ended: len(asked) == ended)
    sampled = rollout(policy, engine, workers, task, EXAMPLES, PLAN)
    assert engine.waited > 3 and len(asked) == len(sampled.rollouts) == 18


def test_seconds_of_cheap_jobs_count_and_those_of_others_do_not_before_they_are_waited_for(workers):
    workers.begin(Job(time.sleep, (0.2,), cheap=True))
    assert 0.2 <= workers.take_seconds() < 60
    waiting = Job(jobs.after, (0.2, 7))
    workers.begin(waiting)
    until(lambda: workers.poll() == [(None, 7)])
    assert workers.take_seconds() == 0


def test_what_was_begun_is_taken_by_whoever_asks_for_it_once(workers, tmp_path):
    job, other = (Job(jobs.runs, (tmp_path / name, str, name)) for name in ("one", "other"))
    workers.begin(job, "whose")
    workers.begin(job, "again")
    workers.begin(other)
    until(lambda: (tmp_path / "one").exists() and len((tmp_path / "one").read_text()) == 2)
    assert workers.run([other, job, job, job]) == ["other", "one", "one", "one"]
    assert (len((tmp_path / "one").read_text()), len((tmp_path / "other").read_text())) == (3, 1)
    assert workers.poll() == []


def test_a_poll_gives_each_result_once_and_a_lost_worker_is_for_run(workers, tmp_path):
    bad, good = Job(Grader(jobs.dies_the_first_time, jobs.loss), (tmp_path / "died",)), Job(int, ("7",))
    lock = Job(jobs.identity, (lambda: 0,))
    workers.begin(bad, "bad")
    workers.begin(lock, "lock")
    ended = []
    until(lambda: ended.extend(workers.poll()) or any(isinstance(one.result, Lost) for one in workers._begun))
    workers.begin(good, "good")
    until(lambda: ended.extend(workers.poll()) or len(ended) == 2)
    assert ended[1] == ("good", 7)
    assert ended[0][0] == "lock" and isinstance(ended[0][1], Failure) and "cannot be sent" in ended[0][1].reason
    assert workers.poll() == []
    assert workers.run([bad]) == ["graded"]  # by its second run


def test_one_poll_is_enough_for_a_job_that_has_ended(workers):
    """A step of an engine may take long: what a worker says twice is heard at one look."""
    workers.begin(Job(int, ("7",)), "whose")
    (worker,) = workers._busy.values()
    waiting = bytearray(4)

    def answered():
        ioctl(worker.connection.fileno(), FIONREAD, waiting)
        begins = 4 + len(pickle.dumps((0.5, 0.5)))  # a message has its length before it
        return int.from_bytes(waiting, sys.byteorder) > begins

    until(answered)
    assert workers.poll() == [("whose", 7)]


def test_what_ended_in_time_is_paid_whenever_somebody_looks(workers, monkeypatch):
    job, clock = Job(int, ("7",)), time.monotonic
    workers.begin(job)
    (worker,) = workers._busy.values()
    until(worker.connection.poll)
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: clock() + 1000)  # the deadline is 60 s
        assert workers.run([job]) == [7]


def test_what_ended_after_its_deadline_is_not_paid_however_late_somebody_looks():
    with closing(Workers(1, 0.3)) as workers:
        late = Job(jobs.after, (0.6, 7))
        workers.begin(late)
        (worker,) = workers._busy.values()
        until(worker.connection.poll)
        time.sleep(1.0)
        (failed,) = workers.run([late])
        assert "no reward within its deadline of 0.3 s" in failed.reason


def test_a_deadline_counts_from_when_the_job_began():
    with closing(Workers(1, 0.3)) as workers:
        workers.begin(Job(time.sleep, (600,)))
        (worker,) = workers._busy.values()
        until(worker.connection.poll)
        time.sleep(0.4)
        assert worker.receive() is READY
        assert worker.deadline < time.monotonic()


def test_a_job_that_was_begun_has_its_deadline():
    with closing(Workers(1, 0.3)) as workers:
        hung = Job(time.sleep, (600,))
        workers.begin(hung)
        until(lambda: workers.poll() or any(one.there for one in workers._begun))
        (failed,) = workers.run([hung])
        assert isinstance(failed, Failure) and "no reward within its deadline of 0.3 s" in failed.reason


def test_what_was_begun_for_nobody_holds_up_nothing(tmp_path):
    with closing(Workers(1, 600.0)) as workers:
        for _ in range(3):
            workers.begin(Job(time.sleep, (600,)))
        (hung,) = workers._busy.values()
        assert workers.run([Job(int, ("7",)), Job(int, ("8",), cheap=True)]) == [7, 8]
        assert gone_soon(hung.process.pid)
        for give_up in (lambda: workers.beside(0, 1), lambda: workers.run([Job(int, ("8",))])):
            workers.begin(Job(int, ("9",), cheap=True), "nobody")
            give_up()
            assert workers.poll() == []
        workers.begin(Job(time.sleep, (600,)))
        workers.begin(Job(time.sleep, (600,)))
        (busy,) = workers._busy.values()
        assert running(busy.process.pid)
    assert gone_soon(busy.process.pid) and workers.poll() == []
    workers.close()


def test_threads_that_were_given_up_hold_up_nothing(workers, monkeypatch):
    monkeypatch.setattr(begun, "MOST_THREADS", 1)
    end = Event()
    workers.begin(Job(end.wait, waits=True), "hung")
    workers.beside(0, 1)
    workers.begin(Job(int, ("7",), waits=True), "next")
    ended = []
    until(lambda: ended.extend(workers.poll()) or ended)
    assert ended == [("next", 7)]
    end.set()


def test_a_thread_or_worker_that_cannot_start_loses_no_job(workers, monkeypatch):
    def full(*arguments, **named):
        raise RuntimeError("the system is full")

    waiting, working = Job(int, ("7",), waits=True), Job(int, ("8",))
    with monkeypatch.context() as patched:
        patched.setattr(begun, "MOST_THREADS", 1)
        patched.setattr(begun, "Thread", full)
        with pytest.raises(RuntimeError, match="full"):
            workers.run([waiting])
    assert workers._threads._count == 0 and not workers._threads._waiting
    with monkeypatch.context() as patched:
        patched.setattr(workers, "_next_worker", full)
        with pytest.raises(RuntimeError, match="full"):
            workers.begin(working)
    assert workers.run([waiting, working]) == [7, 8]


class Failing(TorchEngine):
    """Raises as soon as a completion has ended."""

    cores = 0

    def generate(self, requests, sampling, *, ended):
        def raising(completions):
            ended(completions)
            if completions:
                raise KeyboardInterrupt

        return super().generate(requests, sampling, ended=raising)


def test_an_engine_that_fails_leaves_nothing_to_the_next_call(policy, workers, tmp_path):
    task = noting(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        rollout(policy, Failing(policy), workers, task, task.dataset.train, PLAN)
    assert workers._begun
    again = rollout(policy, Watched(policy), workers, task, task.dataset.train, PLAN)
    with closing(Afterwards(2, 60.0)) as others:
        assert again == rollout(policy, TorchEngine(policy), others, task, task.dataset.train, PLAN)
    assert not (workers._begun or workers._busy or workers._queue)
    pids = [worker.process.pid for worker in workers._idle]
    workers.close()
    assert pids and all(gone_soon(pid) for pid in pids)


@pytest.mark.parametrize(
    ("cheap", "is_episode", "cores", "expected"),
    [(True, False, 9, False), (False, False, 1, False), (False, False, 2, True), (True, True, 1, True)],
)
def test_who_gains_nothing_by_it_hears_of_completions_afterwards(
    policy, workers, tmp_path, monkeypatch, cheap, is_episode, cores, expected
):
    """To hear of each takes several times as long between two steps, when the caches hold the model."""
    monkeypatch.setattr(Processes, "cores", property(lambda self: cores))
    asked = []

    class Silent(TorchEngine):
        def generate(self, requests, sampling, *, ended):
            asked.append(ended is not None)
            return super().generate(requests, sampling)

    task = replace(noting(tmp_path), cheap=cheap)
    task = replace(task, episode=task.play) if is_episode else task
    sampled = rollout(policy, Silent(policy), workers, task, EXAMPLES[:1], PLAN)
    assert asked == [expected] and all(one.reward is None for one in sampled.rollouts)  # EXAMPLES name no folder


def test_what_rewards_and_episodes_compute_with_torch_is_computed_as_ever(policy, workers):
    modes = []

    def episode(example, rng):
        yield Turn(SOLO, "numbers 1")
        modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return {SOLO: (yield Job(lambda: modes.append(torch.is_grad_enabled()) or Reward(1.0), cheap=True))}

    class Halves(Processes):
        def __init__(self, other):
            self.__dict__.update(other.__dict__)

        def autocast(self):
            return torch.autocast("cpu", torch.bfloat16)

    halves = replace(policy, processes=Halves(policy.processes))
    rollout(halves, TorchEngine(halves), workers, Task(DATASET, None, episode=episode), EXAMPLES[:1], PLAN)
    assert set(modes) == {(True, False), True}
    told = []  # also where none has ended, since results of jobs arrive then

    def ended(completions):
        told.append((len(completions), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    TorchEngine(halves).generate([Request([5, 6], 0, 3)], Sampling(1.0, frozenset()), ended=ended)
    assert told == [(0, True, False), (0, True, False), (1, True, False)]


def test_a_thread_that_redirects_its_output_does_not_keep_that_of_the_process(capsys):
    """It finds what stands for the stream while a task's code runs here, and puts it back when that is over."""
    thread = redirect_stdout(StringIO())
    with caught():
        thread.__enter__()
    thread.__exit__(None, None, None)
    print("of the run")
    with caught():
        print("of a task")
    print("of the run again")
    assert capsys.readouterr().out == "of the run\nof the run again\n"
