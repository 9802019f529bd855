"""What a run writes down of itself: its config, its hyperparameters, its summary."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import minrl
from minrl.config import RolloutConfig, TrainerConfig
from minrl.run import records as run_module
from minrl.run.checkpoint import weights_sha256
from minrl.run.records import changes, hyperparameters, next_steps, provenance, write_config, write_summary
from minrl.run.run import Program, Run
from minrl.sft.config import SftConfig
from minrl.tasks import TASK_DEFINITIONS
from minrl.types import TrainState
from minrl.utils.statistics import Evaluation

CHECKOUT = Path(minrl.__file__).parents[1]
OPTIONS = {name: definition.options() for name, definition in TASK_DEFINITIONS.items()}


@pytest.fixture
def make_run(tmp_path):
    """A run of countdown, evaluated on hanoi too, in folders of its own."""

    def make(**changes):
        folders = {"runs_dir": str(tmp_path), "checkpoints_dir": str(tmp_path)}
        settings = TrainerConfig(seed=3, task="countdown", eval_tasks="hanoi", **folders)
        (tmp_path / "run").mkdir(exist_ok=True)
        made = Run("run", settings, OPTIONS, tmp_path / "run", tmp_path / "kept", identity="abc")
        return replace(made, **{"models": {"start model": {"path": "model", "weights_sha256": "0"}}, **changes})

    return make


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment whose programs the shell finds, and the checkout as the current folder."""
    programs = tmp_path / "my environment/bin"
    programs.mkdir(parents=True)
    for name in ("python", "minrl", "tensorboard"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(CHECKOUT)
    return programs


def test_a_run_says_how_to_go_on_by_its_program_and_its_folder(make_run, tmp_path, environment, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert make_run().resume_command == f"python -m minrl train --resume {tmp_path}/run"
    other = make_run(program=Program("sft"), folder=tmp_path / "my runs/run")
    assert other.resume_command == f"python -m minrl sft --resume '{tmp_path}/my runs/run'"
    assert make_run().config == make_run().settings


def test_the_end_of_a_run_names_commands_that_a_shell_reads_as_they_are_meant(
    make_run, tmp_path, environment, monkeypatch
):
    run = make_run(folder=tmp_path / "my runs/run")
    run = replace(run, settings=replace(run.settings, steps=600_000, rollout=RolloutConfig(task="a b.py:task")))
    (run.folder / "rollouts").mkdir(parents=True)
    kept, minrl = run.checkpoints, ["python", "-m", "minrl"]

    def commands(*checkpoints):
        lines = (line.partition(": ") for line in next_steps(run, *checkpoints))
        return {purpose: shlex.split(command) for purpose, _, command in lines}

    last, best, start = kept / "step_000009", kept / "step_000006", tmp_path / "it's the start"
    assert commands(last) == {
        "curves": ["tensorboard", "--logdir", str(tmp_path / "my runs")],
        "report": [*minrl, "report", str(run.folder)],
        "rollouts": [*minrl, "rollouts", str(run.folder)],
        "evaluate": [*minrl, "evaluate", "--checkpoint", str(run.folder), "--task", "a b.py:task"],
        "chat": [*minrl, "serve", str(run.folder), "--chat"],
        "continue": [*minrl, "train", "--resume", str(run.folder), "--steps", "1200000"],
    }
    for checkpoints, model in (((last, best), f"{run.folder}@best"), ((start,), str(start))):
        named = commands(*checkpoints)
        assert named["chat"][4] == named["evaluate"][5] == model
    monkeypatch.setenv("PATH", "")  # where no environment is activated
    assert commands(last)["curves"][0].endswith("my environment/bin/tensorboard")


def test_a_run_without_a_task_names_no_evaluation_and_goes_on_by_what_it_was_asked_for(make_run, environment):
    run = make_run(program=Program("sft", ("steps", "epochs")))
    run = replace(run, settings=SftConfig(data="rows.jsonl", epochs=1.5))
    lines = list(next_steps(run, Path("c")))
    assert {"evaluate", "rollouts"}.isdisjoint(line.partition(":")[0] for line in lines)
    assert any(line.endswith("--epochs 3") for line in lines)


def test_the_config_says_all_that_the_numbers_depend_on(make_run, monkeypatch):
    monkeypatch.setattr(run_module, "provenance", lambda files: {"commit": "c", "python": "3"})
    run = make_run()
    write_config(run)
    record = json.loads((run.folder / "config.json").read_text())
    assert record.pop("config")["seed"] == 3
    assert record == {
        "minrl_run": "run",
        "commit": "c",
        "python": "3",
        "id": "abc",
        "program": "train",
        "not_default": {"seed": 3, "eval_tasks": "hanoi"},
        "models": run.models,
    }


def test_a_resumed_run_keeps_what_was_and_says_what_changed(make_run, monkeypatch, said):
    now = {"commit": "d", "python": "4"}
    monkeypatch.setattr(run_module, "provenance", lambda files: now)
    resumed = {"commit": "b", "after": 3, "steps": 5}
    stored = {"commit": "c", "python": "4", "forked_from": {"run": "r", "step": 1}, "resumed": [resumed]}
    write_config(make_run(stored=stored))
    assert said == []  # the commit goes with the sources, which were not written down
    write_config(make_run(stored={**stored, "python": "3"}))
    assert len(said) == 1 and ": python 3 (now 4)\n" in said[0]
    record = json.loads((make_run().folder / "config.json").read_text())
    assert (record["commit"], record["forked_from"]) == ("c", {"run": "r", "step": 1})
    assert record["resumed"] == [resumed | {"after": 0}, {**now, "after": 0, "steps": None}]


def test_the_files_outside_that_examples_and_rewards_come_from_are_written_down_once(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "files_outside", lambda name: [tmp_path / "task.py"])
    for name in ("task.py", "data.jsonl"):
        (tmp_path / name).write_text("")
    run = make_run()
    write_config(replace(run, settings=replace(run.settings, data_path=str(tmp_path / "data.jsonl"))))
    before = json.loads((run.folder / "config.json").read_text())
    assert before["files"].keys() == {str(tmp_path / name) for name in ("task.py", "data.jsonl")}
    (tmp_path / "task.py").write_text("# edited")
    assert changes(before, provenance(map(Path, before["files"]))) == [f"the file {tmp_path}/task.py"]


def test_hyperparameters_are_every_setting_and_the_options_of_the_runs_own_tasks(make_run):
    values = hyperparameters(make_run())
    assert (values["seed"], values["eval_tasks"], values["learning_rate"]) == (3, "hanoi", 3e-4)
    assert list(values)[:2] == ["seed", "eval_tasks"]  # those that are not at their defaults come first
    assert {name.split(".")[0] for name in values if "." in name} == {"countdown", "hanoi"}
    assert "tasks" not in values


def evaluated(value):
    return Evaluation(value, (0.0, 1.0), 4, 2, value, value, 3.0, 0.0)


def test_the_summary_says_what_came_of_the_run(make_run, policy, tmp_path):
    run, state = make_run(), TrainState(step=2, sampled_tokens=300, seconds=1.50049)
    before = {"countdown": {"pass@1": 0.25}}
    after = {"countdown": evaluated(0.5), "hanoi": evaluated(0.75)}
    made = write_summary(run, state, weights_sha256(policy), tmp_path / "last", before, after, {"rounds": 7})
    assert json.loads((run.folder / "summary.json").read_text()) == made
    assert made == {
        "run": "run",
        "task": "countdown",
        "algorithm": "grpo",
        "seed": 3,
        "eval_before": {"pass@1": 0.25},
        "eval_after": after["countdown"].to_json(),
        "other_tasks": {"hanoi": {"eval_before": None, "eval_after": after["hanoi"].to_json()}},
        "steps": 2,
        "seconds": 1.5,
        "tokens_per_s": 199.9,  # 300 / 1.50049
        "final_checkpoint": f"{tmp_path}/last",
        "weights_sha256": weights_sha256(policy),
        "rounds": 7,
    }
    instant = write_summary(run, TrainState(step=2), "ab12", tmp_path / "last", {}, {}, {})
    assert "tokens_per_s" not in instant and "eval_after" not in instant  # nothing was sampled: of no speed
