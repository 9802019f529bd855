"""The best checkpoint is kept and named, and a run ends where its score is good or gains nothing.

The scores of a run are written in the test: a row for each step that is evaluated, from which the end follows.
"""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from minrl import trainer
from minrl.__main__ import main
from minrl.run import checkpoint
from minrl.run.checkpoint import best_in, has_moments, is_whole, load_state
from minrl.run.folder import step_of
from minrl.run.setup import Parts
from minrl.run.stopping import Score, best_of, ended_by
from minrl.tracking import session as logger
from tests.killing import killed_at, signalled_at
from tests.parsed import sized

FLAGS = """--task sevens --prompts-per-step 2 --group-size 4 --max-tokens 2 --learning-rate 5e-3 --warmup-steps 0
    --eval-every 1 --eval-examples 2 --eval-samples 1 --save-every 0 --keep-checkpoints 1 --rollouts-every 0 --threads 1
    --device cpu --no-preflight --run-name run"""
STEPS = 5


def score(step, low, high=None, reward=0.0):
    high = round(low + 0.1, 9) if high is None else high
    return Score(step, round((low + high) / 2, 9), low, high, reward)


@pytest.fixture
def start(sevens_model, tmp_path, monkeypatch):
    """Runs train.py's main on `sevens`, where the step's row of `lows` is the score; the exit status."""
    monkeypatch.chdir(tmp_path)
    usual = Parts.evaluate

    def run(lows, *more):
        def evaluate(parts):
            measured = usual(parts)["sevens"]
            found = score(parts.state.step, lows[parts.state.step])
            scored = replace(measured, pass_at_1=found.pass_at_1, ci95=(found.low, found.high), reward_mean=0.0)
            return {"sevens": scored}

        monkeypatch.setattr(Parts, "evaluate", evaluate)
        settings = [] if "--resume" in more else [*FLAGS.split(), "--model-id", "model", "--steps", str(STEPS)]
        return main(["train", *settings, *more])

    return run


KEPT, RUN = Path("checkpoints/run"), Path("runs/run")


def saved():
    return sorted(int(path.name[-1]) for path in KEPT.glob("step_*"))


def best():
    return step_of(best_in(KEPT))


def summary(run=RUN):
    return json.loads((run / "summary.json").read_text())


LOWS = [0.1, 0.3, 0.6, 0.4, 0.5, 0.45]


@pytest.fixture(scope="module")
def ended():
    """What `whole` found."""
    return {}


@pytest.fixture
def whole(start, ended):
    """The summary of a run that was never stopped, which is made once, and whose folders are then removed."""
    if not ended:
        assert start(LOWS) == 0
        ended.update(summary())
        for folder in (RUN, KEPT):
            shutil.rmtree(folder)
    return ended


def assert_whole_and_best_is_2(ended):
    for name in ("weights_sha256", "steps", "best", "eval_after", "ended_by"):
        assert summary().get(name) == ended.get(name)
    assert (saved(), best()) == ([2, STEPS], 2)
    assert is_whole(KEPT / "step_000002")


def test_the_best_is_saved_where_nothing_else_is_and_kept_beside_the_newest(start, capfd):
    assert start(LOWS) == 0
    assert saved() == [2, 5]  # --save-every 0 saves the last, and the best so far was saved at 1 and 2
    assert [has_moments(KEPT / f"step_00000{step}") for step in saved()] == [False, True]
    measured = {"pass@1": 0.65, "ci95": [0.6, 0.7], "reward": 0.0}
    assert summary()["best"] == {"checkpoint": "step_000002", "step": 2, **measured} and best() == 2
    assert summary()["final_checkpoint"].endswith("step_000005")
    assert load_state(KEPT / "step_000002").held_out == [list(score(step, LOWS[step])) for step in range(3)]
    said = " ".join(capfd.readouterr().err.split())
    assert "the best, 65.0% (60.0% to 70.0%): step_000002" in said
    assert f"serve {RUN}@best --chat" in said


MOMENTS = {
    "before the best is saved": (logger, "save_checkpoint", 2),
    "before the one before is removed": (checkpoint, "_remove", 1),
    "before it loses its moments, which its score alone keeps": (checkpoint, "_remove_moments", 1),
    "while it loses its moments": (checkpoint, "_write_state", 4),
}


@pytest.mark.parametrize(
    "moment", [name if "while" in name else pytest.param(name, marks=pytest.mark.slow) for name in MOMENTS]
)
def test_a_kill_leaves_a_whole_checkpoint_named_and_the_resumed_run_names_the_same(start, whole, moment):
    with killed_at(*MOMENTS[moment]):
        start(LOWS)
    named = best_in(KEPT)
    assert named is not None and is_whole(named)
    assert start(LOWS, "--resume", "run") == 0
    assert_whole_and_best_is_2(whole)


def test_a_run_ends_where_it_is_good_enough_and_goes_on_if_told_so(start, whole, capfd):
    for more in (["--stop-at", "0.6"], ["--resume", "run"]):  # the second time it has ended already
        capfd.readouterr()
        assert start(LOWS, *more) == 0
        assert (summary()["steps"], summary().get("ended_by"), best()) == (2, "stop_at", 2)
        said = " ".join(capfd.readouterr().err.split())
        assert "ended early" in said and f"--resume {RUN} --stop-at 0" in said
    assert start(LOWS, "--resume", "run", "--stop-at", "0") == 0
    assert_whole_and_best_is_2(whole)


@pytest.mark.slow
def test_the_count_of_evaluations_survives_a_stop_and_a_kill(start, whole):
    """A signal in the update of step 2 leaves its evaluation to the resumed run, which is killed after it."""
    with signalled_at(trainer, "update_policy", 2, signal.SIGTERM):
        assert start(LOWS, "--patience", "2") == 143
    with killed_at(trainer, "sample_groups", 1):
        start(LOWS, "--resume", "run")
    assert start(LOWS, "--resume", "run") == 0
    assert (summary()["steps"], summary()["ended_by"], best(), saved()) == (4, "patience", 2, [2, 4])
    held_out = load_state(KEPT / "step_000004").held_out
    assert held_out == [list(score(step, LOWS[step])) for step in range(5)]
    assert start(LOWS, "--resume", "run", "--patience", "0") == 0
    assert_whole_and_best_is_2(whole)


def test_what_is_best_and_ends_a_run():
    """By the lower bound, then by the reward; nothing is better than to solve everything."""
    scores = [score(0, 0.0, reward=0.2), score(1, 0.0, reward=0.5), score(2, 0.0, reward=0.4)]
    assert best_of(scores).step == 1
    scores = [score(step, low) for step, low in enumerate(LOWS)]
    for settings, end in (({"stop_at": 0.6}, "stop_at"), ({"stop_at": 0.61}, ""), ({"patience": 4}, ""), ({}, "")):
        assert ended_by(scores, sized(**settings)) == end
    # Of 7 examples that are all solved Wilson's interval is 0.646 to 1, the bootstrap's of 94 % 0.905 to 0.97.
    scores = [Score(2, 0.942, 0.905, 0.97, 0.97), Score(4, 1.0, 0.646, 1.0, 1.0), Score(6, 1.0, 0.646, 1.0, 1.0)]
    assert best_of(scores).step == 4 and ended_by(scores, sized(patience=1)) == "patience"
