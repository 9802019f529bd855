"""The best checkpoint is kept and named, and a run ends where its score is good or gains nothing.

The scores of a run are written in the test: a row for each step that is evaluated, from which the end follows.
"""

from dataclasses import replace

import pytest

from minrl import trainer
from minrl.dataflow import TrainState
from minrl.run import checkpoint
from minrl.run.checkpoint import best_in, has_moments, is_best, is_whole, load_state
from minrl.run.folder import step_of
from minrl.run.setup import Parts
from minrl.run.stopping import Score, best_of, ended_by
from minrl.tracking import session
from tests.conftest import SMALL_RUN
from tests.killing import killed_at, signalled_at
from tests.parsed import sized
from tests.runs import Run

FLAGS = [*SMALL_RUN, *str.split("""--prompts-per-step 2 --max-tokens 2 --eval-every 1 --save-every 0
    --keep-checkpoints 1 --rollouts-every 0 --no-quiet --steps 5""")]  # fmt: skip
LOWS = [0.1, 0.3, 0.6, 0.4, 0.5, 0.45]
"""The lower bound of the score before the first step and after each: step 2 has the best."""


def score(step, low, reward=0.0):
    return Score(step, round(low + 0.05, 9), low, round(low + 0.1, 9), reward)


@pytest.fixture
def run(sevens_model, tmp_path, monkeypatch):
    """A run of `sevens` with the scores of `LOWS`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    usual = Parts.evaluate

    def evaluate(parts):
        found = score(parts.state.step, LOWS[parts.state.step])
        scored = {"pass_at_1": found.pass_at_1, "ci95": (found.low, found.high), "reward_mean": 0.0}
        return {"sevens": replace(usual(parts)["sevens"], **scored)}

    monkeypatch.setattr(Parts, "evaluate", evaluate)
    return Run(tmp_path, FLAGS)


def saved(run):
    return [step_of(path) for path in sorted(run.checkpoints.glob("step_*"))]


def best(run):
    return step_of(best_in(run.checkpoints))


def test_the_best_is_saved_where_nothing_else_is_and_kept_beside_the_newest(run, capfd):
    assert run.here() == 0
    assert saved(run) == [2, 5]  # --save-every 0 saves the last, and the best so far was saved at 1 and 2
    assert [has_moments(run.checkpoints / f"step_00000{step}") for step in saved(run)] == [False, True]
    measured = {"pass@1": 0.65, "ci95": [0.6, 0.7], "reward": 0.0}
    assert run.summary["best"] == {"checkpoint": "step_000002", "step": 2, **measured} and best(run) == 2
    assert run.summary["final_checkpoint"].endswith("step_000005")
    assert load_state(run.checkpoints / "step_000002").held_out == [list(score(step, LOWS[step])) for step in range(3)]
    said = " ".join(capfd.readouterr().err.split())
    assert "the best, 65.0% (60.0% to 70.0%): step_000002" in said and "serve runs/run@best --chat" in said


@pytest.mark.parametrize(
    ("module", "moment", "call"),
    [
        pytest.param(session, "save_checkpoint", 2, marks=pytest.mark.slow, id="before the best is saved"),
        pytest.param(checkpoint, "_write_state", 4, id="while it loses its moments"),
    ],
)
def test_a_kill_leaves_a_whole_checkpoint_named_and_the_resumed_run_names_the_best(run, module, moment, call):
    with killed_at(module, moment, call):
        run.here()
    assert is_whole(best_in(run.checkpoints))
    assert run.resume() == 0
    assert (saved(run), best(run), run.summary["best"]["step"]) == ([2, 5], 2, 2)


def test_a_run_ends_where_it_is_good_enough_and_goes_on_if_told_so(run, capfd):
    assert run.here("--stop-at", "0.6") == run.resume() == 0  # the second time it has ended already
    assert (run.summary["steps"], run.summary["ended_by"], best(run)) == (2, "stop_at", 2)
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("ended early") == 2 and "--resume runs/run --stop-at 0" in said
    assert run.resume("--stop-at", "0") == 0
    assert (run.summary["steps"], run.summary.get("ended_by"), best(run)) == (5, None, 2)


@pytest.mark.slow
def test_the_count_of_evaluations_survives_a_stop_and_a_kill(run):
    """A signal in the update of step 2 leaves its evaluation to the resumed run, which is killed after it."""
    with signalled_at(trainer, "update_policy", 2):
        assert run.here("--patience", "2") == 143
    with killed_at(trainer, "sample_groups", 1):
        run.resume()
    assert run.resume() == 0
    assert (run.summary["steps"], run.summary["ended_by"], best(run), saved(run)) == (4, "patience", 2, [2, 4])
    held_out = load_state(run.checkpoints / "step_000004").held_out
    assert held_out == [list(score(step, LOWS[step])) for step in range(5)]


def test_what_is_best_and_ends_a_run():
    """By the lower bound, then by the reward; nothing is better than to solve everything."""
    scores = [score(0, 0.0, reward=0.2), score(1, 0.0, reward=0.5), score(2, 0.0, reward=0.4)]
    assert best_of(scores).step == 1
    scores = [score(step, low) for step, low in enumerate(LOWS)]
    ends = {("stop_at", 0.6): "stop_at", ("stop_at", 0.61): "", ("patience", 3): "patience", ("patience", 4): ""}
    for (setting, value), end in ends.items():
        assert ended_by(scores, sized(**{setting: value})) == end
    assert ended_by(scores, sized()) == ""
    # Of 7 examples that are all solved Wilson's interval is 0.646 to 1, the bootstrap's of 94 % 0.905 to 0.97.
    scores = [Score(2, 0.942, 0.905, 0.97, 0.97), Score(4, 1.0, 0.646, 1.0, 1.0), Score(6, 1.0, 0.646, 1.0, 1.0)]
    assert best_of(scores).step == 4 and ended_by(scores, sized(patience=1)) == "patience"


def test_a_score_whose_checkpoint_is_gone_is_not_in_the_way(tmp_path):
    state = TrainState(step=2, held_out=[list(score(1, 0.9)), list(score(2, 0.3))])
    assert is_best(tmp_path, state)
    (tmp_path / "step_000001").mkdir()
    assert not is_best(tmp_path, state)
