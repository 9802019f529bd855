"""Recipes of published projects run: two steps with a tiny model and a few rows in the form of the project's data."""

import pytest
import yaml
from test_connections import FORMS, puzzle
from test_documents import ROOT

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.models.loading import word_tokenizer
from minrl.tasks import load_task, rust_build
from tests.conftest import save_small_model
from tests.parsed import parsed
from tests.runs import Run, write_rows

TINY = str.split("""--model-id model --steps 2 --group-size 2 --max-tokens 8 --eval-every 0 --no-eval-first
    --eval-examples 2 --no-preflight --threads 1 --device cpu --quiet --run-name run""")


def connections():
    """Generated rows, then published ones."""
    rows = [FORMS["generated"](puzzle(n)) for n in range(30)] + [FORMS["archives"](puzzle(n)) for n in range(30, 50)]
    return {"connections_generated.jsonl": rows}, ["--connections.combinations", "20"]


def rust(rows):
    """Rows of functions to write, where a Rust toolchain is there."""
    pytest.importorskip("tree_sitter_rust")
    try:
        rust_build.toolchain()
    except UserError as refused:
        pytest.skip(str(refused))
    return {"rows.jsonl": rows}, ["--rust.data-path", "rows.jsonl"]


def rust_rl():
    """Rows with tests."""
    pytest.importorskip("peft")
    tests = {n: [f"assert_eq!(multiply(1), {n});"] for n in range(60)}
    return rust([{"task_id": f"t{n}", "rust_prompt": f"Multiply by {n}.", "rust_test_list": tests[n]} for n in tests])


RECIPES = {
    "minrl_connections": connections,
    "minrl_hanoi": lambda: ({}, []),
    "rust_rl": rust_rl,
    "nanochat_rl": lambda: rust([{"prompt": f"Write a function that adds {n}."} for n in range(30)]),
}
"""The files of a recipe's data and the flags that make its run small."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("_rl")) for name in RECIPES]
)
def test_a_recipe_trains_on_rows_of_its_form(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (files, flags), recipe = RECIPES[name](), ROOT / "configs" / f"{name}.yaml"
    for file, rows in files.items():
        write_rows(tmp_path / file, *rows)
    _, options = parsed(["--config", str(recipe), *flags])
    task = next(iter(options))
    dataset = load_task(task, options).dataset
    messages = [message for example in (*dataset.train, *dataset.held_out) for message in example.prompt]
    tokenizer = word_tokenizer(sorted({word for message in messages for word in message["content"].split()}))
    save_small_model(tmp_path / "model", tokenizer, layers=1)
    assert main(["train", "--config", str(recipe), *TINY, *flags]) == 0
    trained = [line for line in Run(tmp_path).metrics if "policy/learning_rate" in line]
    if task == "rust":  # a model that was never trained writes no function, which counts as one error
        assert [line["reward/mean"] for line in trained] == [options["rust"].num_errors_weight] * 2
        assert {f"reward/part/{part}" for part in options["rust"].of_parts()} <= trained[-1].keys()
    else:
        rate = yaml.safe_load(recipe.read_text())["learning_rate"]
        assert [line["policy/learning_rate"] for line in trained] == [rate] * 2
        # No completion is rewarded, so the temperature rises by a tenth.
        assert [line["rollout/temperature"] for line in trained] == pytest.approx([1.2, 1.32])
