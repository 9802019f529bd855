"""Impossible settings are refused when the config is made, each with what was given and what is allowed."""

import dataclasses
import pickle

import pytest

from minrl.config import (
    AlgorithmConfig,
    BaseModelConfig,
    EngineConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    RolloutConfig,
    TrainerConfig,
    with_absolute_paths,
)
from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig
from minrl.sft.config import SftConfig

REFUSED = [
    (TrainerConfig, {"seed": 2**63}, r"seed must be at least 0 and below 2\^63, got 9223372036854775808"),
    (TrainerConfig, {"preflight": False, "preflight_only": True}, "preflight_only contradicts no-preflight"),
    (TrainerConfig, {"learning_rate": float("inf")}, "learning_rate must be finite, got inf"),
    (TrainerConfig, {"grup_size": 4}, r"unknown setting 'grup_size': did you mean group_size"),
    (TrainerConfig, {"minibatches_per_pass": 3, "prompts_per_step": 2}, r"\(3\) must not exceed prompts_per_step"),
    (TrainerConfig, {"task": "countdown,hanoi", "data_path": "x"}, "give --task-data-path hanoi:FILE"),
    (TrainerConfig, {"chat_template": "chatml"}, "chat_template is for a --model-id"),
    (ModelConfig, {"chat_template_options": "[1]"}, "must be a JSON object"),
    (BaseModelConfig, {"base_heads": 3}, "base_heads must be even, got 3"),
    (RolloutConfig, {"temperature": 1e-45}, "temperature must be at least 0.001"),
    (RolloutConfig, {"stop_strings": ("END", "")}, "stop_strings must not be empty"),
    (AlgorithmConfig, {"clip_low": 1.0}, "clip_low must be 0 .* or above 0 and below 1, got 1.0"),
    (AlgorithmConfig, {"teacher_weight": 2.0}, "teacher_weight is read only with --teacher-id or --teacher-prompt"),
    (LoraConfig, {"lora_alpha": 16}, "lora_alpha is read only with --lora-rank: give that too"),
    (LoraConfig, {"lora_rank": 1, "lora_target_modules": "("}, "lora_target_modules is no regular expression"),
    (EvaluationConfig, {"eval_every": 0, "patience": 2}, "patience needs evaluations during the run"),
    (EngineConfig, {"engine": "vllm-server"}, "needs engine_urls: name the servers"),
    (EngineConfig, {"engine_urls": "http://127.0.0.1:1"}, "engine_urls is read only with --engine vllm-server"),
    (EvaluateConfig, {}, "name either --checkpoint .* or --completions .* got neither"),
]


@pytest.mark.parametrize(("cls", "values", "message"), REFUSED, ids=[f"{c.__name__}-{v}" for c, v, _ in REFUSED])
def test_impossible_values_are_refused_in_one_line(cls, values, message):
    with pytest.raises(UserError, match=message) as refused:
        cls(**values)
    assert "\n" not in str(refused.value)


def test_settings_are_given_flat_or_in_groups():
    groups = {"rollout": RolloutConfig(task="hanoi", group_size=4), "algorithm": AlgorithmConfig(algorithm="dapo")}
    flat = TrainerConfig(task="hanoi", group_size=4, algorithm="dapo", steps=20)
    assert flat == TrainerConfig(**groups, steps=20) == TrainerConfig(**groups, steps="20")
    assert TrainerConfig(rollout=RolloutConfig(task="hanoi", group_size=2), group_size=4).rollout == groups["rollout"]
    assert TrainerConfig(**flat.settings) == flat == pickle.loads(pickle.dumps(flat))


def test_a_changed_config_keeps_the_other_settings_and_knows_which_were_given():
    config = TrainerConfig(kl_coef=0.1, group_size=8, rollout=RolloutConfig(max_tokens=192))  # two at their defaults
    changed = config.with_settings(algorithm="dapo", steps=3)
    assert (changed.algorithm.algorithm, changed.algorithm.kl_coef, changed.steps) == ("dapo", 0.1, 3)
    assert changed.given == {"kl_coef", "group_size", "max_tokens", "algorithm", "steps"}
    replaced = dataclasses.replace(config, steps=3)
    assert replaced == config.with_settings(steps=3)
    assert replaced.given == {"kl_coef", "group_size", "max_tokens", "steps"}
    assert TrainerConfig(rollout=dataclasses.replace(RolloutConfig(), group_size=4)).given == {"group_size"}
    with pytest.raises(UserError, match="takes algorithm as a group"):
        dataclasses.replace(config, algorithm="dapo")  # it would forget kl_coef


def test_paths_become_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    folders = {"runs_dir": "/runs", "checkpoints_dir": "kept"}
    config = TrainerConfig(data_path="../rows.jsonl", model_id="model", opponent="Qwen/Qwen3-0.6B", **folders)
    found = with_absolute_paths(config)
    assert found.data_path == str(tmp_path.parent / "rows.jsonl")
    assert (found.model.model_id, found.rollout.opponent) == (str(tmp_path / "model"), "Qwen/Qwen3-0.6B")
    assert (found.logging.runs_dir, found.logging.checkpoints_dir) == ("/runs", str(tmp_path / "kept"))
    assert with_absolute_paths(found) == found
    assert with_absolute_paths(TrainerConfig()).data_path == ""
    sft = with_absolute_paths(SftConfig(data="rows.jsonl", eval_data="more.jsonl"))
    assert (sft.data, sft.eval_data) == (str(tmp_path / "rows.jsonl"), str(tmp_path / "more.jsonl"))
