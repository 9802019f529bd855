"""Each file of configs/ loads, passes the preflight on a tiny model of its architecture, and says what it repeats."""

import json
import re
import shlex
from types import SimpleNamespace

import pytest
import torch
from chat_templates import tokenizer
from test_documents import ROOT, loaded
from transformers import AutoConfig, AutoModelForCausalLM

from minrl import train
from minrl.algorithms import choose_algorithm
from minrl.models.memory import Setup, needed, with_adapters
from minrl.models.templates import TEMPLATES
from minrl.run.preflight import rate_findings
from minrl.utils.cli import parse_trainer

HARDWARE = loaded(ROOT / "docs" / "hardware.py")
RECIPES = sorted((ROOT / "configs").glob("smollm2_*.yaml"))
"""Those that we measured ourselves. The others repeat what was published."""
FILES = sorted({*(ROOT / "configs").iterdir()} - {*RECIPES})
GIB = 2**30

SHAPES = {
    "Qwen/Qwen2.5-0.5B-Instruct": HARDWARE.Shape(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        num_hidden_layers=24,
        head_dim=64,
    ),
    "Qwen/Qwen2.5-3B": HARDWARE.Shape(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=11008,
        num_attention_heads=16,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        num_hidden_layers=36,
    ),
    "Qwen/Qwen3-0.6B-Base": HARDWARE.MODELS["Qwen/Qwen3-0.6B"],
}
SHAPES["Qwen/Qwen2.5-3B-Instruct"] = SHAPES["Qwen/Qwen2.5-3B"]

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


def head(file):
    """The comment on top, by its key words; lines that go on are indented."""
    text = re.split(r"\n(?=[a-z])", file.read_text())[0]
    whole = re.sub(r"\n#   ", " ", text)
    return dict(re.findall(r"^# (Command|Then|Published|Where|Needs|Differs): (.*)$", whole, re.MULTILINE))


def config_of(file):
    return parse_trainer(["--config", str(file)])


def test_there_is_a_config_for_each_of_the_six():
    assert {file.name for file in FILES} == {
        "tinyzero.yaml",
        "nano_aha_moment.yaml",
        "grpo_zero.yaml",
        "mini_r1.yaml",
        "math_qwen3_0.6b.yaml",
        "gsm8k_lora_qwen2.5_0.5b.yaml",
    }


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_names_its_command_and_trains_the_task_of_its_name(file):
    config, _ = parse_trainer(["--config", str(file), "--model-id", "PATH"])
    assert head(file)["Command"] == f"python train.py --config configs/{file.name} --model-id PATH"
    assert config.rollout.task == file.stem.removeprefix("smollm2_") and choose_algorithm(config)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_says_what_was_published_where_and_that_it_was_not_run(file):
    said = head(file)
    assert {"Command", "Published", "Where", "Needs", "Differs"} <= said.keys()
    assert "\n# We have not run it.\n" in file.read_text()
    assert said["Command"] == f"python train.py --config configs/{file.name}"
    assert "https://" in said["Where"] and re.search(r"\d %|no figure", said["Published"])
    page = (ROOT / "docs/published.md").read_text()
    assert (
        said.get("Then", "") in page
        and f"`{said['Command']}`" in page
        and all(figure in page for figure in re.findall(r"[\d.]+ %", said["Published"]))
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_names_the_card_that_it_fits_by_the_estimate(file):
    """As docs/hardware.py: an update beside vLLM's sleeping weights, and what is held beside vLLM's share. The
    preflight of the model itself has nothing to say of the rate either.
    """
    config, _ = config_of(file)
    shape = SHAPES[config.model.model_id]
    weights, adapted = shape.weights, config.lora.lora_rank > 0
    if adapted:
        weights = with_adapters(weights, shape, config.lora.lora_rank, bfloat16=True)
    setup = Setup(
        bfloat16=True,
        tokens=config.optimizer.micro_batch_tokens,
        reference=config.algorithm.kl_coef > 0 and not adapted,
        engine="vllm",
    )
    need = needed(weights, shape, setup)
    card, about = map(int, re.match(r"one card of (\d+) GB \(about (\d+) GiB", head(file)["Needs"]).groups())
    assert about == round(need.update / GIB)
    sampling = (need.held - need.engine) / GIB + config.engine.engine_memory_frac * card
    assert max(need.update / GIB, sampling) <= HARDWARE.USABLE * card
    assert list(rate_findings(SimpleNamespace(num_weights=shape.weights.total), config)) == []


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_those_of_the_models(name):
    """As published: 0.49, 3.09 and 0.6 billion weights."""
    billions = {"0.5B": 0.49, "3B": 3.09, "0.6B": 0.6}[name.split("-")[1].removesuffix("B") + "B"]
    assert SHAPES[name].weights.total / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.fixture
def tiny(tmp_path):
    """A tiny random model of a shape's architecture, with a byte-level tokenizer and Qwen's special tokens."""

    def make(shape):
        marks = tokenizer("bytes", TEMPLATES["chatml"], "<|im_start|> <|endoftext|>", eos="<|im_end|>")
        small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
        small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(marks)}
        torch.manual_seed(0)
        shown = {"tie_word_embeddings": shape.tie_word_embeddings, "eos_token_id": marks.eos_token_id}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.model_type, **small, **shown))
        for part in (model, marks):
            part.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return make


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_loads_and_passes_the_preflight_on_a_tiny_model(file, tiny, tmp_path, monkeypatch, capsys):
    config, options = config_of(file)
    task = config.rollout.task
    assert choose_algorithm(config) and options.keys() == {task} and config.evaluation.eval_examples > 100
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(ROWS[task](n)) + "\n" for n in range(150)))
    flags = ["--model-id", tiny(SHAPES[config.model.model_id]), "--data-path", "rows.jsonl"]
    flags += shlex.split("--device cpu --threads 1 --max-tokens 8 --group-size 2 --reward-workers 1 --preflight-only")
    assert train.main(["--config", str(file), *flags]) == 0
    findings = re.findall(r"preflight: .*", capsys.readouterr().err)
    assert findings and [line for line in findings if not OF_A_RANDOM_MODEL.match(line)] == []
