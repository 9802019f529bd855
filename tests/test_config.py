"""Impossible settings are refused when the config is made, each with what was given and what is allowed."""

import dataclasses

import pytest

from minrl.config import (
    AlgorithmConfig,
    BaseModelConfig,
    EvaluationConfig,
    JudgeConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    TrainerConfig,
    with_absolute_paths,
)
from minrl.pipeline.config import EvaluateConfig
from minrl.sft.config import SftConfig
from minrl.types import UserError

REFUSED = [
    (TrainerConfig, {"steps": 0}, "steps must be at least 1, got 0"),
    (TrainerConfig, {"seed": -1}, "seed must be 0 or more and below 2.63, got -1"),
    (TrainerConfig, {"seed": 2**63}, "seed must be 0 or more and below 2"),
    (BaseModelConfig, {"base_seed": 2**63}, "base_seed must be 0 or more and below 2"),
    (TrainerConfig, {"preflight": False, "preflight_only": True}, "preflight_only contradicts no-preflight"),
    (TrainerConfig, {"optimizer": OptimizerConfig(learning_rate=float("inf"))}, "learning_rate must be finite"),
    (TrainerConfig, {"rollout": RolloutConfig(temperature=float("inf"))}, "temperature must be finite"),
    (ModelConfig, {"threads": -1}, "threads must be 0 .* or more, at most 1024, got -1"),
    (ModelConfig, {"threads": 1025}, "threads must be 0 .* or more, at most 1024, got 1025"),
    (ModelConfig, {"chat_template_options": "thinking"}, "must be a JSON object, got 'thinking'"),
    (ModelConfig, {"chat_template_options": "[1]"}, "must be a JSON object"),
    *(
        (ModelConfig, {"chat_template_options": f'{{"{name}": 1}}'}, f"chat_template_options must not name {name}: ")
        for name in (
            *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "messages"),
            *("return_dict", "tokenize"),
        )
    ),
    (BaseModelConfig, {"base_heads": 3}, "base_heads must be even"),
    (BaseModelConfig, {"base_steps": 0}, "base_steps must be at least 1"),
    (BaseModelConfig, {"base_learning_rate": 0.0}, "base_learning_rate must be above 0"),
    (RolloutConfig, {"group_size": 0}, "group_size must be at least 1, got 0"),
    (RolloutConfig, {"prompts_per_step": 0}, "prompts_per_step must be at least 1"),
    (RolloutConfig, {"max_tokens": 0}, "max_tokens must be at least 1"),
    (RolloutConfig, {"temperature": 1e-45}, "temperature must be at least 0.001 to sample"),
    (RolloutConfig, {"temperature": float("nan")}, "temperature must be at least 0.001 to sample, got nan"),
    (RolloutConfig, {"stop_strings": ("END", "")}, "stop_strings must not be empty"),
    (RolloutConfig, {"reward_deadline_s": 0.0}, "reward_deadline_s must be above 0"),
    (RolloutConfig, {"reward_workers": -1}, "reward_workers must be 0 or more"),
    (RolloutConfig, {"max_unscorable_frac": 1.5}, r"max_unscorable_frac must be in \[0, 1\]"),
    (AlgorithmConfig, {"passes_per_step": 0}, "passes_per_step must be at least 1"),
    (AlgorithmConfig, {"minibatches_per_pass": 0}, "minibatches_per_pass must be at least 1"),
    (AlgorithmConfig, {"clip_low": 1.0}, "clip_low must be in"),
    (AlgorithmConfig, {"clip_high": -0.1}, "clip_high must be above 0"),
    (AlgorithmConfig, {"importance_cap": 0.5}, r"importance_cap must be 0 \(off\) or at least 1"),
    (OptimizerConfig, {"learning_rate": -1.0}, "learning_rate must be 0 or more"),
    (OptimizerConfig, {"learning_rate": float("nan")}, "learning_rate must be 0 or more, got nan"),
    (OptimizerConfig, {"adam_beta2": 1.0}, r"adam_beta2 must be in \[0, 1\)"),
    (OptimizerConfig, {"micro_batch_tokens": 0}, "micro_batch_tokens must be at least 1"),
    (EvaluationConfig, {"eval_every": -1}, r"eval_every must be 0 \(only before and after\) or more, got -1"),
    (EvaluationConfig, {"eval_examples": 0}, "eval_examples must be at least 1"),
    (EvaluationConfig, {"eval_temperature": 0.0}, "eval_temperature must be at least 0.001"),
    (LoggingConfig, {"save_every": -1}, r"save_every must be 0 \(only the last checkpoint\) or more, got -1"),
    (LoggingConfig, {"keep_checkpoints": -1}, r"keep_checkpoints must be 0 \(keeps all\) or more, got -1"),
    (EvaluateConfig, {"checkpoint": "a", "seed": -1}, "seed must be 0 or more and below 2.63, got -1"),
    (EvaluateConfig, {}, "name either --checkpoint .* or --completions .* got neither"),
    (EvaluateConfig, {"checkpoint": "a", "completions": "b"}, "got both"),
]


@pytest.mark.parametrize(("cls", "values", "message"), REFUSED, ids=[f"{c.__name__}-{v}" for c, v, _ in REFUSED])
def test_impossible_values_are_refused_in_one_line(cls, values, message):
    with pytest.raises(UserError, match=message) as refused:
        cls(**values)
    assert "\n" not in str(refused.value)


def test_minibatches_are_whole_groups():
    with pytest.raises(UserError, match=r"minibatches_per_pass \(3\) must not exceed prompts_per_step \(2\)"):
        TrainerConfig(rollout=RolloutConfig(prompts_per_step=2), algorithm=AlgorithmConfig(minibatches_per_pass=3))
    TrainerConfig(rollout=RolloutConfig(prompts_per_step=3), algorithm=AlgorithmConfig(minibatches_per_pass=3))


def test_the_config_cannot_be_changed_after_its_checks():
    config = TrainerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rollout.group_size = 0


def test_the_runs_name_says_what_is_trained():
    config = TrainerConfig(seed=3, rollout=RolloutConfig(task="own/game"), algorithm=AlgorithmConfig(algorithm="gpg"))
    assert config.what == "own-game-gpg"


def test_other_tasks_are_the_names_between_commas():
    assert EvaluationConfig(eval_tasks=" hanoi, countdown ,").other_tasks == ["hanoi", "countdown"]
    assert EvaluationConfig().other_tasks == []


def test_paths_become_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    judge = JudgeConfig(judge_cache="cache.jsonl")
    config = TrainerConfig(
        data_path="../rows.jsonl",
        model=ModelConfig(model_id="model"),
        rollout=RolloutConfig(opponent="Qwen/Qwen3-0.6B", task="countdown"),
        logging=LoggingConfig(runs_dir="/runs", checkpoints_dir="kept"),
        judge=judge,
    )
    found = with_absolute_paths(config)
    assert found.data_path == str(tmp_path.parent / "rows.jsonl")
    assert (found.model.model_id, found.rollout.opponent) == (str(tmp_path / "model"), "Qwen/Qwen3-0.6B")
    assert (found.logging.runs_dir, found.logging.checkpoints_dir) == ("/runs", str(tmp_path / "kept"))
    assert found.judge.judge_cache == str(tmp_path / "cache.jsonl")
    assert with_absolute_paths(found) == found
    assert with_absolute_paths(TrainerConfig()).data_path == ""
    sft = with_absolute_paths(SftConfig(data="rows.jsonl", eval_data="more.jsonl"))
    assert (sft.data, sft.eval_data) == (str(tmp_path / "rows.jsonl"), str(tmp_path / "more.jsonl"))
