"""From flags and files to a config, and one line for whatever is refused."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minrl.__main__ import PROGRAMS, main
from minrl.algorithms import ALGORITHMS
from minrl.config import TrainerConfig
from minrl.evaluate.config import EvaluateConfig
from minrl.report.report import ReportConfig
from minrl.report.rollouts.rollouts import RolloutsConfig
from minrl.sft.config import ExpertIterationConfig, FilterConfig, SftConfig
from minrl.tasks import TASK_DEFINITIONS
from minrl.tools.audit.config import AuditConfig
from minrl.tools.verify.config import VerifyConfig
from minrl.types import UserError
from minrl.utils.cli import from_dict, parse, rows_of, run_main, settings_of, to_dict
from tests.parsed import parsed

ROOT = Path(__file__).parent.parent
HANOI = TASK_DEFINITIONS["hanoi"].options()

HINTS = {name: one.hint for name, one in settings_of(TrainerConfig).items()}
CONFIGS = [TrainerConfig, EvaluateConfig, SftConfig, ExpertIterationConfig, FilterConfig, ReportConfig, RolloutsConfig]
CONFIGS += [AuditConfig, VerifyConfig]
DEFAULTS = TrainerConfig().settings
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
    config, _ = parsed([flag for name, value in changed.items() for flag in flags_for(name, value)])
    assert config.settings == {**DEFAULTS, **changed}
    assert from_dict(changed, TrainerConfig)[0] == config


@pytest.mark.parametrize("task", TASK_DEFINITIONS)
def test_every_option_of_a_task_is_a_flag_under_the_tasks_name(task):
    fields = dataclasses.fields(TASK_DEFINITIONS[task].options)
    flags = [word for f in fields for word in (f"--{task}.{f.name.replace('_', '-')}", str(f.default))]
    assert parsed(flags)[1][task] == TASK_DEFINITIONS[task].options()
    _, options = parsed(["--hanoi.skill", "0.25"])
    assert options["hanoi"].skill == 0.25
    assert options["countdown"] == TASK_DEFINITIONS["countdown"].options()


def refused(parse, arguments, message):
    with pytest.raises(UserError, match=message) as error:
        parse(arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--stps 5", "unknown flag --stps: did you mean --steps?"),
        ("--Steps 5", "unknown flag --Steps: did you mean --steps?"),
        ("-steps 5", "unknown flag -steps: did you mean --steps"),
        ("steps=5", "unknown flag steps=5: did you mean --steps"),
        ("\u2014steps 5", "did you mean --steps"),
        ("--countdown.max-nmber 9", "unknown flag --countdown.max-nmber: did you mean --countdown.max-number?"),
        ("--hanoy.skill 0.5", "unknown flag --hanoy.skill: did you mean --hanoi.skill?"),
        ("--hanoi 3", "--hanoi: did you mean --hanoi.min-disks or --hanoi.max-disks or --hanoi.peg-names?"),
        ("word", "unknown flag word: --help lists the flags"),
        ("-s 5", "unknown flag -s: --help lists the flags"),
        ("--revision 5", "unknown flag --revision: --help lists the flags"),
        ("--steps 5 hanio", r"unknown flag hanio: did you mean --task hanoi\?"),
        ("--task countdown hanoi", "unknown flag hanoi: did you mean --task hanoi?"),
        ("--epochs 3", "unknown flag --epochs: did you mean --steps?"),
        ("--batch_size 8", "unknown flag --batch-size: did you mean --prompts-per-step?"),
        ("--output-dir out", "did you mean --runs-dir?"),
        ("--top-p 0.9", "unknown flag --top-p: completions are sampled from the whole distribution"),
        ("--hlp", "unknown flag --hlp: did you mean --help"),
        ("--confg a.yaml", "unknown flag --confg: did you mean --config?"),
        ("--no-steps", "unknown flag --no-steps"),
        ("--quiet true", "unknown flag true"),
        ("--no-quiet=1", "--quiet/--no-quiet: ignored explicit argument '1'"),
        ("--device cp", "device must be one of auto, cpu, cuda, got 'cp': did you mean cpu?"),
        ("--device cuda:0", "got 'cuda:0': did you mean cuda?"),
        ("--algorithm GRPO", "no algorithm 'GRPO': choose one of grpo, dr_grpo, .*: did you mean grpo"),
        ("--task countdwn", "no task 'countdwn': did you mean countdown?"),
        ("--task countdown:2,hanio:1", "no task 'hanio'.* did you mean hanoi?"),
        ("--steps many", "steps must be an integer, got 'many'"),
        ("--steps 1.5", "steps must be an integer, got '1.5'"),
        ("--learning-rate 3e", "learning_rate must be a number, got '3e'"),
        ("--hanoi.max-disks many", "hanoi.max_disks must be an integer, got 'many'"),
        ("--steps", "--steps: expected one argument"),
        ("--steps 5 --steps", "--steps: expected one argument"),
        ("--chat-template-options --quiet", "--chat-template-options: expected one argument"),
        ("--judge-temperature -inf", "judge_temperature must be finite, got -inf"),
        ("--learning-rate -1e-3", "learning_rate must be at least 0, got -0.001"),
        ("--hanoi.min-disks 6", "hanoi needs 2 <= min_disks <= max_disks"),
        ("--countdown.max-number 2", "countdown.max_number must be at least 5, got 2"),
        ("--config", "--config: expected one argument"),
        ("--config one.yaml --config=two.yaml", "--config may be given once"),
        ("--config /nowhere.yaml", "cannot read the config file /nowhere.yaml: No such file"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(flags, message):
    refused(parsed, flags.split(), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stps: 5", "unknown setting 'stps': did you mean steps"),
        ("model: x", "unknown setting 'model': did you mean model_id"),
        ("a.b: 5", "unknown option 'b' of a"),
        ("steps: true", "steps must be an integer, got True"),
        ("steps: 5.5", "steps must be an integer, got 5.5"),
        ("run_name: 5", "run_name must be text, got 5"),
        ("quiet: 'yes'", "quiet must be true or false, got 'yes'"),
        ("learning_rate: yes", "learning_rate must be a number, got True"),
        ("stop_strings: END", "stop_strings must be a list, each text, got 'END'"),
        ("stop_strings: [END, 5]", "stop_strings must be text, got 5"),
        ("algorithm: gpro", "no algorithm 'gpro': choose one of grpo, "),
        ("tasks: 5", "tasks must hold options by task"),
        ("tasks: {countdown: 5}", "tasks must hold options by task"),
        ("tasks: {chess: {}}", "no task 'chess'"),
        ("tasks: {countdown: {size: 5}}", "unknown option 'size' of countdown"),
        ("tasks: {countdown: {max_number: many}}", "countdown.max_number must be an integer, got 'many'"),
        ("- steps", "must hold settings by name"),
        ("", "must hold settings by name"),
        ("steps: [", "is not YAML"),
        ("learning_rate: 1" + "0" * 400, "learning_rate must be a number"),
        ("stop_strings: \xe4", "is not YAML: .*utf-8.* byte 0xe4"),
        ('{"minrl_run": 1, "config": null}', "must hold settings by name"),
    ],
    ids=lambda text: text[:40],
)
def test_a_config_file_is_checked_like_flags(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_bytes(text.encode("latin-1"))
    refused(parsed, ["--config", str(file)], message)


def test_flags_of_other_trainers_are_the_same_settings():
    flags = "--lr 1e-5 --model x --num_generations 4 --max-completion-length 9 --beta 0.1 --max-steps 3"
    config, _ = parsed(flags.split())
    found = config.settings
    assert (found["learning_rate"], found["model_id"], found["group_size"]) == (1e-5, "x", 4)
    assert (found["max_tokens"], found["kl_coef"], found["steps"]) == (9, 0.1, 3)
    assert parse(EvaluateConfig, ["--model", "x"]).config.checkpoint == "x"  # where --model-id is refused


@pytest.mark.parametrize("spelled", [["--config", "{}"], ["--config={}"]])
def test_flags_are_on_top_of_a_config_file(tmp_path, spelled):
    file = tmp_path / "config.yaml"
    file.write_text("steps: 7\nlearning-rate: 3e-4\nstop_strings: [END]\ntasks: {hanoi: {max-disks: 3}}\n")
    arguments = [part.format(file) for part in spelled]
    config, options = parsed(["--steps", "9", *arguments, "--group-size", "4"])
    assert (config.steps, config.optimizer.learning_rate, config.rollout.group_size) == (9, 3e-4, 4)
    assert config.rollout.stop_strings == ("END",)
    assert options["hanoi"].max_disks == 3


@pytest.mark.parametrize(
    ("flags", "steps", "stop_strings"),
    [
        (["--steps=5", "--stop_strings", "a", "b"], 5, ("a", "b")),
        (["--steps", "5", "--steps", "1_000", "--stop-strings", "a", "--stop-strings", "b"], 1000, ("b",)),
        (["--stop-strings", "--steps", "7"], 7, ()),
        (["--stop-strings", "-- END", "-a = b", "-", "--steps", "7"], 7, ("-- END", "-a = b", "-")),
        (["--stop-strings=--steps", "--steps", "7", "--judge-temperature", "-1e0"], 7, ("--steps",)),
    ],
)
def test_flags_are_spelled_in_several_ways(flags, steps, stop_strings):
    config, _ = parsed(flags)
    assert (config.steps, config.rollout.stop_strings) == (steps, stop_strings)
    assert config.judge.judge_temperature == (-1 if "-1e0" in flags else 0)


def test_only_the_tasks_that_are_named_have_options(tmp_path):
    assert set(parsed([])[1]) == {"countdown"}
    assert set(parsed(["--task", "hanoi", "--eval-tasks", "gsm8k"])[1]) == {"hanoi", "gsm8k"}
    assert set(parsed(["--tictactoe.max-opening", "2"])[1]) == {"countdown", "tictactoe"}
    file = tmp_path / "config.yaml"
    file.write_text("task: hanoi\ntasks: {math: {timeout_s: 2}}\n")
    assert set(parsed(["--config", str(file)])[1]) == {"hanoi", "math"}


def test_a_stored_config_with_the_options_of_every_task_is_read():
    options = {name: definition.options() for name, definition in TASK_DEFINITIONS.items()}
    values = json.loads(json.dumps(to_dict(TrainerConfig(), options)))
    assert from_dict(values, TrainerConfig) == (TrainerConfig(), options)


def help_of(capsys, parse, flags):
    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__name__)
def test_help_is_one_screen_of_examples_and_the_flags_used_most(capsys, monkeypatch, cls):
    monkeypatch.setenv("COLUMNS", "80")
    page = help_of(capsys, lambda flags: parse(cls, flags), ["-h"])
    lines = page.splitlines()
    assert len(lines) <= 45 and max(map(len, page.partition("most used:")[2].splitlines())) <= 80
    assert lines[-1] == "--help-all shows every setting, with whole descriptions."
    for words in re.findall(r"^python -m minrl \S+ (.*?)(?:   .*)?$", page, re.MULTILINE):
        named = {flag for flag in words.split() if flag.startswith("--") and "." not in flag}
        assert named <= {flag for one in settings_of(cls).values() for flag in [f"--{one.name.replace('_', '-')}"]}


def test_help_shows_defaults_algorithms_and_the_options_of_the_named_tasks(capsys):
    page = help_of(capsys, parsed, ["--task", "hanoi", "--help"])
    assert re.search(r"\n  --steps INT +Training steps \[150\]\n", page) and "grpo, dr_grpo," in page
    assert "--hanoi.skill" in page and "--countdown.max-number" not in page and "--judge-model" not in page
    page = help_of(capsys, parsed, ["--eval-tasks", "hanoi", "--help"])
    assert "--hanoi.skill" in page and "--countdown.max-number" in page
    assert "\ntask " not in help_of(capsys, lambda flags: parse(SftConfig, flags), ["--help"])


def test_help_all_shows_every_setting_and_option_in_whole(capsys):
    page = " ".join(help_of(capsys, parsed, ["--help-all"]).split())
    for name in DEFAULTS:
        assert f"--{name.replace('_', '-')}" in page
    for task, definition in TASK_DEFINITIONS.items():
        for field in dataclasses.fields(definition.options):
            assert f"--{task}.{field.name}".replace("_", "-") in page
    assert "Empty: the small base model that MinRL makes itself" in page and "--learning-rate FLOAT" in page
    assert "--preflight, --no-preflight" in page and "Also --lr" in page


def test_the_names_of_algorithms_are_read_from_the_source():
    assert rows_of("minrl.algorithms.ALGORITHMS") == tuple(ALGORITHMS)


def test_a_config_goes_to_plain_values_and_back():
    # They go together, or contradict.
    excluded = {"preflight", "preflight_only", "overlong", "overlong_buffer", "length_penalty", "sharding", "optimizer"}
    excluded |= {"engine_urls", "engine_weights_dir", "engine_tensor_parallel", "task_reward_scale"}
    flags = [flag for name in DEFAULTS if name not in excluded for flag in flags_for(name, another(name))]
    config, options = parsed([*flags, "--hanoi.skill", "0.5"])
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options)
    assert set(values) == {*DEFAULTS, "tasks"}


def test_a_runs_config_json_is_a_config_file(tmp_path):
    config, options = parsed(["--steps", "7", "--hanoi.skill", "0.5"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"minrl_run": "name", "config": to_dict(config, options), "commit": None}))
    assert parsed(["--config", str(file)]) == (config, options)


@pytest.mark.slow
def test_the_script_ends_with_one_line_and_status_2(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "--model-id", "nobody/nothing", "--quiet"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.startswith("error: cannot load model 'nobody/nothing'")
    assert (len(finished.stderr.splitlines()), finished.stdout) == (1, "")
    assert not list(tmp_path.glob("runs/*"))  # what was refused leaves nothing behind


@pytest.mark.parametrize(
    ("rank", "flags", "shown"), [(None, [], True), ("0", [], True), ("1", [], False), (None, ["--quiet"], False)]
)
def test_a_line_is_shown_before_the_slow_imports(monkeypatch, capfd, flags, rank, shown):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setitem(PROGRAMS, "train", PROGRAMS["train"]._replace(module="tests.three_layers"))
    monkeypatch.delitem(sys.modules, "tests.three_layers", raising=False)
    with pytest.raises(AttributeError):  # it has no main
        main(["train", *flags])
    assert capfd.readouterr() == ("", "loading: 5 to 15 s\n" * shown)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py", "--sed", "1"], "unknown flag --sed: did you mean --seed?"),
        (["train.py", "--algorithm", "gpro"], "no algorithm 'gpro'"),
        (["evaluate.py", "--sed", "1"], "unknown flag --sed: did you mean --seed?"),
        (["-m", "minrl", "expert-iteration", "--sed", "1"], "unknown flag --sed: did you mean --seed?"),
    ],
)
def test_a_wrong_flag_is_answered_before_torch_is_imported(words, message):
    command = [sys.executable, "-X", "importtime", *words]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    imports, said = finished.stderr.rsplit("\n", 2)[:2]
    assert (finished.returncode, finished.stdout) == (2, "")
    assert said.startswith(f"error: {message}")
    assert "minrl.utils.cli" in imports and not re.search(r"\| +torch$", imports, re.MULTILINE)


def test_what_goes_together_is_checked_before_anything_is_made(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_main(main, ["train", "--group-size", "1", "--quiet"])
    assert ended.value.code == 2
    said = capfd.readouterr()
    assert said.err.startswith("error: grpo compares the completions of a group: group_size must be at least 2")
    assert (len(said.err.splitlines()), said.out) == (1, "")
    assert not list(tmp_path.iterdir())


def test_other_defaults_stand_under_a_file_and_flags(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("group_size: 4\n")
    command = parse(TrainerConfig, ["--config", str(file), "--seed", "3", "--hanoi.max-disks", "3"])
    assert command.given == ["--seed", "--hanoi.max-disks", "--config"]
    other = command.over({"group_size": 2, "seed": 1, "steps": 9}, {"hanoi": replace(HANOI, max_disks=5, min_disks=2)})
    assert (other.config.rollout.group_size, other.config.seed, other.config.steps) == (4, 3, 9)
    assert other.options["hanoi"] == replace(HANOI, max_disks=3, min_disks=2)
