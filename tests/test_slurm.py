"""The batch script under the real SLURM trains on two nodes, is stopped, queued again, and ends with equal weights."""

import json
import os
from pathlib import Path

import pytest
from slurm import cluster, missing, wait_for

from minrl.run.checkpoint import save_policy
from minrl.run.folder import RunFolder

ROOT = Path(__file__).parent.parent
STEPS = 6

TASK = """
import time
from dataclasses import dataclass

from minrl.tasks import TaskDefinition, TaskOptions
from minrl.tasks.task import split
from minrl.dataflow import Example, Reward


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    most: int = 16


def reward(completion, example):  # in a worker; a step takes long enough to be met
    time.sleep(0.05)
    return Reward(len(completion) % 5 / 4)


def dataset(options):
    return split([Example(f"numbers {n}", f"numbers {n}", {}) for n in range(options.most)], 0.5)


slow = TaskDefinition(dataset, reward, Options)
"""


@pytest.fixture
def arguments(policy, tmp_path):
    (tmp_path / "slow.py").write_text(TASK)
    save_policy(policy, tmp_path / "model")
    flags = """--prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3 --warmup-steps 0 --eval-every 0
        --eval-examples 4 --eval-samples 2 --no-eval-first --save-every 0 --rollouts-every 0 --threads 1 --device cpu
        --no-preflight --reward-workers 2"""
    places = f"--runs-dir {tmp_path}/runs --checkpoints-dir {tmp_path}/kept --model-id {tmp_path}/model"
    return f"--task {tmp_path}/slow.py:slow --steps {STEPS} {places} {flags}".split()


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.skipif(bool(missing()), reason=f"SLURM of one's own (Debian: slurm-wlm) lacks {missing()}")
def test_a_job_that_is_stopped_and_queued_again_ends_with_the_same_weights(arguments, tmp_path):
    with cluster(cpus=2) as slurm:
        environment = {"MINRL_HOME": str(ROOT), "MINRL_PYTHON": os.sys.executable, "PYTHONPATH": str(ROOT)}

        def submit(name):
            sizes = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/{name}.log"]
            script = [str(ROOT / "deploy/slurm.sbatch"), *arguments]
            return slurm.run("sbatch", "--parsable", *sizes, *script, **environment).strip()

        def steps_of(job):
            return len(RunFolder(tmp_path / "runs" / f"slurm-{job}").metrics)

        def said(name):
            return (tmp_path / f"{name}.log").read_text()

        def begin_soon(job):
            """Two minutes are the default of a job that was queued again. It must have left its nodes for more than a
            second: slurmd takes a launch within the second of the job's end for one of the job that was ended."""
            wait_for(slurm, lambda: slurm.job(job)["JobState"] == "PENDING", 60)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+4")

        whole, stopped = submit("whole"), submit("stopped")
        wait_for(slurm, lambda: steps_of(stopped) >= 2, 180)
        slurm.run("scancel", "--signal=USR1", stopped)  # as before the time limit: all tasks, and what they started
        wait_for(slurm, lambda: slurm.job(stopped)["Restarts"] == "1", 60)
        assert "SIGUSR1: stopping after this step" in said("stopped")
        assert "saved before the time limit" in said("stopped")
        begin_soon(stopped)
        for job, name in ((whole, "whole"), (stopped, "stopped")):
            wait_for(slurm, lambda job=job: slurm.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), 240)
            assert slurm.job(job)["JobState"] == "COMPLETED", said(name)
    ends = [json.loads((tmp_path / "runs" / f"slurm-{job}" / "summary.json").read_text()) for job in (whole, stopped)]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert ends[0]["steps"] == ends[1]["steps"] == STEPS
    config = json.loads((tmp_path / "runs" / f"slurm-{stopped}" / "config.json").read_text())
    assert config["place"]["job"] == stopped
    assert [one["place"]["restarts"] for one in config["resumed"]] == ["1"]
