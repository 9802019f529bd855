"""From flags and files to a config, and one line for whatever is refused."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.tasks import TASK_DEFINITIONS, option_classes
from minrl.utils.cli import from_dict, parse, to_dict
from minrl.utils.settings import flag_of
from tests.parsed import parsed

ROOT = Path(__file__).parent.parent
OPTIONS = option_classes(TASK_DEFINITIONS)
HANOI = OPTIONS["hanoi"]()

DEFAULTS = {name: value for name, value in TrainerConfig().settings.items() if value is not None}


def flags_for(name, value):
    flag = flag_of(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *value] if isinstance(value, tuple) else [flag, str(value)]


def test_every_setting_and_every_option_of_a_task_is_a_flag():
    words = [word for name, value in DEFAULTS.items() if name != "eval_tasks" for word in flags_for(name, value)]
    words += ["--eval-tasks", ",".join(TASK_DEFINITIONS)]
    for task, options in OPTIONS.items():
        fields = dataclasses.fields(options)
        words += [word for one in fields for word in flags_for(f"{task}.{one.name}", one.default)]
    command = parse(TrainerConfig, words)
    assert command.config == TrainerConfig(eval_tasks=",".join(TASK_DEFINITIONS))
    assert command.flags.keys() >= DEFAULTS.keys()
    assert command.options == {name: options() for name, options in OPTIONS.items()}


CHANGED = {"steps": 7, "learning_rate": 3e-4, "curriculum": True, "preflight": False, "engine": "torch"}
CHANGED |= {"stop_strings": ("one", "two words"), "chat_template_options": '{"a": "-- two\\nlines"}', "task": "hanoi"}
"""A setting of each kind."""


def test_settings_go_through_flags_python_and_json():
    config, options = parsed([flag for name, value in CHANGED.items() for flag in flags_for(name, value)])
    assert config.settings == {**TrainerConfig().settings, **CHANGED} and config == from_dict(CHANGED, TrainerConfig)[0]
    assert from_dict(json.loads(json.dumps(to_dict(config, options))), TrainerConfig) == (config, options)


REFUSED = [
    ("--stps 5", r"unknown flag --stps: did you mean --steps\?"),
    ("--batch_size 8", "unknown flag --batch-size: --prompts-per-step is the number of prompts"),  # of another trainer
    ("--device gpu", "device must be one of auto, cpu, cuda, got 'gpu'$"),  # not: did you mean cpu?
    ("--preflight false", "unknown flag false: a switch takes no value: --preflight, or --no-preflight"),
    ("--algorithm GRPO", "no algorithm 'GRPO': choose one of grpo, dr_grpo, .*: did you mean grpo"),
    ("--algorithm ppo", "distill; grpo has PPO's clipped loss, and no row has a critic$"),
    ("--config /nowhere.yaml", "cannot read the config file /nowhere.yaml: No such file"),
]
IN_FILES = [
    ("stps: 5", "unknown setting 'stps': did you mean steps"),
    ("steps: true", "steps must be an integer, got True"),
]


@pytest.mark.parametrize(("text", "message"), [*REFUSED, *IN_FILES])
def test_wrong_flags_and_config_files_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    in_file = (text, message) in IN_FILES
    with pytest.raises(UserError, match=message) as error:
        parsed(["--config", str(tmp_path / "config.yaml")] if in_file else text.split())
    assert "\n" not in str(error.value)


def test_flags_are_on_top_of_a_config_file_and_both_over_other_defaults(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("steps: 7\nlearning-rate: 3e-4\nstop_strings: [END]\ntasks: {hanoi: {max-disks: 3}}\n")
    command = parse(TrainerConfig, ["--steps", "9", f"--config={file}", "--group-size", "4"])
    given = TrainerConfig(steps=9, learning_rate=3e-4, group_size=4, stop_strings=("END",))
    assert (command.config, command.options["hanoi"].max_disks) == (given, 3)
    assert command.given == {"steps", "group_size", "config"}
    options = {"hanoi": dataclasses.replace(HANOI, max_disks=5, min_disks=2)}
    other = command.over({"group_size": 2, "learning_rate": 1.0, "seed": 1}, options)
    assert other.config == given.with_settings(seed=1)
    assert other.options["hanoi"] == dataclasses.replace(HANOI, max_disks=3, min_disks=2)


def test_flags_are_spelled_in_several_ways():
    config, _ = parsed(["--steps=5", "--stop_strings", "-- END", "-a = b", "-", "--steps", "1_000"])
    assert (config.steps, config.stop_strings) == (1000, ("-- END", "-a = b", "-"))


def test_help_shows_defaults_and_the_options_of_the_named_tasks_and_help_all_everything(capsys):
    def page_of(*flags):
        with pytest.raises(SystemExit):
            parse(TrainerConfig, flags)
        return capsys.readouterr().out

    page = page_of("--task", "hanoi", "--help")
    assert re.search(r"\n  --steps INT +Training steps \[150\]\n", page)
    assert "--hanoi.max-disks" in page and "--countdown.max-number" not in page and "--judge-model" not in page
    page = page_of("--help-all")
    assert [name for name in DEFAULTS if flag_of(name) not in page] == []
    assert "--countdown.max-number" in page


def test_a_wrong_flag_is_answered_before_torch_is_imported():
    command = [sys.executable, "-X", "importtime", "-m", "minrl", "expert-iteration", "--sed", "1"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    imports, said = finished.stderr.rsplit("\n", 2)[:2]
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said.startswith("error: unknown flag --sed: did you mean --seed?")
    assert "minrl.utils.cli" in imports and not re.search(r"\| +torch$", imports, re.MULTILINE)
