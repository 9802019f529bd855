"""A run's name says which settings are not at their defaults, and is a folder's name."""

import shlex

import pytest

from minrl.config import LoggingConfig, TrainerConfig
from minrl.dataflow import UserError
from minrl.run.defaults import full_name
from tests.parsed import parse_run


def named(flags):
    return full_name(*parse_run(TrainerConfig, shlex.split(flags)), ("steps",))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("", "countdown-grpo-seed0"),
        ("--group-size 16 --seed 2 --algorithm rloo", "countdown-rloo-group_size=16-seed2"),
        ("--steps 9 --threads 1 --eval-every 0 --note x --base-steps 1 --save-every 1", "countdown-grpo-seed0"),
        ("--eval-tasks hanoi --hanoi.max-disks 3", "countdown-grpo-seed0"),  # measured beside the task, not learned
        ("--model-id Qwen/Qwen3-0.6B", "countdown-grpo-Qwen3-0.6B-seed0"),  # and its own learning rate is a default
        ("--task tictactoe --opponent far/model --tictactoe.opponent frozen",  # a setting and an option of one name
         "tictactoe-grpo-opponent=model-opponent=frozen-seed0"),
        ("--run-name mine --learning-rate 1e-3", "mine"),
    ],
)  # fmt: skip
def test_a_name_says_what_is_not_at_its_default(flags, name):
    assert named(flags) == name


def test_a_name_is_that_of_a_folder_or_refused_in_one_line():
    for name in ("a", "A.b_c-1+2=3", "x" * 200, "latest-2", "reports"):
        assert LoggingConfig(run_name=name).run_name == name
    for name in ("a/b", ".", "..", "-x", ".x", "a b", "x" * 201, "latest", "report", "base-x", "\u00e9"):
        with pytest.raises(UserError, match=r"run_name must be a folder's name .* got [^\n]*$"):
            LoggingConfig(run_name=name)
