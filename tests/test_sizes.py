"""The table of sizes: by the number of weights and the device, under what the user gives."""

import json

import pytest
import torch

from minrl.config import TrainerConfig
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.run import sizes as module
from minrl.run.sizes import UNKNOWN, num_weights, rates_for, sizes_for, with_sizes
from minrl.sft.config import ExpertIterationConfig, SftConfig
from minrl.utils.cli import parse, to_dict
from tests.parsed import parse_run

GIVEN, ADAPTERS = ["--model-id", "135M"], ["--lora-rank", "8"]
RATE = rates_for(135 * 10**6)
LIMIT = sizes_for(135 * 10**6, on_gpu=False).max_tokens


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine without a GPU, and models named after their size."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module, "num_weights", lambda name, runs_dir: int(name.removesuffix("M")) * 10**6)


def chosen(flags, cls=TrainerConfig):
    config = parse_run(cls, flags)[0].trainer
    return config.learning_rate, config.max_tokens


@pytest.mark.parametrize(
    ("flags", "reinforcement", "fine_tuning", "max_tokens"),
    [
        ([], 3e-4, 3e-4, 192),
        (GIVEN, RATE.weights, RATE.fine_tuned_weights, LIMIT),
        (GIVEN + ADAPTERS, RATE.adapters, RATE.fine_tuned_adapters, LIMIT),
        ([*GIVEN, "--learning-rate", "3e-4", "--max-tokens", "192"], 3e-4, 3e-4, 192),  # over what follows
    ],
)
def test_a_default_depends_on_what_is_trained(flags, reinforcement, fine_tuning, max_tokens):
    for cls, rate in ((TrainerConfig, reinforcement), (SftConfig, fine_tuning), (ExpertIterationConfig, fine_tuning)):
        assert chosen(flags, cls) == (rate, max_tokens), cls


def test_a_gpu_has_sizes_of_its_own_unless_the_cpu_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen(GIVEN) == (RATE.weights, 1024)
    assert chosen([*GIVEN, "--device", "cpu"]) == (RATE.weights, LIMIT)


def test_what_followed_from_the_size_in_a_runs_config_follows_from_that_of_what_is_trained(tmp_path):
    command = parse(TrainerConfig, ["--max-tokens", "300"])
    config, by_size = with_sizes(command.config)
    record = {"minrl_run": "x", "config": to_dict(config, command.options), "by_size": list(by_size)}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert chosen(["--config", str(tmp_path / "config.json"), *GIVEN]) == (RATE.weights, 300)


def test_weights_are_counted_from_the_config_alone(tmp_path):
    model = small_qwen3(word_tokenizer(["a", "b"]), hidden_size=32, layers=1, heads=2, seed=0)
    model.config.architectures = ["Qwen3ForCausalLM"]
    model.config.save_pretrained(tmp_path)
    assert num_weights(str(tmp_path), "runs") == sum(weight.numel() for weight in model.parameters())
    assert num_weights(str(tmp_path / "nothing"), "runs") == UNKNOWN
