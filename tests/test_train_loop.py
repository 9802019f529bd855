"""The whole loop on a CPU: with every algorithm the reward goes up, in seconds. And `minrl.train` as a library."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from loguru import logger

import minrl
from minrl import trainer
from minrl.config import TrainerConfig
from minrl.dataflow import Reward, UserError
from minrl.engines.torch_engine import TorchEngine
from minrl.run.checkpoint import hash_files
from minrl.run.folder import RunFolder
from minrl.tasks import Dataset
from tests.conftest import SMALL_RUN
from tests.runs import Run
from tests.say_sevens import count_sevens


@pytest.fixture
def loop(sevens_model, tmp_path, monkeypatch):
    """Runs train.py's main on `sevens` with a tiny model, in the current folder; gives back the run."""
    monkeypatch.chdir(tmp_path)
    flags = "--prompts-per-step 8 --group-size 8 --eval-examples 8 --eval-samples 4 --save-every 0 --rollouts-every 0"
    run = Run(tmp_path, [*SMALL_RUN, *flags.split()])

    def start(*more):
        assert run.here(*more) == 0
        return run

    return start


LEARNS = ["grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gspo", "reinforce_pp"))]
"""One for each kind of ratio, and one that compares rewards over the batch; tests/test_update.py has every gradient."""


@pytest.mark.learns
@pytest.mark.parametrize("algorithm", LEARNS)
def test_the_reward_goes_up(loop, algorithm):
    run = loop("--algorithm", algorithm, "--steps", "10", "--learning-rate", "3e-2")
    rewards = [line["reward/mean"] for line in run.metrics if "reward/mean" in line]
    # One word of about sixty is a 7: chance is below 0.05.
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.4, rewards
    found = run.summary
    assert found["eval_after"]["reward"] > found["eval_before"]["reward"] + 0.25
    # The figures before and after are the ends of the curve.
    curve = {line["step"]: line["eval/sevens/pass@1"] for line in run.metrics if "eval/sevens/pass@1" in line}
    assert curve == {0: found["eval_before"]["pass@1"], 10: found["eval_after"]["pass@1"]}


def test_gradients_that_are_not_finite_are_skipped_and_stop_the_run_also_after_a_resume(loop, sevens, capsys):
    # Of rewards just below the largest float32 the gradient's squares overflow.
    object.__setattr__(sevens, "reward", lambda text, example: Reward(3e38, maximum=3e38))
    flags = "--algorithm reinforce_no_baseline --steps 4 --no-eval-first --eval-examples 1"
    run = loop(*flags.split(), "--prompts-per-step", "2", "--group-size", "2")
    steps = [(line["policy/skipped_steps"], line["policy/optimizer_steps"]) for line in run.metrics]
    assert steps == [(1, 0)] * 4
    last = run.checkpoints / "step_000004"
    assert hash_files(run.place / "model")["model.safetensors"] == hash_files(last)["model.safetensors"]
    with pytest.raises(UserError, match="gradient of 5 optimizer steps in a row was not finite"):
        run.resume("--steps", "9")
    said = " ".join(capsys.readouterr().err.split())
    assert f"stopped at step 5; last checkpoint {last}: python -m minrl train --resume runs/run" in said


def test_an_exact_engine_that_is_not_stops_the_run_before_anything_is_saved(loop, tmp_path, monkeypatch):
    generate = TorchEngine.generate

    def off(self, requests, sampling, **_):
        sampled = generate(self, requests, sampling)
        return [replace(one, logprobs=[value - 0.02 for value in one.logprobs]) for one in sampled]

    monkeypatch.setattr(TorchEngine, "generate", off)
    with pytest.raises(UserError, match=r"step 1 the embedded engine's log-probabilities differ .* by 0.02 nats"):
        loop("--steps", "2", "--no-eval-first", "--save-every", "1")
    assert not list(tmp_path.glob("checkpoints/*/step_*"))


def test_what_cannot_be_trained_is_refused_before_a_model_is_loaded(loop, sevens):
    with pytest.raises(UserError, match=r"cannot play 'sevens': .* name a model with --model-id"):
        loop("--model-id", "")  # there are no demonstrations
    object.__setattr__(sevens, "dataset", Dataset([], sevens.dataset.held_out))
    with pytest.raises(UserError, match=r"'sevens' has \d+ held-out examples and none to train on"):
        loop("--model-id", "none")


def test_a_task_object_is_trained_by_a_call(sevens_model, sevens, tmp_path, said):
    sizes = {"steps": 2, "prompts_per_step": 2, "group_size": 2, "max_tokens": 4, "eval_examples": 2, "eval_samples": 1}
    quick = {"preflight": False, "quiet": True, "threads": 1, "device": "cpu"}
    quick |= {"runs_dir": str(tmp_path / "runs"), "checkpoints_dir": str(tmp_path / "kept")}

    def reward(text, example):  # no worker can import it
        logger.info("the program's")
        return count_sevens(text, example)

    own = replace(sevens, name="own", reward=reward)
    summary = minrl.train(TrainerConfig(task=own, model_id=sevens_model, **sizes, **quick))
    folder, history = RunFolder(Path(summary.pop("folder"))), summary.pop("history")
    assert summary == folder.summary and folder.path == tmp_path / "runs" / summary["run"]
    assert history == folder.metrics and [line["step"] for line in history] == [0, 1, 2]
    log = (folder.path / "log.txt").read_text()
    assert "step 2/2" in log and "the program's" not in log
    logger.info("after the run")
    assert "the program's\n" in said and any("step 2/2" in one for one in said) and said[-1] == "after the run\n"
    assert (summary["task"], summary["steps"]) == ("own", 2)


def test_settings_that_were_not_given_follow_from_the_models_size_and_options_are_those_of_tasks(monkeypatch):
    monkeypatch.setattr("minrl.run.sizes.num_weights", lambda name, runs_dir: 135_000_000)
    opened = []
    monkeypatch.setattr(trainer, "_run", lambda run, started: opened.append(run) or (0, {}))
    given = TrainerConfig(task="hanoi", model_id="some/model", device="cpu", learning_rate=3e-4)  # of the base model
    minrl.train(given.with_settings(seed=1, group_size=2), options={"hanoi": {"max_disks": 3}})
    ((config, options),) = ((run.config, run.options) for run in opened)
    assert (config.seed, config.learning_rate, config.group_size, config.max_tokens) == (1, 3e-4, 2, 64)
    assert options["hanoi"].max_disks == 3
    with pytest.raises(UserError, match="unknown option 'max_disk' of hanoi: did you mean max_disks"):
        minrl.train(TrainerConfig(task="hanoi"), options={"hanoi": {"max_disk": 3}})


@pytest.mark.skipif("MINRL_CHECK_TYPES" in os.environ, reason="a wrong type is given on purpose")
def test_what_is_no_config_or_task_is_refused(sevens):
    with pytest.raises(UserError, match="'countdown' is a built-in task's name"):
        minrl.train(TrainerConfig(task=replace(sevens, name="countdown")))
    with pytest.raises(UserError, match=r"minrl\.train takes a TrainerConfig, got dict"):
        minrl.train({"steps": 2})
