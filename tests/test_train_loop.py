"""The whole loop on a CPU: with every algorithm the reward goes up, in seconds. And `minrl.train` as a library."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loguru import logger
from safetensors.torch import load_file

import minrl
from minrl import trainer
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import Example, Reward, UserError
from minrl.engines.torch_engine import TorchEngine
from minrl.tasks import Dataset, Task
from tests.say_sevens import count_sevens


@pytest.fixture
def loop(sevens_model, tmp_path):
    """Runs train.py's main on `sevens` with a tiny model; gives back the exit status and the run's folder."""
    flags = (
        f"--task sevens --model-id {tmp_path}/model --runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/ckpt "
        "--prompts-per-step 8 --group-size 8 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0 "
        "--eval-examples 8 --eval-samples 4 --save-every 0 --rollouts-every 0 --threads 1 --device cpu --quiet "
    ).split()

    def run(*more):
        status = main(["train", *flags, *more])
        return status, next((tmp_path / "runs").glob("*"), None)

    return run


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def resume(run, *more):
    return main(["train", "--resume", str(run), "--quiet", *more])


QUICK, LEARNS = ("grpo",), ("grpo", "gspo", "reinforce_pp")
"""One for each kind of ratio, and one that compares rewards over the batch; tests/test_update.py has every gradient."""


@pytest.mark.learns
@pytest.mark.parametrize(
    "algorithm", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LEARNS]
)
def test_the_reward_goes_up(loop, algorithm):
    status, run = loop("--algorithm", algorithm, "--steps", "10", "--learning-rate", "3e-2", "--no-preflight")
    assert status == 0
    rewards = [line["reward/mean"] for line in metrics(run) if "reward/mean" in line]
    # One word of about sixty is a 7: chance is below 0.05.
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.4, rewards
    found = summary_of(run)
    assert found["eval_after"]["reward"] > found["eval_before"]["reward"] + 0.25
    assert found["algorithm"] == algorithm
    # The figures before and after are the ends of the curve.
    curve = {line["step"]: line["eval/sevens/pass@1"] for line in metrics(run) if "eval/sevens/pass@1" in line}
    assert curve == {0: found["eval_before"]["pass@1"], 10: found["eval_after"]["pass@1"]}


def test_gradients_that_are_not_finite_are_skipped_and_stop_the_run_also_after_a_resume(loop, sevens, capsys):
    # Of rewards just below the largest float32 the gradient's squares overflow.
    object.__setattr__(sevens, "reward", lambda text, example: Reward(3e38, maximum=3e38))
    flags = "--algorithm reinforce_no_baseline --steps 4 --no-preflight --no-eval-first --eval-samples 1"
    status, run = loop(*flags.split())
    assert status == 0
    steps = [(line["policy/skipped_steps"], line["policy/optimizer_steps"]) for line in metrics(run)]
    assert steps == [(1, 0)] * 4
    last = run.parent.parent / "ckpt" / run.name / "step_000004"
    weights, saved = (load_file(path / "model.safetensors") for path in (run.parent.parent / "model", last))
    assert all(torch.equal(weights[name], saved[name]) for name in weights)
    with pytest.raises(UserError, match="gradient of 5 optimizer steps in a row was not finite"):
        resume(run, "--steps", "9")
    said = " ".join(capsys.readouterr().err.split())
    assert f"stopped at step 5; last checkpoint {last}: python -m minrl train --resume {run}" in said


def test_an_exact_engine_that_is_not_stops_the_run_before_anything_is_saved(loop, tmp_path, monkeypatch):
    generate = TorchEngine.generate

    def off(self, requests, sampling, **_):
        sampled = generate(self, requests, sampling)
        return [replace(one, logprobs=[value - 0.02 for value in one.logprobs]) for one in sampled]

    monkeypatch.setattr(TorchEngine, "generate", off)
    with pytest.raises(UserError, match=r"step 1 the embedded engine's log-probabilities differ .* by 0.02 nats"):
        loop("--steps", "2", "--no-eval-first", "--save-every", "1")
    assert not list((tmp_path / "ckpt").glob("*/step_*"))


def test_what_cannot_be_trained_is_refused_before_a_model_is_loaded(loop, sevens):
    with pytest.raises(UserError, match=r"cannot play 'sevens': .* name a model with --model-id"):
        loop("--model-id", "")  # there are no demonstrations
    object.__setattr__(sevens, "dataset", Dataset([], sevens.dataset.held_out))
    with pytest.raises(UserError, match=r"'sevens' has \d+ held-out examples and none to train on"):
        loop("--model-id", "none")


def test_a_task_object_is_trained_by_a_call(sevens_model, sevens, tmp_path, said):
    sizes = {"steps": 2, "prompts_per_step": 4, "group_size": 4, "max_tokens": 4, "eval_examples": 4, "eval_samples": 1}
    quick = {"preflight": False, "quiet": True, "threads": 1, "device": "cpu", "model_id": sevens_model}
    folders = {"runs_dir": str(tmp_path / "runs"), "checkpoints_dir": str(tmp_path / "kept")}

    def reward(text, example):  # no worker can import it
        logger.info("the program's")
        return count_sevens(text, example)

    own = replace(sevens, name="own", reward=reward)
    summary = minrl.train(TrainerConfig(task=own, **sizes, **quick, **folders))
    folder, history = Path(summary.pop("folder")), summary.pop("history")
    assert summary == summary_of(folder) and folder == tmp_path / "runs" / summary["run"]
    assert history == metrics(folder) and [line["step"] for line in history] == [0, 1, 2]
    log = (folder / "log.txt").read_text()
    assert "step 2/2" in log and "the program's" not in log
    logger.info("after the run")
    assert "the program's\n" in said and any("step 2/2" in one for one in said) and said[-1] == "after the run\n"
    assert (summary["task"], summary["steps"]) == ("own", 2)
    assert summary["eval_after"]["pass@1"] is not None
    # From its weights, in the same process, with another setting. The rollouts of the first and the last step are kept.
    again = minrl.train(TrainerConfig(task=own, **{**sizes, **quick, "model_id": summary["run"]}, **folders, seed=1))
    assert again["eval_before"]["pass@1_greedy"] == summary["eval_after"]["pass@1_greedy"]
    assert again["folder"] == f"{tmp_path}/runs/own-grpo-seed1"
    assert sorted(path.name[5:11] for path in Path(again["folder"]).glob("rollouts/*")) == ["000001", "000002"]


def test_settings_that_were_not_given_follow_from_the_models_size(monkeypatch):
    monkeypatch.setattr("minrl.run.sizes.num_weights", lambda name, runs_dir: 135_000_000)
    opened = []
    monkeypatch.setattr(trainer, "_run", lambda run, started: opened.append(run.config) or (0, {}))
    given = {"model_id": "some/model", "device": "cpu", "learning_rate": 3e-4}  # that of the base model
    minrl.train(TrainerConfig(**given))
    minrl.train(TrainerConfig(**given).with_settings(seed=1, group_size=2))
    found = [(one.seed, one.learning_rate, one.group_size, one.max_tokens) for one in opened]
    assert found == [(0, 3e-4, 8, 64), (1, 3e-4, 2, 64)]


def test_options_of_tasks_are_given_in_python(monkeypatch):
    opened = []
    monkeypatch.setattr(trainer, "_run", lambda run, started: opened.append(run.options) or (0, {}))
    minrl.train(TrainerConfig(task="hanoi"), options={"hanoi": {"max_disks": 3}})
    assert opened[0]["hanoi"].max_disks == 3
    with pytest.raises(UserError, match="unknown option 'max_disk' of hanoi: did you mean max_disks"):
        minrl.train(TrainerConfig(task="hanoi"), options={"hanoi": {"max_disk": 3}})


@pytest.mark.skipif("MINRL_CHECK_TYPES" in os.environ, reason="wrong types are given on purpose")
def test_what_is_no_config_or_task_is_refused(sevens):
    own = Task(Dataset([], [Example("1", "1", {})]), lambda text, example: 0.0, name="own")
    for settings, message in (
        ({"task": replace(sevens, name="countdown")}, "'countdown' is a built-in task's name"),
        ({"task": own, "data_path": "rows.jsonl"}, r"takes no data_path, got '.*rows\.jsonl'"),
        ({"task": 3}, "task must be text, got 3"),
    ):
        with pytest.raises(UserError, match=message):
            minrl.train(TrainerConfig(**settings))
    with pytest.raises(UserError, match=r"minrl\.train takes a TrainerConfig, got dict"):
        minrl.train({"steps": 2})
