"""The whole loop on a CPU: with every algorithm the reward goes up, in seconds."""

import json
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file

from minrl import sampling
from minrl.__main__ import main
from minrl.advantages import no_reward
from minrl.algorithms import ALGORITHMS
from minrl.engines.torch_engine import TorchEngine
from minrl.rollout import rollout
from minrl.run import setup
from minrl.run.checkpoint import save_policy
from minrl.tasks import TASK_DEFINITIONS, Dataset, Task, TaskDefinition
from minrl.types import Example, Reward, Turn, UserError


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
        status = main(["train", *flags, *more])
        return status, next((tmp_path / "runs").glob("*"), None)

    return run


def test_data_for_evaluation_only_is_refused_before_a_model_is_loaded(sevens, monkeypatch, tmp_path):
    only = Task(Dataset([], sevens.dataset.held_out), sevens.reward, cheap=True)
    monkeypatch.setitem(TASK_DEFINITIONS, "sevens", TaskDefinition(NoOptions, lambda options, path: only))
    with pytest.raises(UserError, match=r"'sevens' has \d+ held-out examples and none to train on"):
        main(["train", "--task", "sevens", "--model-id", str(tmp_path / "none"), "--runs-dir", str(tmp_path / "runs")])


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


QUICK = {"grpo", "gspo", "rloo", "reinforce_pp"}
"""One algorithm for each way to weigh tokens or to compare rewards. The others learn in the slow set."""
PAID = [name for name, row in ALGORITHMS.items() if row.advantage is not no_reward]
"""The others learn in tests/test_teacher.py."""


@pytest.mark.learns
@pytest.mark.parametrize(
    "algorithm", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PAID]
)
def test_the_reward_goes_up(loop, algorithm):
    small = ["--steps", "10", "--learning-rate", "3e-2", "--no-preflight"]
    status, run = loop("--algorithm", algorithm, *small)
    assert status == 0
    rewards = [line["reward/mean"] for line in metrics(run) if "reward/mean" in line]
    # One word of about sixty is a 7: chance is below 0.05.
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > 0.4, rewards
    found = json.loads((run / "summary.json").read_text())
    assert found["eval_after"]["reward"] > found["eval_before"]["reward"] + 0.25
    assert found["algorithm"] == algorithm
    # The figures before and after are the ends of the curve.
    curve = {line["step"]: line["eval/sevens/pass@1"] for line in metrics(run) if "eval/sevens/pass@1" in line}
    assert curve == {0: found["eval_before"]["pass@1"], 10: found["eval_after"]["pass@1"]}


@pytest.mark.slow
@pytest.mark.learns
def test_several_updates_per_step_learn_too(loop):
    _, run = loop("--steps", "8", "--learning-rate", "1e-2", "--passes-per-step", "2", "--minibatches-per-pass", "2")
    rewards = [line["reward/mean"] for line in metrics(run) if "reward/mean" in line]
    assert rewards[-1] > rewards[0] + 0.2
    # A minibatch whose groups teach nothing takes no step.
    assert max(line["policy/optimizer_steps"] for line in metrics(run)[1:]) == 4


def test_with_checkpoints_in_bfloat16_a_resumed_run_ends_as_one_that_was_not_stopped(loop, tmp_path):
    flags = ["--schedule", "constant", "--no-preflight", "--no-eval-first", "--run-name"]
    loop(*flags, "whole", "--steps", "4")
    loop(*flags, "halves", "--steps", "2", "--save-dtype", "bfloat16")
    saved = load_file(tmp_path / "ckpt" / "halves" / "step_000002" / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.bfloat16}
    assert main(["train", "--resume", str(tmp_path / "runs" / "halves"), "--steps", "4", "--quiet"]) == 0
    ends = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("whole", "halves")]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


def test_an_algorithm_of_a_file_is_that_of_the_resumed_run_too(loop, tmp_path):
    source = "from minrl.algorithms import ALGORITHMS\nmine = ALGORITHMS['dr_grpo']\n"
    (tmp_path / "own_row.py").write_text(source)
    flags = ["--schedule", "constant", "--no-preflight", "--no-eval-first", "--run-name"]
    loop("--algorithm", f"{tmp_path}/own_row.py:mine", *flags, "own", "--steps", "1")
    assert main(["train", "--resume", str(tmp_path / "runs" / "own"), "--steps", "2", "--quiet"]) == 0
    loop("--algorithm", "dr_grpo", *flags, "whole", "--steps", "2")
    ends = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("own", "whole")]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert ends[0]["algorithm"] == f"{tmp_path}/own_row.py:mine"


def test_equal_rewards_teach_nothing_and_are_counted(loop, sevens, monkeypatch):
    object.__setattr__(sevens, "reward", lambda text, example: Reward(0.5))
    _, run = loop("--steps", "2")
    for line in metrics(run)[1:]:
        assert line["reward/zero_spread_group_frac"] == 1.0
        assert line["policy/optimizer_steps"] == 0.0
        assert line["policy/grad_norm"] == 0.0


def test_gradients_that_are_not_finite_are_skipped_and_stop_the_run_also_after_a_resume(loop, sevens, capsys):
    # Of rewards just below the largest float32 the gradient's squares overflow.
    object.__setattr__(sevens, "reward", lambda text, example: Reward(3e38, maximum=3e38))
    status, run = loop("--algorithm", "reinforce_no_baseline", "--max-skipped-steps", "3", "--steps", "2")
    assert status == 0
    assert [line["policy/skipped_steps"] for line in metrics(run)[1:]] == [1, 1]
    assert [line["policy/optimizer_steps"] for line in metrics(run)[1:]] == [0, 0]
    last = run.parent.parent / "ckpt" / run.name / "step_000002"
    weights, saved = (load_file(path / "model.safetensors") for path in (run.parent.parent / "model", last))
    assert all(torch.equal(weights[name], saved[name]) for name in weights)
    with pytest.raises(UserError, match="gradient of 3 optimizer steps in a row was not finite"):
        main(["train", "--resume", str(run), "--steps", "9"])
    said = " ".join(capsys.readouterr().err.split())
    assert "optimizer step skipped: the norm of its gradient is" in said
    assert f"stopped at step 3; last checkpoint {last}: python -m minrl train --resume {run}" in said


def test_rollouts_of_an_earlier_evaluation_are_not_kept(loop, monkeypatch):
    alive, usual = [], setup.evaluate

    def watched(*args):
        assert not [one for one in alive if one() is not None]
        evaluation = usual(*args)
        alive[:] = map(weakref.ref, evaluation.rollouts)
        assert len(alive) == 8 * 4  # the sampled ones
        return evaluation

    monkeypatch.setattr(setup, "evaluate", watched)
    assert loop("--steps", "3", "--eval-every", "1")[0] == 0


@pytest.mark.parametrize("limit", ["0.5", "1"])
def test_episodes_that_never_begin_count_as_unscorable_ones(loop, sevens, limit):
    """All but one of the held-out examples, and all but one in training, fail before their first turn."""
    begins = {sevens.dataset.train[0].id, sevens.dataset.held_out[0].id}
    count = 8  # of the held-out examples, by --eval-examples

    def episode(example, rng):
        if example.id not in begins:
            raise RuntimeError("no board")
        yield Turn("player", example.prompt)
        return {"player": Reward(1.0)}

    object.__setattr__(sevens, "episode", episode)
    train_size, flags = len(sevens.dataset.train), ("--steps", "1", "--eval-samples", "2", "--no-preflight")
    flags += ("--prompts-per-step", str(train_size), "--max-unscorable-frac", limit)
    if limit == "0.5":
        with pytest.raises(
            UserError, match=f"{1 - 1 / train_size:.0%} of the rollouts of step 1 could not be rewarded"
        ):
            loop(*flags)
        return
    status, run = loop(*flags)
    assert status == 0
    before, after = metrics(run)
    assert after["reward/unscorable_frac"] == pytest.approx(1 - 1 / train_size)
    assert before["eval/sevens/unscorable_frac"] == pytest.approx(1 - 1 / count)
    assert before["eval/sevens/pass@1"] == pytest.approx(1 / count)
    found = json.loads((run / "summary.json").read_text())["eval_before"]
    assert (found["n"], found["pass@1"], found["unscorable_frac"]) == pytest.approx(
        (2 * count, 1 / count, 1 - 1 / count)
    )
    assert "could not be scored and count as not solved" in (run / "log.txt").read_text()


def test_a_run_whose_held_out_rewards_all_fail_has_no_score_and_says_so(loop, sevens):
    held_out = {example.id for example in sevens.dataset.held_out}

    def reward(text, example):
        return failing(text, example) if example.id in held_out else Reward(float(len(text) % 2))

    object.__setattr__(sevens, "reward", reward)
    status, run = loop("--steps", "1")
    assert status == 0
    assert "step 0: sevens no held-out pass@1; 100.0% of the" in (run / "log.txt").read_text()
    assert all("eval/sevens/pass@1" not in line for line in metrics(run))
    found = json.loads((run / "summary.json").read_text())
    assert found["eval_before"]["pass@1"] is None and found["eval_after"]["unscorable_frac"] == 1.0


@pytest.mark.parametrize("has_judge", [False, True])
def test_a_prompt_that_is_too_long_is_never_drawn(loop, sevens, monkeypatch, has_judge):
    long = [Example(f"long {n}", "1 " * 1024, {"number": n}) for n in range(8)]  # as long as the whole context
    data = sevens.dataset
    object.__setattr__(sevens, "dataset", Dataset([*data.train, *long[:4]], [*data.held_out, *long[4:]]))
    drawn = set()
    monkeypatch.setattr(sampling, "rollout", lambda *a: drawn.update(one.id for one in a[4]) or rollout(*a))
    if has_judge:  # with one, a single turn is an episode
        judged = nullcontext(lambda task: replace(task, episode=task.play))
        monkeypatch.setattr(setup, "judging", lambda *_: judged)
    status, run = loop("--steps", "3", "--eval-examples", "100")  # three times as many draws as there are examples
    assert status == 0
    assert drawn == {example.id for example in data.train}
    assert json.loads((run / "summary.json").read_text())["eval_after"]["examples"] == len(data.held_out)


def test_an_exact_engine_that_is_not_stops_the_run_before_anything_is_saved(loop, tmp_path, monkeypatch):
    generate = TorchEngine.generate

    def off(self, requests, sampling, **_):
        sampled = generate(self, requests, sampling)
        return [replace(one, logprobs=[value - 0.02 for value in one.logprobs]) for one in sampled]

    monkeypatch.setattr(TorchEngine, "generate", off)
    with pytest.raises(UserError, match=r"step 1 the embedded engine's log-probabilities differ .* by 0.02 nats"):
        loop("--steps", "2", "--no-eval-first", "--save-every", "1")
    assert not list((tmp_path / "ckpt").glob("*/step_*"))


def test_preflight_only_trains_nothing_and_leaves_no_run(loop):
    assert loop("--preflight-only") == (0, None)


def test_a_task_without_demonstrations_needs_a_model(loop):
    with pytest.raises(UserError, match=r"cannot play 'sevens': .* name a model with --model-id"):
        loop("--model-id", "")


def failing(completion, example):
    raise RuntimeError("no")
