"""The recipes of math_posttrain run: a tiny model, and a few rows in the form of the project's files."""

import pytest
from test_documents import ROOT

from minrl.__main__ import main
from minrl.tasks.math import TEXTS
from minrl.utils.files import read_jsonl
from tests.conftest import save_small_model
from tests.multimodal import byte_tokenizer
from tests.runs import Run, write_rows

QUICK = str.split("""--model-id model --max-tokens 8 --eval-every 0 --no-eval-first --eval-examples 2 --threads 1
    --device cpu --quiet --run-name run --data-path MATH --math.test-split validation""")


def problem(number):
    return f"What is ${number}+1$?"


@pytest.fixture
def at_hand(tmp_path, monkeypatch):
    """The working folder, with a model whose tokens are bytes and MATH's files as the project has them."""
    monkeypatch.chdir(tmp_path)
    save_small_model(tmp_path / "model", byte_tokenizer(), layers=1)
    (tmp_path / "MATH").mkdir()
    for name, numbers in (("train", range(12)), ("validation", range(12, 16))):
        told = {"subject": "Algebra", "level": 1}
        rows = ({"problem": problem(n), "answer": str(n + 1), "unique_id": f"{n}", **told} for n in numbers)
        write_rows(tmp_path / f"MATH/{name}.jsonl", *rows)
    return tmp_path


def config(name):
    return ["--config", str(ROOT / "configs" / f"{name}.yaml")]


def test_rows_are_filtered_and_fine_tuned_on(at_hand):
    right = [f"one more </think> <answer> {n + 1} </answer>" for n in range(12)]
    written = [*right, "</think> <answer> 0 </answer>", "</think>\n<answer> 1 </answer>"]
    rows = [
        {"prompt": TEXTS["r1_zero"].replace("{problem}", problem(n % 12)), "response": text, "ground_truth": f"{n + 1}"}
        for n, text in enumerate(written)
    ]
    write_rows(at_hand / "MATH/sft.jsonl", *rows)
    files = ["--data", "MATH/sft.jsonl", "--output", "MATH/sft_correct.jsonl"]
    assert main(["filter", "--task", "math", "--math.prompt", "r1_zero", *files]) == 0
    assert [row["response"] for row in read_jsonl(at_hand / "MATH/sft_correct.jsonl")] == right
    data = ["--data", "MATH/sft_correct.jsonl", "--steps", "1", "--held-out-share", "0"]
    assert main(["sft", *config("math_sft"), *QUICK, *data]) == 0
    (step,) = (line for line in Run(at_hand).metrics if "sft/tokens" in line)
    assert step["sft/tokens"] == sum(len(text) + 1 for text in right)  # bytes and the end token: no row is held out
    assert Run(at_hand).summary["train_rows"] == 12


def test_expert_iteration_samples_behind_the_published_prompt(at_hand):
    sizes = str.split("--rounds 1 --examples-per-round 2 --samples-per-example 2 --rollouts-every 1")
    assert main(["expert-iteration", *config("math_expert_iteration"), *QUICK, *sizes]) == 0
    samples = read_jsonl(at_hand / "runs/run/samples/round_001.jsonl")
    assert len(samples) == 4 and {row["reward"] for row in samples} == {0.0}
    texts = {TEXTS["r1_zero"].replace("{problem}", problem(n)) for n in range(12)}
    assert {row["prompt"] for row in samples} <= texts


def test_grpo_passes_four_times_over_two_minibatches(at_hand):
    sizes = str.split("--steps 1 --prompts-per-step 2 --group-size 2 --no-preflight --entropy-coef 0.01")
    # No completion is right, and rewards that are all equal teach nothing: the entropy makes the steps.
    assert main(["train", *config("math_grpo"), *QUICK, *sizes]) == 0
    (step,) = (line for line in Run(at_hand).metrics if "policy/optimizer_steps" in line)
    assert (step["reward/mean"], step["reward/part/format"]) == (0.0, 0.0)
    assert step["policy/optimizer_steps"] == 8


def test_the_baseline_is_one_sample_of_each_held_out_problem(at_hand):
    flags = str.split("""--models model --max-tokens 8 --threads 1 --device cpu --quiet --output baseline
        --data-path MATH --math.test-split validation""")
    assert main(["evaluate", *config("baseline_math"), *flags]) == 0
    rows = read_jsonl(at_hand / "baseline/completions.jsonl")
    assert len(rows) == 4  # with greedy completions there would be eight
