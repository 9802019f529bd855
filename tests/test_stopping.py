"""A run that gets a signal ends its step, saves it, says how to resume, and ends like one that never stopped."""

import os
import signal
import time
from threading import Timer

import pytest

from minrl import evaluation, sampling, trainer
from minrl.run.checkpoint import load_state, newest
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from tests import jobs
from tests.killing import before, signalled_at
from tests.runs import Run

FLAGS = """--task sevens --prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0
    --eval-every 2 --eval-examples 2 --eval-samples 1 --save-every 0 --rollouts-every 2 --threads 1 --device cpu
    --steps 4 --no-preflight"""


@pytest.fixture
def start(sevens_model, tmp_path):
    """A run of `sevens` with a tiny model, by the name of its place."""
    return lambda place: Run(tmp_path / place, [*FLAGS.split(), "--model-id", sevens_model])


@pytest.fixture(scope="module")
def ends():
    return {}


@pytest.fixture
def whole(start, ends):
    """What an uninterrupted run ends with, which is made once."""
    if not ends:
        assert start("whole").here() == 0
        ends.update(ending(start("whole")))
    return ends


def ending(run):
    """All but hashes, which have a checkpoint for each start, and what TensorBoard shows of a step that waits for its
    evaluation.
    """
    return {name: value for name, value in run.end().items() if name not in ("hashes", "shown")}


MOMENTS = {
    "in an update": (trainer, "update_policy", 1, 1),
    "in the update before an evaluation": (trainer, "update_policy", 2, 2),
    "in the last evaluation": (evaluation, "summarize", 3, 4),
}


@pytest.mark.parametrize(
    "moment", [name if "before" in name else pytest.param(name, marks=pytest.mark.slow) for name in MOMENTS]
)
def test_a_run_that_is_told_to_stop_saves_its_step_and_resumes_to_the_same_end(start, whole, moment, capfd):
    module, function, call, step = MOMENTS[moment]
    run, last = start("stopped"), start("stopped").checkpoints / f"step_00000{step}"
    with signalled_at(module, function, call):
        assert run.here() == 143
    assert newest(last.parent) == last
    said = capfd.readouterr().err
    assert "\nSIGTERM: stopping after this step" in said
    assert f"saved {last}; resume with: python -m minrl train --resume {run.folder}" in " ".join(said.split())
    assert not (run.folder / "summary.json").exists()
    # An evaluation that has not begun is left to the resumed run; one that has is made.
    assert [row[0] for row in load_state(last).held_out] == list(range(0, step + ("last" in moment), 2))
    assert run.here("--resume", run.folder) == 0
    assert ending(run) == whole
    for line in run.metrics:  # also where a step's seconds were spent in two processes
        phases = [value for tag, value in line.items() if tag.startswith("time/") and tag != "time/step_s"]
        assert sum(phases) == pytest.approx(line["time/step_s"], rel=0.01)


@pytest.mark.slow
def test_an_evaluation_that_is_missing_can_be_stopped_again_and_is_made_once(start, whole):
    run = start("stopped")
    with signalled_at(trainer, "update_policy", 2):
        assert run.here() == 143
    with signalled_at(Session, "_open", 1, signal.SIGINT):
        assert run.resume() == 130
    # The evaluation is made, its line is written, and the checkpoint is given its score.
    with before(UpdateDiagnostics, "of_next_step", 1, _stop), pytest.raises(KeyboardInterrupt):
        run.resume()
    assert run.resume() == 0
    assert ending(run) == whole
    assert run.steps() == sorted(run.steps()) and run.steps().count(2) > 2 and len(run.metrics) == 5


def _stop():
    raise KeyboardInterrupt


def test_a_second_signal_ends_the_wait_for_rewards(start, sevens):
    object.__setattr__(sevens, "cheap", False)
    object.__setattr__(sevens, "reward", jobs.sleeping)
    timers = [Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)) for seconds in (1.0, 1.5)]
    started = time.monotonic()

    def signal_soon():
        for timer in timers:
            timer.start()

    with before(sampling, "rollout", 1, signal_soon), pytest.raises(KeyboardInterrupt):
        start("stopped").here("--no-eval-first", "--reward-workers", "2", "--rollouts-every", "0")
    for timer in timers:
        timer.join()
    assert time.monotonic() - started < 60  # the rewards would take an hour
