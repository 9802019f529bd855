"""Expert iteration: what is kept, that it learns, and that a run that was stopped ends with the same weights."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from together import together

from minrl.__main__ import main
from minrl.batch import make_batch
from minrl.dataflow import Example, Reward, TrainState, UserError
from minrl.engines.torch_engine import TorchEngine
from minrl.rewards.workers import Workers
from minrl.run.setup import Parts
from minrl.sft import expert_iteration
from minrl.sft.config import ExpertIterationConfig
from minrl.sft.expert_iteration import fine_tune_round, keep_correct, sample_round, training_examples
from minrl.tasks.held_out import held_out_problems
from minrl.tasks.task import Dataset
from minrl.tracking import session as logger
from minrl.update import current_logprobs
from tests.forked import Forked
from tests.killing import killed_at
from tests.parsed import sized
from tests.say_sevens import SAY_SEVENS, TASK
from tests.test_held_out import LONG, SHORT

ROOT = Path(__file__).parent.parent
SETTINGS = """--threads 1 --device cpu --rounds 3 --examples-per-round 8 --sample-batch-size 4 --samples-per-example 8
    --batch-size 4 --max-per-example 0 --learning-rate 2e-3 --warmup-steps 2 --eval-examples 4
    --eval-samples 2"""
NAME = "sevens-expert-iteration"
FLAGS = [*SAY_SEVENS, *SETTINGS.split(), "--run-name", NAME]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main(["expert-iteration", *FLAGS, *folders(folder)]) == 0
    return folder, summary(folder)


@pytest.fixture
def with_base(uninterrupted):
    """Make a folder that has the base model at hand."""

    def make(folder):
        for base in (uninterrupted[0] / "checkpoints").glob("base-*"):
            shutil.copytree(base, folder / "checkpoints" / base.name)
        return folder

    return make


def folders(folder):
    return ["--runs-dir", str(folder / "runs"), "--checkpoints-dir", str(folder / "checkpoints")]


def summary(folder, name=NAME):
    return json.loads((folder / "runs" / name / "summary.json").read_text())


def lines_of(folder, name=NAME):
    path = folder / "runs" / name / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def samples_of(folder, number):
    path = folder / "runs" / NAME / "samples" / f"round_{number:03d}.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def test_the_correct_and_ended_are_kept_once_and_few_of_each_example(make_rollout):
    def sampled(example, ids, value=1.0, **changes):
        reward = None if value is None else Reward(value)
        return make_rollout([1, 2], ids, example_id=example, reward=reward, **changes)

    rollouts = [
        sampled("a", [5]),
        sampled("a", [6], value=0.9),  # not at the maximum
        sampled("a", [7], value=None),  # could not be scored
        sampled("a", [8], finish_reason="length"),  # cut off: it would teach never to end
        sampled("b", [5]),
        sampled("a", [5]),  # said before
        sampled("a", [9]),
        sampled("a", [10]),
        sampled("a", [11], role="other"),
    ]

    def kept(**settings):
        places = {id(one): place for place, one in enumerate(rollouts)}
        return [places[id(one)] for one in keep_correct(rollouts, ExpertIterationConfig(**settings))]

    assert kept(max_per_example=0) == [0, 4, 6, 7, 8]
    assert kept(max_per_example=2) == [0, 4, 6, 8]


@pytest.mark.learns
def test_a_round_makes_what_it_trains_on_likelier(policy, make_rollout):
    # The same rows before and after. That the score rises takes more problems: it is shown on Countdown.
    prompt, said = policy.encode_prompt("numbers 1 2"), policy.tokenizer("7 + 5 <end>")["input_ids"]
    kept = [make_rollout(prompt, said, sample=sample) for sample in range(4)]
    config = sized(learning_rate=1e-2, warmup_steps=0)
    parts = object.__new__(Parts)  # of which a round reads these
    vars(parts).update(policy=policy, config=config, state=TrainState(step=1))

    def loss():
        return -current_logprobs(policy, make_batch(kept, torch.zeros(4)), config, temperature=1.0).mean().item()

    before = loss()
    fine_tune_round(parts, ExpertIterationConfig(batch_size=2, epochs_per_round=4.0), kept)
    assert loss() < 0.6 * before, (before, loss())


def test_a_round_trains_on_each_kept_completion_in_batches_of_which_the_last_is_short(make_rollout, monkeypatch):
    kept, seen = [make_rollout([1], [n]) for n in range(5, 25)], []
    metrics = {"sft/loss": 1.0, "sft/entropy": 1.0, "policy/skipped_steps": 0.0}
    monkeypatch.setattr(expert_iteration, "make_optimizer", lambda *_: None)
    monkeypatch.setattr(expert_iteration, "sft_step", lambda p, o, drawn, *_: seen.append(drawn) or metrics)
    parts = object.__new__(Parts)
    vars(parts).update(policy=None, config=sized(), state=TrainState(step=1))
    fine_tune_round(parts, ExpertIterationConfig(batch_size=6), kept)
    assert sorted(one.ids for drawn in seen for one in drawn) == [one.ids for one in kept]
    assert [len(drawn) for drawn in seen] == [6, 6, 6, 2]


def test_no_example_or_completion_that_shows_a_held_out_problem_is_trained_on(sevens):
    shown = Example("again", f"Two problems. 1. {SHORT} 2. {LONG}", {})
    free, held_out = Example("free", SHORT, {}), Example("held", f"Solve: {LONG}", {"problem": LONG})
    task = replace(sevens, dataset=Dataset([free, shown], [held_out]))
    assert training_examples(task, held_out_problems(task)) == [free]
    with pytest.raises(UserError, match="all training examples show a held-out problem"):
        training_examples(replace(task, dataset=Dataset([shown], [held_out])), held_out_problems(task))


def test_each_round_trains_and_is_measured(uninterrupted):
    folder, found = uninterrupted
    lines = lines_of(folder)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["sft/optimizer_steps"] > 0 for line in lines[1:])  # else equal weights would say nothing
    assert found["algorithm"] == "expert_iteration"


def test_a_rounds_samples_are_rows_for_the_filter_and_for_fine_tuning(uninterrupted, tmp_path):
    folder, _ = uninterrupted
    line, rows = lines_of(folder)[1], samples_of(folder, 1)
    assert len(rows) == 8 * 8 and len({row["id"] for row in rows}) == 8
    assert sum(row["kept"] for row in rows) == line["expert/kept"]
    solved = [row for row in rows if row["reward"] == 1.0]
    assert len(solved) / len(rows) == pytest.approx(line["reward/solved_frac"])
    source = folder / "runs" / NAME / "samples" / "round_001.jsonl"
    flags = ["--task", TASK, "--data", str(source), "--output", str(tmp_path / "correct.jsonl")]
    assert main(["filter", *flags]) == 0
    correct = [json.loads(line) for line in (tmp_path / "correct.jsonl").read_text().split("\n")[:-1]]
    assert correct == [row for row in solved if not row["truncated"]]


def assert_as_never_stopped(folder, whole):
    found = summary(folder)
    for name in ("weights_sha256", "eval_before", "eval_after", "steps"):
        assert found[name] == whole[1][name], name
    assert [line["step"] for line in lines_of(folder)] == [0, 1, 2, 3]
    for number in (1, 2, 3):
        assert samples_of(folder, number) == samples_of(whole[0], number)


MOMENTS = [("sample_round", 1), ("keep_correct", 2), ("sft_step", 2), ("measure", 3), ("save_checkpoint", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "call"), MOMENTS)
def test_a_run_that_ends_anywhere_continues_to_the_same_weights(tmp_path, uninterrupted, with_base, moment, call):
    with_base(tmp_path)
    with killed_at(logger if moment == "save_checkpoint" else expert_iteration, moment, call):
        main(["expert-iteration", *FLAGS, *folders(tmp_path)])
    assert main(["expert-iteration", "--resume", "latest", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert_as_never_stopped(tmp_path, uninterrupted)


def test_a_round_without_a_correct_completion_trains_on_nothing(tmp_path, with_base, monkeypatch):
    monkeypatch.setattr(expert_iteration, "keep_correct", lambda *_: [])
    flags = [*FLAGS, *folders(with_base(tmp_path)), "--rounds", "1", "--eval-every", "0"]
    assert main(["expert-iteration", *flags]) == 0
    (line,) = lines_of(tmp_path)[1:]
    assert line["sft/optimizer_steps"] == 0 and line["expert/kept_frac"] == 0


def round_of(policy, task, settings):
    """The completions of a round of the task."""
    parts = object.__new__(Parts)  # of which a round's samples read these
    name = settings.task
    vars(parts).update(policy=policy, config=settings.trainer, state=TrainState(step=1), tasks={name: task})
    vars(parts).update(engine=TorchEngine(policy), workers=Workers(1, deadline_s=120.0))
    return [(one.example_id, one.ids) for one in sample_round(parts, settings, task.dataset.train)[1].rollouts]


@pytest.mark.parametrize("asked", [4, 480])
def test_a_round_samples_each_example_once_whatever_the_batch_and_the_processes(make_policy, sevens, asked):
    small = ExpertIterationConfig(
        examples_per_round=asked, sample_batch_size=3, samples_per_example=1, max_tokens=2, temperature=1.0
    )
    whole = round_of(make_policy(), sevens, replace(small, sample_batch_size=480))
    available = len(sevens.dataset.train)
    assert len({name for name, _ in whole}) == len(whole) == min(asked, available) > 3 and available % 3
    assert round_of(make_policy(), sevens, small) == whole
    for found in together(2, lambda m: replace(make_policy(), processes=m), lambda p: round_of(p, sevens, small)):
        assert found == whole


def start(folder, *flags):
    command = [sys.executable, "-m", "minrl", "expert-iteration", *flags, *folders(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return Forked(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_continues_to_the_same_weights(tmp_path, uninterrupted):
    flags = FLAGS
    for lines in (1, 2, 4):
        process = start(tmp_path, *flags)
        deadline = time.monotonic() + 300
        while len(lines_of(tmp_path)) < lines and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=300)
        flags = ["--resume", "latest"]
    assert start(tmp_path, *flags).wait(timeout=600) == 0
    assert_as_never_stopped(tmp_path, uninterrupted)
