"""What a run says at its end."""

import shlex
import sys
from pathlib import Path

import minrl
from minrl.run.records import next_steps
from minrl.run.run import Run
from tests.parsed import sized


def test_the_end_of_a_run_names_commands_that_a_shell_reads_as_they_are_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.chdir(Path(minrl.__file__).parents[1])
    run = Run(tmp_path / "my runs/run", tmp_path / "kept", sized(steps=600_000), {})
    last, best, python = tmp_path / "kept/step_000009", tmp_path / "kept/step_000006", ["python", "-m", "minrl"]

    def commands(*checkpoints):
        lines = (line.partition(": ") for line in next_steps(run, *checkpoints))
        return {purpose: shlex.split(command) for purpose, _, command in lines}

    assert commands(last) == {
        "report": [*python, "report", str(run.folder)],
        "chat": [*python, "serve", str(run.folder), "--chat"],
        "continue": [*python, "train", "--resume", str(run.folder), "--steps", "1200000"],
    }
    assert commands(last, best)["chat"][4] == f"{run.folder}@best"
