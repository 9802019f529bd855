"""From flags and files to a config, and one line for whatever is refused."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minrl.algorithms import ALGORITHMS
from minrl.config import TrainerConfig, algorithm_names
from minrl.dataflow import UserError
from minrl.tasks import TASK_DEFINITIONS, option_classes
from minrl.utils.cli import from_dict, parse, to_dict
from minrl.utils.settings import flag_of, settings_of
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


CHANGED = {
    **{"steps": 7, "learning_rate": 3e-4, "curriculum": True, "preflight": False, "stop_strings": ("one", "two words")},
    **{"engine": "torch", "task": "hanoi", "algorithm": "dapo"},
    "max_unscorable_frac": 0.25,
    "chat_template_options": '{"a": "-- two\\nlines"}',
}
"""A setting of each kind."""


def test_settings_go_through_flags_python_and_json():
    config, options = parsed([flag for name, value in CHANGED.items() for flag in flags_for(name, value)])
    assert config.settings == {**TrainerConfig().settings, **CHANGED} and config == from_dict(CHANGED, TrainerConfig)[0]
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options) and set(values) == {
        *settings_of(TrainerConfig),
        "tasks",
    }


REFUSED = [
    ("--stps 5", r"unknown flag --stps: did you mean --steps\?"),
    ("--batch_size 8", "unknown flag --batch-size: --prompts-per-step is the number of prompts"),  # of another trainer
    ("--environment-factory Game", r"unknown flag --environment-factory: --task path/to/file\.py:CLASS"),
    ("--max-staleness 1", "unknown flag --max-staleness: --overlap samples one step ahead"),
    ("--device cp", "device must be one of auto, cpu, cuda, got 'cp': did you mean cpu?"),
    ("--device gpu", "device must be one of auto, cpu, cuda, got 'gpu'$"),  # not: did you mean cpu?
    ("--preflight false", "unknown flag false: a switch takes no value: --preflight, or --no-preflight"),
    ("--algorithm GRPO", "no algorithm 'GRPO': choose one of grpo, dr_grpo, .*: did you mean grpo"),
    ("--config /nowhere.yaml", "cannot read the config file /nowhere.yaml: No such file"),
]
IN_FILES = [
    ("stps: 5", "unknown setting 'stps': did you mean steps"),
    ("steps: true", "steps must be an integer, got True"),
    ("tasks: {countdown: {size: 5}}", "unknown option 'size' of countdown"),
    ("steps: [", "is not YAML"),
]


@pytest.mark.parametrize(("text", "message"), [*REFUSED, *IN_FILES])
def test_wrong_flags_and_config_files_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "config.yaml").write_bytes(text.encode("latin-1", "ignore"))
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
    file.write_text("lora_alpha: 64\n")  # which is read only with --lora-rank
    assert parse(TrainerConfig, [f"--config={file}", "--lora-rank", "8"]).config.lora_alpha == 64
    options = {"hanoi": dataclasses.replace(HANOI, max_disks=5, min_disks=2)}
    other = command.over({"group_size": 2, "learning_rate": 1.0, "seed": 1}, options)
    assert other.config == given.with_settings(seed=1)
    assert other.options["hanoi"] == dataclasses.replace(HANOI, max_disks=3, min_disks=2)


@pytest.mark.parametrize(
    ("flags", "steps", "stop_strings"),
    [
        (["--steps=5", "--stop_strings", "a", "b"], 5, ("a", "b")),
        (["--steps", "5", "--steps", "1_000", "--stop-strings", "a", "--stop-strings", "b"], 1000, ("b",)),
        (["--stop-strings", "-- END", "-a = b", "-", "--steps", "7"], 7, ("-- END", "-a = b", "-")),
        (["--stop-strings=--steps", "--steps", "7", "--judge-temperature", "-1e0"], 7, ("--steps",)),
    ],
)
def test_flags_are_spelled_in_several_ways(flags, steps, stop_strings):
    config, _ = parsed(flags)
    assert (config.steps, config.stop_strings) == (steps, stop_strings)


def help_of(capsys, cls, *flags):
    with pytest.raises(SystemExit) as ended:
        parse(cls, flags)
    assert not ended.value.code
    return capsys.readouterr().out


def test_help_shows_defaults_algorithms_and_the_options_of_the_named_tasks_and_help_all_everything(capsys):
    page = help_of(capsys, TrainerConfig, "--task", "hanoi", "--help")
    assert re.search(r"\n  --steps INT +Training steps \[150\]\n", page) and "grpo, dr_grpo," in page
    assert "--hanoi.max-disks" in page and "--countdown.max-number" not in page and "--judge-model" not in page
    page = " ".join(help_of(capsys, TrainerConfig, "--help-all").split())
    options = [f"{task}.{name}" for task, one in OPTIONS.items() for name in settings_of(one)]
    assert [name for name in [*DEFAULTS, *options] if flag_of(name) not in page] == []
    assert "Also --lr" in page


def test_a_row_of_the_table_is_known_at_once_with_torch_or_without(monkeypatch):
    assert algorithm_names() == list(ALGORITHMS)
    monkeypatch.setitem(ALGORITHMS, "mine", ALGORITHMS["grpo"])  # as a notebook does
    assert TrainerConfig(algorithm="mine").algorithm == "mine"
    monkeypatch.delitem(sys.modules, "minrl.algorithms")  # as the command line finds it: it reads the source
    assert algorithm_names() == [name for name in ALGORITHMS if name != "mine"]
    with pytest.raises(UserError, match="no algorithm 'topr': choose one of grpo, dr_grpo"):
        TrainerConfig(algorithm="topr")


def test_a_wrong_flag_is_answered_before_torch_is_imported():
    command = [sys.executable, "-X", "importtime", "-m", "minrl", "expert-iteration", "--sed", "1"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    imports, said = finished.stderr.rsplit("\n", 2)[:2]
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said.startswith("error: unknown flag --sed: did you mean --seed?")
    assert "minrl.utils.cli" in imports and not re.search(r"\| +torch$", imports, re.MULTILINE)
