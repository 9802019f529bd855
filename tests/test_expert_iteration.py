"""Expert iteration: what is kept, that it learns, and what each round samples. test_resume.py resumes it."""

from dataclasses import replace

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example, Reward, TrainState, UserError
from minrl.run.setup import Parts
from minrl.sft.config import ExpertIterationConfig
from minrl.sft.expert_iteration import fine_tune_round, keep_correct, training_examples
from minrl.tasks.held_out import held_out_problems
from minrl.tasks.task import Dataset
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


@pytest.mark.learns
def test_a_round_makes_what_it_trains_on_likelier(policy, make_rollout):
    kept = [make_rollout([5, 6], [7, 8], sample=sample) for sample in range(4)]
    parts, config = object.__new__(Parts), sized(learning_rate=1e-2, warmup_steps=0)
    vars(parts).update(policy=policy, config=config, state=TrainState(step=1))  # what a round reads of them
    settings = ExpertIterationConfig(batch_size=3, epochs_per_round=6.5)  # 26 rows: eight batches of 3, and two
    first, second = (fine_tune_round(parts, settings, kept) for _ in range(2))
    assert (first["sft/optimizer_steps"], first["sft/epoch"]) == (9, 6.5)
    assert second["sft/loss"] < 0.6 * first["sft/loss"]
    assert fine_tune_round(parts, settings, []) == {"sft/optimizer_steps": 0.0}  # no completion was correct


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
