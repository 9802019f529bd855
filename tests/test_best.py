"""The best checkpoint is kept and named, a falling score is said, and a run ends where that is good or gains nothing.

The scores of a run are written in the test: a row for each step that is evaluated, from which the end follows.
"""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from minrl import evaluation, train
from minrl.__main__ import main
from minrl.config import EvaluationConfig, OptimizerConfig
from minrl.optimizer import make_optimizer
from minrl.run import checkpoint
from minrl.run.checkpoint import damage, load_state
from minrl.run.folder import resolve_model
from minrl.run.setup import Parts
from minrl.run.stopping import Score, best_of, ended_by, fall, why_ended
from minrl.tracking import session as logger
from minrl.types import TrainState, UserError
from tests.killing import killed_at, signalled_at

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
    return json.loads((KEPT / "best").read_text())


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
    assert (saved(), best()["step"]) == ([2, STEPS], 2)
    assert damage(KEPT / "step_000002") is None


def test_the_best_is_saved_where_nothing_else_is_and_kept_beside_the_newest(start, capfd):
    assert start(LOWS) == 0
    assert saved() == [2, 5]  # --save-every 0 saves the last, and the best so far was saved at 1 and 2
    assert best() == {"checkpoint": "step_000002", "step": 2, "pass@1": 0.65, "ci95": [0.6, 0.7], "reward": 0.0}
    assert summary()["best"] == best() and summary()["final_checkpoint"].endswith("step_000005")
    assert load_state(KEPT / "step_000002").held_out == [list(score(step, LOWS[step])) for step in range(3)]
    said = " ".join(capfd.readouterr().err.split())
    assert "the best, 65.0% (60.0% to 70.0%): step_000002" in said
    assert f"evaluate --checkpoint {RUN}@best --task sevens" in said
    fallen = [line for line in said.split("step ") if "has fallen" in line]
    assert [line[:1] for line in fallen] == ["3", "5"]  # step 4's interval ends at 0.6, where that of step 2 begins


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_better_one_replaces_it_and_no_limit_removes_it(policy, tmp_path, monkeypatch, keep):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "save_policy", lambda *given: None)  # what is in them does not
    monkeypatch.setattr(checkpoint, "save_optimizer", lambda *given: None)
    state, optimizer = TrainState(held_out=[list(score(0, 0.0))]), make_optimizer(policy, OptimizerConfig())
    for step, low in enumerate([0.5, 0.1, 0.2, 0.3, 0.6, 0.5], 1):
        state.step = step
        state.held_out.append(list(score(step, low)))
        checkpoint.save_checkpoint(KEPT, policy, optimizer, state, keep)
        assert best()["step"] == (1 if step < 5 else 5)
        assert saved() == sorted({best()["step"], *range(1, step + 1)[-keep:]})


MOMENTS = {
    "before the best is saved": (logger, "save_checkpoint", 2),
    "while it is written": (checkpoint, "save_state", 2),
    "before it is named": (checkpoint, "name_best", 2),
    "while it is named": (checkpoint, "write_json", 2),
    "before the one before is removed": (checkpoint, "_remove", 1),
    "after it": (train, "sample_groups", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_a_whole_checkpoint_named_and_the_resumed_run_names_the_same(start, whole, moment):
    with killed_at(*MOMENTS[moment]):
        start(LOWS)
    named = checkpoint.best_in(KEPT)
    assert named is not None and damage(named) is None
    assert start(LOWS, "--resume", "run") == 0
    assert_whole_and_best_is_2(whole)


ENDINGS = {
    ("--stop-at", "0.6"): (2, "stop_at"),
    ("--patience", "2"): (4, "patience"),
}


@pytest.mark.parametrize("flags", ENDINGS, ids="".join)
def test_a_run_ends_where_it_is_good_enough_or_gains_nothing_and_goes_on_if_told_so(start, whole, flags, capfd):
    step, by = ENDINGS[flags]
    for more in (flags, ["--resume", "run"]):  # the second time it has ended already
        capfd.readouterr()
        assert start(LOWS, *more) == 0
        assert (summary()["steps"], summary().get("ended_by"), best()["step"]) == (step, by, 2)
        said = " ".join(capfd.readouterr().err.split())
        assert "ended early" in said and f"--resume {RUN} {flags[0]} 0" in said
    assert start(LOWS, "--resume", "run", flags[0], "0") == 0
    assert_whole_and_best_is_2(whole)
    assert json.loads((RUN / "config.json").read_text())["config"][flags[0][2:].replace("-", "_")] == 0


def test_a_start_model_that_is_good_enough_is_not_trained(start):
    assert start([0.9], "--stop-at", "0.9") == 0
    assert (summary()["steps"], summary()["final_checkpoint"]) == (0, f"{Path.cwd()}/model")
    assert start([0.9], "--resume", "run") == 0 and not saved()
    assert start([0.9, *[0.5] * 5], "--resume", "run", "--stop-at", "0") == 0
    assert summary()["steps"] == STEPS


@pytest.mark.parametrize("stopped", [(evaluation, "summarize", 3), (logger, "fall", 3), (logger, "save_checkpoint", 2)])
def test_the_count_of_evaluations_survives_a_stop_and_a_kill_at_any_of_them(start, whole, stopped):
    """A signal in the evaluation of step 2 leaves it to the resumed run, which is killed when it has made it."""
    with signalled_at(*stopped, signal.SIGTERM):
        assert start(LOWS, "--patience", "2") == 143
    with killed_at(train, "sample_groups", 1):
        start(LOWS, "--resume", "run")
    assert start(LOWS, "--resume", "run") == 0
    assert (summary()["steps"], summary()["ended_by"], best()["step"], saved()) == (4, "patience", 2, [2, 4])
    held_out = load_state(KEPT / "step_000004").held_out
    assert held_out == [list(score(step, LOWS[step])) for step in range(5)]
    assert start(LOWS, "--resume", "run", "--patience", "0") == 0
    assert_whole_and_best_is_2(whole)


def test_the_best_is_named_wherever_a_model_is(start, tmp_path):
    assert start(LOWS) == 0
    names = ["run@best", "runs/run@best", "checkpoints/run@best", f"{tmp_path}/runs/run@best"]
    assert {os.path.abspath(resolve_model(name)) for name in names} == {f"{tmp_path}/{KEPT}/step_000002"}
    assert resolve_model("run").endswith("step_000005")
    with pytest.raises(UserError, match="some-org/model@best: there is no such run; name a run"):
        resolve_model("some-org/model@best")
    (KEPT / "step_000002/model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="step_000002 is damaged"):
        resolve_model("run@best")


def test_what_is_best_and_ends_a_run():
    """By the lower bound, then by the reward; nothing is better than to solve everything."""
    scores = [score(0, 0.0, reward=0.2), score(1, 0.0, reward=0.5), score(2, 0.0, reward=0.4)]
    assert best_of(scores).step == 1 and best_of([]) is None
    scores = [score(step, low) for step, low in enumerate(LOWS)]
    for settings, end in (({"stop_at": 0.6}, "stop_at"), ({"stop_at": 0.61}, ""), ({"patience": 4}, ""), ({}, "")):
        assert ended_by(scores, EvaluationConfig(**settings)) == end
    # Of 7 examples that are all solved Wilson's interval is 0.646 to 1, the bootstrap's of 94 % 0.905 to 0.97.
    scores = [Score(2, 0.942, 0.905, 0.97, 0.97), Score(4, 1.0, 0.646, 1.0, 1.0), Score(6, 1.0, 0.646, 1.0, 1.0)]
    assert best_of(scores).step == 4 and fall(scores) == ""
    assert ended_by(scores, EvaluationConfig(patience=1)) == "patience"
    assert "94.2% (90.5% to 97.0%) at step 2: its lower bound" in why_ended(scores, EvaluationConfig(stop_at=0.9))
    # An interval that touches the best one has not fallen.
    assert fall([score(0, 0.5), score(1, 0.4, 0.5)]) == fall([]) == ""
    assert "has fallen" in fall([score(0, 0.5), score(1, 0.4, 0.499)])
