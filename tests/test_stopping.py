"""A run that gets a signal ends its step, saves it, says how to resume, and ends like one that never stopped."""

import os
import signal
import time
from threading import Timer

import pytest

from minrl import evaluation, sampling, trainer
from minrl.run.checkpoint import load_state, newest
from tests import jobs
from tests.conftest import SMALL_RUN
from tests.killing import before, signalled_at
from tests.runs import Run, same_end

FLAGS = "--eval-every 2 --save-every 0 --rollouts-every 2 --steps 4 --no-quiet"


@pytest.fixture
def start(sevens_model, tmp_path, monkeypatch):
    """A run of `sevens` with a tiny model, by the name of its place in the current folder."""
    monkeypatch.chdir(tmp_path)
    return lambda place: Run(tmp_path / place, [*SMALL_RUN, *FLAGS.split()])


@pytest.mark.parametrize(
    ("module", "function", "call", "step"),
    [
        pytest.param(trainer, "update_policy", 2, 2, id="before an evaluation"),
        pytest.param(evaluation, "summarize", 3, 4, id="in the last evaluation", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_told_to_stop_saves_its_step_and_resumes_to_the_same_end(
    start, module, function, call, step, capfd
):
    run, last = start("stopped"), start("stopped").checkpoints / f"step_00000{step}"
    with signalled_at(module, function, call):
        assert run.here() == 143
    assert newest(last.parent) == last
    said = capfd.readouterr().err
    assert "\nSIGTERM: stopping after this step" in said
    assert f"saved {last}; resume with: python -m minrl train --resume stopped/runs/run" in " ".join(said.split())
    assert not (run.folder / "summary.json").exists()
    # An evaluation that has not begun is left to the resumed run; one that has is made.
    assert [row[0] for row in load_state(last).held_out] == ([0] if step == 2 else [0, 2, 4])
    assert run.resume() == 0
    whole = start("whole")
    assert whole.here("--quiet") == 0
    same_end(run, whole)
    for line in run.metrics:  # also where a step's seconds were spent in two processes
        phases = [value for tag, value in line.items() if tag.startswith("time/") and tag != "time/step_s"]
        assert sum(phases) == pytest.approx(line["time/step_s"], rel=0.01)


def test_a_second_signal_ends_the_wait_for_rewards(start, sevens):
    object.__setattr__(sevens, "cheap", False)
    object.__setattr__(sevens, "reward", jobs.sleeping)
    timers = [Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)) for seconds in (0.3, 0.7)]
    started = time.monotonic()

    def signal_soon():
        for timer in timers:
            timer.start()

    with before(sampling, "rollout", 1, signal_soon), pytest.raises(KeyboardInterrupt):
        start("stopped").here("--no-eval-first", "--reward-workers", "2", "--rollouts-every", "0")
    for timer in timers:
        timer.join()
    assert time.monotonic() - started < 60  # the rewards would take an hour
