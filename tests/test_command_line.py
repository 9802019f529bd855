"""From flags and files to a config, and one line for whatever is refused."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import train
from minrl.config import TrainerConfig
from minrl.config.defaults import REINFORCEMENT, defaults
from minrl.tasks import TASK_DEFINITIONS
from minrl.terminal.command_line import from_dict, parse_trainer, run_main, to_dict
from minrl.types import UserError

ROOT = Path(__file__).parent.parent


def values_of(config):
    """Every setting by name."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from values_of(value)
        else:
            yield field.name, value


def hints_of(cls):
    hints = {}
    for name, hint in get_type_hints(cls).items():
        hints.update(hints_of(hint) if dataclasses.is_dataclass(hint) else {name: hint})
    return hints


HINTS = hints_of(TrainerConfig)
DEFAULTS = dict(values_of(TrainerConfig()))
OTHER = {
    # Values that differ from the default and pass the checks, where adding one to the default would not.
    "adam_beta1": 0.5, "adam_beta2": 0.5, "clip_low": 0.3, "clip_dual": 3.0, "base_heads": 6, "engine": "torch",
    "task": "hanoi", "eval_tasks": "hanoi",
    "device": "cpu", "dtype": "float32", "max_unscorable_frac": 0.25, "chat_template_options": '{"a": 1}',
    "preflight_only": True, "engine_memory_frac": 0.3, "kl_estimator": "k2", "overlong": "mask",
    "judge_weight": 0.3, "judge_prompt": "Grade {completion}", "judge_base_url": "http://127.0.0.1:8000/v1",
}  # fmt: skip


WITH = {
    "overlong_buffer": {"overlong": "penalize"},
    **{name: {"lora_rank": 4} for name in ("lora_alpha", "lora_target_modules", "lora_checkpoint")},
    **{name: {"judge_model": "a model"} for name in ("judge_base_url", "judge_prompt")},
}
"""What a field needs beside it to be allowed to differ from its default."""


def another(name):
    default = DEFAULTS[name]
    if name in OTHER:
        return OTHER[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    if isinstance(default, tuple):
        return ("one", "two words")
    choices = getattr(HINTS[name], "__args__", ())
    return next(choice for choice in choices if choice != default) if choices else "another"


def flags_for(name, value):
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag[2:]]
    return [flag, *value] if isinstance(value, tuple) else [flag, str(value)]


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_field_is_a_flag_and_a_setting(name):
    changed = {name: another(name), **WITH.get(name, {})}
    assert changed[name] != DEFAULTS[name]
    parsed, _ = parse_trainer([flag for name, value in changed.items() for flag in flags_for(name, value)])
    chosen = {**defaults(parsed, REINFORCEMENT), **changed}
    assert dict(values_of(parsed)) == {**DEFAULTS, **chosen}
    assert from_dict(chosen, TrainerConfig)[0] == parsed


@pytest.mark.parametrize("task", TASK_DEFINITIONS)
def test_every_option_of_a_task_is_a_flag_under_the_tasks_name(task):
    fields = dataclasses.fields(TASK_DEFINITIONS[task].options)
    flags = [word for f in fields for word in (f"--{task}.{f.name.replace('_', '-')}", str(f.default))]
    assert parse_trainer(flags)[1][task] == TASK_DEFINITIONS[task].options()
    _, options = parse_trainer(["--hanoi.skill", "0.25"])
    assert options["hanoi"].skill == 0.25
    assert options["countdown"] == TASK_DEFINITIONS["countdown"].options()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stps", "5"], "unknown flag --stps: did you mean steps"),
        (["--countdown.max-nmber", "9"], "unknown flag --countdown.max-nmber: did you mean countdown.max-number"),
        (["word"], "unknown flag word"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--steps", "many"], "Error parsing --steps: invalid literal for int.* 'many'"),
        (["--steps"], "Missing value for argument '--steps'"),
        (["--device", "tpu"], "invalid choice 'tpu' for argument '--device'. Expected one of .*'cpu', 'cuda'"),
        (["--group-size", "0"], "group_size must be at least 1, got 0"),
        (["--preflight-only", "--no-preflight"], "preflight_only contradicts no-preflight"),
        (["--countdown.max-number", "2"], "countdown.max_number must be at least 5, got 2"),
        (["--hanoi.min-disks", "6"], "hanoi needs 2 <= min_disks <= max_disks"),
        (["--config"], "--config needs a file"),
        (["--config", "/nowhere.yaml"], "cannot read the config file /nowhere.yaml: No such file"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(flags, message):
    with pytest.raises(UserError, match=message) as refused:
        parse_trainer(flags)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stps: 5", "unknown setting 'stps': did you mean steps"),
        ("steps: many", "steps must be of type int, got 'many'"),
        ("steps: true", "steps must be of type int, got True"),
        ("steps: 5.5", "steps must be of type int, got 5.5"),
        ("learning_rate: yes", "learning_rate must be of type float, got True"),
        ("device: tpu", "device must be one of auto, cpu, cuda, got 'tpu'"),
        ("stop_strings: END", "stop_strings must be a list of str, got 'END'"),
        ("stop_strings: [END, 5]", "stop_strings must be a list of str"),
        ("group_size: 0", "group_size must be at least 1, got 0"),
        ("tasks: 5", "tasks must hold options by task"),
        ("tasks: {countdown: 5}", "tasks must hold options by task"),
        ("tasks: {chess: {}}", "no task 'chess': choose one of "),
        ("tasks: {countdown: {size: 5}}", "unknown option 'size' of CountdownOptions"),
        ("- steps", "must hold settings by name"),
        ("steps: [", "is not YAML"),
        ("", "must hold settings by name"),
    ],
)
def test_a_config_file_is_checked_like_flags(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        parse_trainer(["--config", str(file)])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("spelled", [["--config", "{}"], ["--config={}"]])
def test_flags_are_on_top_of_a_config_file(tmp_path, spelled):
    file = tmp_path / "config.yaml"
    file.write_text("steps: 7\nlearning-rate: 3e-4\nstop_strings: [END]\ntasks: {hanoi: {max-disks: 3}}\n")
    arguments = [part.format(file) for part in spelled]
    config, options = parse_trainer(["--steps", "9", *arguments, "--group-size", "4"])
    assert (config.steps, config.optimizer.learning_rate, config.rollout.group_size) == (9, 3e-4, 4)
    assert config.rollout.stop_strings == ("END",)
    assert options["hanoi"].max_disks == 3


def test_a_config_goes_to_plain_values_and_back():
    excluded = {"preflight", "preflight_only", "overlong", "overlong_buffer"}  # they go together, or contradict
    flags = [flag for name in DEFAULTS if name not in excluded for flag in flags_for(name, another(name))]
    config, options = parse_trainer([*flags, "--hanoi.skill", "0.5"])
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options)
    assert set(values) == {*DEFAULTS, "tasks"}


def test_a_runs_config_json_is_a_config_file(tmp_path):
    config, options = parse_trainer(["--steps", "7", "--hanoi.skill", "0.5"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"minrl_run": "name", "config": to_dict(config, options), "commit": None}))
    assert parse_trainer(["--config", str(file)]) == (config, options)


def test_the_script_ends_with_one_line_and_status_2(tmp_path):
    finished = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "--model-id", "nobody/nothing"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.startswith("error: cannot load model 'nobody/nothing'")
    assert len(finished.stderr.splitlines()) == 1
    assert finished.stdout == ""
    assert not list(tmp_path.glob("runs/*"))  # what was refused leaves nothing behind


def test_what_goes_together_is_checked_before_anything_is_made(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["train.py", "--group-size", "1"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_main(train.main)
    assert ended.value.code == 2
    said = capfd.readouterr()
    assert said.err.startswith("error: grpo compares the completions of a group: group_size must be at least 2")
    assert (len(said.err.splitlines()), said.out) == (1, "")
    assert not list(tmp_path.iterdir())
