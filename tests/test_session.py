"""One logger from a run's first line to its summary: steps, evaluations, checkpoints, signals, and how the run ends."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from minrl.algorithms import Advantages
from minrl.dataflow import LostEpisode, Reward, TrainState, UserError
from minrl.evaluate.statistics import Evaluation
from minrl.evaluation import result_line
from minrl.optimizer import make_optimizer
from minrl.rollout import Rollouts
from minrl.run.checkpoint import step_name
from minrl.run.folder import RunFolder
from minrl.run.run import Run
from minrl.run.setup import Parts
from minrl.tracking import session as module
from minrl.tracking import writers
from minrl.tracking.diagnostics import UpdateDiagnostics
from minrl.tracking.session import Session
from minrl.tracking.timers import timed
from minrl.update import Update
from minrl.utils.console import Screen
from minrl.utils.files import read_packed
from tests.parsed import sized


@pytest.fixture
def make_logger(policy, engine, workers, sevens, tmp_path, said, monkeypatch):
    """The logger of a run of `sevens`, which is called countdown here. Evaluations are given, the next one last."""
    monkeypatch.setattr(writers, "time", SimpleNamespace(time=lambda: 0.0))  # no board waits for another's second

    def make(state=None, resumed=False, evaluations=(), eval_first=False, **logging):
        state, left = state or TrainState(), list(evaluations)
        config = sized(steps=4, max_tokens=4, eval_every=2, eval_first=eval_first, **logging)
        folders = tmp_path / "runs" / "run", tmp_path / "kept" / "run"
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        more = {"checkpoint": folders[1] / step_name(state.step), "stored": {"minrl_run": "run"}} if resumed else {}
        run, optimizer = Run(*folders, config, {}, **more), make_optimizer(policy, config)
        monkeypatch.setattr(Parts, "evaluate", lambda parts: {"countdown": left.pop()})
        tasks, screen = {"countdown": sevens}, Screen(quiet=True)
        return Session(
            Parts(run, config, tasks, policy, engine, workers, optimizer, state, screen), time.perf_counter()
        )

    return make


def evaluated(value, **more):
    return Evaluation(value, (0.0, 1.0), 4, 2, value, value, 3.0, 0.0, **more)


def lines_of(logger):
    return RunFolder(logger.run.folder).metrics


def sampled(make_rollout, *values):
    """Rollouts of two tokens with these rewards, and a lost episode where nothing is given."""
    rollouts = [make_rollout([5], [6, 7], reward=None if v is None else Reward(v)) for v in values if v != "lost"]
    return Rollouts(rollouts, ["why"] * (None in values), [], [LostEpisode("example")] * values.count("lost"))


def updated(count, **metrics):
    """The advantages and the update of so many rollouts of two tokens."""
    curves = {"baseline/policy": 0.25, "reward/zero_spread_group_frac": 0.125}
    advantages = Advantages(torch.zeros(count, dtype=torch.float64), curves)
    return advantages, Update(metrics, torch.full((2 * count,), -1.0))


def test_a_step_is_a_line_of_everything_that_was_measured(make_logger, make_rollout, sevens):
    with make_logger() as logger:
        policy = logger.parts.policy
        steps = logger.steps()
        assert next(steps) == 1
        with timed("rollout"), timed("update"):
            policy.version, policy.skipped_steps = 7, 2
        metrics = {"policy/loss": 0.5, "update/computed_tokens": 9, "policy/my_own": torch.tensor(3)}
        logger.step(sampled(make_rollout, 1.0, 0.0, 0.5, "lost"), *updated(3, **metrics))
        next(steps)
        logger.add({"sft/loss": 0.1})
        logger.step()
    first, second = lines_of(logger)
    assert first["step"] == 1 and first["reward/mean"] == 0.5
    assert first["reward/unscorable_frac"] == 1 - 3 / 4  # the lost episode counts
    given = {"policy/loss": 0.5, "baseline/policy": 0.25, "policy/my_own": 3}  # a tag that no list has, and a tensor
    assert given.items() <= first.items()
    assert first["speed/tokens_per_s"] == pytest.approx(6 / first["time/step_s"])
    assert first["speed/update_tokens_per_s"] == pytest.approx(9 / first["time/update_s"])
    state = logger.state
    assert (state.step, state.sampled_tokens, state.policy_version, state.skipped_steps) == (2, 6, 7, 2)
    # Nothing of a step is left in the next.
    assert second["sft/loss"] == 0.1 and not [tag for tag in second if tag.startswith(("reward/", "policy/", "speed/"))]
    folder = RunFolder(logger.run.folder)
    assert {*folder.fingerprints[1]} == {"step", "ids", "rewards", "advantages"}
    assert folder.record["prompt"] == sevens.dataset.held_out[0].prompt  # what a chat begins with


def test_what_engine_and_workers_did_for_evaluations_and_diagnostics_is_not_the_steps(make_logger, make_rollout):
    logger = make_logger(evaluations=[evaluated(0.5)], rollouts_every=1)
    engine, workers, measure = logger.parts.engine, logger.parts.workers, logger._evaluate

    def work(found=None, computed=20, seconds=9.0):
        engine._facts.update(prompt_tokens=80, prompt_tokens_computed=computed)
        workers._seconds = seconds
        return found

    moved = SimpleNamespace(tracked=(), measure=lambda *_: work((torch.zeros(2), {})))
    logger._evaluate = lambda session: work(measure(session))
    logger._diagnostics = SimpleNamespace(of_next_step=lambda parts: work(moved))
    work()  # a preflight
    with logger:
        for step in logger.steps():
            with timed("rollout"):
                time.sleep(0.02)
            if step == 2:
                work(computed=40, seconds=0.01)
                logger.evaluate()
            logger.step(sampled(make_rollout, 1.0), *updated(1))
            if step == 2:
                break
    first, second = lines_of(logger)
    assert "engine/prompt_reuse_frac" not in first and second["engine/prompt_reuse_frac"] == 0.5
    assert "time/reward_s" not in first and second["time/reward_s"] == pytest.approx(0.01)
    assert second["time/rollout_s"] >= 0.01


def test_evaluations_are_written_shown_and_kept(make_logger, make_rollout):
    result = {"category": {"level": "1"}, **result_line("greedy", make_rollout([1], [2], reward=Reward(1.0), text="7"))}
    second = evaluated(0.5, failures=["a reward"], results=[result])
    logger = make_logger(evaluations=[second, evaluated(0.25)], eval_first=True, rollouts_every=1)
    logger._diagnostics, samples = UpdateDiagnostics, []
    with logger:
        assert (logger.run.folder / "eval_before.json").exists() and next(logger.steps()) == 1
        logger._files._boards["tensorboard"].samples = lambda step, tag, rows: samples.append((step, tag, len(rows)))
        logger.evaluate()
        logger.step(sampled(make_rollout, 1.0, 0.0), *updated(2))
        logger.state.step = 2
        logger.step(sampled(make_rollout, 1.0))  # expert iteration has no advantages
    shown = [("held_out/countdown", 1), ("train", 2), ("tracked", 4)]
    assert samples == [*((1, f"samples/{tag}", count) for tag, count in shown), (2, "samples/train", 1)]
    ((step, path),) = RunFolder(logger.run.folder).evaluations.items()
    assert (step, list(read_packed(path))) == (1, [{"step": 1, "task": "countdown", **result}])
    lines = lines_of(logger)
    assert [line["eval/countdown/pass@1"] for line in lines[:2]] == [0.25, 0.5] and lines[1]["time/eval_s"] > 0
    before = json.loads((logger.run.folder / "eval_before.json").read_text())
    assert before == {"countdown": evaluated(0.25).to_json()} and logger.evaluations == {"countdown": second}


SHOWING = {
    "samples": (module, "sample_rows", "samples lacks"),
    "a full disk": (writers, "write_packed", "rollouts lacks"),
    "metrics.csv": (writers, "write_csv", "metrics.csv lacks"),
}


@pytest.mark.parametrize(("where", "function", "expected"), SHOWING.values(), ids=SHOWING)
def test_what_only_shows_a_run_costs_one_warning_and_not_the_run(
    make_logger, make_rollout, said, monkeypatch, where, function, expected
):
    def fail(*given, **more):
        raise UserError("no room\nleft")

    monkeypatch.setattr(where, function, fail)
    with make_logger(rollouts_every=1) as logger:
        logger._diagnostics = UpdateDiagnostics
        for step in logger.steps():
            logger.step(sampled(make_rollout, 0.1 + 0.2, 0.3), *updated(2))  # equal but for rounding
            logger.save()
            if step == 2:
                break
    assert len(lines_of(logger)) == 2
    (warning,) = [one for one in said if "the run continues" in one]
    assert warning.startswith(expected) and warning.endswith("UserError: no room left\n")


def test_boards_get_the_line_of_a_stopped_step_once_when_it_has_its_evaluation(make_logger, monkeypatch):
    shown, sent = [], []
    tags = ("eval/countdown/pass@1", "sft/loss")
    monkeypatch.setattr(
        writers.TensorBoard, "scalars", lambda self, step, values: shown.append((step, *map(values.get, tags)))
    )
    monkeypatch.setattr(writers, "Board", lambda *given: sent.append([line["step"] for line in given[-1]]))
    with make_logger() as logger:
        for step in logger.steps():
            logger._signals._came = 15 * (step == 2)
            logger.add({"sft/loss": step / 8})
            if step == 2:
                logger.evaluate()
            logger.step()
        logger.save()
    assert shown == [(1, None, 0.125)] and lines_of(logger)[-1]["sft/loss"] == 0.25
    with make_logger(TrainState(step=2), resumed=True, evaluations=[evaluated(0.5)], logger="wandb"):
        assert shown[1:] == [(2, 0.5, 0.25)] and sent == [[1]]


def test_a_run_at_its_end_is_saved_evaluated_once_and_summed_up(make_logger, said):
    closed = []
    with make_logger(TrainState(step=4, seconds=50.0), evaluations=[evaluated(0.5)]) as logger:
        logger._files._boards["tensorboard"].close = lambda *given: closed.append(given)
        assert list(logger.steps()) == [] and logger.finish({"rounds": 3}) == 0
    assert closed == [(4, True)]  # the boards know that the run came to its end
    found = json.loads((logger.run.folder / "summary.json").read_text())
    assert (found["steps"], found["rounds"], found["eval_after"]["pass@1"]) == (4, 3, 0.5)
    last = logger.run.checkpoints / "step_000004"
    assert 50 < found["seconds"] < 110 and last.is_dir()
    assert "not measured before, 50.0% (0.0% to 100.0%) after" in said[-1]
    with make_logger(TrainState(step=4), evaluations=[evaluated(0.5)]) as again:  # what is done is not done again
        again._signals._came = 15  # after the last evaluation, it does not keep the run from its end
        again.save()
        again.save = lambda: pytest.fail("saved again")
        assert again.finish() == 0


@pytest.mark.parametrize("error", [UserError("fix it"), RuntimeError("bug")])
def test_a_run_that_ends_by_an_error_says_what_there_is_and_how_to_resume(error, make_logger, said):
    with pytest.raises(type(error)), make_logger(TrainState(step=3)) as logger:
        raise error
    assert said[-1] == "stopped at step 3; no checkpoint was saved yet\n"
    text = (logger.run.folder / "log.txt").read_text()
    assert f"{type(error).__name__}: {error}" in text and ("Traceback" in text) == isinstance(error, RuntimeError)
