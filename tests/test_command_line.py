"""From flags and files to a config, and one line for whatever is refused."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import train
from minrl.algorithms import ALGORITHMS
from minrl.audit.config import AuditConfig
from minrl.config import TrainerConfig
from minrl.pipeline.config import EvaluateConfig
from minrl.report.__main__ import ReportConfig
from minrl.sft.config import ExpertIterationConfig, FilterConfig, SftConfig
from minrl.tasks import TASK_DEFINITIONS
from minrl.terminal.command_line import (
    before_imports,
    from_dict,
    parse_config,
    parse_trainer,
    parse_with_tasks,
    run_main,
    to_dict,
)
from minrl.terminal.flags import rows_of
from minrl.types import UserError
from minrl.verify.__main__ import VerifyConfig
from minrl.viewer.__main__ import ViewerConfig

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
PROGRAMS = [TrainerConfig, EvaluateConfig, SftConfig, ExpertIterationConfig, FilterConfig, ReportConfig, ViewerConfig]
PROGRAMS += [AuditConfig, VerifyConfig]
DEFAULTS = dict(values_of(TrainerConfig()))
OTHER = {
    # Values that differ from the default and pass the checks, where adding one to the default would not.
    "adam_beta1": 0.5, "adam_beta2": 0.5, "clip_low": 0.3, "clip_dual": 3.0, "base_heads": 6, "engine": "torch",
    "task": "hanoi", "eval_tasks": "hanoi", "algorithm": "dapo",
    "device": "cpu", "dtype": "float32", "max_unscorable_frac": 0.25, "chat_template_options": '{"a": 1}',
    "chat_template": "chatml",
    "preflight_only": True, "engine_memory_frac": 0.3, "stop_at": 0.9, "kl_estimator": "k2", "overlong": "mask",
    "length_penalty": 0.3, "length_target_weight": 0.25,
    "judge_weight": 0.3, "judge_prompt": "Grade {completion}", "judge_base_url": "http://127.0.0.1:8000/v1",
    "judge_key_variable": "ANOTHER_KEY", "teacher_prompt": "{prompt} {answer}",
    "task_max_tokens": "hanoi:9", "task_reward_scale": "hanoi:2.0", "task_data_path": "hanoi:rows.jsonl",
}  # fmt: skip


WITH = {
    "overlong_buffer": {"overlong": "penalize"},
    **{name: {"lora_rank": 4} for name in ("lora_alpha", "lora_target_modules", "lora_checkpoint")},
    **{name: {"judge_model": "a model"} for name in ("judge_base_url", "judge_prompt")},
    "chat_template": {"model_id": "a model"},
    **{name: {"task": "hanoi"} for name in ("task_max_tokens", "task_data_path")},
    "task_reward_scale": {"task": "countdown:1,hanoi:2"},
    "teacher_weight": {"teacher_id": "a model"},
    "length_target_weight": {"length_target": 64},
    "engine_urls": {"engine": "vllm-server", "engine_weights_dir": "a folder"},
    "engine_weights_dir": {"engine": "vllm-server", "engine_urls": "http://127.0.0.1:8001"},
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
    assert dict(values_of(parsed)) == {**DEFAULTS, **changed}
    assert from_dict(changed, TrainerConfig)[0] == parsed


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
        (["word"], "unknown flag word: --help lists all"),
        (["countdwn"], "unknown flag countdwn: did you mean --task countdown"),
        (["--steps", "5", "hanoi"], "unknown flag hanoi: did you mean --task hanoi"),
        (["--hanoy.skill", "0.5"], "unknown flag --hanoy.skill: did you mean hanoi.skill"),
        (["--quiet", "true"], "--quiet takes no value, got 'true': --quiet turns it on and --no-quiet off"),
        (["--no-quiet=1"], "--quiet takes no value, got '1'"),
        (["--no-steps"], "unknown flag --no-steps: did you mean steps"),
        (["--device", "cp"], r"'cpu', 'cuda'\): did you mean cpu"),
        (["--chat-template-options", "--quiet"], "Missing value for argument '--chat-template-options'"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--steps", "many"], "--steps must be of type int, got 'many'"),
        (["--steps"], "Missing value for argument '--steps'"),
        (["--device", "tpu"], "invalid choice 'tpu' for argument '--device'. Expected one of .*'cpu', 'cuda'"),
        (["--group-size", "0"], "group_size must be at least 1, got 0"),
        (["--preflight-only", "--no-preflight"], "preflight_only contradicts no-preflight"),
        (["--countdown.max-number", "2"], "countdown.max_number must be at least 5, got 2"),
        (["--hanoi.min-disks", "6"], "hanoi needs 2 <= min_disks <= max_disks"),
        (["--hlp"], "unknown flag --hlp: did you mean help"),
        (["--helpall"], "unknown flag --helpall: did you mean help-all"),
        (["--confg", "a.yaml"], "unknown flag --confg: did you mean config"),
        (["--hanoi", "3"], "unknown flag --hanoi: did you mean hanoi.min-disks or hanoi.max-disks or hanoi.peg-names"),
        (["--algorithm", "gpro"], r"no algorithm 'gpro': choose one of grpo, dr_grpo, .*: did you mean grpo or gspo\?"),
        (["--config"], "--config needs a file"),
        (["--config", "one.yaml", "--config=two.yaml"], "--config may be given once"),
        (["--judge-temperature", "-inf"], "judge_temperature must be finite, got -inf"),
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
        ("group_size: 4\ngroup-size: 8", "group_size may be given once, got it with hyphens and with underscores"),
        ("tasks: {hanoi: {max_disks: 3, max-disks: 4}}", "max_disks may be given once"),
        ("algorithm: gpro", "no algorithm 'gpro': choose one of grpo, "),
        ("tasks: 5", "tasks must hold options by task"),
        ("tasks: {countdown: 5}", "tasks must hold options by task"),
        ("tasks: {chess: {}}", "no task 'chess': choose one of "),
        ("tasks: {countdown: {size: 5}}", "unknown option 'size' of CountdownOptions"),
        ("- steps", "must hold settings by name"),
        ("steps: [", "is not YAML"),
        ("", "must hold settings by name"),
        ("learning_rate: 1" + "0" * 400, "learning_rate must be of type float: the integer is too large for one"),
        ("steps: 1" + "0" * 5000, "cannot be read: Exceeds the limit"),
        ("5: 3", "the names of settings must be text, got 5"),
        ("tasks: {3: {}}", "tasks must hold options by task"),
        ("tasks: {hanoi: {3: 4}}", "the names of settings must be text, got 3"),
        ('{"minrl_run": 1, "config": null}', "must hold settings by name"),
        ("[" * 5000, "is nested too deeply"),
        ("stop_strings: \xe4", "cannot be read: .*utf-8.* byte 0xe4"),
    ],
    ids=lambda text: text[:40],
)
def test_a_config_file_is_checked_like_flags(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_bytes(text.encode("latin-1"))
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


@pytest.mark.parametrize(
    ("flags", "steps", "stop_strings"),
    [
        (["--steps=5", "--stop_strings", "a", "b"], 5, ("a", "b")),
        (["--steps", "5", "--steps", "1_000", "--stop-strings", "a", "--stop-strings", "b"], 1000, ("b",)),
        (["--stop-strings", "--steps", "7"], 7, ()),
        (["--stop-strings=a", "b", "--steps", "7"], 7, ("a", "b")),
        (["--stop-strings", "-- END", "-a = b", "-", "--steps", "7"], 7, ("-- END", "-a = b", "-")),
        (["--stop-strings=--steps", "--steps", "7", "--judge-temperature", "-1"], 7, ("--steps",)),
    ],
)
def test_flags_are_spelled_in_several_ways(flags, steps, stop_strings):
    config, _ = parse_trainer(flags)
    assert (config.steps, config.rollout.stop_strings) == (steps, stop_strings)
    assert config.judge.judge_temperature == (-1 if "-1" in flags else 0)


def test_only_the_tasks_that_are_named_have_options(tmp_path):
    assert set(parse_trainer([])[1]) == {"countdown"}
    assert set(parse_trainer(["--task", "hanoi", "--eval-tasks", "gsm8k"])[1]) == {"hanoi", "gsm8k"}
    assert set(parse_trainer(["--tictactoe.max-opening", "2"])[1]) == {"countdown", "tictactoe"}
    file = tmp_path / "config.yaml"
    file.write_text("task: hanoi\ntasks: {math: {timeout_s: 2}}\n")
    assert set(parse_trainer(["--config", str(file)])[1]) == {"hanoi", "math"}


def test_a_stored_config_with_the_options_of_every_task_is_read():
    options = {name: definition.options() for name, definition in TASK_DEFINITIONS.items()}
    values = json.loads(json.dumps(to_dict(TrainerConfig(), options)))
    assert from_dict(values, TrainerConfig) == (TrainerConfig(), options)


def help_of(capsys, parse, flags):
    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert not ended.value.code
    return capsys.readouterr().out


def test_help_shows_examples_then_groups_with_defaults_and_the_named_tasks_options(capsys):
    page = help_of(capsys, parse_trainer, ["--task", "hanoi", "--help"])
    assert page.startswith("Make a language model better at a task.\n\npython train.py")
    assert page.count("\npython train.py") == 5 and "Traceback" not in page
    places = [page.index(part) for part in ("\nused most\n", "\nmodel: Which model", "\njudge: ", "\ntask hanoi\n")]
    assert places == sorted(places)
    assert re.search(r"\n  --steps INT +Turns of the loop: rollout, update, sync \[150\]\n", page)
    assert "--no-preflight" in page and "--countdown.max-number" not in page
    for name in DEFAULTS:
        assert len(re.findall(rf"\n  --{name.replace('_', '-')}[ ,\n]", page)) == 1, name
    said = " ".join(page.split())
    assert "--preflight, --no-preflight Before step 1, sample a little" in said
    assert "Empty: the small base model that MinRL makes itself" in said
    assert "One of grpo, dr_grpo, " in said and "; --task NAME --help" in said


@pytest.mark.parametrize("columns", [20, 60])
def test_help_is_read_in_words_on_a_narrow_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    flags = help_of(capsys, parse_trainer, ["--help"]).partition("used most\n")[2].splitlines()
    told = [line for line in flags if line.startswith("    ")]
    assert max(map(len, told)) <= columns and sum(map(len, told)) / len(told) > columns / 2


def test_help_shows_the_default_tasks_options_beside_other_named_ones(capsys):
    page = help_of(capsys, parse_trainer, ["--eval-tasks", "hanoi", "--help"])
    assert "--hanoi.skill" in page and "--countdown.max-number" in page
    page = help_of(capsys, lambda flags: parse_config(SftConfig, flags), ["--help"])
    assert "\ntask " not in page
    page = help_of(capsys, lambda flags: parse_with_tasks(ReportConfig, flags), ["--help-all"])
    assert "\ntask " not in page
    page = help_of(capsys, lambda flags: parse_with_tasks(ReportConfig, flags), ["--help"])
    assert page.endswith("\n--help-all shows whole descriptions.\n")


def test_the_names_of_algorithms_are_read_from_the_source():
    assert rows_of("minrl.algorithms.ALGORITHMS") == tuple(ALGORITHMS)


def test_help_all_shows_every_tasks_options_in_whole(capsys):
    page = " ".join(help_of(capsys, parse_trainer, ["--help-all"]).split())
    for task, definition in TASK_DEFINITIONS.items():
        for field in dataclasses.fields(definition.options):
            assert f"--{task}.{field.name}".replace("_", "-") in page
    assert "Empty: the small base model that MinRL makes itself" in page


@pytest.mark.parametrize("cls", PROGRAMS, ids=lambda cls: cls.__name__)
def test_every_program_has_a_help_page(capsys, cls):
    page = help_of(capsys, lambda flags: parse_with_tasks(cls, flags), ["-h"])
    assert page.split("\n\n")[1].startswith("python ")
    for words in re.findall(r"^python (?:-m )?\S+ (.*?)(?:   .*)?$", page, re.MULTILINE):
        named = {flag for flag in words.split() if flag.startswith("--") and "." not in flag}
        assert all(f"\n  {flag}" in page for flag in named), words


def test_a_config_goes_to_plain_values_and_back():
    # They go together, or contradict.
    excluded = {"preflight", "preflight_only", "overlong", "overlong_buffer", "length_penalty", "sharding", "optimizer"}
    excluded |= {"engine_urls", "engine_weights_dir", "engine_tensor_parallel", "task_reward_scale"}
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


@pytest.mark.slow
def test_the_script_ends_with_one_line_and_status_2(tmp_path):
    finished = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "--model-id", "nobody/nothing", "--quiet"],
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


@pytest.mark.parametrize(
    ("flags", "rank", "shown"),
    [([], None, "loading: 5 to 15 s\n"), ([], "0", "loading: 5 to 15 s\n"), ([], "1", ""), (["--quiet"], None, "")],
)
def test_a_line_is_shown_before_the_slow_imports(monkeypatch, capfd, flags, rank, shown):
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    before_imports(parse_trainer)
    assert capfd.readouterr() == ("", shown)


SED = (["--sed", "1"], "unknown flag --sed: did you mean seed")


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        (["train.py"], *SED),
        (["train.py"], ["--algorithm", "gpro"], "no algorithm 'gpro'"),
        (["evaluate.py"], *SED),
        (["-m", "minrl.sft"], *SED),
        (["-m", "minrl.sft.expert_iteration"], *SED),
    ],
)
def test_a_wrong_flag_is_answered_before_torch_is_imported(script, flags, message):
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", *script, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    imports, said = finished.stderr.rsplit("\n", 2)[:2]
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said.startswith(f"error: {message}")
    assert "minrl.terminal.command_line" in imports and not re.search(r"\| +torch$", imports, re.MULTILINE)


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
