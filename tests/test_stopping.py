"""A run that gets a signal ends its step, saves it, says how to resume, and ends like one that never stopped."""

import json
import os
import signal
import time
from threading import Timer

import pytest

from minrl import evaluation, sampling, trainer
from minrl.__main__ import main
from minrl.run.checkpoint import load_state, newest
from minrl.run.folder import RunFolder
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from tests import jobs
from tests.killing import before, signalled_at

FLAGS = """--prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 2
    --eval-examples 2 --eval-samples 1 --save-every 0 --rollouts-every 2 --threads 1 --device cpu --no-preflight"""
NAME = "sevens-grpo-seed0"


@pytest.fixture
def start(sevens_model, tmp_path):
    """Runs train.py's main on `sevens` with a tiny model in a folder of that name; the exit status."""

    def run(folder, *more):
        places = ["--runs-dir", str(tmp_path / folder / "runs"), "--checkpoints-dir", str(tmp_path / folder / "kept")]
        flags = ["--task", "sevens", "--model-id", sevens_model, "--steps", "4", *FLAGS.split()]
        return main(["train", *(flags if "--resume" not in more else []), *places, *more])

    return run


@pytest.fixture(scope="module")
def endings():
    return []


@pytest.fixture
def whole(start, tmp_path, endings):
    """What an uninterrupted run ends with, which is made once."""
    if not endings:
        assert start("whole") == 0
        endings.append(ending(tmp_path / "whole"))
    return endings[0]


def ending(folder):
    """The weights, the figures, each step's line in order but for seconds and memory, and the files of rollouts."""
    (written,) = (folder / "runs").glob("*/summary.json")
    run, summary = written.parent, json.loads(written.read_text())
    figures = {name: summary[name] for name in ("weights_sha256", "eval_before", "eval_after", "steps")}
    measured = ("time/", "speed/", "memory/", "system/")
    lines = [
        {tag: value for tag, value in line.items() if not tag.startswith(measured)} for line in RunFolder(run).metrics
    ]
    return figures, lines, sorted(path.name for path in (run / "rollouts").iterdir())


MOMENTS = {
    "in an update": (trainer, "update_policy", 1, 1),
    "in the update before an evaluation": (trainer, "update_policy", 2, 2),
    "in the last evaluation": (evaluation, "summarize", 3, 4),
}


@pytest.mark.parametrize(
    "moment", [name if "before" in name else pytest.param(name, marks=pytest.mark.slow) for name in MOMENTS]
)
def test_a_run_that_is_told_to_stop_saves_its_step_and_goes_on_to_the_same_end(start, tmp_path, whole, moment, capfd):
    module, function, call, step = MOMENTS[moment]
    with signalled_at(module, function, call):
        assert start("stopped") == 143
    run, last = tmp_path / "stopped/runs" / NAME, tmp_path / "stopped/kept" / NAME / f"step_00000{step}"
    assert newest(last.parent) == last
    said = capfd.readouterr().err
    assert "\nSIGTERM: stopping after this step" in said
    assert f"saved {last}; resume with: python -m minrl train --resume {run}" in " ".join(said.split())
    assert not (run / "summary.json").exists()
    # An evaluation that has not begun is left to the run that goes on; one that has is made.
    assert [row[0] for row in load_state(last).held_out] == list(range(0, step + ("last" in moment), 2))
    assert start("stopped", "--resume", str(run)) == 0
    assert ending(tmp_path / "stopped") == whole
    for line in RunFolder(run).metrics:  # also where a step's seconds were spent in two processes
        phases = [value for tag, value in line.items() if tag.startswith("time/") and tag != "time/step_s"]
        assert sum(phases) == pytest.approx(line["time/step_s"], rel=0.01)


def test_an_evaluation_that_is_missing_can_be_stopped_again_and_is_made_once(start, tmp_path, whole):
    with signalled_at(trainer, "update_policy", 2):
        assert start("stopped") == 143
    with signalled_at(Session, "_open", 1, signal.SIGINT):
        assert start("stopped", "--resume", "latest") == 130
    # The evaluation is made, its line is written, and the checkpoint is given its score.
    with before(UpdateDiagnostics, "of_next_step", 1, _stop), pytest.raises(KeyboardInterrupt):
        start("stopped", "--resume", "latest")
    assert start("stopped", "--resume", "latest") == 0
    assert ending(tmp_path / "stopped") == whole
    lines = (tmp_path / "stopped/runs" / NAME / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert (
        steps == sorted(steps) and steps.count(2) > 2 and len(RunFolder(tmp_path / "stopped/runs" / NAME).metrics) == 5
    )


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
        start("stopped", "--no-eval-first", "--reward-workers", "2", "--rollouts-every", "0")
    for timer in timers:
        timer.join()
    assert time.monotonic() - started < 60  # the rewards would take an hour
