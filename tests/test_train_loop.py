"""The whole loop on a CPU: with every algorithm the reward goes up, in seconds."""

import json
from dataclasses import dataclass

import pytest

import train
from minrl.algorithms import ALGORITHMS
from minrl.policy import save_policy
from minrl.tasks import TASK_DEFINITIONS, Dataset, Task, TaskDefinition
from minrl.types import Reward, UserError


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """None."""


@pytest.fixture
def loop(policy, sevens, tmp_path, monkeypatch):
    """Runs train.py's main on `sevens` with a tiny model; gives back the exit status and the run's folder."""
    monkeypatch.setitem(TASK_DEFINITIONS, "sevens", TaskDefinition(NoOptions, lambda options, path: sevens))
    save_policy(policy, tmp_path / "model")
    flags = (
        f"--task sevens --model-id {tmp_path}/model --runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/ckpt "
        "--prompts-per-step 8 --group-size 8 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0 "
        "--eval-examples 8 --eval-samples 4 --save-every 0 --rollouts-every 0 --threads 1 --device cpu --quiet "
    ).split()

    def run(*more):
        status = train.main([*flags, *more])
        return status, next((tmp_path / "runs").glob("*"), None)

    return run


def test_data_for_evaluation_only_is_refused_before_a_model_is_loaded(sevens, monkeypatch, tmp_path):
    only = Task(Dataset([], sevens.dataset.held_out), sevens.reward, cheap=True)
    monkeypatch.setitem(TASK_DEFINITIONS, "sevens", TaskDefinition(NoOptions, lambda options, path: only))
    with pytest.raises(UserError, match=r"'sevens' has \d+ held-out examples and none to train on"):
        train.main(["--task", "sevens", "--model-id", str(tmp_path / "none"), "--runs-dir", str(tmp_path / "runs")])


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_reward_goes_up(loop, algorithm):
    status, run = loop("--algorithm", algorithm, "--steps", "40")
    assert status == 0
    rewards = [line["reward/mean"] for line in metrics(run) if "reward/mean" in line]
    # One word of about sixty is a 7: chance is below 0.05.
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.5, rewards
    found = json.loads((run / "summary.json").read_text())
    assert found["eval_after"]["reward"] > found["eval_before"]["reward"] + 0.4
    assert found["algorithm"] == algorithm
    # The figures before and after are the ends of the curve.
    curve = {line["step"]: line["eval/sevens/pass@1"] for line in metrics(run) if "eval/sevens/pass@1" in line}
    assert curve == {0: found["eval_before"]["pass@1"], 40: found["eval_after"]["pass@1"]}


def test_several_updates_per_step_learn_too(loop):
    _, run = loop("--steps", "15", "--passes-per-step", "2", "--minibatches-per-pass", "2")
    rewards = [line["reward/mean"] for line in metrics(run) if "reward/mean" in line]
    assert rewards[-1] > rewards[0] + 0.3
    # A minibatch whose groups teach nothing takes no step.
    assert max(line["policy/optimizer_steps"] for line in metrics(run)[1:]) == 4


def test_the_engine_samples_from_the_policy_as_it_is(loop):
    _, run = loop("--steps", "3")
    for line in metrics(run)[1:]:
        assert line["engine/logprob_gap_max"] < 1e-4


def test_equal_rewards_teach_nothing_and_are_counted(loop, sevens, monkeypatch):
    object.__setattr__(sevens, "reward", lambda text, example: Reward(0.5))
    _, run = loop("--steps", "2")
    for line in metrics(run)[1:]:
        assert line["reward/zero_spread_group_frac"] == 1.0
        assert line["policy/optimizer_steps"] == 0.0
        assert line["policy/grad_norm"] == 0.0


def test_a_run_whose_rewards_fail_stops_and_says_so(loop, sevens):
    object.__setattr__(sevens, "reward", failing)
    with pytest.raises(
        UserError, match=r"100% of the rollouts of step 1 could not be rewarded.*mend the task's reward"
    ):
        loop("--steps", "2")


def test_a_run_whose_episodes_never_begin_stops_and_says_so(loop, sevens):
    def never(example, rng):
        raise RuntimeError("no")
        yield

    object.__setattr__(sevens, "episode", never)
    with pytest.raises(UserError, match="no episode of step 1 came to its first turn"):
        loop("--steps", "2", "--no-eval-first")


def test_a_few_unscorable_rollouts_are_counted_and_do_not_stop_the_run(loop, sevens):
    object.__setattr__(sevens, "reward", sometimes_failing)
    status, run = loop("--steps", "2")
    assert status == 0
    assert all(0 < line["reward/unscorable_frac"] < 0.5 for line in metrics(run)[1:])


def test_preflight_only_trains_nothing_and_leaves_no_run(loop):
    assert loop("--preflight-only") == (0, None)


def test_a_task_without_demonstrations_needs_a_model(loop):
    with pytest.raises(UserError, match=r"cannot play 'sevens': .* name a model with --model-id"):
        loop("--model-id", "")


def failing(completion, example):
    raise RuntimeError("no")


def sometimes_failing(completion, example):
    if "1" in completion.split()[:1] or len(completion) % 7 == 0:
        raise RuntimeError("no")
    return Reward(float(len(completion) % 2))
