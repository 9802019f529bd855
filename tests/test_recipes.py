"""Recipes of published projects run: two steps with a tiny model and a few rows in the form of the project's data."""

import json

import pytest
import yaml
from test_connections import FORMS, puzzle
from test_documents import ROOT

from minrl.__main__ import main
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.tasks import load_task
from tests.conftest import CPU
from tests.parsed import parsed

TINY = str.split("""--model-id model --steps 2 --group-size 2 --max-tokens 8 --eval-every 0 --no-eval-first
    --eval-examples 2 --no-preflight --threads 1 --device cpu --quiet --run-name run""")


def connections():
    """Generated rows, then published ones."""
    rows = [FORMS["generated"](puzzle(n)) for n in range(30)] + [FORMS["archives"](puzzle(n)) for n in range(30, 50)]
    return {"connections_generated.jsonl": rows}, ["--connections.combinations", "20"]


RECIPES = {"minrl_connections": connections, "minrl_hanoi": lambda: ({}, [])}
"""The files of a recipe's data and the flags that make its run small."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_rows_of_its_form(name, tmp_path, monkeypatch, processes):
    monkeypatch.chdir(tmp_path)
    (files, flags), recipe = RECIPES[name](), ROOT / "configs" / f"{name}.yaml"
    for file, rows in files.items():
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, options = parsed(["--config", str(recipe), *flags])
    dataset = load_task(next(iter(options)), options).dataset
    messages = [message for example in (*dataset.train, *dataset.held_out) for message in example.prompt]
    tokenizer = word_tokenizer(sorted({word for message in messages for word in message["content"].split()}))
    save_policy(as_policy(small_qwen3(tokenizer, 32, 1, 2, 0), tokenizer, CPU, processes), tmp_path / "model")
    assert main(["train", "--config", str(recipe), *TINY, *flags]) == 0
    lines = map(json.loads, (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines())
    trained = [line for line in lines if "policy/learning_rate" in line]
    rate = yaml.safe_load(recipe.read_text())["learning_rate"]
    assert [line["policy/learning_rate"] for line in trained] == [rate] * 2
    # No completion of a model that was never trained is rewarded, so the temperature rises by a tenth.
    assert [line["rollout/temperature"] for line in trained] == pytest.approx([1.2, 1.32])
