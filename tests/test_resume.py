"""A run that was stopped and continued ends with the weights of one that never was."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minrl import trainer
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.run.checkpoint import newest
from minrl.run.run import open_run
from minrl.tracking import session as logger
from minrl.utils.cli import parse
from tests.forked import Forked
from tests.killing import killed_at
from tests.say_sevens import SAY_SEVENS

ROOT = Path(__file__).parent.parent
SETTINGS = """--prompts-per-step 4 --group-size 8 --steps 6 --save-every 1 --eval-every 3 --eval-examples 4
    --eval-samples 1 --rollouts-every 2 --threads 1 --device cpu"""
FLAGS = [*SAY_SEVENS, *SETTINGS.split()]
NAME = "sevens-grpo-seed0"
STEPS = list(range(7))  # step 0 is the evaluation before the first


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a whole run, with the base model that the others start from, and its summary."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["train", *FLAGS, *folders(folder)]) == 0
    return folder, summary(folder)


@pytest.fixture
def folder(tmp_path, uninterrupted):
    """An empty place for a run that has the same base model at hand."""
    for base in (uninterrupted[0] / "checkpoints").glob("base-*"):
        shutil.copytree(base, tmp_path / "checkpoints" / base.name)
    return tmp_path


def folders(folder):
    return ["--runs-dir", str(folder / "runs"), "--checkpoints-dir", str(folder / "checkpoints")]


def run_folder(folder):
    (run,) = (folder / "runs").iterdir()
    return run


def summary(folder):
    return json.loads((run_folder(folder) / "summary.json").read_text())


def steps_written(folder):
    path = folder / f"runs/{NAME}/metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def assert_as_never_stopped(folder, whole):
    found = summary(folder)
    assert found["weights_sha256"] == whole["weights_sha256"]
    for name in ("eval_before", "eval_after", "steps", "tokens"):
        assert found.get(name) == whole.get(name)
    assert steps_written(folder) == STEPS
    accumulator = EventAccumulator(str(run_folder(folder)), size_guidance={"scalars": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("reward/mean")] == STEPS[1:]
    assert [event.step for event in accumulator.Scalars("time/step_s")] == STEPS
    names = sorted(path.name for path in (run_folder(folder) / "rollouts").iterdir())
    assert names == [f"step_00000{n}.jsonl.gz" for n in (1, 2, 4, 6)]


@pytest.mark.parametrize("moment", ["sample_groups", "update_policy", "save_checkpoint"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_run_that_was_stopped_anywhere_continues_to_the_same_weights(folder, uninterrupted, step, moment):
    with killed_at(logger if moment == "save_checkpoint" else trainer, moment, step):
        main(["train", *FLAGS, *folders(folder)])
    assert main(["train", "--resume", "latest", "--runs-dir", str(folder / "runs")]) == 0
    assert_as_never_stopped(folder, uninterrupted[1])


def test_the_steps_of_the_run_change_the_weights(uninterrupted):
    # Otherwise any two runs would end with the same weights, and the other tests would prove nothing.
    lines = (run_folder(uninterrupted[0]) / "metrics.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["policy/optimizer_steps"] for line in lines[1:]) >= 4


def test_a_damaged_checkpoint_is_passed_over(folder, uninterrupted, capsys):
    assert main(["train", *FLAGS, *folders(folder), "--steps", "4"]) == 0
    last = newest(folder / f"checkpoints/{NAME}")
    (last / "model.safetensors").write_bytes((last / "model.safetensors").read_bytes()[:1000])
    assert main(["train", "--resume", str(run_folder(folder)), "--steps", "6", "--runs-dir", str(folder / "runs")]) == 0
    assert summary(folder)["weights_sha256"] == uninterrupted[1]["weights_sha256"]
    (schedule,) = (line for line in capsys.readouterr().err.splitlines() if "schedule" in line)  # of warmup, 4 of 5
    assert schedule.endswith("now ends at step 6: step 4 has 0.00024 (peak 0.0003)")


def test_one_command_begins_a_run_and_goes_on_with_it(folder, uninterrupted):
    command = [*FLAGS, *folders(folder), "--run-name", "mine", "--resume", "auto"]
    with killed_at(trainer, "update_policy", 1):  # its first step was not saved
        main(["train", *FLAGS, *folders(folder), "--run-name", "another"])
    with killed_at(trainer, "update_policy", 3):
        main(["train", *command])
    for _ in range(2):  # the second finds it finished
        assert main(["train", *command]) == 0
        (done,) = (folder / "runs").glob("mine*/summary.json")
        assert json.loads(done.read_text())["weights_sha256"] == uninterrupted[1]["weights_sha256"]
    with pytest.raises(
        UserError, match=r"got --seed 1 \(it has 0\); --learning-rate 0.5 \(it has [\d.e-]+\)"
    ) as refused:
        main(["train", *command, "--seed", "1", "--learning-rate", "0.5"])
    assert "\n" not in str(refused.value)


def opened(whole, *flags):
    command = parse(TrainerConfig, ["--resume", "latest", "--runs-dir", str(whole / "runs"), *flags])
    return open_run(command.config, command.options, command.given)


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["--seed", "1"], "--seed 1 (it has 0)"),
        (["--chat-template", "chatml", "--model-id", "m"], "--model-id m (it has ); --chat-template chatml (it has )"),
    ],
)
def test_a_resume_refuses_other_settings_than_the_run_has(uninterrupted, flags, difference):
    with pytest.raises(UserError) as refused:
        opened(uninterrupted[0], *flags)
    keeps = "a resumed run keeps its config and only --steps, --stop-at and --patience may change, got "
    assert str(refused.value).partition("; to change more, start a new run from its weights: ") == (
        keeps + difference,
        "; to change more, start a new run from its weights: ",
        f"model_id='{NAME}', --model-id {NAME}",
    )


def start(folder, *flags):
    return Forked(
        [sys.executable, str(ROOT / "train.py"), *flags],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr.txt").open("a"),
    )


def signal_when(process, ready, number):
    """Send the signal as soon as the condition holds; the exit status."""
    deadline = time.monotonic() + 300
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    return process.wait(timeout=300)


KILL_WHEN = {
    "while the base model is made": lambda f: list((f / "checkpoints").glob("base-*")),
    "before the first step": lambda f: (f / f"runs/{NAME}/config.json").exists(),
    "after the first evaluation": lambda f: len(steps_written(f)) >= 1,
    "after step 1": lambda f: len(steps_written(f)) >= 2,
    "after step 4": lambda f: len(steps_written(f)) >= 5,
    "while a checkpoint is written": lambda f: list((f / f"checkpoints/{NAME}").glob(".step_00000[2-5]*")),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILL_WHEN)
def test_a_killed_run_continues_to_the_same_weights(tmp_path, uninterrupted, moment):
    process = start(tmp_path, *FLAGS, *folders(tmp_path))

    def ready():
        if not KILL_WHEN[moment](tmp_path):
            return False
        if steps_written(tmp_path):
            with pytest.raises(UserError, match=rf"is running \(process {process.pid} on"):
                main(["train", "--resume", "latest", *folders(tmp_path)])
        return True

    assert signal_when(process, ready, signal.SIGKILL) == -signal.SIGKILL
    begun = list((tmp_path / "runs").glob("*/config.json"))
    flags = ["--resume", "latest"] if begun else FLAGS
    assert start(tmp_path, *flags, *folders(tmp_path)).wait(timeout=600) == 0
    assert_as_never_stopped(tmp_path, uninterrupted[1])


@pytest.mark.slow
def test_a_run_killed_when_an_older_checkpoint_has_lost_its_moments_continues_to_the_same_weights(
    tmp_path, uninterrupted
):
    kept, flags = tmp_path / f"checkpoints/{NAME}", [*FLAGS, "--save-moments", "last", *folders(tmp_path)]
    process, moments = start(tmp_path, *flags), kept / "step_000001/optimizer.safetensors"
    ready = lambda: moments.parent.exists() and not moments.exists()  # noqa: E731
    assert signal_when(process, ready, signal.SIGKILL) == -signal.SIGKILL
    assert start(tmp_path, "--resume", "latest", *folders(tmp_path)).wait(timeout=600) == 0
    assert_as_never_stopped(tmp_path, uninterrupted[1])
    left = [path.parent.name for path in sorted(kept.glob("step_*/optimizer.safetensors"))]
    assert left == ["step_000005", "step_000006"]


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_continues_to_the_same_weights(tmp_path, uninterrupted):
    flags = FLAGS
    for lines in (2, 4, 5):
        process = start(tmp_path, *flags, *folders(tmp_path))
        signal_when(process, lambda lines=lines: len(steps_written(tmp_path)) >= lines, signal.SIGKILL)
        flags = ["--resume", "latest"]
    assert start(tmp_path, *flags, *folders(tmp_path)).wait(timeout=600) == 0
    assert_as_never_stopped(tmp_path, uninterrupted[1])


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, uninterrupted):
    process = start(tmp_path, *FLAGS, *folders(tmp_path), "--save-every", "0")
    assert signal_when(process, lambda: len(steps_written(tmp_path)) >= 3, signal.SIGINT) == 130
    said = (tmp_path / "stderr.txt").read_text()
    assert f"resume with: python -m minrl train --resume {run_folder(tmp_path)}" in " ".join(said.split())
    assert "Traceback" not in said
    assert newest(tmp_path / f"checkpoints/{NAME}") is not None
    assert not (run_folder(tmp_path) / "summary.json").exists()
    assert start(tmp_path, "--resume", str(run_folder(tmp_path)), *folders(tmp_path)).wait(timeout=600) == 0
    assert_as_never_stopped(tmp_path, uninterrupted[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["merged", "adapter"])
def test_a_killed_run_with_adapters_continues_to_the_same_weights(tmp_path, uninterrupted, kind):
    flags, places = [*FLAGS, "--run-name", NAME, "--lora-rank", "4", "--lora-checkpoint", kind, "--kl-coef", "0.01"], []
    for name in ("whole", "killed"):
        places.append(tmp_path / name)
        for base in (uninterrupted[0] / "checkpoints").glob("base-*"):
            shutil.copytree(base, places[-1] / "checkpoints" / base.name)
    whole, killed = places
    assert start(whole, *flags, *folders(whole)).wait(timeout=600) == 0
    process = start(killed, *flags, *folders(killed))
    assert signal_when(process, lambda: len(steps_written(killed)) >= 5, signal.SIGKILL) == -signal.SIGKILL
    assert start(killed, "--resume", "latest", *folders(killed)).wait(timeout=600) == 0
    assert_as_never_stopped(killed, summary(whole))
    assert summary(whole)["weights_sha256"] != uninterrupted[1]["weights_sha256"]
