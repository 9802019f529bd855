"""Each file of configs/ loads, and passes the preflight on a tiny model of its architecture."""

import json
import re
import shlex

import pytest
import torch
from chat_templates import tokenizer
from test_documents import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from minrl.__main__ import main
from minrl.algorithms import choose_algorithm
from minrl.models.templates import TEMPLATES
from tests.parsed import parsed

RECIPES = sorted((ROOT / "configs").glob("smollm2_*.yaml"))
"""Those that we measured ourselves. The others repeat what was published."""
FILES = sorted({*(ROOT / "configs").iterdir()} - {*RECIPES})

ROWS = {
    "countdown_3to4": lambda n: {"target": n + 101, "nums": [n + 1, 40, 60]},
    "math": lambda n: {
        "problem": f"What is ${n} + 1$?",
        "solution": rf"It is $\boxed{{{n + 1}}}$.",
        "level": "Level 1",
    },
    "gsm8k": lambda n: {"question": f"What is {n} and one?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"},
}
"""Rows with the columns of the datasets."""

OF_A_RANDOM_MODEL = re.compile(
    r"preflight: (all .* weights are trained|adapters of|no completion produced|every compl|\d+% of the compl|about )"
)
"""What the preflight says of any model that is tiny and random: its rate, its completions, its time."""


def config_of(file):
    return parsed(["--config", str(file)])


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_names_its_command_and_trains_the_task_of_its_name(file):
    config, _ = parsed(["--config", str(file), "--model-id", "PATH"])
    assert f"# Command: python train.py --config configs/{file.name} --model-id PATH\n" in file.read_text()
    assert config.rollout.task == file.stem.removeprefix("smollm2_") and choose_algorithm(config)


@pytest.fixture
def tiny(tmp_path):
    """A tiny random model of a shape's architecture, with a byte-level tokenizer and Qwen's special tokens."""

    def make(name):
        marks = tokenizer("bytes", TEMPLATES["chatml"], "<|im_start|> <|endoftext|>", eos="<|im_end|>")
        small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
        small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(marks)}
        torch.manual_seed(0)
        shown = {"tie_word_embeddings": True, "eos_token_id": marks.eos_token_id}
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("qwen2" if "Qwen2" in name else "qwen3", **small, **shown)
        )
        for part in (model, marks):
            part.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return make


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_names_its_command_and_that_it_was_not_run(file):
    assert f"# Command: python train.py --config configs/{file.name}\n" in file.read_text()
    assert "\n# We have not run it.\n" in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_loads_and_passes_the_preflight_on_a_tiny_model(file, tiny, tmp_path, monkeypatch, capsys):
    config, options = config_of(file)
    task = config.rollout.task
    assert choose_algorithm(config) and options.keys() == {task} and config.evaluation.eval_examples > 100
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(ROWS[task](n)) + "\n" for n in range(150)))
    flags = ["--model-id", tiny(config.model.model_id), "--data-path", "rows.jsonl"]
    flags += shlex.split("--device cpu --threads 1 --max-tokens 8 --group-size 2 --reward-workers 1 --preflight-only")
    assert main(["train", "--config", str(file), *flags]) == 0
    findings = re.findall(r"preflight: .*", capsys.readouterr().err)
    assert findings and [line for line in findings if not OF_A_RANDOM_MODEL.match(line)] == []
