"""The recipes of rust-rl and nanochat-rl run: two steps with a tiny model and a few rows in the form of their data."""

import json

import pytest
from test_documents import ROOT

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.tasks import load_task, rust_build
from tests.conftest import CPU
from tests.parsed import parsed

TINY = str.split("""--model-id model --steps 2 --group-size 2 --max-tokens 8 --eval-every 0 --no-eval-first
    --eval-examples 2 --threads 1 --device cpu --quiet --run-name run --rust.data-path rows.jsonl""")
RECIPES = {
    "rust_rl": [
        {"task_id": f"t{n}", "rust_prompt": f"Multiply by {n}.", "rust_test_list": [f"assert_eq!(multiply(1), {n});"]}
        for n in range(60)
    ],
    "nanochat_rl": [{"prompt": f"Write a function that adds {n}."} for n in range(30)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_rows_of_its_form(name, tmp_path, monkeypatch, processes):
    for library in ("tree_sitter_rust", *["peft"] * (name == "rust_rl")):
        pytest.importorskip(library)
    try:
        rust_build.toolchain()
    except UserError as refused:
        pytest.skip(str(refused))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RECIPES[name]))
    command = ["--config", str(ROOT / "configs" / f"{name}.yaml"), *TINY]
    _, options = parsed(command)
    dataset = load_task("rust", options).dataset
    said = [message["content"] for example in (*dataset.train, *dataset.held_out) for message in example.prompt]
    tokenizer = word_tokenizer(sorted({word for text in said for word in text.split()}))
    save_policy(as_policy(small_qwen3(tokenizer, 32, 1, 2, 0), tokenizer, CPU, processes), tmp_path / "model")
    assert main(["train", *command]) == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "policy/learning_rate" in line]
    # A model that was never trained writes no function, which counts as one error.
    assert [line["reward/mean"] for line in trained] == [options["rust"].num_errors_weight] * 2
    assert {f"reward/part/{part}" for part in options["rust"].of_parts()} <= trained[-1].keys()
