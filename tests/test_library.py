"""`import minrl` in a script or a notebook."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import minrl
from minrl.run.checkpoint import save_policy
from minrl.tasks import TASK_DEFINITIONS, Dataset, Task
from minrl.types import Example, UserError
from minrl.utils.signals import answered, stop_at_once

ROOT = Path(__file__).parent.parent

SCRIPT = """
import json, sys
import minrl
assert "torch" not in sys.modules
from minrl.tasks.task import split
from minrl.types import Example
def ends_well(completion, example):
    return float(completion.strip().endswith(example["word"]))
examples = [Example(str(n), f"numbers {' '.join(str(n))}", {"word": "7"}) for n in range(40)]
task = minrl.Task(split(examples, 0.3), ends_well, name="ends")
for first in sys.argv[2:]:
    exec(first)
sizes = dict(steps=2, prompts_per_step=4, group_size=4, max_tokens=4, eval_examples=8, eval_samples=2)
quick = dict(preflight=False, quiet=True, threads=1, device="cpu")
config = minrl.TrainerConfig(model_id=sys.argv[1], runs_dir="runs", checkpoints_dir="checkpoints", **sizes, **quick)
print(json.dumps(minrl.train(config, task=task)))
"""


@pytest.mark.parametrize("first", ["", "from minrl.train import main, train"])
def test_a_task_of_a_script_is_trained_whatever_was_imported_first(policy, tmp_path, first):
    save_policy(policy, tmp_path / "model")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "model"), first]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "runs" / summary["run"] / "summary.json").read_text())
    assert (summary["task"], summary["steps"]) == ("ends", 2)
    assert summary["eval_after"]["pass@1"] is not None  # a worker process could not import the reward


def test_the_names_of_the_library_are_those_of_its_modules():
    from minrl.algorithms import ALGORITHMS
    from minrl.config import TrainerConfig

    assert (minrl.TrainerConfig, minrl.Task) == (TrainerConfig, Task)
    assert (minrl.ALGORITHMS, minrl.TASK_DEFINITIONS) == (ALGORITHMS, TASK_DEFINITIONS)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = minrl.trian


def test_settings_that_were_not_given_have_the_defaults_of_the_models_size(monkeypatch):
    from minrl import train

    monkeypatch.setattr("minrl.run.defaults.num_weights", lambda name, runs_dir: 135_000_000)
    opened = []
    monkeypatch.setattr(train, "open_run", lambda settings, options, flags: opened.append(settings))
    monkeypatch.setattr(train, "_run", lambda run, started: (0, {}))
    given = {"model_id": "some/model", "device": "cpu", "learning_rate": 3e-4}  # the default of the base model
    minrl.train(minrl.TrainerConfig(**given))
    minrl.train(minrl.TrainerConfig(**given).with_settings(seed=1, group_size=2))
    found = [(one.seed, one.optimizer.learning_rate, one.rollout.group_size, one.rollout.max_tokens) for one in opened]
    assert found == [(0, 3e-4, 8, 64), (1, 3e-4, 2, 64)]


def test_a_task_may_not_hide_a_built_in_one(sevens):
    from dataclasses import replace

    with pytest.raises(UserError, match="'countdown' is a built-in task's name"):
        minrl.train(minrl.TrainerConfig(), task=replace(sevens, name="countdown"))


def test_a_config_that_was_replaced_knows_what_was_given():
    config = dataclasses.replace(minrl.TrainerConfig(learning_rate=1e-3), steps=3)
    assert config.given == {"learning_rate", "steps"}


def test_what_is_no_config_or_task_is_refused():
    with pytest.raises(UserError, match=r"minrl\.train takes a TrainerConfig, got dict"):
        minrl.train({"steps": 2})
    with pytest.raises(UserError, match="`task` must be a Task, got str"):
        minrl.train(minrl.TrainerConfig(), "countdown")
    own = Task(Dataset([], [Example("1", "1", {})]), lambda text, example: 0.0, name="own")
    with pytest.raises(UserError, match=r"takes no data_path, got 'rows\.jsonl'"):
        minrl.train(minrl.TrainerConfig(data_path="rows.jsonl"), own)


def test_in_a_thread_no_signal_is_handled():
    with ThreadPoolExecutor(1) as pool, answered(stop_at_once):
        before = signal.getsignal(signal.SIGINT)

        def inside():
            with answered(print):
                return signal.getsignal(signal.SIGINT)

        assert pool.submit(inside).result() is before


def test_a_folder_may_be_a_path():
    assert minrl.TrainerConfig(runs_dir=Path("here")).logging.runs_dir == "here"
