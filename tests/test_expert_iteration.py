"""Expert iteration: what is kept, that it learns, and what each round samples. test_resume.py resumes it."""

from dataclasses import replace

import pytest
import torch

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
from minrl.update import current_logprobs
from minrl.utils.files import read_jsonl
from tests.parsed import sized
from tests.runs import Run
from tests.say_sevens import SAY_SEVENS, TASK
from tests.test_held_out import LONG, SHORT


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


def parts_of(**made):
    """What a round reads of a run's parts."""
    parts = object.__new__(Parts)
    vars(parts).update(state=TrainState(step=1), **made)
    return parts


@pytest.mark.learns
def test_a_round_makes_what_it_trains_on_likelier(policy, make_rollout):
    # The same rows before and after. That the score rises takes more problems: it is shown on Countdown.
    prompt, said = policy.encode_prompt("numbers 1 2"), policy.tokenizer("7 + 5 <end>")["input_ids"]
    kept = [make_rollout(prompt, said, sample=sample) for sample in range(4)]
    config = sized(learning_rate=1e-2, warmup_steps=0)
    parts = parts_of(policy=policy, config=config)

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
    fine_tune_round(parts_of(policy=None, config=sized()), ExpertIterationConfig(batch_size=6), kept)
    assert sorted(one.ids for drawn in seen for one in drawn) == [one.ids for one in kept]
    assert [len(drawn) for drawn in seen] == [6, 6, 6, 2]


def test_no_example_or_completion_that_shows_a_held_out_problem_is_trained_on(sevens):
    shown = Example("again", f"Two problems. 1. {SHORT} 2. {LONG}", {})
    free, held_out = Example("free", SHORT, {}), Example("held", f"Solve: {LONG}", {"problem": LONG})
    task = replace(sevens, dataset=Dataset([free, shown], [held_out]))
    assert training_examples(task, held_out_problems(task)) == [free]
    with pytest.raises(UserError, match="all training examples show a held-out problem"):
        training_examples(replace(task, dataset=Dataset([shown], [held_out])), held_out_problems(task))


FLAGS = [*SAY_SEVENS, *str.split("""--threads 1 --device cpu --rounds 2 --examples-per-round 8 --sample-batch-size 4
    --samples-per-example 8 --batch-size 4 --max-per-example 0 --learning-rate 2e-3 --eval-examples 4 --eval-samples 2
    --quiet""")]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, sevens_base):
    made = Run(tmp_path_factory.mktemp("whole"), FLAGS, "expert-iteration").given_base_of(sevens_base)
    assert made.here() == 0
    return made


def test_each_round_trains_and_is_measured_and_its_samples_are_rows_for_the_filter(run, tmp_path):
    lines, source = run.metrics, run.folder / "samples" / "round_001.jsonl"
    assert [line["step"] for line in lines] == [0, 1, 2] and run.summary["algorithm"] == "expert_iteration"
    assert all(line["sft/optimizer_steps"] > 0 for line in lines[1:])
    rows = read_jsonl(source)
    assert len(rows) == 8 * 8 and len({row["id"] for row in rows}) == 8
    assert sum(row["kept"] for row in rows) == lines[1]["expert/kept"]
    solved = [row for row in rows if row["reward"] == 1.0]
    assert len(solved) / len(rows) == pytest.approx(lines[1]["reward/solved_frac"])
    flags = ["--task", TASK, "--data", str(source), "--output", str(tmp_path / "correct.jsonl")]
    assert main(["filter", *flags]) == 0
    assert read_jsonl(tmp_path / "correct.jsonl") == [row for row in solved if not row["truncated"]]


def test_a_round_without_a_correct_completion_trains_on_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(expert_iteration, "keep_correct", lambda *_: [])
    own = replace(run, place=tmp_path).given_base_of(run)
    assert own.here("--rounds", 1, "--eval-every", 0) == 0
    (line,) = own.metrics[1:]
    assert line["sft/optimizer_steps"] == 0 and line["expert/kept_frac"] == 0


def round_of(policy, task, settings):
    """The completions of a round of the task."""
    made = {"engine": TorchEngine(policy), "workers": Workers(1, deadline_s=120.0), "tasks": {settings.task: task}}
    parts = parts_of(policy=policy, config=settings.trainer, **made)
    return [(one.example_id, one.ids) for one in sample_round(parts, settings, task.dataset.train)[1].rollouts]


@pytest.mark.parametrize("asked", [4, 480])
def test_a_round_samples_each_example_once_whatever_the_batch(policy, sevens, asked):
    small = ExpertIterationConfig(
        examples_per_round=asked, sample_batch_size=3, samples_per_example=1, max_tokens=2, temperature=1.0
    )
    whole = round_of(policy, sevens, replace(small, sample_batch_size=480))
    available = len(sevens.dataset.train)
    assert len({name for name, _ in whole}) == len(whole) == min(asked, available) > 3 and available % 3
    assert round_of(policy, sevens, small) == whole
