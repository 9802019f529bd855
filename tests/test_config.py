"""Settings that cannot work are refused when they are made or assigned, in one line; the rest are kept as given."""

import copy
import dataclasses
import pickle

import pytest

from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.evaluate.config import EvaluateConfig

REFUSED = [
    (TrainerConfig, {"group_sise": 4}, "unknown setting 'group_sise': did you mean group_size"),
    (TrainerConfig, {"learning_rate": float("nan")}, "learning_rate must be a finite number, got nan"),
    (TrainerConfig, {"prompts_per_step": 2, "minibatches_per_pass": 3}, "must not exceed prompts_per_step"),
    (TrainerConfig, {"chat_template": "chat-ml"}, "chat_template must be a file or one of .*: did you mean chatml"),
    (TrainerConfig, {"lora_alpha": 16}, "lora_alpha is read only with --lora-rank: give that too"),
    (TrainerConfig, {"eval_every": 0, "patience": 2}, "patience looks at the held-out score of a task during the run"),
    (TrainerConfig, {"engine": "vllm-server"}, "needs engine_urls: name the servers"),
    (TrainerConfig, {"sharding": "full", "optimizer": "adamw8bit"}, "--optimizer adamw8bit takes whole weights only"),
    (EvaluateConfig, {}, "name either --checkpoint .* or --completions .* got neither"),
]


@pytest.mark.parametrize(("cls", "values", "message"), REFUSED, ids=[f"{c.__name__}-{v}" for c, v, _ in REFUSED])
def test_impossible_values_are_refused_in_one_line(cls, values, message):
    with pytest.raises(UserError, match=message) as refused:
        cls(**values)
    assert "\n" not in str(refused.value)


def test_a_setting_is_assigned_within_its_bounds():
    config = TrainerConfig(task="hanoi")
    config.group_size, config.learning_rate = "4", 1
    assert (config.group_size, config.learning_rate) == (4, 1.0) and type(config.learning_rate) is float
    for name, value, message in (("group_size", 0, "at least 1, got 0"), ("gruop_size", 1, "did you mean group_size")):
        with pytest.raises(UserError, match=message):
            setattr(config, name, value)
    assert config == TrainerConfig(task="hanoi", group_size=4, learning_rate=1)


def test_rules_between_settings_are_checked_when_the_run_starts():
    config = TrainerConfig()
    config.prompts_per_step, config.minibatches_per_pass = 2, 3  # both are edited before either matters
    with pytest.raises(UserError, match="must not exceed prompts_per_step"):
        config.check()


def test_a_changed_config_keeps_the_other_settings_and_knows_which_were_given():
    config = TrainerConfig(kl_coef=0.1, group_size=8, save_every=25)  # the last at its default
    changed = config.with_settings(algorithm="dapo", steps=3)
    assert (changed.algorithm, changed.kl_coef, changed.steps) == ("dapo", 0.1, 3)
    assert changed.given == {"kl_coef", "group_size", "save_every", "algorithm", "steps"}
    assert dataclasses.replace(config, steps=3).given == {"kl_coef", "group_size", "steps"}  # not at their defaults
    assert config == copy.deepcopy(config) == pickle.loads(pickle.dumps(config))


def test_other_trainers_names_are_the_same_settings_in_python():
    config = TrainerConfig(group_size=4, num_generations=4, lr=1e-5)
    config.beta = 0.1
    assert (config.group_size, config.learning_rate, config.kl_coef) == (4, 1e-5, 0.1)
    assert config.given == {"group_size", "learning_rate", "kl_coef"}
    with pytest.raises(UserError, match="group_size is given twice, under two names, as 8 and 4"):
        TrainerConfig(group_size=8, num_generations=4)


def test_a_name_is_that_of_a_folder_or_refused_in_one_line():
    assert TrainerConfig(run_name="A.b_c-1+2=3").run_name == "A.b_c-1+2=3"
    for name in ("a/b", "-x", "latest"):
        with pytest.raises(UserError, match=r"run_name must be a folder's name [^\n]* got [^\n]*$"):
            TrainerConfig(run_name=name)
