"""Defaults by what is trained, under what the user gives, kept by a run that goes on."""

import pytest
import yaml
from loguru import logger

from minrl.config import TrainerConfig
from minrl.config.defaults import FINE_TUNING, what_is_trained
from minrl.sft.config import ExpertIterationConfig, SftConfig
from minrl.terminal.command_line import parse_config, parse_trainer, to_dict

GIVEN, ADAPTERS = ["--model-id", "a/model"], ["--lora-rank", "8"]


def chosen(flags, cls=TrainerConfig):
    rates = {} if cls is TrainerConfig else {"rates": FINE_TUNING}
    config = parse_config(cls, flags, **rates)[0].trainer
    return config.optimizer.learning_rate, config.rollout.max_tokens


@pytest.mark.parametrize(
    ("flags", "reinforcement", "fine_tuning", "max_tokens"),
    [
        ([], 3e-4, 3e-4, 192),
        (ADAPTERS, 3e-3, 3e-3, 192),
        (GIVEN, 1e-6, 2e-5, 1024),
        (GIVEN + ADAPTERS, 1e-5, 2e-4, 1024),
    ],
)
def test_a_default_depends_on_what_is_trained(flags, reinforcement, fine_tuning, max_tokens):
    for cls, rate in ((TrainerConfig, reinforcement), (SftConfig, fine_tuning), (ExpertIterationConfig, fine_tuning)):
        assert chosen(flags, cls) == (rate, max_tokens), cls


def test_what_the_user_gives_stands_over_it(tmp_path):
    assert chosen([*GIVEN, "--learning-rate", "3e-4", "--max-tokens", "192"]) == (3e-4, 192)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"learning-rate": 3e-4, "model_id": "a/model"}))
    in_file = ["--config", str(tmp_path / "mine.yaml")]
    assert chosen(in_file) == (3e-4, 1024)
    assert chosen([*in_file, "--learning-rate", "1e-3"]) == (1e-3, 1024)


def test_the_config_of_a_run_holds_what_was_chosen_and_is_read_back_the_same(tmp_path):
    config, options = parse_trainer(GIVEN)
    values = to_dict(config, options)
    assert (values["learning_rate"], values["max_tokens"]) == (1e-6, 1024)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, "learning_rate": 7e-6}))
    assert chosen(["--config", str(tmp_path / "config.yaml")]) == (7e-6, 1024)


@pytest.mark.parametrize(
    ("trained", "flags", "expected"),
    [
        ([], GIVEN, (1e-6, 1024)),
        ([], ADAPTERS, (3e-3, 192)),
        ([*GIVEN, *ADAPTERS], ["--lora-rank", "0"], (1e-6, 1024)),
        (GIVEN, ["--model-id", ""], (3e-4, 192)),
        (["--learning-rate", "1e-3"], GIVEN, (1e-3, 1024)),
        (["--max-tokens", "300"], GIVEN, (1e-6, 300)),
        ([], [*GIVEN, "--learning-rate", "3e-4", "--max-tokens", "192"], (3e-4, 192)),
        (GIVEN, ["--model-id", "another/model"], (1e-6, 1024)),
    ],
)
def test_defaults_in_the_config_of_a_run_are_none_of_a_run_that_trains_something_else(
    tmp_path, trained, flags, expected
):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(*parse_trainer(trained))))
    said = []
    listening = logger.add(lambda message: said.append(message.record["message"]))
    assert chosen(["--config", str(tmp_path / "config.yaml"), *flags]) == expected
    logger.remove(listening)
    assert len(said) == (trained[:1] != GIVEN[:1] or flags[:2] != ["--model-id", "another/model"])
    assert all(line.startswith("the config file has the defaults of what it trains") for line in said)


def test_what_is_trained_is_said_in_a_line():
    assert what_is_trained(parse_trainer([*GIVEN, *ADAPTERS])[0]) == (
        "training adapters of rank 8 of a/model: peak learning rate 1e-05 (--learning-rate), completions of at most "
        "1024 tokens (--max-tokens)"
    )
    assert what_is_trained(TrainerConfig()).startswith("training all weights of the base model that MinRL makes: peak")
