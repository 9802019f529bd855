"""A run's name says which settings are not at their defaults, and is a folder's name."""

import json
import shlex

import pytest

from minrl.config import LoggingConfig, TrainerConfig
from minrl.run.defaults import LONGEST, differing, full_name
from minrl.sft.config import ExpertIterationConfig, SftConfig
from minrl.types import UserError
from tests.parsed import parse_run, parsed

MANY = """--learning-rate 1e-3 --group-size 4 --max-tokens 7 --temperature 0.5 --kl-coef 0.1 --entropy-coef 0.1
    --clip-high 0.3 --adam-beta1 0.8 --weight-decay 0.1 --warmup-steps 0"""


def named(flags, cls=TrainerConfig):
    return full_name(*parse_run(cls, shlex.split(flags)), ("steps", "epochs", "rounds"))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("", "countdown-grpo-seed0"),
        ("--group-size 16 --seed 2 --algorithm rloo", "countdown-rloo-group_size=16-seed2"),
        ("--steps 9 --threads 1 --eval-every 0 --note x --base-steps 1 --save-every 1", "countdown-grpo-seed0"),
        ("--eval-tasks hanoi --hanoi.max-disks 3", "countdown-grpo-seed0"),  # measured beside the task, not learned
        ("--model-id Qwen/Qwen3-0.6B", "countdown-grpo-Qwen3-0.6B-seed0"),  # and its own learning rate is a default
        ("--model-id Qwen/Qwen3-0.6B --learning-rate 3e-4", "countdown-grpo-Qwen3-0.6B-learning_rate=0.0003-seed0"),
        ("--curriculum --data-path some/rows.jsonl", "countdown-grpo-data_path=rows.jsonl-curriculum=True-seed0"),
        ("--task tictactoe --opponent far/model --tictactoe.opponent frozen",  # a setting and an option of one name
         "tictactoe-grpo-opponent=model-opponent=frozen-seed0"),
        ("--run-name mine --learning-rate 1e-3", "mine"),
    ],
)  # fmt: skip
def test_a_name_says_what_is_not_at_its_default(flags, name):
    assert named(flags) == name


def test_a_name_of_many_settings_says_how_many_more_there_are():
    parts = named(MANY).removeprefix("countdown-grpo-").removesuffix("-seed0").split("-and-")
    assert len(parts[0]) <= LONGEST and parts[0].count("=") + int(parts[1].removesuffix("-more")) == 10


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--data a/rows.jsonl --epochs 2 --learning-rate 1e-3", "rows-sft-learning_rate=0.001-seed0"),
        ("--data rows.jsonl --model-id x", "rows-sft-x-seed0"),
        ("--data .hidden.jsonl", "hidden-sft-seed0"),  # the list of runs has no hidden folders
        ("--data 'a b\nc.jsonl'", "a-b-c-sft-seed0"),
        ("--data \u00e9t\u00e9.jsonl", "\u00e9t\u00e9-sft-seed0"),
        (f"--data {'x' * 79}\u00e9{'x' * 200}.jsonl", f"{'x' * 79}-sft-seed0"),  # no half of a character at byte 80
    ],
)
def test_other_programs_name_a_run_after_its_rows_or_task_with_defaults_of_their_own(flags, name):
    assert named(flags, SftConfig) == name
    rounds = named("--rounds 2 --batch-size 8", ExpertIterationConfig)
    assert rounds == "countdown-expert-iteration-batch_size=8-seed0"


def test_what_is_not_at_its_default_is_written_with_the_options_of_every_task():
    flags = "--eval-tasks hanoi --hanoi.max-disks 3 --steps 5 --runs-dir elsewhere --run-name a --note b --quiet"
    found = differing(*parse_run(TrainerConfig, flags.split()))
    assert found == {"eval_tasks": "hanoi", "steps": 5, "hanoi.max_disks": 3}


def test_a_name_is_that_of_a_folder_or_refused_in_one_line():
    for name in ("a", "A.b_c-1+2=3", "x" * 200, "latest-2", "reports"):
        assert LoggingConfig(run_name=name).run_name == name
    for name in ("a/b", ".", "..", "-x", ".x", "a b", "x" * 201, "latest", "report", "base-x", "\u00e9"):
        with pytest.raises(UserError, match=r"run_name must be a folder's name .* got [^\n]*$"):
            LoggingConfig(run_name=name)


def test_another_run_with_a_runs_config_takes_over_neither_its_name_nor_its_note(tmp_path):
    config = {"task": "hanoi", "run_name": "mine", "note": "first", "group_size": 4, "tasks": {"hanoi": {"skill": 0.5}}}
    for record, name in (({"minrl_run": "mine", "config": config, "commit": None}, ""), (config, "mine")):
        (tmp_path / "config.json").write_text(json.dumps(record))
        settings, options = parsed(["--config", str(tmp_path / "config.json")])
        assert (settings.logging.run_name, settings.rollout.group_size) == (name, 4)
        assert (settings.logging.note, options["hanoi"].skill) == ("first" * bool(name), 0.5)
