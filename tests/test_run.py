"""What a run says at its end."""

import shlex
import sys
from pathlib import Path

import minrl
from minrl.run.records import next_steps
from minrl.run.run import Run
from minrl.tasks import TASK_DEFINITIONS, option_classes
from tests.parsed import sized

CHECKOUT = Path(minrl.__file__).parents[1]


def test_the_end_of_a_run_names_commands_that_a_shell_reads_as_they_are_meant(tmp_path, monkeypatch):
    programs = tmp_path / "my environment/bin"
    programs.mkdir(parents=True)
    for name in ("python", "minrl", "tensorboard"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(CHECKOUT)
    options = {name: options() for name, options in option_classes(TASK_DEFINITIONS).items()}
    settings = sized(steps=600_000, task="a b.py:task")
    run = Run("run", settings, options, tmp_path / "my runs/run", tmp_path / "kept", identity="abc")
    (run.folder / "rollouts").mkdir(parents=True)
    (run.folder / "rollouts/step_000001.jsonl.gz").touch()
    kept, minrl = run.checkpoints, ["python", "-m", "minrl"]

    def commands(*checkpoints):
        lines = (line.partition(": ") for line in next_steps(run, *checkpoints))
        return {purpose: shlex.split(command) for purpose, _, command in lines}

    last, best = kept / "step_000009", kept / "step_000006"
    assert commands(last) == {
        "curves": ["tensorboard", "--logdir", str(tmp_path / "my runs")],
        "report": [*minrl, "report", str(run.folder)],
        "rollouts": [*minrl, "rollouts", str(run.folder)],
        "evaluate": [*minrl, "evaluate", "--checkpoint", str(run.folder), "--task", "a b.py:task"],
        "chat": [*minrl, "serve", str(run.folder), "--chat"],
        "continue": [*minrl, "train", "--resume", str(run.folder), "--steps", "1200000"],
    }
    assert commands(last, best)["chat"][4] == f"{run.folder}@best"
