"""What a user writes into `TrainerConfig` is what the run has: each default, edited in a copy of config.py."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args, get_origin

import pytest

import minrl.config
from minrl.config import TrainerConfig
from minrl.run.folder import RunFolder
from minrl.run.sizes import with_sizes
from minrl.utils.cli import parse, to_dict
from minrl.utils.settings import Bound, settings_of

ROOT = Path(__file__).parent.parent
SOURCE = Path(minrl.config.__file__).read_text()
SETTINGS = settings_of(TrainerConfig)

NAMED = {
    "task": "hanoi", "algorithm": "dapo", "eval_tasks": "hanoi", "run_name": "mine", "engine_urls": "http://127.0.0.1:1",
    "judge_model": "judge", "judge_base_url": "http://127.0.0.1:1/v1", "judge_prompt": "{prompt} {completion}",
    "judge_key_variable": "MY_KEY", "lora_target_modules": "q_proj", "chat_template": "plain", "resume": "auto",
    "chat_template_options": '{"a": 1}', "teacher_prompt": "{prompt} ({answer})", "min_temperature": 0.75, 
    "judge_weight": 0.5, "sampler": "/mine.py:choose",
    "importance_cap": 3.0, "clip_dual": 3.0, "minibatches_per_pass": 2, "base_heads": 6, "model_id": "far/model",
    "teacher_id": "far/model", "opponent": "far/model",
}  # fmt: skip
"""Values of names, paths and what else no rule finds."""

PARTNERS = {
    **{name: {"lora_rank": 8} for name in ("lora_alpha", "lora_target_modules", "lora_checkpoint", "lora_serve")},
    **{name: {"judge_model": "judge"} for name in ("judge_base_url", "judge_prompt")},
    "engine": {}, "teacher_weight": {"teacher_id": "far/model"},
    "engine_urls": {"engine": "vllm-server", "engine_weights_dir": "/weights"},
    "engine_weights_dir": {"engine": "vllm-server", "engine_urls": "http://127.0.0.1:1"},
}  # fmt: skip
"""Settings that another one must be given with."""


def other(name):
    """A value that is not the default."""
    one = SETTINGS[name]
    if name in NAMED:
        return NAMED[name]
    if get_origin(one.hint) is Literal:
        return next(choice for choice in get_args(one.hint) if choice not in (one.default, "vllm-server"))
    if get_origin(one.hint) is tuple:
        return ("END",)
    if one.hint is bool:
        return not one.default
    if one.hint is str:
        return "/elsewhere"
    tried = [(one.default or 0) + 1, 0.25, 0.5]
    bounds = [mark for mark in one.marks if isinstance(mark, Bound)]
    return next(one.hint(value) for value in tried if all(bound.holds(value) for bound in bounds))


def edited(changes):
    """The source of config.py with other defaults."""
    source = SOURCE
    for name, value in changes.items():
        source, count = re.subn(rf"(?m)^(    {name}: .*?) = .*$", lambda found, v=value: f"{found[1]} = {v!r}", source)
        assert count == 1, name
    return source


def config_of(changes, *flags):
    """What the command line makes of the edited file."""
    module = ModuleType("edited_config")
    sys.modules[module.__name__] = module
    exec(compile(edited(changes), "config.py", "exec"), vars(module))
    return parse(module.TrainerConfig, flags).config


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "tools"])
def test_an_edited_default_is_the_runs(name):
    value = other(name)
    assert getattr(config_of({name: value, **PARTNERS.get(name, {})}), name) == value


def test_edited_tools_are_in_the_name_of_the_task(tmp_path):
    (tmp_path / "edited_tools.py").write_text("def add(a: int) -> int:\n    return a\n")
    found = config_of({"tools": f"{tmp_path}/edited_tools.py:add"})
    assert (found.task, found.tools) == (f"countdown+{tmp_path}/edited_tools.py:add", "")


def test_a_run_is_repeated_from_its_config_with_what_followed_from_the_size(tmp_path):
    config, by_size = with_sizes(TrainerConfig(seed=3))
    record = {"minrl_run": "x", "config": to_dict(config, {}), "by_size": list(by_size)}
    (tmp_path / "config.json").write_text(json.dumps(record))
    again = config_of({"learning_rate": 7e-4}, "--config", str(tmp_path / "config.json"))
    assert (again.learning_rate, again.seed) == (None, 3)  # not what is edited now


def test_a_task_in_a_file_that_is_the_edited_default_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "edited_quiz.py").write_text(
        "from minrl import task\n@task(data=[], prompt='a')\ndef quiz(text, row): return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    assert config_of({"task": "edited_quiz.py:quiz"}).task == f"{tmp_path}/edited_quiz.py:quiz"


def test_after_the_table_of_sizes_no_setting_is_none():
    filled, by_size = with_sizes(TrainerConfig(max_tokens=7))
    assert [name for name in SETTINGS if getattr(filled, name) is None] == []
    assert "max_tokens" not in by_size and set(by_size) == {
        name for name, one in SETTINGS.items() if one.by_size and getattr(TrainerConfig(max_tokens=7), name) is None
    }
    assert filled.max_tokens == 7 and filled.given == {"max_tokens"}


EDITED = {
    **{"learning_rate": 1.5e-3, "prompts_per_step": 2, "group_size": 3, "max_tokens": 9, "eval_examples": 4},
    **{"steps": 2, "warmup_steps": 0, "schedule": "constant", "base_steps": 3, "threads": 1, "device": "cpu"},
}  # fmt: skip


@pytest.mark.slow
def test_a_run_of_an_edited_copy_has_the_edited_values_and_says_which_followed_from_the_size(tmp_path):
    shutil.copytree(ROOT / "minrl", tmp_path / "minrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)
    (tmp_path / "minrl" / "config.py").write_text(edited(EDITED))
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=300)
    (run,) = (tmp_path / "runs").iterdir()
    record = json.loads((run / "config.json").read_text())
    assert {name: record["config"][name] for name in EDITED} == EDITED
    assert record["by_size"] == ["eval_samples"]
    last = RunFolder(run).metrics[-1]
    assert last["step"] == 2 and last["policy/learning_rate"] == 1.5e-3
